"""Kill a training at random moments, resume it each time, and compare the results.

    python benchmarks/kill.py --kills 20 --seed 0

Trains a small model on synthetic patches without interruption, then with this many SIGKILLs: half
at any time of a run, half right after a checkpoint has begun to be written. Weights and metrics of
every finished training must be bit-equal.
"""

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import program

from kjax.data.phototour import sample_test_pairs, write_phototour
from kjax.errors import InputError
from kjax.files.npz import read_npz
from kjax.interrupts import run_script

ROOT = Path(__file__).parents[1]
STEPS = 60
CHECKPOINT_EVERY = 2
WHILE_SAVING = 0.05
"""Maximum seconds between the start of a checkpoint and the kill."""
POLL = 0.002


def run(args: argparse.Namespace) -> None:
    """Train, kill, resume and compare."""
    moments = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        data = make_set(Path(folder) / "synthetic")
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        # Without a compilation cache, most kills would interrupt compilation.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder) / "compiled")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        finish(data, whole, args.steps)
        seconds, _ = program.timed(lambda: finish(data, killed, args.steps))
        compare(whole, killed)
        print(f"uninterrupted, twice: {args.steps} steps, {seconds:.0f} s", flush=True)
        kills = trainings = 0
        training = command(data, killed, args.steps)
        while kills < args.kills:
            if (killed / "weights.npz").exists():
                compare(whole, killed)
                shutil.rmtree(killed)
                trainings += 1
            if when := kill_once(training, killed, moments, seconds, saving=kills % 2 == 1):
                kills += 1
                print(f"kill {kills}: {when}", flush=True)
        finish(data, killed, args.steps)
        compare(whole, killed)
        print(f"{kills} kills in {trainings} trainings: weights and metrics are bit-equal")


def make_set(folder: Path) -> Path:
    """Write a synthetic set whose points differ from each other."""
    rng = np.random.default_rng(0)
    coarse = np.kron(rng.integers(0, 200, (40, 1, 8, 8)), np.ones((1, 1, 8, 8), int))
    patches = (coarse + rng.integers(0, 56, (40, 3, 64, 64))).reshape(-1, 64, 64)
    points = np.repeat(np.arange(40), 3)
    pairs = sample_test_pairs(points, matching=100, non_matching=100, seed=0)
    return write_phototour(folder, patches.astype(np.uint8), points, pairs=pairs)


def command(data: Path, workdir: Path, steps: int) -> list[str]:
    """Return the training's command line."""
    return [
        sys.executable,
        str(ROOT / "run_train.py"),
        f"--config={ROOT / 'configs' / 'smoke.py'}",
        f"--workdir={workdir}",
        f"--config.data.train=('{data}',)",
        f"--config.data.test=('{data}',)",
        f"--config.train.steps={steps}",
        f"--config.train.checkpoint_every={CHECKPOINT_EVERY}",
        "--config.train.log_every=2",
        "--config.train.eval_every=10",
    ]


def finish(data: Path, workdir: Path, steps: int) -> None:
    """Train or resume to the end; raise if that fails."""
    done = subprocess.run(command(data, workdir, steps), capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"the training failed with code {done.returncode}: {done.stderr}")


def kill_once(
    training: list[str], workdir: Path, moments: random.Random, seconds: float, *, saving: bool
) -> str:
    """Start or resume a training and kill it; return when, or "" if it finished before."""
    left = unfinished(workdir)  # left by an earlier kill
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(training, stdout=subprocess.DEVNULL, stderr=errors)
        begun = time.perf_counter()
        if saving:
            while process.poll() is None and not unfinished(workdir) - left:
                time.sleep(POLL)
            time.sleep(moments.uniform(0, WHILE_SAVING))
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moments.uniform(0, seconds))
        after = time.perf_counter() - begun
        process.kill()
        if process.wait() > 0:
            errors.seek(0)
            raise InputError(f"resuming failed: {errors.read()}")
    if process.returncode == 0:
        return ""
    kind = "while saving" if saving else "anywhere"
    return f"{kind}, {after:.1f} s after its start; checkpoints: {checkpoints(workdir)}"


def unfinished(workdir: Path) -> set[str]:
    """Return the names of incomplete checkpoints."""
    return {path.name for path in (workdir / "checkpoints").glob("*tmp*")}


def checkpoints(workdir: Path) -> str:
    """Return the steps of complete checkpoints."""
    names = (path.name for path in (workdir / "checkpoints").glob("*"))
    return ", ".join(map(str, sorted(int(name) for name in names if name.isdecimal()))) or "none"


def compare(whole: Path, killed: Path) -> None:
    """Raise if weights or metrics differ."""
    one, other = (read_npz(folder / "weights.npz") for folder in (whole, killed))
    if [*one] != [*other]:
        raise InputError("the weights have different names")
    for name in one:
        if one[name].tobytes() != other[name].tobytes():
            raise InputError(f"{name} differs after the kills")
    if (whole / "metrics.jsonl").read_bytes() != (killed / "metrics.jsonl").read_bytes():
        raise InputError("the metrics differ after the kills")


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("--kills", type=int, default=20, help="(default: 20)")
    add("--seed", type=int, default=0, help="of the moments (default: 0)")
    add("--steps", type=int, default=STEPS, help=f"(default: {STEPS})")


if __name__ == "__main__":
    run_script(main)
