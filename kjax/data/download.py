"""Downloads of PhotoTourism and HPatches: resumable, unpacked safely, checked after decoding.

Mirrors have repacked these archives, so the MD5 sums in circulation conflict. The hash of the
decoded arrays is recorded beside the set instead, and later downloads must agree with it.
"""

import http.client
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kjax.data import hpatches, phototour
from kjax.errors import InputError, check_name, first_line
from kjax.files.atomic import write_text

TIMEOUT_SECONDS = 60
ATTEMPTS = 3
PAUSE_SECONDS = 1.0
BLOCK_BYTES = 1 << 20

# The Czech mirror is run by an author of HardNet; the two older homes may be out of reach. The data
# author's later domain (matthewalunbrown.com) now belongs to somebody else: never add it again.
_CTU = "https://cmp.felk.cvut.cz/~mishkdmy/datasets/BrownPhotoTour"
_UBC = "http://www.cs.ubc.ca/~mbrown/patchdata"
_IMPERIAL = "http://icvl.ee.ic.ac.uk/vbalnt"
ADDRESSES: dict[str, tuple[str, ...]] = {
    name: tuple(f"{mirror}/{name}.zip" for mirror in (_CTU, _UBC, _IMPERIAL))
    for name in ("liberty", "notredame", "yosemite")
}
ADDRESSES["notredame"] = (f"{_CTU}/notredame/notredame.zip", *ADDRESSES["notredame"])
ADDRESSES["hpatches"] = (
    "https://huggingface.co/datasets/vbalnt/hpatches/resolve/main/hpatches-release.zip",
    f"{_IMPERIAL}/hpatches/hpatches-release.tar.gz",
)
"""Addresses of each set, in the order in which they are tried."""
SIZES = {"liberty": 450_092, "notredame": 468_159, "yosemite": 633_587, "hpatches": 116}
"""Number of patches of each PhotoTourism set, and of sequences of HPatches."""
MAX_UNPACKED = 20 * 2**30
"""Maximum size of an unpacked archive in bytes; no published set needs as much."""


def download_set(name: str, root: str | Path, *, progress: bool = True) -> Path:
    """Return the folder `root/name` of a set of `ADDRESSES`, downloading it unless it exists.

    The folder appears last, so it is always complete. The recorded hash is kept beside it.
    """
    check_name("data set", name, ADDRESSES)
    target = Path(root) / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    archive = target.with_name(f"{name}.archive")
    fetch(ADDRESSES[name], archive, progress=progress)
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=target.parent) as scratch:
        try:
            unpack(archive, Path(scratch) / "unpacked", progress=progress)
            # The archive may wrap the set in folders.
            landmark = "*/ref.png" if name == "hpatches" else "info.txt"
            found = next(Path(scratch).rglob(landmark), Path(scratch) / landmark)
            folder = found.parents[landmark.count("/")]
            if name == "hpatches":
                size = len(hpatches.list_sequences(folder))
                digest = hpatches.decoded_hash(hpatches.read_hpatches(folder, progress=progress))
            else:
                blocks, point_ids = phototour.decode_folder(folder, progress=progress)
                size, digest = len(point_ids), phototour.decoded_hash(blocks, point_ids)
            if size != SIZES[name]:
                raise InputError(
                    f"the download of {name} has {size} patches or sequences instead of "
                    f"{SIZES[name]}: try again later, or give a local folder"
                )
        except InputError:
            archive.unlink()  # the next call downloads it again
            raise
        compare_or_record(target.with_name(f"{name}.sha256"), digest)
        folder.rename(target)
    archive.unlink()
    return target


def compare_or_record(record: Path, digest: str) -> None:
    """Compare a hash with the recorded one; the first download writes the record."""
    if not record.exists():
        write_text(record, f"{digest}\n")
    known = record.read_text(encoding="utf-8", errors="replace").strip()
    if known != digest:
        raise InputError(
            f"the download decodes to other data than before (SHA-256 {digest[:16]}…, on "
            f"record {known[:16]}…): delete {record} if you trust the new data"
        )


