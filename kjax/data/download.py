"""Downloads of PhotoTourism and HPatches: resumable, unpacked safely, checked after decoding.

Archives of these sets have been repacked by their mirrors, so the MD5 sums in circulation conflict.
The decoded arrays are hashed instead. No hash of them that we could vouch for is published: the
first download is checked for its number of patches and records its hash beside the set; later
downloads must agree with the record.
"""

import contextlib
import dataclasses
import gzip
import http.client
import json
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from tqdm import tqdm

from kjax.data import hpatches, phototour
from kjax.errors import InputError, unknown_name
from kjax.files.atomic import write_text
from kjax.files.json import parse_json

TIMEOUT_SECONDS = 60
FREE_BYTES = 128 << 20
"""Bytes that every archive may unpack to."""
LARGEST_RATIO = 20
"""Maximum unpacked size of larger archives, as a multiple of their own."""
BLOCK_BYTES = 1 << 20
_ENCRYPTED = 0x1
"""The bit of a zip member's flags that tells that it is encrypted."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What an archive may come to.

    Attributes:
        size: bytes of the archive, and of what it holds: HPatches, the largest set, takes 4.2 GB.
        members: how many it may have: the sets have about two thousand.
        read: bytes of a tar archive that are read at once.
        free: bytes that any archive may hold, however small it is.
    """

    size: int = 20 << 30
    members: int = 100_000
    read: int = 16 << 20
    free: int = FREE_BYTES


LIMITS = Limits()


def check_unpacked(packed: int, unpacked: int, *, free: int = FREE_BYTES) -> None:
    """Raise if a file unpacks to far more than its own size."""
    if unpacked > max(free, LARGEST_RATIO * packed):
        raise InputError(
            f"{packed:,} bytes would unpack to {unpacked:,}: the file is damaged, or made to fill "
            "the memory"
        )


@dataclasses.dataclass(frozen=True)
class DownloadSource:
    """The place where a set can be had.

    Attributes:
        addresses: tried in this order.
        size: patches of a PhotoTourism set, sequences of HPatches.
    """

    addresses: tuple[str, ...]
    size: int


# The mirror of the Czech Technical University is run by an author of HardNet. The two older homes
# may be out of reach. The data author's own later domain (matthewalunbrown.com) now belongs to
# somebody else and must not come back into this list.
_CTU = "https://cmp.felk.cvut.cz/~mishkdmy/datasets/BrownPhotoTour"
_UBC = "http://www.cs.ubc.ca/~mbrown/patchdata"
_IMPERIAL = "http://icvl.ee.ic.ac.uk/vbalnt"
_MIRRORS = {
    "liberty": (_CTU, _UBC, _IMPERIAL),
    "notredame": (f"{_CTU}/notredame", _CTU, _UBC, _IMPERIAL),
    "yosemite": (_CTU, _UBC, _IMPERIAL),
}
_SIZES = {"liberty": 450_092, "notredame": 468_159, "yosemite": 633_587}
PHOTOTOUR = {
    name: DownloadSource(tuple(f"{mirror}/{name}.zip" for mirror in mirrors), _SIZES[name])
    for name, mirrors in _MIRRORS.items()
}
HPATCHES = DownloadSource(
    (
        "https://huggingface.co/datasets/vbalnt/hpatches/resolve/main/hpatches-release.zip",
        f"{_IMPERIAL}/hpatches/hpatches-release.tar.gz",
    ),
    116,
)


# Sets


