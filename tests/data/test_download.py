"""Downloads from a server on this machine: resumed, checked, unpacked inside their folder."""

import http.server
import io
import os
import stat
import tarfile
import threading
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kjax.data import download, hpatches
from kjax.data.download import (
    DownloadSource,
    Limits,
    download_hpatches,
    download_phototour,
    fetch,
    unpack,
)
from kjax.data.phototour import read_phototour, write_phototour
from kjax.errors import InputError

CONTENT = np.random.default_rng(0).bytes(300_000)


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; counts what it sends, and misbehaves as told."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/set.zip": CONTENT}
        self.tag = '"first"'
        self.honours_range = True
        self.cuts = []  # how many bytes to send before breaking off, one per answer
        self.failures = []  # status codes to answer with before serving anything
        self.length = None  # what to answer as the length, if not the truth
        self.requests = []
        self.sent = 0

    def address(self, name="set.zip"):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests.append(dict(self.headers))
        content = server.files.get(self.path)
        if content is None or server.failures:
            self.send_error(server.failures.pop(0) if server.failures else 404)
            return
        start = self.requested_start()
        if start is not None and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200 if start is None else 206)
        if start is not None:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        rest = content[start or 0 :]
        length = str(len(rest)) if server.length is None else server.length
        if length:
            self.send_header("Content-Length", length)
        self.send_header("ETag", server.tag)
        self.end_headers()
        if server.cuts:
            rest = rest[: server.cuts.pop(0)]
            self.close_connection = True
        server.sent += len(rest)
        self.wfile.write(rest)

    def requested_start(self):
        wanted = self.headers.get("Range")
        if not wanted or not self.server.honours_range:
            return None
        if self.headers.get("If-Range") != self.server.tag:
            return None
        return int(wanted.removeprefix("bytes=").removesuffix("-"))

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(addresses, target, **options):
    return fetch(addresses, target, progress=False, pause=0.0, **options)


def refused(message):
    return pytest.raises(InputError, match=message)


# Fetching


def test_a_file_arrives_whole(server, tmp_path):
    target = get([server.address()], tmp_path / "a")

    assert target.read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["a"]


