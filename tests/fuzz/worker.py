"""A process that damages samples, reads them, and reports the outcomes."""

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

ACCEPTED, CLEAN, TRACEBACK = "accepted", "clean", "traceback"
ADDRESS_SPACE = 6 << 30
"""Bytes that readers may take, which protects the machine."""


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
        self.targets = [name for name in self.files if not Path(name).match(reader.spared)]

    def damage(self, seed: int, index: int) -> None:
        """Write input number `index`, always the same; −1 is the sample itself."""
        shutil.rmtree(self.folder)
        for name, content in self.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if index < 0:
            return
        rng = random.Random(f"{seed}/{self.reader.name}/{index}")
        if self.reader.edits and rng.random() < 0.4:
            rng.choice(self.reader.edits)(self.folder, rng)
            if rng.random() < 0.8:
                return
        name = rng.choice(self.targets)
        path = self.folder / name
        if path.is_file():
            path.write_bytes(mutate(path.read_bytes(), name, rng, blind=self.reader.blind))


def outcome_of(reader, folder: Path) -> tuple[str, str]:
    """Read a folder; return the outcome and its message."""
    from kjax.errors import InputError

    try:
        reader.read(folder)
        return ACCEPTED, ""
    except (InputError, OSError) as error:
        several = len(str(error).strip().splitlines()) > 1
        return (TRACEBACK, f"several lines: {error}") if several else (CLEAN, str(error))
    except BaseException:  # also a panic of a library in Rust, or an exit
        return TRACEBACK, traceback.format_exc()


def serve(connection: Connection, root: Path, seed: int) -> None:
    """Answer (reader's name, index) with (outcome, message) until None comes."""
    sys.stdout.flush()
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # C libraries report damaged files there
        os.dup2(quiet, stream)
    warnings.simplefilter("ignore")
    from tests.fuzz.readers import READERS

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["KJAX_CACHE"] = str(root / "cache")
    samples: dict[str, Sample] = {}
    while (task := connection.recv()) is not None:
        name, index = task
        try:
            if name not in samples:
                samples[name] = Sample(READERS[name], root)
                with contextlib.suppress(OSError), open("/proc/self/statm") as file:
                    used = int(file.read().split()[0]) * resource.getpagesize()
                    limit = used + ADDRESS_SPACE
                    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            samples[name].damage(seed, index)
        except Exception:  # a mistake of ours
            connection.send((TRACEBACK, f"while damaging: {traceback.format_exc()}"))
            continue
        connection.send(outcome_of(READERS[name], samples[name].folder))