def download_phototour(
    name: str,
    root: str | Path,
    *,
    source: DownloadSource | None = None,
    progress: bool = True,
    pause: float = 1.0,
) -> Path:
    """Makes sure that the set is at `root/name`, and returns that folder.

    A folder that is already there is taken as it is.

    Args:
        name: liberty, notredame or yosemite, or anything if `source` is given.
        root: folder for the set, its archive while it is fetched, and the record of its hash.
        source: where to get it, if not from `PHOTOTOUR`.
        progress: show bars.
        pause: seconds to wait before another attempt.
    """
    if source is None:
        if name not in PHOTOTOUR:
            raise unknown_name("PhotoTourism set", name, PHOTOTOUR)
        source = PHOTOTOUR[name]
    size = source.size

    def check(folder: Path) -> str:
        blocks, point_ids = phototour.decode_folder(folder, progress=progress)
        if len(point_ids) != size:
            raise InputError(
                f"the download of {name} has {len(point_ids)} patches instead of {size}: "
                "it is another set; try again later, or give a local folder"
            )
        return phototour.decoded_hash(blocks, point_ids)

    return _obtain(Path(root) / name, source, "info.txt", check, progress=progress, pause=pause)


def download_hpatches(
    root: str | Path,
    *,
    source: DownloadSource = HPATCHES,
    progress: bool = True,
    pause: float = 1.0,
) -> Path:
    """Makes sure that HPatches is at `root/hpatches`, and returns that folder.

    Takes 4.2 GB to fetch. A folder that is already there is taken as it is; see
    `download_phototour` for the arguments.
    """

    def check(folder: Path) -> str:
        found = len(hpatches.list_sequences(folder))
        if found != source.size:
            raise InputError(
                f"the download of HPatches has {found} sequences instead of {source.size}: "
                "try again later, or give a local folder"
            )
        return hpatches.decoded_hash(hpatches.read_hpatches(folder, progress=progress))

    return _obtain(
        Path(root) / "hpatches", source, "*/ref.png", check, progress=progress, pause=pause
    )


