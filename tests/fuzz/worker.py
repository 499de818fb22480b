"""A process that reads damaged files one after the other, and tells what became of each."""

import contextlib
import os
import random
import resource
import shutil
import sys
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.mutations import mutate

ACCEPTED, CLEAN, TRACEBACK, MEMORY = "accepted", "clean", "traceback", "memory"
ADDRESS_SPACE = 6 << 30
"""More than an input may take: it is the machine that is spared, not the limit that is tested."""


class Sample:
    """A valid sample of a reader, and the folder in which it is damaged and read."""

    def __init__(self, reader, root: Path):
        self.reader = reader
        self.folder = root / reader.name
        self.folder.mkdir(parents=True)
        reader.make(self.folder)
        self.files = {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }
        self.stamps = {name: _stamp(self.folder / name) for name in self.files}
        self.targets = [name for name in self.files if not Path(name).match(reader.spared)]

    def damage(self, seed: int, index: int) -> None:
        """Writes input number `index`, always the same."""
        rng = random.Random(f"{seed}/{self.reader.name}/{index}")
        self.restore()
        if self.reader.edits and rng.random() < 0.4:
            rng.choice(self.reader.edits)(self.folder, rng)
            if rng.random() < 0.8:
                return
        name = rng.choice(self.targets)
        path = self.folder / name
        if path.is_file():
            path.write_bytes(mutate(path.read_bytes(), name, rng, blind=self.reader.blind))

    def restore(self) -> None:
        """The sample as it was, without what readers or edits left."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.is_symlink() or path.is_file():
                if path.relative_to(self.folder).as_posix() not in self.files:
                    path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()
        for name, content in self.files.items():
            path = self.folder / name
            if not path.is_file() or _stamp(path) != self.stamps.get(name):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                self.stamps[name] = _stamp(path)


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def outcome_of(reader, folder: Path, memory_limit: int) -> tuple[str, str]:
    """What reading a folder comes to, and the words that go with it."""
    from kjax.errors import InputError

    before = _reset_peak()
    try:
        reader.read(folder)
        found = ACCEPTED, ""
    except (InputError, OSError) as error:
        lines = str(error).strip().splitlines()
        found = (CLEAN, str(error)) if len(lines) <= 1 else (TRACEBACK, f"several lines: {error}")
    except BaseException:  # also a panic of a library in Rust, or an exit
        found = TRACEBACK, traceback.format_exc()
    taken = _peak() - before
    return found if taken <= memory_limit else (MEMORY, f"{taken >> 20} MB; {found[1]}")


def serve(connection: Connection, root: Path, seed: int, memory_limit: int) -> None:
    """Answers (reader's name, index, where to save it) with (outcome, words) until None comes."""
    sys.stdout.flush()
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what C libraries say of damaged files
        os.dup2(quiet, stream)
    warnings.simplefilter("ignore")
    from tests.fuzz.readers import READERS

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["KJAX_CACHE"] = str(root / "cache")
    samples: dict[str, Sample] = {}
    while (task := connection.recv()) is not None:
        name, index, saved = task
        try:
            if name not in samples:
                samples[name] = Sample(READERS[name], root)
                _limit_address_space()
            sample = samples[name]
            if index < 0:
                sample.restore()
            else:
                sample.damage(seed, index)
            if saved is not None:
                shutil.copytree(sample.folder, saved, dirs_exist_ok=True, symlinks=True)
        except Exception:  # a mistake of ours
            connection.send((TRACEBACK, f"while damaging: {traceback.format_exc()}"))
            continue
        if saved is not None:
            connection.send(("saved", str(saved)))
        else:
            connection.send(outcome_of(sample.reader, sample.folder, memory_limit))


def _limit_address_space() -> None:
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE, resource.RLIM_INFINITY))


def _reset_peak() -> int:
    """Makes the peak of resident memory what is resident now, where Linux lets us; returns it."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    return _peak()


def _peak() -> int:
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
