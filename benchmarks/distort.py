r"""Make sequences of increasingly distorted photos, to choose photometric augmentation on.

    python benchmarks/distort.py --out data/distorted
    python benchmarks/distort.py mine/*.jpg --out data/distorted --seed 1
    python benchmarks/correct_matches.py data/distorted --descriptors best out/mine \
        --max-keypoints 1000

A validation set that keeps the blurred, darkened and compressed Oxford sequences for testing. Each
photo gives a sequence per effect in Oxford's layout: `<stem>-<effect>/img1.png` is the photo, img2
to img6 are increasingly distorted, and the homographies `H1to2p` … are the identity.

    blur   Gaussian and disc, in linear light
    light  darker, with shot noise and more contrast
    jpeg   compression
    noise  white noise

The default photos are scikit-image's, which "embedded" patches are cut from; give others to
validate weights that were trained on these.
"""

import argparse
import tempfile
import zlib
from pathlib import Path

import numpy as np
import program
from homography_sequences import LENGTH
from jaxtyping import Float, UInt8
from tqdm import tqdm

from kjax.data.embedded import TRAIN_PHOTOS
from kjax.errors import InputError
from kjax.extras import require
from kjax.files.atomic import write_text, write_whole
from kjax.interrupts import run_script

SIGMAS = np.geomspace(0.7, 4.0, LENGTH - 1)
"""σ of the Gaussian and radii of the disc, in pixels."""
LIGHTS = np.geomspace(0.5, 0.08, LENGTH - 1)
"""Factors of the light."""
CONTRASTS = np.linspace(1.1, 1.5, LENGTH - 1)
"""Exponents of the darkened grey values."""
PHOTONS = 2000.0
"""Number of photons of white in the original."""
QUALITIES = (40, 20, 10, 5, 3)
NOISES = np.geomspace(5, 40, LENGTH - 1)
"""Standard deviations in grey values."""
DISPLAY_GAMMA = 2.2
SMALLEST_SIDE = 32

Photo = UInt8[np.ndarray, "height width *colours"]
Light = Float[np.ndarray, "height width *colours"]


def blur(photo: Photo, level: int, _: np.random.Generator) -> Photo:
    """Blur with a Gaussian and a disc."""
    cv2 = require("cv2", "distorting photos")
    sigma = float(SIGMAS[level])
    soft = cv2.GaussianBlur(to_light(photo), (0, 0), sigma, borderType=cv2.BORDER_REPLICATE)
    spread = cv2.filter2D(soft, -1, disc(sigma), borderType=cv2.BORDER_REPLICATE)
    # OpenCV filters by Fourier transforms, whose rounding leaves black slightly negative.
    return to_grey_values(np.maximum(spread, 0) ** (1 / DISPLAY_GAMMA))


def darken(photo: Photo, level: int, rng: np.random.Generator) -> Photo:
    """Darken, with shot noise."""
    photons = rng.poisson(to_light(photo) * LIGHTS[level] * PHOTONS)
    return to_grey_values((photons / PHOTONS) ** (CONTRASTS[level] / DISPLAY_GAMMA))


def compress(photo: Photo, level: int, _: np.random.Generator) -> Photo:
    """Compress as JPEG."""
    cv2 = require("cv2", "distorting photos")
    _, file = cv2.imencode(".jpg", photo, [cv2.IMWRITE_JPEG_QUALITY, QUALITIES[level]])
    return cv2.imdecode(file, cv2.IMREAD_UNCHANGED)


def add_noise(photo: Photo, level: int, rng: np.random.Generator) -> Photo:
    """Add white noise."""
    return to_grey_values((photo + rng.normal(0, NOISES[level], photo.shape)) / 255)


EFFECTS = {"blur": blur, "light": darken, "jpeg": compress, "noise": add_noise}


def to_light(photo: Photo) -> Light:
    """Return linear light from 0 to 1."""
    return (photo.astype(np.float32) / 255) ** DISPLAY_GAMMA


def to_grey_values(shares: Light) -> Photo:
    """From 0…1 to whole grey values; what is beyond is clipped."""
    return np.clip(np.rint(shares * 255), 0, 255).astype(np.uint8)


def disc(radius: float) -> Float[np.ndarray, "side side"]:
    """Return a disc filter with a soft edge of one pixel."""
    reach = int(np.ceil(radius + 0.5))
    rows, columns = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    weights = np.clip(radius + 0.5 - np.hypot(rows, columns), 0, 1)
    return weights / weights.sum()


def read_photo(path: Path) -> Photo:
    """Read a photo, grey or in colour."""
    cv2 = require("cv2", "distorting photos")
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    encoded = np.fromfile(path, np.uint8)
    flags = cv2.IMREAD_ANYCOLOR | cv2.IMREAD_IGNORE_ORIENTATION
    photo = cv2.imdecode(encoded, flags) if encoded.size else None
    if photo is None:
        raise InputError(f"cannot read {path}: not an image that OpenCV supports")
    if min(photo.shape[:2]) < SMALLEST_SIDE:
        raise InputError(f"{path} is smaller than {SMALLEST_SIDE} pixels: remove it")
    return photo


def write_sequence(folder: Path, photo: Photo, effect: str, rng: np.random.Generator) -> None:
    """Write the photo, five distortions of it, and their homographies."""
    folder.mkdir()
    write_photo(folder / "img1.png", photo)
    for level in range(LENGTH - 1):
        write_photo(folder / f"img{level + 2}.png", EFFECTS[effect](photo, level, rng))
        write_text(folder / f"H1to{level + 2}p", "1 0 0\n0 1 0\n0 0 1\n")


def write_photo(path: Path, photo: Photo) -> None:
    """Write a PNG file."""
    _, encoded = require("cv2", "distorting photos").imencode(".png", photo)
    write_whole(path, lambda partial: encoded.tofile(partial))


def run(args: argparse.Namespace) -> None:
    """Write all sequences to a temporary folder, and rename it when it is complete."""
    out: Path = args.out
    paths: list[Path] = args.photos
    if not paths:
        wheel = Path(require("skimage.data", "the default photos").__file__).parent
        paths = [wheel / name for name in TRAIN_PHOTOS]
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} already exists: choose another folder, or remove it")
    stems = [path.stem for path in paths]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise InputError(f"several photos are called {twice[0]}: rename one")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.partial-") as staging:
        fresh = Path(staging) / "fresh"
        fresh.mkdir()
        for path in tqdm(paths, desc="distorting", unit="photo", disable=args.quiet):
            photo = read_photo(path)
            for effect in EFFECTS:
                name = f"{path.stem}-{effect}"
                # Independent of the other photos.
                rng = np.random.default_rng([args.seed, zlib.crc32(name.encode())])
                write_sequence(fresh / name, photo, effect, rng)
        if out.exists():
            out.rmdir()
        fresh.rename(out)
    print(f"{len(EFFECTS) * len(paths)} sequences of {len(paths)} photos are in {out}")


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("photos", nargs="*", type=Path, metavar="PHOTO", help="files (default: scikit-image's)")
    add("--out", type=Path, required=True, help="new or empty folder for the sequences")
    add("--seed", type=int, default=0, help="random seed of the noise (default: 0)")
    add("--quiet", action="store_true", help="show no progress bar")


if __name__ == "__main__":
    run_script(main)