def _obtain(
    target: Path,
    source: DownloadSource,
    landmark: str,
    check: Callable[[Path], str],
    *,
    progress: bool,
    pause: float,
) -> Path:
    """Fetches, unpacks, checks; `target` appears last, so that it is whole if it is there.

    The archive may wrap the set in folders: the set is where `landmark` is.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    archive = fetch(
        source.addresses, target.with_name(f"{target.name}.archive"), progress=progress, pause=pause
    )
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        try:
            unpacked = Path(scratch) / "unpacked"
            unpack(archive, unpacked, progress=progress)
            found = next(unpacked.rglob(landmark), None)
            if found is None:
                raise InputError(f"the download of {target.name} holds no {landmark}: try again")
            folder = found.parents[landmark.count("/")]
            digest = check(folder)
        except InputError:
            archive.unlink()  # or the next call would trip over it again
            raise
        compare_or_record(target.with_name(f"{target.name}.sha256"), digest)
        folder.rename(target)
    archive.unlink()
    return target


def compare_or_record(record: Path, digest: str) -> None:
    """Compares a hash with the one on record, which the first download writes."""
    if record.exists():
        known = record.read_text(encoding="utf-8", errors="replace").strip()
        if known != digest:
            raise InputError(
                f"the download decodes to other data than before (SHA-256 {digest[:16]}…, on "
                f"record {known[:16]}…): delete {record} if you trust the new data"
            )
        return
    write_text(record, f"{digest}\n")


# Fetching


def fetch(
    addresses: Sequence[str],
    target: Path,
    *,
    progress: bool = True,
    attempts: int = 3,
    pause: float = 1.0,
    limits: Limits = LIMITS,
) -> Path:
    """Downloads the first address that answers to `target`, resuming what an earlier call began.

    Until it is whole the file is called `<target>.part`.
    """
    if target.exists():
        return target
    part = target.with_name(f"{target.name}.part")
    problems = []
    for address in addresses:
        for attempt in range(attempts):
            if attempt:
                time.sleep(pause)
            try:
                _fetch_rest(address, part, limits.size, progress=progress)
            except (OSError, http.client.HTTPException) as error:
                problems.append(f"{address}: {error}")
                if isinstance(error, urllib.error.HTTPError) and error.code in (403, 404, 410):
                    break
            else:
                part.replace(target)
                _validator_file(part).unlink(missing_ok=True)
                return target
    raise InputError(
        f"cannot download {target.stem} ({'; '.join(problems)}): run again to go on where it "
        "stopped, or get the set by other means and give its folder"
    )


def _fetch_rest(address: str, part: Path, most: int, *, progress: bool) -> None:
    """One attempt; afterwards `part` is whole, or an OSError or HTTPException was raised."""
    offset, headers = _resume_headers(address, part)
    request = urllib.request.Request(address, headers=headers)
    try:
        response = _OPENER.open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            if error.headers.get("Content-Range") == f"bytes */{offset}":
                return  # nothing was missing but the rename
            part.unlink()  # there is no such rest: start again
        raise
    with response:
        continued = response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")
        if response.status != 206 or not continued:
            offset = 0  # the file has changed, or the server sends it whole regardless
        _write_validator(address, part, response)
        total = _announced_size(response, offset, most)
        _copy(response, part, offset, total, most, progress=progress)
    if total is not None and part.stat().st_size != total:
        raise ConnectionError(f"the connection ended after {part.stat().st_size} of {total} bytes")


def _announced_size(response: Any, offset: int, most: int) -> int | None:
    """The size of the whole file; None if the server does not say."""
    length = response.headers.get("Content-Length")
    if not length:
        return None
    if not (length.isascii() and length.isdecimal()):
        raise ConnectionError(f"the server gives the length {length[:40]!r}")
    total = offset + int(length[:20])
    if total > most:
        raise ConnectionError(f"the server offers {total:,} bytes, more than any set has")
    return total


def _copy(
    response: Any, part: Path, offset: int, total: int | None, most: int, *, progress: bool
) -> None:
    name = part.name.removesuffix(".archive.part")
    bar = tqdm(
        total=total, initial=offset, unit="B", unit_scale=True, desc=name, disable=not progress
    )
    with bar, open(part, "ab" if offset else "wb") as file:
        while block := response.read(min(BLOCK_BYTES, most)):
            if file.tell() + len(block) > most:
                raise ConnectionError(f"the server sends more than {most:,} bytes")
            file.write(block)
            bar.update(len(block))


def _resume_headers(address: str, part: Path) -> tuple[int, dict[str, str]]:
    """How much is there already, and the request for the rest if the file is still the same."""
    try:
        state = parse_json(_validator_file(part).read_bytes())
        offset = part.stat().st_size
    except (OSError, ValueError):
        return 0, {}
    if not isinstance(state, dict) or state.get("address") != address or not offset:
        return 0, {}  # another mirror's archive may be packed differently
    validator = state.get("validator")
    if not isinstance(validator, str) or not re.fullmatch(r"[ -~]+", validator):
        return 0, {}
    return offset, {"Range": f"bytes={offset}-", "If-Range": validator}


def _write_validator(address: str, part: Path, response: Any) -> None:
    tag = response.headers.get("ETag", "")
    validator = tag if tag.startswith('"') else response.headers.get("Last-Modified")  # not weak
    _validator_file(part).write_text(json.dumps({"address": address, "validator": validator}))


def _validator_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to http, nor to anything else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        allowed = ("https:",) if req.type == "https" else ("https:", "http:")
        if not newurl.lower().startswith(allowed):
            raise urllib.error.URLError(f"redirected from {req.type} to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_NoDowngrade)


# Unpacking


def unpack(archive: Path, folder: Path, *, progress: bool = True, limits: Limits = LIMITS) -> None:
    """Unpacks a zip or tar archive inside `folder`; refuses one that could write elsewhere.

    A tar archive may be compressed with gzip. Nothing is written if any member has an absolute
    path, a `..`, is a link, a device or encrypted, or if all of them together are more than
    the limits or `check_unpacked` allow.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                _unpack_zip(zipped, _Total(archive, limits), folder, progress=progress)
        else:
            with _open_tar(archive, limits.read) as tarred:
                _unpack_tar(tarred, _Total(archive, limits), folder, progress=progress)
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(f"{archive} is damaged ({error}): delete it, download again") from error