def fetch(addresses: Sequence[str], target: Path, *, progress: bool = True) -> Path:
    """Download `target` from the first address that answers, or resume its `.part`."""
    if target.exists():
        return target
    part = target.with_name(f"{target.name}.part")
    problems: dict[str, str] = {}
    for address in addresses:
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_SECONDS)
            try:
                _fetch_rest(address, part, progress=progress)
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)  # without urllib's brackets
                host = urllib.parse.urlsplit(address).hostname or address
                problems[host] = getattr(reason, "strerror", None) or str(error)
                if isinstance(error, urllib.error.HTTPError) and error.code in (403, 404, 410):
                    break
            else:
                part.replace(target)
                part.with_suffix(".state").unlink(missing_ok=True)
                return target
    reasons = "; ".join(f"{host}: {reason}" for host, reason in problems.items())
    raise InputError(
        f"cannot download {target.stem} ({reasons}): check the connection and run again "
        "to resume, or get the set elsewhere and give its folder"
    )


def _fetch_rest(address: str, part: Path, *, progress: bool) -> None:
    """Make one attempt to complete `part`; raise OSError or HTTPException if it fails."""
    offset, headers = resume_headers(address, part)
    request = urllib.request.Request(address, headers=headers)
    try:
        response = _OPENER.open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the requested range is beyond the file
            if error.headers.get("Content-Range") == f"bytes */{offset}":
                return  # complete, but not renamed yet
            part.unlink()
        raise
    with response:
        resumed = response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")
        if response.status != 206 or not resumed:
            offset = 0  # the file has changed, or the server ignores ranges
        tag = response.headers.get("ETag", "")
        validator = tag if tag.startswith('"') else response.headers.get("Last-Modified")
        part.with_suffix(".state").write_text(f"{address}\n{validator or ''}")
        length = response.headers.get("Content-Length", "")
        total = offset + int(length) if length.isdecimal() else None
        shown = {"desc": part.name.removesuffix(".archive.part"), "unit": "B", "unit_scale": True}
        bar = tqdm(total=total, initial=offset, disable=not progress, **shown)
        with bar, open(part, "ab" if offset else "wb") as file:
            while block := response.read(BLOCK_BYTES):
                file.write(block)
                bar.update(len(block))
    if total is not None and part.stat().st_size != total:
        raise ConnectionError(f"the connection ended after {part.stat().st_size} of {total} bytes")


def resume_headers(address: str, part: Path) -> tuple[int, dict[str, str]]:
    """Return the size of `part` and headers that ask for the rest; 0 and none to start again."""
    try:
        known, validator = part.with_suffix(".state").read_text(encoding="ascii").splitlines()
        offset = part.stat().st_size
    except (OSError, ValueError):
        return 0, {}
    if known != address or not offset:  # mirrors pack differently
        return 0, {}
    return offset, {"Range": f"bytes={offset}-", "If-Range": validator}


class NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to http, or to another scheme."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Raise for a redirect that is not allowed."""
        allowed = ("https:",) if req.type == "https" else ("https:", "http:")
        if not newurl.lower().startswith(allowed):
            raise urllib.error.URLError(f"redirected from {req.type} to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(NoDowngrade)


def unpack(archive: Path, folder: Path, *, progress: bool = True) -> None:
    """Unpack a zip or tar archive into `folder`; no member can end up outside it."""
    is_zip = zipfile.is_zipfile(archive)
    opener: Any = zipfile.ZipFile if is_zip else tarfile.open
    options = {} if is_zip else {"filter": "data"}
    try:
        with opener(archive) as opened:
            members = opened.infolist() if is_zip else opened.getmembers()
            size = sum(one.file_size if is_zip else one.size for one in members)
            if size > MAX_UNPACKED:
                raise ValueError(f"it would unpack to {size / 1e9:.0f} GB")
            for member in tqdm(members, desc="unpacking", disable=not progress):
                opened.extract(member, folder, **options)
    except Exception as error:  # the two modules and the decompressors raise a dozen types
        if isinstance(error, OSError) and error.errno:  # a full disk, and not a damaged archive
            raise
        raise InputError(
            f"cannot unpack {archive} ({first_line(error)}): delete it and download it again"
        ) from None
