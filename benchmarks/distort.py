r"""Makes sequences of ever more distorted photographs, to choose photometric augmentation on.

    python benchmarks/distort.py --out data/distorted
    python benchmarks/distort.py mine/*.jpg --out data/distorted --seed 1
    python benchmarks/correct_matches.py data/distorted --descriptors best out/mine \
        --max-keypoints 1000

Whoever chose between ways of training by the blurred, darkened and compressed sequences of the
Oxford benchmark could not be tested on them any more. These are a validation in their stead: of
each photograph a sequence for each effect, in Oxford's layout: `<stem>-<effect>/img1.png`, which is
the photograph itself, five distortions that grow from `img2.png` to `img6.png`, and homographies
`H1to2p` … `H1to6p`, which are the identity as nothing moves.

    blur   lens out of focus: Gaussian and disc, in linear light
    light  less of it: dark, with the noise of few photons, more contrast, rounded to 8 bits
    jpeg   compression
    noise  white

Without photographs, it takes those inside scikit-image's wheel that "embedded" patches are cut
from; give others to validate weights that were trained on them.

What it should print: one line, how many sequences of how many photographs are where.
"""

import argparse
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from homography_sequences import LENGTH
from jaxtyping import Float, UInt8
from tqdm import tqdm

from kjax.data.embedded import TRAIN_PHOTOS
from kjax.errors import InputError, exit_code
from kjax.extras import require
from kjax.files.atomic import write_text, write_whole
from kjax.interrupts import run_script

SIGMAS = np.geomspace(0.7, 4.0, LENGTH - 1)
"""Of the Gaussian blur, and radii of the disc, in pixels."""
LIGHTS = np.geomspace(0.5, 0.08, LENGTH - 1)
"""Shares of the light that are left."""
CONTRASTS = np.linspace(1.1, 1.5, LENGTH - 1)
"""Exponents of the darkened grey values."""
PHOTONS = 2000.0
"""That white is made of in the original's light."""
QUALITIES = (40, 20, 10, 5, 3)
NOISES = np.geomspace(5, 40, LENGTH - 1)
"""Standard deviations in grey values."""
DISPLAY_GAMMA = 2.2
SMALLEST_SIDE = 32

Photo = UInt8[np.ndarray, "height width *colours"]
Light = Float[np.ndarray, "height width *colours"]


def blur(photo: Photo, level: int, _: np.random.Generator) -> Photo:
    """Out of focus, and not quite sharp either."""
    cv2 = require("cv2", "distorting photographs")
    sigma = float(SIGMAS[level])
    soft = cv2.GaussianBlur(to_light(photo), (0, 0), sigma, borderType=cv2.BORDER_REPLICATE)
    spread = cv2.filter2D(soft, -1, disc(sigma), borderType=cv2.BORDER_REPLICATE)
    # OpenCV filters by Fourier transforms, which leave black a little below zero.
    return to_grey_values(np.maximum(spread, 0) ** (1 / DISPLAY_GAMMA))


def darken(photo: Photo, level: int, rng: np.random.Generator) -> Photo:
    """Less light on the same sensor."""
    photons = rng.poisson(to_light(photo) * LIGHTS[level] * PHOTONS)
    return to_grey_values((photons / PHOTONS) ** (CONTRASTS[level] / DISPLAY_GAMMA))


def compress(photo: Photo, level: int, _: np.random.Generator) -> Photo:
    """As a JPEG file would give it back."""
    cv2 = require("cv2", "distorting photographs")
    _, file = cv2.imencode(".jpg", photo, [cv2.IMWRITE_JPEG_QUALITY, QUALITIES[level]])
    return cv2.imdecode(file, cv2.IMREAD_UNCHANGED)


def add_noise(photo: Photo, level: int, rng: np.random.Generator) -> Photo:
    """The same everywhere."""
    return to_grey_values((photo + rng.normal(0, NOISES[level], photo.shape)) / 255)


EFFECTS: dict[str, Callable[[Photo, int, np.random.Generator], Photo]] = {
    "blur": blur,
    "light": darken,
    "jpeg": compress,
    "noise": add_noise,
}