def test_a_cut_connection_is_resumed_where_it_broke(server, tmp_path):
    server.cuts = [100_000, 50_000]
    get([server.address()], tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [request.get("Range") for request in server.requests] == [
        None,
        "bytes=100000-",
        "bytes=150000-",
    ]
    assert server.sent == len(CONTENT)


def test_an_interrupted_download_is_not_taken_for_whole_and_goes_on_later(server, tmp_path):
    server.cuts = [100_000]
    with refused("ended after 100000 of 300000 bytes.* run again to go on") as caught:
        get([server.address()], tmp_path / "a", attempts=1)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a").exists()

    get([server.address()], tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.sent == len(CONTENT)


def test_a_busy_server_does_not_cost_what_is_there_already(server, tmp_path):
    server.cuts = [100_000]
    with refused("run again"):
        get([server.address()], tmp_path / "a", attempts=1)
    server.failures = [503]
    get([server.address()], tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.sent == len(CONTENT)


def test_a_part_longer_than_the_file_is_dropped(server, tmp_path):
    (tmp_path / "a.part").write_bytes(CONTENT + b"more")
    state = f'{{"address": "{server.address()}", "validator": "\\"first\\""}}'
    (tmp_path / "a.part.json").write_text(state)

    assert get([server.address()], tmp_path / "a").read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_is_read_from_the_start(server, tmp_path):
    server.honours_range = False
    server.cuts = [100_000]
    get([server.address()], tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.sent == 100_000 + len(CONTENT)


def test_a_file_that_changed_meanwhile_is_read_from_the_start(server, tmp_path):
    server.cuts = [100_000]
    with refused("run again"):
        get([server.address()], tmp_path / "a", attempts=1)
    server.tag, server.files["/set.zip"] = '"second"', CONTENT[::-1]

    get([server.address()], tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT[::-1]


def test_the_next_mirror_takes_over_from_the_start(server, tmp_path):
    """Mirrors pack differently, so that halves of two archives do not make one."""
    server.files["/other.zip"] = CONTENT[::-1]
    server.cuts = [100_000]
    addresses = [server.address(), server.address("other.zip")]
    get(addresses, tmp_path / "a", attempts=1)

    assert (tmp_path / "a").read_bytes() == CONTENT[::-1]


def test_a_dead_address_is_skipped(server, tmp_path):
    get([server.address("gone.zip"), server.address()], tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == CONTENT
    assert len(server.requests) == 2  # what is not found is not asked for again


def test_a_part_that_lacks_nothing_but_the_rename(server, tmp_path):
    (tmp_path / "a.part").write_bytes(CONTENT)
    state = f'{{"address": "{server.address()}", "validator": "\\"first\\""}}'
    (tmp_path / "a.part.json").write_text(state)
    get([server.address()], tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.sent == 0


def test_no_address_answers(server, tmp_path):
    addresses = [server.address("x"), server.address("y")]
    with refused(r"cannot download a \(.*/x: .*404.*; .*/y: .*404") as caught:
        get(addresses, tmp_path / "a")
    assert "\n" not in str(caught.value)


def test_redirects_never_leave_https():
    handler = download._NoDowngrade()
    request = urllib.request.Request("https://example.org/a")
    arguments = (request, io.BytesIO(), 302, "Found", {})

    assert handler.redirect_request(*arguments, "https://example.net/b") is not None
    with pytest.raises(urllib.error.URLError, match="from https to http:"):
        handler.redirect_request(*arguments, "http://example.net/b")


@pytest.mark.parametrize("length", ["abc", "-5", "1e3", "12 34", str(10**15), "9" * 5000])
def test_a_length_that_is_none_is_one_line(server, tmp_path, length):
    server.length = length
    with refused(r"cannot download set \(.*the server (gives|offers)"):
        get([server.address()], tmp_path / "set.archive", attempts=1)


def test_a_server_without_an_end_is_left(server, tmp_path):
    limits = Limits(size=100_000)
    server.length = ""  # it does not say
    with refused("sends more than 100,000 bytes"):
        get([server.address()], tmp_path / "set.archive", attempts=1, limits=limits)
    assert (tmp_path / "set.archive.part").stat().st_size <= 100_000
    server.length = None
    with refused("offers 300,000 bytes, more than any set has"):
        get([server.address()], tmp_path / "other.archive", attempts=1, limits=limits)


@pytest.mark.parametrize(
    "state",
    [
        "[]",
        '"text"',
        "3",
        "null",
        "{",
        "[" * 100_000,
        '{"address": ADDRESS, "validator": 3}',
        '{"address": ADDRESS, "validator": ["x"]}',
        r'{"address": ADDRESS, "validator": "a\r\nHost: evil"}',
        r'{"address": ADDRESS, "validator": "\u20ac"}',
    ],
)
def test_a_damaged_record_of_a_part_starts_again(server, tmp_path, state):
    (tmp_path / "set.archive.part").write_bytes(b"half")
    text = state.replace("ADDRESS", f'"{server.address()}"')
    (tmp_path / "set.archive.part.json").write_text(text)
    assert get([server.address()], tmp_path / "set.archive").read_bytes() == CONTENT
    assert "Range" not in server.requests[0]


@pytest.mark.parametrize(
    ("start", "target"),
    [("http", "ftp://x/b"), ("http", "file:///etc/passwd"), ("https", "HTTP://x/b")],
)
def test_redirects_stay_on_the_web(start, target):
    arguments = urllib.request.Request(f"{start}://x/a"), None, 302, "Found", {}, target
    with pytest.raises(urllib.error.URLError, match="redirected"):
        download._NoDowngrade().redirect_request(*arguments)


# Unpacking


def zip_with(path, name, data=b"x", mode=stat.S_IFREG | 0o644):
    member = zipfile.ZipInfo(name)
    member.external_attr = mode << 16
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("good.txt", b"good")
        file.writestr(member, data)


def tar_with(path, name, kind=tarfile.REGTYPE):
    with tarfile.open(path, "w:gz") as file:
        good = tarfile.TarInfo("good.txt")
        good.size = 4
        file.addfile(good, io.BytesIO(b"good"))
        member = tarfile.TarInfo(name)
        member.type = kind
        member.linkname = "/etc/passwd"
        file.addfile(member, io.BytesIO())


EVIL_NAMES = ["../evil", "a/../../evil", "/tmp/evil", "..\\evil", "C:\\evil"]


@pytest.mark.parametrize("name", EVIL_NAMES)
@pytest.mark.parametrize("pack", [zip_with, tar_with])
def test_members_outside_the_folder_are_refused(tmp_path, pack, name):
    pack(tmp_path / "archive", name)
    with refused("lies outside its folder") as caught:
        unpack(tmp_path / "archive", tmp_path / "out", progress=False)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["archive"]  # not even the good member


def test_links_are_refused(tmp_path):
    zip_with(tmp_path / "zip", "link", b"/etc/passwd", mode=stat.S_IFLNK | 0o777)
    tar_with(tmp_path / "symbolic", "link", tarfile.SYMTYPE)
    tar_with(tmp_path / "hard", "link", tarfile.LNKTYPE)
    for name in ("zip", "symbolic", "hard"):
        with refused("is a link or a device"):
            unpack(tmp_path / name, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pack", [zip_with, tar_with])
def test_good_archives_are_unpacked(tmp_path, pack):
    pack(tmp_path / "archive", "deep/down/file")
    unpack(tmp_path / "archive", tmp_path / "out", progress=False)

    assert (tmp_path / "out" / "good.txt").read_bytes() == b"good"
    assert (tmp_path / "out" / "deep" / "down" / "file").is_file()


def test_damaged_archives_are_refused(tmp_path):
    (tmp_path / "page").write_text("<html>Please log in</html>")
    with refused("neither a zip nor a tar"):
        unpack(tmp_path / "page", tmp_path / "out", progress=False)
    zip_with(tmp_path / "zip", "file", b"some bytes")
    damaged = (tmp_path / "zip").read_bytes().replace(b"some bytes", b"sum bites!")
    (tmp_path / "zip").write_bytes(damaged)
    with refused("is damaged"):
        unpack(tmp_path / "zip", tmp_path / "out", progress=False)


def in_zip(path, size):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", bytes(size))


def in_tar(path, size):
    with tarfile.open(path, "w:gz") as file:
        member = tarfile.TarInfo("zeros")
        member.size = size
        file.addfile(member, io.BytesIO(bytes(size)))


@pytest.mark.parametrize("pack", [in_zip, in_tar])
def test_archives_out_of_proportion_are_refused(tmp_path, pack):
    limits = Limits(free=100_000)
    pack(tmp_path / "fair", 99_000)
    unpack(tmp_path / "fair", tmp_path / "out", progress=False, limits=limits)
    pack(tmp_path / "bomb", 5_000_000)
    with refused("would unpack to 5,000,000"):
        unpack(tmp_path / "bomb", tmp_path / "none", progress=False, limits=limits)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("pack", [zip_with, tar_with])
def test_archives_of_too_many_members_or_bytes_are_refused(tmp_path, pack):
    pack(tmp_path / "archive", "other.txt")
    for limits in (Limits(members=1), Limits(size=3)):
        with refused(r"archive is refused \(\d members of"):
            unpack(tmp_path / "archive", tmp_path / "out", progress=False, limits=limits)
    assert not (tmp_path / "out").exists()


def test_encrypted_and_unusual_archives_are_refused(tmp_path):
    zip_with(tmp_path / "zip", "file")
    content = bytearray((tmp_path / "zip").read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "zip").write_bytes(content)
    with refused("encrypted"):
        unpack(tmp_path / "zip", tmp_path / "out", progress=False)
    with zipfile.ZipFile(tmp_path / "lzma", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("a", b"x")
    with refused("compression is unusual"):
        unpack(tmp_path / "lzma", tmp_path / "out", progress=False)
    with tarfile.open(tmp_path / "xz", "w:xz") as file:
        file.addfile(tarfile.TarInfo("a"))
    with refused("neither a zip nor a tar"):
        unpack(tmp_path / "xz", tmp_path / "out", progress=False)


def test_a_header_of_gigabytes_is_not_read(tmp_path):
    with tarfile.open(tmp_path / "tar", "w:gz") as file:
        for name in ("plain", "a"):
            member = tarfile.TarInfo(name)
            member.pax_headers = {"comment": "x" * 20_000} if name == "a" else {}
            file.addfile(member)
    with refused(r"a header of \d\d,\d+ bytes"):
        unpack(tmp_path / "tar", tmp_path / "out", progress=False, limits=Limits(read=10_000))


# Sets


def zipped(folder, *, wrapped_in=""):
    """A folder's files as a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, Path(wrapped_in) / path.relative_to(folder))
    return buffer.getvalue()


def small_set(folder, *, seed=0, count=300):
    rng = np.random.default_rng(seed)
    patches = rng.integers(0, 256, (count, 64, 64), dtype=np.uint8)
    return write_phototour(folder, patches, np.arange(count) // 3)


def get_set(server, root, *, size=300):
    source = DownloadSource((server.address("gone.zip"), server.address()), size)
    return download_phototour("liberty", root, source=source, progress=False, pause=0.0)


@pytest.mark.parametrize("wrapped_in", ["", "some/liberty"])
def test_a_set_is_downloaded_unpacked_and_recorded(server, tmp_path, wrapped_in):
    original = small_set(tmp_path / "original")
    server.files["/set.zip"] = zipped(original, wrapped_in=wrapped_in)
    root = tmp_path / "data"
    folder = get_set(server, root)

    assert sorted(os.listdir(root)) == ["liberty", "liberty.sha256"]
    got = read_phototour(folder, cache_dir=tmp_path / "cache", progress=False)
    expected = read_phototour(original, cache_dir=tmp_path / "cache", progress=False)
    np.testing.assert_array_equal(got.patches, expected.patches)
    asked = len(server.requests)
    assert get_set(server, root) == folder
    assert len(server.requests) == asked  # a folder that is there is not fetched again


def test_other_data_than_on_record_are_refused(server, tmp_path):
    server.files["/set.zip"] = zipped(small_set(tmp_path / "first"))
    root = tmp_path / "data"
    folder = get_set(server, root)
    folder.rename(tmp_path / "away")
    server.tag, server.files["/set.zip"] = '"x"', zipped(small_set(tmp_path / "second", seed=1))

    with refused(r"other data than before .*delete .*liberty\.sha256 if you trust") as caught:
        get_set(server, root)
    assert "\n" not in str(caught.value)
    assert not folder.exists()
    (root / "liberty.sha256").unlink()
    assert get_set(server, root) == folder


def test_repacked_archives_of_the_same_data_are_accepted(server, tmp_path):
    original = small_set(tmp_path / "original")
    server.files["/set.zip"] = zipped(original)
    folder = get_set(server, tmp_path / "data")
    folder.rename(tmp_path / "away")
    server.tag, server.files["/set.zip"] = '"x"', zipped(original, wrapped_in="repacked")

    assert get_set(server, tmp_path / "data").is_dir()


def test_another_set_than_expected_is_refused(server, tmp_path):
    server.files["/set.zip"] = zipped(small_set(tmp_path / "original"))
    with refused("has 300 patches instead of 450092"):
        get_set(server, tmp_path / "data", size=450_092)
    assert os.listdir(tmp_path / "data") == []


def test_an_unknown_set_is_refused(tmp_path):
    with refused("unknown PhotoTourism set 'libery': did you mean 'liberty'"):
        download_phototour("libery", tmp_path)


def test_hpatches_is_downloaded(server, tmp_path):
    original = tmp_path / "original"
    rng = np.random.default_rng(0)
    for name in ("i_a", "v_b"):
        (original / name).mkdir(parents=True)
        for image in hpatches.IMAGES:
            column = rng.integers(0, 256, (130, 65), dtype=np.uint8)
            Image.fromarray(column).save(original / name / f"{image}.png")
    server.files["/set.zip"] = zipped(original, wrapped_in="hpatches-release")
    source = DownloadSource((server.address(),), 2)
    folder = download_hpatches(tmp_path / "data", source=source, progress=False, pause=0.0)

    assert sorted(os.listdir(folder)) == ["i_a", "v_b"]
    with refused("has 2 sequences instead of 116"):
        source = DownloadSource((server.address(),), 116)
        download_hpatches(tmp_path / "more", source=source, progress=False, pause=0.0)


def test_addresses_are_not_on_the_domain_that_changed_hands():
    every = [*download.PHOTOTOUR.values(), download.HPATCHES]
    assert all(len(source.addresses) >= 2 for source in every)
    assert all(source.addresses[0].startswith("https://") for source in every)
    assert not [a for source in every for a in source.addresses if "matthewalunbrown" in a]
