"""Downloads from a server on this machine: resumed, checked, unpacked inside their folder."""

import contextlib
import http.server
import io
import os
import shutil
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
from refusals import assert_refused, refused

from kjax.data import download, hpatches
from kjax.data.download import download_set, fetch, unpack
from kjax.data.phototour import read_phototour, write_phototour
from kjax.errors import InputError

CONTENT = np.random.default_rng(0).bytes(300_000)


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`, counts what it sends, and can misbehave."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/set.zip": CONTENT}
        self.tag = '"first"'
        self.honours_range = True
        self.cuts = []  # how many bytes to send before breaking off, one per answer
        self.failures = []  # status codes to answer with before serving anything
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
        beyond = start is not None and start >= len(content)
        self.send_response(416 if beyond else 200 if start is None else 206)
        if start is not None:
            part = "*" if beyond else f"{start}-{len(content) - 1}"
            self.send_header("Content-Range", f"bytes {part}/{len(content)}")
        rest = content[start or 0 :]
        self.send_header("Content-Length", str(len(rest)))
        self.send_header("ETag", server.tag)
        self.end_headers()
        if server.cuts:
            rest = rest[: server.cuts.pop(0)]
            self.close_connection = True
        server.sent += len(rest)
        self.wfile.write(rest)

    def requested_start(self):
        wanted, same = self.headers.get("Range"), self.headers.get("If-Range") == self.server.tag
        if not wanted or not self.server.honours_range or not same:
            return None
        return int(wanted.removeprefix("bytes=").removesuffix("-"))

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0.0)


def get(folder, *addresses):
    return fetch(addresses, folder / "a", progress=False).read_bytes()


# Fetching


@pytest.mark.parametrize(
    ("cuts", "honours_range", "ranges", "sent"),
    [
        ([], True, [None], 300_000),
        ([100_000, 50_000], True, [None, "bytes=100000-", "bytes=150000-"], 300_000),
        ([100_000], False, [None, "bytes=100000-"], 400_000),
    ],
)
def test_a_cut_connection_is_resumed(server, tmp_path, cuts, honours_range, ranges, sent):
    server.cuts, server.honours_range = cuts, honours_range
    assert get(tmp_path, server.address()) == CONTENT
    assert os.listdir(tmp_path) == ["a"]
    assert [request.get("Range") for request in server.requests] == ranges
    assert server.sent == sent


def test_an_interrupted_download_is_resumed_later(server, tmp_path, monkeypatch):
    server.cuts = [100_000]
    with monkeypatch.context() as patch:
        patch.setattr(download, "ATTEMPTS", 1)
        with refused("ended after 100000 of 300000 bytes.* run again to resume"):
            get(tmp_path, server.address())
    assert not (tmp_path / "a").exists()
    assert get(tmp_path, server.address()) == CONTENT
    assert server.sent == len(CONTENT)


STATE = 'ADDRESS\n"first"'
DAMAGED_STATES = ["", "ADDRESS", "ADDRESS\n", "ADDRESS\na\nHost: evil", "ADDRESS\n€", 'x\n"first"']


@pytest.mark.parametrize(
    ("part", "state", "failures", "sent"),
    [
        (CONTENT[:100_000], STATE, [503], 200_000),
        (CONTENT, STATE, [], 0),
        (CONTENT + b"more", STATE, [], 300_000),
        (b"of an older file", 'ADDRESS\n"older"', [], 300_000),
        *((b"half", state, [], 300_000) for state in DAMAGED_STATES),
    ],
)
def test_an_earlier_part_is_completed_or_dropped(server, tmp_path, part, state, failures, sent):
    server.failures = failures
    (tmp_path / "a.part").write_bytes(part)
    (tmp_path / "a.state").write_text(state.replace("ADDRESS", server.address()))
    assert get(tmp_path, server.address()) == CONTENT
    assert server.sent == sent
    assert ("Range" in server.requests[0]) == (state not in DAMAGED_STATES)


def test_the_next_mirror_takes_over_from_the_start(server, tmp_path, monkeypatch):
    """Mirrors pack differently, so halves of two archives do not make one."""
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    server.files["/other.zip"] = CONTENT[::-1]
    server.cuts = [100_000]
    assert get(tmp_path, server.address(), server.address("other.zip")) == CONTENT[::-1]


def test_a_missing_file_is_requested_once(server, tmp_path):
    with refused(r"cannot download a \(127\.0\.0\.1: HTTP Error 404: Not Found\): check"):
        get(tmp_path, server.address("x"), server.address("y"))
    assert get(tmp_path, server.address("gone.zip"), server.address()) == CONTENT
    assert len(server.requests) == 4


def test_redirects_stay_on_the_web_and_never_leave_https():
    for start, target, allowed in (
        *((start, "https://x/b", True) for start in ("https", "http")),
        *(("https", target, False) for target in ("http://x/b", "HTTP://x/b")),
        *(("http", target, False) for target in ("ftp://x/b", "file:///etc/passwd")),
    ):
        request = urllib.request.Request(f"{start}://x/a")
        error = pytest.raises(urllib.error.URLError, match=f"from {start} to {target}")
        with contextlib.nullcontext() if allowed else error:
            arguments = (request, io.BytesIO(), 302, "Found", {}, target)
            assert download.NoDowngrade().redirect_request(*arguments) is not None


# Unpacking


def unpacked(folder, name):
    return unpack(folder / name, folder / "out", progress=False)


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


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/tmp/evil", "..\\evil", "C:\\evil"])
@pytest.mark.parametrize("pack", [zip_with, tar_with])
def test_no_member_leaves_the_folder(tmp_path, pack, name):
    pack(tmp_path / "archive", name)
    with contextlib.suppress(InputError):  # either refused or put into the folder
        unpacked(tmp_path, "archive")
    assert sorted(os.listdir(tmp_path)) == ["archive", "out"]
    assert not Path("/tmp/evil").exists()


def test_links_are_not_followed(tmp_path):
    zip_with(tmp_path / "zip", "link", b"/etc/passwd", mode=stat.S_IFLNK | 0o777)
    unpacked(tmp_path, "zip")
    assert not (tmp_path / "out" / "link").is_symlink()
    (tmp_path / "out" / "link").unlink()
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
        tar_with(tmp_path / "tar", "link", kind)
        assert_refused("cannot unpack", unpacked, tmp_path, "tar")
        assert not (tmp_path / "out" / "link").is_symlink()


@pytest.mark.parametrize("pack", [zip_with, tar_with])
def test_good_archives_are_unpacked_up_to_a_size(tmp_path, pack, monkeypatch):
    pack(tmp_path / "archive", "deep/down/file")
    with monkeypatch.context() as patch, refused("it would unpack to"):
        patch.setattr(download, "MAX_UNPACKED", 3)
        unpacked(tmp_path, "archive")
    unpacked(tmp_path, "archive")
    assert (tmp_path / "out" / "good.txt").read_bytes() == b"good"
    assert (tmp_path / "out" / "deep" / "down" / "file").is_file()


def test_damaged_archives_are_refused(tmp_path):
    (tmp_path / "page").write_text("<html>Please log in</html>")
    zip_with(tmp_path / "zip", "file", b"some bytes")
    whole = (tmp_path / "zip").read_bytes()
    (tmp_path / "garbled").write_bytes(whole.replace(b"some bytes", b"sum bites!"))
    encrypted = bytearray(whole)
    for magic, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        encrypted[whole.index(magic) + offset] |= 1
    (tmp_path / "encrypted").write_bytes(encrypted)
    tar_with(tmp_path / "tar", "file")
    (tmp_path / "cut").write_bytes((tmp_path / "tar").read_bytes()[:60])
    for name in ("page", "garbled", "encrypted", "cut"):
        with refused(f"cannot unpack .*{name} .*: delete it and download it again"):
            unpacked(tmp_path, name)


# Sets


def zipped(folder, wrapped_in=""):
    """Return a folder's files as a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, Path(wrapped_in) / path.relative_to(folder))
    return buffer.getvalue()


def small_set(folder, *, seed=0, count=30):
    patches = np.random.default_rng(seed).integers(0, 256, (count, 64, 64), dtype=np.uint8)
    return write_phototour(folder, patches, np.arange(count) // 3)


@pytest.fixture
def sources(server, monkeypatch):
    """Serve sets of 30 patches and of 2 sequences from this machine."""
    for name, size in (("liberty", 30), ("hpatches", 2)):
        addresses = (server.address("gone.zip"), server.address())
        monkeypatch.setitem(download.ADDRESSES, name, addresses)
        monkeypatch.setitem(download.SIZES, name, size)


def get_set(root, name="liberty"):
    return download_set(name, root, progress=False)


def test_a_set_is_recorded_and_later_only_repacked_data_accepted(server, sources, tmp_path):
    original, root = small_set(tmp_path / "original"), tmp_path / "data"
    expected = read_phototour(original, cache_dir=tmp_path / "cache", progress=False)
    for wrapped_in in ("", "some/liberty"):
        server.tag, server.files["/set.zip"] = f'"{wrapped_in}"', zipped(original, wrapped_in)
        folder = get_set(root)
        assert sorted(os.listdir(root)) == ["liberty", "liberty.sha256"]
        got = read_phototour(folder, cache_dir=tmp_path / "cache", progress=False)
        np.testing.assert_array_equal(got.patches, expected.patches)
        requested = len(server.requests)
        assert get_set(root) == folder
        assert len(server.requests) == requested  # an existing folder is not downloaded again
        shutil.rmtree(folder)
    server.tag, server.files["/set.zip"] = '"y"', zipped(small_set(tmp_path / "second", seed=1))
    assert_refused(r"other data than before .*delete .*liberty\.sha256 if you trust", get_set, root)
    assert not folder.exists()
    (root / "liberty.sha256").unlink()
    assert get_set(root) == folder


def test_a_set_of_another_size_and_an_unknown_name_are_refused(server, sources, tmp_path):
    server.files["/set.zip"] = zipped(small_set(tmp_path / "original", count=33))
    assert_refused("has 33 patches or sequences instead of 30", get_set, tmp_path / "data")
    assert os.listdir(tmp_path / "data") == []
    assert_refused("unknown data set 'libery': did you mean 'liberty'", get_set, tmp_path, "libery")


def test_hpatches_is_downloaded(server, sources, tmp_path):
    original = tmp_path / "original"
    for name in ("i_a", "v_b"):
        (original / name).mkdir(parents=True)
        for image in hpatches.IMAGES:
            Image.new("L", (65, 130), 7).save(original / name / f"{image}.png")
    server.files["/set.zip"] = zipped(original, "hpatches-release")
    assert sorted(os.listdir(get_set(tmp_path / "data", "hpatches"))) == ["i_a", "v_b"]


def test_addresses_are_not_on_the_domain_that_changed_hands():
    for addresses in download.ADDRESSES.values():
        assert len(addresses) >= 2
        assert addresses[0].startswith("https://")
        assert not [address for address in addresses if "matthewalunbrown" in address]