def to_light(photo: Photo) -> Light:
    """Linear light in 0…1."""
    return (photo.astype(np.float32) / 255) ** DISPLAY_GAMMA


def to_grey_values(shares: Light) -> Photo:
    """From 0…1 to whole grey values; what is beyond is clipped."""
    return np.clip(np.rint(shares * 255), 0, 255).astype(np.uint8)


def disc(radius: float) -> Float[np.ndarray, "side side"]:
    """A filter that spreads a point over a disc, whose rim is one pixel soft."""
    reach = int(np.ceil(radius + 0.5))
    rows, columns = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    weights = np.clip(radius + 0.5 - np.hypot(rows, columns), 0, 1)
    return weights / weights.sum()


def wheel_photos() -> list[Path]:
    """Files inside scikit-image's wheel."""
    try:
        import skimage.data
    except ImportError:
        raise InputError(
            "no photographs are given, and scikit-image, which has some, is not here: "
            "name some, or pip install scikit-image"
        ) from None
    return [Path(skimage.data.__file__).parent / name for name in TRAIN_PHOTOS]


def read_photo(path: Path) -> Photo:
    """Grey or in colours, as it is stored."""
    cv2 = require("cv2", "distorting photographs")
    if not path.is_file():
        raise InputError(f"no such photograph: {path}")
    encoded = np.fromfile(path, np.uint8)
    flags = cv2.IMREAD_ANYCOLOR | cv2.IMREAD_IGNORE_ORIENTATION
    photo = cv2.imdecode(encoded, flags) if encoded.size else None
    if photo is None:
        raise InputError(f"{path} is no photograph that OpenCV can read: leave it out")
    if min(photo.shape[:2]) < SMALLEST_SIDE:
        raise InputError(f"{path} is smaller than {SMALLEST_SIDE} pixels: leave it out")
    return photo


def write_sequence(folder: Path, photo: Photo, effect: str, rng: np.random.Generator) -> None:
    """The photograph, five distortions of it, and their homographies."""
    folder.mkdir()
    write_photo(folder / "img1.png", photo)
    for level in range(LENGTH - 1):
        write_photo(folder / f"img{level + 2}.png", EFFECTS[effect](photo, level, rng))
        write_text(folder / f"H1to{level + 2}p", "1 0 0\n0 1 0\n0 0 1\n")


def write_photo(path: Path, photo: Photo) -> None:
    """A PNG file."""
    _, encoded = require("cv2", "distorting photographs").imencode(".png", photo)
    write_whole(path, lambda partial: encoded.tofile(partial))


def run(args: argparse.Namespace) -> None:
    """Everything is written beside the folder and gets its name when it is whole."""
    if args.seed < 0:
        raise InputError(f"--seed must not be negative: {args.seed}")
    out: Path = args.out
    paths: list[Path] = args.photos or wheel_photos()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} already exists: choose another folder, or remove it")
    stems = [path.stem for path in paths]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise InputError(f"several photographs are called {twice[0]}: rename, or give each once")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.partial-") as staging:
        fresh = Path(staging) / "fresh"
        fresh.mkdir()
        for path in tqdm(paths, desc="distorting", unit="photo", disable=args.quiet):
            photo = read_photo(path)
            for effect in EFFECTS:
                name = f"{path.stem}-{effect}"
                # Of its own, whatever other photographs there are.
                rng = np.random.default_rng([args.seed, zlib.crc32(name.encode())])
                write_sequence(fresh / name, photo, effect, rng)
        if out.exists():
            out.rmdir()
        fresh.rename(out)
    print(f"{len(EFFECTS) * len(paths)} sequences of {len(paths)} photographs are in {out}")


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("photos", nargs="*", type=Path, metavar="PHOTO", help="files (scikit-image's)")
    add("--out", type=Path, required=True, help="folder for the sequences; absent or empty")
    add("--seed", type=int, default=0, help="of the noise (0)")
    add("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args(argv)
    return exit_code("distort", lambda: run(args))


if __name__ == "__main__":
    run_script(main)
