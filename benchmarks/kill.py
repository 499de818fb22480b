"""Kills a training at random moments, resumes it each time, and compares what comes out.

    python benchmarks/kill.py --kills 20 --seed 0

Trains a small model on synthetic patches without interruption. Then again and again until there
were as many SIGKILLs: half of them anywhere between a start and where a run would end, half within
the moments after a checkpoint has begun to be written. Whenever a training comes to its end, its
weights and its log of metrics must be the same bit for bit.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kjax.data.phototour import sample_test_pairs, write_phototour
from kjax.errors import InputError, exit_code
from kjax.interrupts import run_script

ROOT = Path(__file__).parents[1]
STEPS = 60
CHECKPOINT_EVERY = 2
WHILE_SAVING = 0.05
"""Seconds after a checkpoint appears under its temporary name in which a kill comes, at most."""
POLL = 0.002


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    return exit_code("kill", lambda: run(make_parser().parse_args(argv)))


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the training")
    return parser


def run(args: argparse.Namespace) -> None:
    """Trains, kills, resumes, compares.

    Raises:
        InputError: the two trainings differ.
    """
    moments = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        data = make_set(Path(folder) / "synthetic")
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        # What is compiled is kept: else there would be little but compiling to interrupt.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder) / "compiled")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        finish(data, whole, args.steps)
        begun = time.perf_counter()
        finish(data, killed, args.steps)
        seconds = time.perf_counter() - begun
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
    """Synthetic patches, with test pairs, that differ from point to point and little within."""
    rng = np.random.default_rng(0)
    coarse = np.kron(rng.integers(0, 200, (40, 1, 8, 8)), np.ones((1, 1, 8, 8), int))
    patches = (coarse + rng.integers(0, 56, (40, 3, 64, 64))).reshape(-1, 64, 64)
    points = np.repeat(np.arange(40), 3)
    pairs = sample_test_pairs(points, matching=100, non_matching=100, seed=0)
    return write_phototour(folder, patches.astype(np.uint8), points, pairs=pairs)


def command(data: Path, workdir: Path, steps: int) -> list[str]:
    """The training."""
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
    """Trains, or goes on, to the end.

    Raises:
        InputError: it fails.
    """
    done = subprocess.run(
        command(data, workdir, steps), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"the training ended with code {done.returncode}: {done.stderr}")


def kill_once(
    training: list[str], workdir: Path, moments: random.Random, seconds: float, *, saving: bool
) -> str:
    """Starts or resumes a training and kills it; says when, or nothing if it had ended.

    Raises:
        InputError: it ended by itself with an error.
    """
    left = unfinished(workdir)  # by an earlier kill
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(training, stdout=subprocess.DEVNULL, stderr=said)
        begun = time.perf_counter()
        if saving:
            while process.poll() is None and not unfinished(workdir) - left:
                time.sleep(POLL)
            time.sleep(moments.uniform(0, WHILE_SAVING))
        else:
            wait_until(process, begun + moments.uniform(0, seconds))
        after = time.perf_counter() - begun
        process.kill()
        if process.wait() > 0:
            said.seek(0)
            raise InputError(f"resuming failed: {said.read()}")
    if process.returncode == 0:
        return ""
    moment = "while saving" if saving else "anywhere"
    return f"{moment}, {after:.1f} s after its start; checkpoints: {checkpoints(workdir)}"


def wait_until(process: "subprocess.Popen[bytes]", moment: float) -> None:
    """Until a time, or the process's end."""
    while process.poll() is None and time.perf_counter() < moment:
        time.sleep(POLL)


def unfinished(workdir: Path) -> set[str]:
    """Checkpoints that have only a temporary name."""
    return {path.name for path in (workdir / "checkpoints").glob("*tmp*")}


def checkpoints(workdir: Path) -> str:
    """The steps that are saved."""
    names = (path.name for path in (workdir / "checkpoints").glob("*"))
    return ", ".join(map(str, sorted(int(name) for name in names if name.isdecimal()))) or "none"


def compare(whole: Path, killed: Path) -> None:
    """Refuses any difference.

    Raises:
        InputError: there is one.
    """
    with np.load(whole / "weights.npz") as one, np.load(killed / "weights.npz") as other:
        if one.files != other.files:
            raise InputError("the weights have other names")
        for name in one.files:
            if one[name].tobytes() != other[name].tobytes():
                raise InputError(f"{name} differs after the kills")
    if (whole / "metrics.jsonl").read_bytes() != (killed / "metrics.jsonl").read_bytes():
        raise InputError("the metrics differ after the kills")


if __name__ == "__main__":
    run_script(main)
