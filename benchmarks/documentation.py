"""Run every command of the README and of the how-to pages, as a new user would.

    python3 benchmarks/documentation.py                        # half an hour on two cores
    python3 benchmarks/documentation.py --photos FOLDER --work /tmp/work
    python3 benchmarks/documentation.py --python .venv/bin/python --only README.md howto/match.md

Copies the checkout to --work, makes a new virtual environment beside it, and runs all bash and
Python blocks there, in the order of the site, beginning with the README's installation. Needs only
Python. With --python, runs with that interpreter and leaves out installations.

`photos`, `a.jpg` and `b.jpg` are photos of --photos, or views of scikit-image's stereo pair that
are rendered with its measured disparity. Long trainings get fewer steps (`SHORTER`), except for the
README's. Blocks below a comment `readme-test: needs NAME` run if there is a program or a module of
that name; blocks below any other `readme-test` comment are skipped. Prints what ran, in how many
seconds, and returns 1 if anything failed.
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
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(
    r"^(?:<!-- readme-test: (?P<why>.+?) -->\n)?(?P<indent> *)```(?P<language>bash|python)\n"
    r"(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
SHORTER = {
    "train": "--config.train.steps=4 --config.train.pairs=32",
    "train-matcher": "--config.train.steps=4 --config.train.pairs=2 "
    "--config.data.validation_every=4 --config.draw.keypoints=256 --config.draw.least_keypoints=64",
    "tune": "--steps 20",
}
"""Arguments that are added to commands of kjax, except for the config quickstart."""
PHOTOS, BASELINES = 6, (-1, 0, 1, 2, 3)


class Block(NamedTuple):
    """A block of code; `why` says why it may not run."""

    page: Path
    language: str
    code: str
    why: str | None


def read_blocks(page: Path) -> list[Block]:
    """Return the bash and Python blocks of a page."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(page, one["language"], one["code"], one["why"]) for one in found]


def howto_pages() -> list[Path]:
    """Return the how-to pages in the order of the site."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\n  - Use:")[2]
    names = re.findall(r": (\S+\.md)$", nav.partition("\n  - Results:")[0], re.MULTILINE)
    return [ROOT / "docs" / name for name in names if (ROOT / "docs" / name).is_file()]


def make_photos(source: str) -> None:
    """Write `photos/`, `a.jpg`, `b.jpg` and the patches `a.png` and `b.png`."""
    import numpy as np
    import skimage.data
    from PIL import Image

    if source:
        files = sorted(path for path in Path(source).iterdir() if path.suffix.lower() == ".jpg")
        photos = [Image.open(path).convert("RGB") for path in files[:PHOTOS]]
    else:
        left, _, disparity = skimage.data.stereo_motorcycle()
        disparity = np.where(np.isfinite(disparity) & (disparity > 0), disparity, 20.0)
        nearest_last = np.argsort(disparity, axis=None)
        rows, columns = np.divmod(nearest_last, left.shape[1])
        photos = []
        for baseline in BASELINES:
            target = np.rint(columns - baseline * disparity.ravel()[nearest_last]).astype(int)
            seen = (target >= 0) & (target < left.shape[1])
            origin = np.full(disparity.shape, -1)
            origin[rows[seen], target[seen]] = columns[seen]
            filled = np.where(origin >= 0, np.arange(left.shape[1]), 0)  # holes: from the left
            origin = np.take_along_axis(origin, np.maximum.accumulate(filled, axis=1), axis=1)
            photos.append(Image.fromarray(left[np.arange(len(left))[:, None], origin]))
    Path("photos").mkdir()
    for index, photo in enumerate(photos):
        photo.save(f"photos/{index}.jpg", quality=92)
    for name, photo in zip("ab", photos[1:], strict=False):
        photo.save(f"{name}.jpg", quality=92)
        photo.convert("L").crop((300, 200, 364, 264)).save(f"{name}.png")


def run_block(block: Block, python: Path, folder: Path, *, install: bool) -> tuple[str, str]:
    """Return the result of a block and, if it failed, what it printed."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KJAX_CACHE": str(folder.parent / "cache")}
    environment["PYTHONPATH"] = "" if install else str(folder)
    code, needed = block.code, re.fullmatch(r"needs (\w+)", block.why or "")
    found = needed and (
        shutil.which(needed[1], path=path)
        or not subprocess.run([python, "-c", f"import {needed[1]}"], capture_output=True).returncode
    )
    if block.why and not found:
        return f"skipped: {block.why}", ""
    if not install and block.language == "bash":
        parts = re.split(r"(?<= )&& ", code)
        code = "&& ".join(part for part in parts if not re.search(r"pip install|-m venv", part))
        code = code.replace(".venv/bin/", "")
    cases = "".join(f'{name}\\ *) set -- "$@" {more};;\n' for name, more in SHORTER.items())
    prelude = f'kjax() {{ case "$*" in *quickstart*);; {cases} esac; command kjax "$@"; }}\n'
    command = [python, "-"] if block.language == "python" else ["bash", "-euo", "pipefail"]
    done = subprocess.run(
        command, input=code if block.language == "python" else prelude + code,
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        return f"exit code {done.returncode}", done.stdout[-3000:]
    names = "|".join(SHORTER)
    return "ok, shorter" if re.search(rf"^kjax ({names}) (?!.*quick)", code, re.M) else "ok", ""


def run(args: argparse.Namespace, work: Path) -> int:
    """Prepare the folder, run the blocks and print the table."""
    python, folder = args.python, work / "kjax"
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    if install := python is None:
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
        python = work / "venv" / "bin" / "python"
    print("| page | block | seconds | result |\n| :-- | :-- | --: | :-- |", flush=True)
    failures, ready = [], False
    for page in (ROOT / "README.md", *howto_pages()):
        for block in read_blocks(page):
            if args.only and not any(str(page).endswith(name) for name in args.only):
                continue
            if not ready and "pip install" not in block.code:
                photos = str(args.photos.resolve()) if args.photos else ""
                call = f"import documentation; documentation.make_photos({photos!r})"
                where = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}
                subprocess.run([python, "-c", call], cwd=folder, env=where, check=True)
                ready = True
            begun = time.perf_counter()
            result, printed = run_block(block, python, folder, install=install)
            first, name = block.code.split("\n")[0], page.relative_to(ROOT)
            seconds = time.perf_counter() - begun
            print(f"| {name} | `{first[:60]}` | {seconds:.0f} | {result} |", flush=True)
            failures += [f"{name}: {first}\n{printed}"] if result.startswith("exit") else []
    print(f"\n{len(failures)} failures", *failures, sep="\n\n")
    return bool(failures)


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", metavar="FOLDER", type=Path, help="JPEG photos of one scene")
    parser.add_argument("--python", metavar="PATH", type=Path, help="interpreter (default: new)")
    parser.add_argument("--only", metavar="PAGE", nargs="+", help="pages (default: all)")
    parser.add_argument("--work", metavar="FOLDER", type=Path, help="new folder; is kept")
    args = parser.parse_args()
    if args.work:
        return run(args, args.work.resolve())
    with tempfile.TemporaryDirectory() as work:
        return run(args, Path(work))


if __name__ == "__main__":
    raise SystemExit(main())
