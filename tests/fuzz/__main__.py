"""Gives damaged files to every reader of kjax, and counts what becomes of them.

    python -m tests.fuzz --inputs 10000            about so many, spread over all readers
    python -m tests.fuzz --seconds 60 --seed 7     as many as a minute allows
    python -m tests.fuzz --reader read_model.bin   one reader (the beginning of a name will do)
    python -m tests.fuzz --reader read_model.bin --replay FOLDER

Input number n of a reader is the same at every run with one seed. Each ends in one of five ways:

    accepted    read: not all damage matters
    clean       refused in one line
    traceback   any other exception, or the death of the process
    hang        more than --timeout seconds
    memory      more than 500 MB besides what was taken before

The last three are kept in the folder of --save, and make the exit code 1.
"""

import argparse
import collections
import multiprocessing
import os
import queue
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.fuzz import worker

HANG = "hang"
BAD = (worker.TRACEBACK, HANG, worker.MEMORY)
OUTCOMES = (worker.ACCEPTED, worker.CLEAN, *BAD)
MEMORY_LIMIT = 500 << 20
START_SECONDS = 240
"""For imports and samples, on a busy machine."""
BUSY_SHARE = 0.5
"""Of its patience that a worker must have computed for before it counts as hanging."""
ROUND = 25


class Process:
    """A worker that is started again when it hangs or dies."""

    def __init__(self, root: Path, seed: int, timeout: float) -> None:
        self._root, self._seed, self._timeout = root, seed, timeout
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        root = Path(tempfile.mkdtemp(dir=self._root))
        arguments = (other, root, self._seed, MEMORY_LIMIT)
        self._process = context.Process(target=worker.serve, args=arguments, daemon=True)
        self._process.start()
        other.close()
        self._known: set[str] = set()

    def ask(self, name: str, index: int, saved: Path | None = None) -> tuple[str, str]:
        """The outcome of one input; −1 is the sample itself."""
        if name not in self._known:
            self._known.add(name)
            if index >= 0:
                self.ask(name, -1)
        patience = self._timeout if index >= 0 and saved is None else START_SECONDS
        self._connection.send((name, index, saved))
        try:
            if self._answers_within(patience):
                return self._connection.recv()
            found = HANG, f"more than {patience} seconds"
        except EOFError:
            self._process.join()
            found = worker.TRACEBACK, f"the process died with code {self._process.exitcode}"
        self.stop()
        self._start()
        return found

    def _answers_within(self, patience: float) -> bool:
        """On a busy machine, seconds without its share of the processors do not count."""
        before = self._processor_seconds()
        if self._connection.poll(patience):
            return True
        while self._processor_seconds() - before < BUSY_SHARE * patience:
            waiting = self._processor_seconds()
            if self._connection.poll(patience):
                return True
            if self._processor_seconds() == waiting:
                return False  # it does nothing at all
        return False

    def _processor_seconds(self) -> float:
        """Time that the worker has computed for; where the system does not tell, the clock's."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            return time.monotonic()

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


class Campaign:
    """Inputs for some readers, by several workers at once."""

    def __init__(self, options: argparse.Namespace, names: list[str]) -> None:
        self._options, self.names = options, names
        self.counts = {name: collections.Counter[str]() for name in names}
        self.findings: list[str] = []
        self._each = -(-options.inputs // len(names)) if options.inputs else None
        self._deadline = time.monotonic() + options.seconds if options.seconds else None
        self._rounds: queue.Queue[tuple[str, int]] = queue.Queue()
        for name in names:
            self._rounds.put((name, 0))

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="kjax-fuzz-", dir=_memory_folder()) as root:
            arguments = (Path(root),)
            workers = range(min(self._options.workers, len(self.names)))
            threads = [threading.Thread(target=self._work, args=arguments) for _ in workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _work(self, root: Path) -> None:
        process = Process(root, self._options.seed, self._options.timeout)
        while True:
            try:
                name, first = self._rounds.get_nowait()
            except queue.Empty:
                break
            last = first + ROUND if self._each is None else min(first + ROUND, self._each)
            self._round(process, name, range(first, last))
            if not self._over() and last != self._each:
                self._rounds.put((name, last))
        process.stop()

    def _round(self, process: Process, name: str, indices: range) -> None:
        if indices.start == 0:
            outcome, words = process.ask(name, -1)
            if outcome != worker.ACCEPTED:
                self.findings.append(f"{name}: the sample itself is not read ({outcome}): {words}")
                self.counts[name][worker.TRACEBACK] += 1
        for index in indices:
            if self._over() and index:
                return
            outcome, words = process.ask(name, index)
            self.counts[name][outcome] += 1
            if outcome in BAD:
                self._keep(process, name, index, outcome, words)

    def _keep(self, process: Process, name: str, index: int, outcome: str, words: str) -> None:
        folder = self._options.save / f"{name}-{self._options.seed}-{index}"
        process.ask(name, index, folder)
        (folder.parent / f"{folder.name}.txt").write_text(f"{outcome}\n{words}\n", errors="replace")
        last = words.strip().splitlines()[-1] if words.strip() else ""
        self.findings.append(
            f"{name} {index}: {outcome}: {last[:200]}\n"
            f"    again: python -m tests.fuzz --reader {name} --replay {folder}"
        )

    def _over(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline


def _memory_folder() -> str | None:
    """Where files are kept in memory, if the system has such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> int:
    options = parse()
    from tests.fuzz.readers import READERS

    wanted = options.reader or [""]
    names = [name for name in READERS if any(name.startswith(word) for word in wanted)]
    if not names:
        print(f"no such reader: choose from {', '.join(READERS)}", file=sys.stderr)
        return 2
    if options.replay:
        print(READERS[names[0]].read(options.replay))
        return 0
    campaign = Campaign(options, names)
    campaign.run()
    print(table(campaign.counts))
    for finding in campaign.findings:
        print(finding)
    return int(any(counts[outcome] for counts in campaign.counts.values() for outcome in BAD))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, help="how long to go on")
    parser.add_argument("--inputs", type=int, help="how many, over all readers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds that make a hang")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="reads a kept input here")
    parser.add_argument(
        "--save", type=Path, default=Path(tempfile.gettempdir()) / "kjax-fuzz", metavar="FOLDER"
    )
    options = parser.parse_args()
    if not options.seconds and not options.inputs:
        options.inputs = 1000
    options.save.mkdir(parents=True, exist_ok=True)
    return options


def table(counts: dict[str, collections.Counter[str]]) -> str:
    width = max(map(len, counts))
    rows = [f"{'reader':{width}}  " + "  ".join(f"{name:>9}" for name in ("inputs", *OUTCOMES))]
    for name, found in counts.items():
        rows.append(_row(name, found, width))
    total = sum(counts.values(), collections.Counter())
    return "\n".join([*rows, _row(f"all {len(counts)}", total, width)])


def _row(name: str, found: collections.Counter[str], width: int) -> str:
    numbers = (sum(found.values()), *(found[outcome] for outcome in OUTCOMES))
    return f"{name:{width}}  " + "  ".join(f"{number:9,}" for number in numbers)


if __name__ == "__main__":
    sys.exit(main())
