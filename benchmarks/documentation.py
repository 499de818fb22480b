"""Run every command of the README and of the how-to pages, as a new user would.

    python3 benchmarks/documentation.py                        # half an hour on two cores
    python3 benchmarks/documentation.py --photos FOLDER --work /tmp/work
    python3 benchmarks/documentation.py --python .venv/bin/python --only README.md howto/match.md

Copies git's index, makes a new virtual environment, and runs all bash and Python blocks
there in the order of the site, the README's installation first. --python omits installations.

`photos`, `a.jpg` and `b.jpg` are JPEGs of --photos, or views of scikit-image's stereo pair rendered
with its measured disparity; 600 pixels. Trainings get fewer steps (`SHORTER`), but not quickstart.
Blocks below a comment `readme-test: needs NAME` run if there is a program or a module of that name;
blocks below another `readme-test` comment are skipped. Returns 1 if anything failed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"^(?:<!-- readme-test: (?P<why>.+?) -->\n)?```(?P<language>bash|python)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SHORTER = {
    "train": "--config.train.steps=4 --config.train.pairs=32",
    "train-matcher": "--config.init=kjax/weights/trained/matchers/best.npz --config.model.heads=2 "
    "--config.model.head_size=32 --config.model.self_every=2 --config.train.dtype=float32 "
    "--config.train.steps=2 --config.train.pairs=2 --config.data.validation_every=4",
    "tune": "--weights tiny --steps 20",
}
"""Arguments added to commands of kjax, except for the config quickstart."""


def read_blocks(page: Path) -> list[re.Match[str]]:
    """Return the bash and Python blocks of a page."""
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


def howto_pages() -> list[Path]:
    """Return the how-to pages in the order of the site."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\n  - Use:")[2]
    names = re.findall(r": (\S+\.md)$", nav.partition("\n  - Results:")[0], re.MULTILINE)
    return [ROOT / "docs" / name for name in names if (ROOT / "docs" / name).is_file()]


def make_photos(folder: str, source: str) -> None:
    """Write `photos/`, `a.jpg`, `b.jpg` and the patches `a.png` and `b.png`."""
    import numpy as np
    import skimage.data
    from PIL import Image

    files = sorted(Path(source).glob("*.[jJ]*")) if source else []
    photos = [Image.open(path).convert("RGB") for path in files]
    if not photos:
        left, _, disparity = skimage.data.stereo_motorcycle()
        disparity = np.where(np.isfinite(disparity), disparity, 20.0)
        far_to_near = np.argsort(disparity, axis=None)
        rows, columns = np.divmod(far_to_near, left.shape[1])
        for baseline in np.arange(-1, 3, 0.5):
            moved = np.rint(columns - baseline * disparity.flat[far_to_near]).astype(int)
            view = np.zeros_like(left)
            view[rows, moved.clip(0, left.shape[1] - 1)] = left[rows, columns]
            photos.append(Image.fromarray(view))
    for name, photo in zip("cabdefgh", photos, strict=False):
        photo.thumbnail((600, 600))
        photo.save(f"{folder}/photos/{name}.jpg", quality=92)
        photo.save(f"{folder}/{name}.jpg", quality=92)
        photo.convert("L").crop((300, 200, 364, 264)).save(f"{folder}/{name}.png")


def run_block(block: re.Match[str], python: Path, folder: Path, *, install: bool) -> Any:
    """Return the finished process of a block, or None if what it needs is missing."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    needed = (block["why"] or "").removeprefix("needs ")
    find = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({needed!r}))"
    if needed and not shutil.which(needed, path=path) and subprocess.call([python, "-Pc", find]):
        return None
    code, command = block["code"], [python, "-c"]
    if block["language"] == "bash":
        command = ["bash", "-euo", "pipefail", "-c"]
        if not install:
            code = re.sub(r"^(python3 -m .*?&& )?\S*pip install .*?(&& |$)|\.venv/bin/", "", code)
        cases = "".join(f'{name}\\ *) set -- "$@" {more};;\n' for name, more in SHORTER.items())
        code = f'kjax() {{ case "$*" in *quickstart*);; {cases} esac; command kjax "$@"; }}\n{code}'
    modules = "" if install else f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    own = {"PATH": path, "KJAX_CACHE": f"{folder}/cache", "PYTHONPATH": modules}
    options = {"cwd": folder, "env": {**os.environ, **own}, "stderr": subprocess.STDOUT}
    return subprocess.run([*command, code], text=True, stdout=subprocess.PIPE, **options)


def run(args: argparse.Namespace, work: Path) -> int:
    """Prepare the folder, run the blocks and print the table."""
    python, folder = args.python or work / "venv/bin/python", work / "kjax"
    subprocess.run(["git", "checkout-index", "-a", f"--prefix={folder}/"], cwd=ROOT, check=True)
    if not args.python:
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
    pages = (ROOT / "README.md", *howto_pages())
    blocks = [(str(page.relative_to(ROOT)), one) for page in pages for one in read_blocks(page)]
    print("| page | block | seconds | result |\n| :-- | :-- | --: | :-- |")
    photos, failures = str(args.photos.resolve()) if args.photos else "", 0
    for page, block in blocks:
        if args.only and not page.endswith(tuple(args.only)):
            continue
        if not (folder / "photos").exists() and "pip install" not in block["code"]:
            (folder / "photos").mkdir()
            call = f"import documentation as d; d.make_photos({str(folder)!r}, {photos!r})"
            subprocess.run([python, "-c", call], cwd=ROOT / "benchmarks", check=True)
        begun, first = time.perf_counter(), block["code"].split("\n")[0][:60]
        done = run_block(block, python, folder, install=not args.python)
        result = f"skipped: {block['why']}" if done is None else f"exit code {done.returncode}"
        shorter = re.search(r"^kjax (train|tune)\S* (?!.*quickstart)", block["code"], re.MULTILINE)
        seconds, note = time.perf_counter() - begun, ", shorter" if done and shorter else ""
        print(f"| {page} | `{first}` | {seconds:.0f} | {result}{note} |", flush=True)
        if done is not None and done.returncode:
            failures += 1
            print(done.stdout[-3000:], file=sys.stderr, flush=True)
    print(f"\n{len(blocks)} blocks, {failures} failures")
    return bool(failures)


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--photos", metavar="FOLDER", type=Path, help="JPEGs of one scene")
    parser.add_argument("--python", metavar="PATH", type=Path, help="interpreter (default: new)")
    parser.add_argument("--only", metavar="PAGE", nargs="+", help="pages (default: all)")
    parser.add_argument("--work", metavar="FOLDER", help="new folder (default: a temporary one)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(run(given, Path(given.work or temporary).resolve()))
