"""Give damaged files to every reader of kjax, and count the outcomes.

    python -m tests.fuzz --inputs 10000            this many, spread over all readers
    python -m tests.fuzz --seconds 60 --seed 7     as many as a minute allows
    python -m tests.fuzz --reader colmap.model     one reader (or the beginning of its name)
    python -m tests.fuzz --reader colmap.model --replay 17    read input 17 here

Input number n of a reader is the same in every run with one seed. Outcomes:

    accepted    read: not all damage matters
    clean       refused in one line
    traceback   any other exception, or the death of the process
    hang        more than --timeout seconds

Tracebacks and hangs are printed, and make the exit code 1.
"""

import argparse
import collections
import multiprocessing
import os
import queue
import sys
import tempfile
import time
from concurrent import futures
from pathlib import Path

from tests.fuzz import worker

HANG = "hang"
OUTCOMES = (worker.ACCEPTED, worker.CLEAN, worker.TRACEBACK, HANG)
START_SECONDS = 240
"""Time limit for imports and samples, on a busy machine."""
ROUND = 25


class Process:
    """A worker that is restarted when it hangs or dies."""

    def __init__(self, root: Path, seed: int, timeout: float) -> None:
        self._root, self._seed, self._timeout = root, seed, timeout
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        arguments = (other, Path(tempfile.mkdtemp(dir=self._root)), self._seed)
        self._process = context.Process(target=worker.serve, args=arguments, daemon=True)
        self._process.start()
        other.close()
        self._known: set[str] = set()

    def ask(self, name: str, index: int) -> tuple[str, str]:
        """Return the outcome of one input; −1 is the sample itself."""
        if name not in self._known and index >= 0:
            self.ask(name, -1)
        self._known.add(name)
        patience = self._timeout if index >= 0 else START_SECONDS
        self._connection.send((name, index))
        try:
            if self._connection.poll(patience):
                return self._connection.recv()
            found = HANG, f"more than {patience} seconds"
        except EOFError:
            self._process.join()
            found = worker.TRACEBACK, f"the process died with code {self._process.exitcode}"
        self.stop()
        self._start()
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def run(options: argparse.Namespace, names: list[str]) -> dict[str, collections.Counter[str]]:
    """Give inputs to readers in rounds, by several workers at once; print findings."""
    counts = {name: collections.Counter[str]() for name in names}
    each = -(-options.inputs // len(names)) if options.inputs else sys.maxsize
    deadline = time.monotonic() + (options.seconds or 1e9)
    rounds: queue.Queue[tuple[str, int]] = queue.Queue()
    for name in names:
        rounds.put((name, -1))

    def work(root: Path) -> None:
        process = Process(root, options.seed, options.timeout)
        while not rounds.empty():
            name, first = rounds.get()
            last = min(max(first, 0) + ROUND, each)
            for index in range(first, last):
                if time.monotonic() > deadline and index > 0:
                    break
                outcome, message = process.ask(name, index)
                if index < 0 and outcome != worker.ACCEPTED:
                    outcome, message = worker.TRACEBACK, f"the sample is not read: {message}"
                if index >= 0 or outcome != worker.ACCEPTED:
                    counts[name][outcome] += 1
                if outcome in (worker.TRACEBACK, HANG):
                    print(f"{name} {index}: {outcome}\n{message[-3000:]}", flush=True)
            if last < each and time.monotonic() < deadline:
                rounds.put((name, last))
        process.stop()

    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    workers = min(options.workers, len(names))
    with (
        tempfile.TemporaryDirectory(prefix="kjax-fuzz-", dir=memory) as root,
        futures.ThreadPoolExecutor(workers) as pool,
    ):
        list(pool.map(work, [Path(root)] * workers))
    return counts


def main() -> int:
    about = {"prog": "python -m tests.fuzz", "description": __doc__}
    parser = argparse.ArgumentParser(**about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="time limit")
    parser.add_argument("--inputs", type=int, help="number of inputs over all readers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", nargs="+", default=[""], metavar="NAME", help="only these")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that make a hang")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--replay", type=int, metavar="N", help="read input N in this process")
    options = parser.parse_args()
    if not options.seconds and not options.inputs:
        options.inputs = 1000
    from tests.fuzz.readers import READERS

    names = [name for name in READERS if name.startswith(tuple(options.reader))]
    if not names:
        print(f"no such reader: choose from {', '.join(READERS)}", file=sys.stderr)
        return 2
    if options.replay is not None:
        sample = worker.Sample(READERS[names[0]], Path(tempfile.mkdtemp()))
        sample.damage(options.seed, options.replay)
        print(sample.folder)
        print(READERS[names[0]].read(sample.folder))
        return 0
    counts = run(options, names)
    counts[f"all {len(counts)}"] = sum(counts.values(), collections.Counter())
    width = max(map(len, counts))
    print(f"{'reader':{width}}  " + "  ".join(f"{name:>9}" for name in ("inputs", *OUTCOMES)))
    for name, found in counts.items():
        numbers = (found.total(), *(found[outcome] for outcome in OUTCOMES))
        print(f"{name:{width}}  " + "  ".join(f"{number:9,}" for number in numbers))
    return int(any(found[worker.TRACEBACK] or found[HANG] for found in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