_DAMAGE = (
    *(zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, struct.error, EOFError),
    # Methods of compression and encryption, numbers and names that make no sense.
    *(NotImplementedError, RuntimeError, ValueError, OverflowError, IndexError),
)
"""What zipfile and tarfile raise for files that are not their own."""


@contextlib.contextmanager
def _open_tar(archive: Path, most: int) -> Iterator[tarfile.TarFile]:
    """A tar archive, plain or in gzip; other compressions may ask for any amount of memory."""
    with archive.open("rb") as probed:
        zipped = probed.read(2) == b"\x1f\x8b"
    with gzip.open(archive) if zipped else archive.open("rb") as content:
        try:
            file = tarfile.TarFile(fileobj=_SmallReads(content, most))  # type: ignore[arg-type]
        except (tarfile.ReadError, *_DAMAGE):
            raise InputError(
                f"{archive} is neither a zip nor a tar archive: download it again"
            ) from None
        with file:
            yield file


class _SmallReads:
    """A file of which no more than `most` is read at once, as long names would have it."""

    def __init__(self, file: Any, most: int) -> None:
        self._file, self._most = file, most
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        if not 0 <= size <= self._most:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        return self._file.read(size)


def _unpack_zip(file: zipfile.ZipFile, total: "_Total", folder: Path, *, progress: bool) -> None:
    archive, members = total.archive, file.infolist()
    for member in members:
        kind = stat.S_IFMT(member.external_attr >> 16)
        _check_member(archive, member.filename, plain=kind in (0, stat.S_IFREG, stat.S_IFDIR))
        if member.flag_bits & _ENCRYPTED:
            raise InputError(f"{archive} is refused: it is encrypted; get it elsewhere")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(f"{archive} is refused: its compression is unusual; get it elsewhere")
        total.add(member.file_size)
    for member in tqdm(members, desc="unpacking", disable=not progress):
        if not member.is_dir():
            with file.open(member) as source:
                _write_member(source, folder / _relative(member.filename))


def _unpack_tar(file: tarfile.TarFile, total: "_Total", folder: Path, *, progress: bool) -> None:
    members = []
    for member in file:  # one by one, so that no more than the limit is ever unpacked
        _check_member(total.archive, member.name, plain=member.isreg() or member.isdir())
        total.add(member.size)
        members.append(member)
    for member in tqdm(members, desc="unpacking", disable=not progress):
        if source := file.extractfile(member):
            with contextlib.closing(source):
                _write_member(source, folder / _relative(member.name))


class _Total:
    """What the members of an archive come to; refuses more than is good."""

    def __init__(self, archive: Path, limits: Limits) -> None:
        self.archive, self._limits = archive, limits
        self._packed = archive.stat().st_size
        self._members = self._bytes = 0

    def add(self, size: int) -> None:
        """Counts one more."""
        self._members += 1
        self._bytes += size
        try:
            limits = self._limits
            if self._members > limits.members or not 0 <= self._bytes <= limits.size:
                raise InputError(f"{self._members:,} members of {self._bytes:,} bytes or more")
            check_unpacked(self._packed, self._bytes, free=limits.free)
        except InputError as error:
            raise InputError(f"{self.archive} is refused ({error}): get it elsewhere") from None


def _relative(name: str) -> PurePosixPath:
    return PurePosixPath(name.replace("\\", "/"))


def _check_member(archive: Path, name: str, *, plain: bool) -> None:
    if "\0" in name:
        raise InputError(f"{archive} is damaged: it has a member {name!r}; download it again")
    path = _relative(name)
    outside = path.is_absolute() or ".." in path.parts or PureWindowsPath(name).drive
    if outside or not plain:
        what = "lies outside its folder" if outside else "is a link or a device"
        raise InputError(f"{archive} is refused: its member {name!r} {what}; get it elsewhere")


def _write_member(source: Any, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as file:
        shutil.copyfileobj(source, file, BLOCK_BYTES)
