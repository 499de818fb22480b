"""Engines that process a collection: threads of this machine, or a Ray cluster.

A stage passes a function and items, and gets results in the order of the items. Only the driver
writes files, so an item can be repeated whenever a worker dies.
"""

import contextlib
import ctypes
import functools
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from kjax.data.cutting.photographs import in_order
from kjax.errors import InputError, first_line
from kjax.extras import require
from kjax.version import __version__

CONNECT_SECONDS = 5.0
"""Time limit for connecting to a cluster; Ray itself would try for minutes."""
SHARDS_WAITING = 2
"""Shards in flight per machine, so that the next one is ready when a shard is done."""
M_ARENA_MAX, MOST_ARENAS = -8, 2
"""glibc's option and its value. Each shard has new threads, for which glibc would keep ever more
memory: 1.4 GB after 64 images, 0.7 GB with two arenas."""
Result = TypeVar("Result")
Value = TypeVar("Value")


class Threads:
    """Threads of this machine."""

    def share(self, value: Value) -> Value:
        """Prepare a value that is part of several items, so that it is sent only once."""
        return value

    def map(
        self, function: Callable[..., Result], items: Iterable[tuple], *, threads: int, shard: int
    ) -> Iterator[Result]:
        """Yield `function(*item)` for each item, in order; items are consumed lazily.

        A machine processes `shard` items at a time with up to `threads` threads.
        """
        del shard  # nothing is sent
        count = min(threads, os.cpu_count() or 1)
        # Closed at once, so that nothing new starts after Ctrl-C.
        with contextlib.closing(in_order(lambda item: function(*item), items, count)) as work:
            for _, done in work:
                yield done.result()


class Cluster:
    """A Ray cluster. Each machine processes a shard in its threads, as `Threads` would.

    Images and descriptors are sent: no shared folder is needed. kjax must be installed everywhere.
    """

    def __init__(self, address: str) -> None:
        """Connect to HOST:PORT, ray://HOST:PORT, or "auto": $RAY_ADDRESS, else this machine's."""
        self._ray = require("ray", "--cluster")
        if address == "auto":
            # Ray looks in the same places, but only notices after minutes that a cluster is gone.
            folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
            noted = Path(folder, "ray", "ray_current_cluster")
            address = os.environ.get("RAY_ADDRESS", "")
            if not address and not noted.is_file():
                raise InputError("no Ray cluster runs here: start one with ray start --head")
            address = address or noted.read_text().strip()
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except (OSError, ValueError, OverflowError) as error:
            message = f"--cluster {address} does not answer ({error}): start one with ray start"
            raise InputError(message) from None
        try:
            self._ray.init(address, logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(f"--cluster {address}: {first_line(error)}") from None

    def share(self, value: Value) -> Value:
        """Return a reference, which Ray replaces by the value."""
        return self._ray.put(value)

    def map(
        self, function: Callable[..., Result], items: Iterable[tuple], *, threads: int, shard: int
    ) -> Iterator[Result]:
        """Like `Threads.map`. Ray sends a shard whose worker died to another one."""
        machines = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        cores = [int(count) for count in machines if count >= 1]
        if not cores:
            raise InputError("the cluster has no free core: add a machine with ray start")
        # A shard takes all cores of the smallest machine, so that a machine runs one process with
        # many threads: each process that describes needs some hundred megabytes.
        run = self._ray.remote(num_cpus=min(cores))(_run_shard)
        sent = self._ray.put(function)
        most = SHARDS_WAITING * sum(count // min(cores) for count in cores)
        waiting, rest = deque[Any](), iter(items)
        errors = self._ray.exceptions
        while (group := list(itertools.islice(rest, shard))) or waiting:
            if group:
                # Ray only replaces references that are arguments themselves, not inside of others.
                flat = itertools.chain.from_iterable(group)
                lengths = [len(item) for item in group]
                waiting.append(run.remote(__version__, [sent], threads, lengths, *flat))
                if len(waiting) < most:
                    continue
            try:
                results = self._ray.get(waiting.popleft())
            except errors.RayTaskError as error:
                raise error.cause from error
            except errors.RayError as error:
                message = f"the cluster failed ({first_line(error)}): run the same command again"
                raise InputError(message) from error
            yield from results


Engine = Threads | Cluster
HERE = Threads()


def _run_shard(
    version: str, function: list[Any], threads: int, lengths: list[int], *flat: Any
) -> list[Any]:
    """Process the items of a shard on a worker; they come flattened, with their lengths."""
    if version != __version__:
        raise InputError(f"the cluster has kjax {__version__}, not {version}: install one version")
    rest = iter(flat)
    items = [tuple(itertools.islice(rest, length)) for length in lengths]
    return list(HERE.map(_fetched(function[0]), items, threads=threads, shard=len(items)))


@functools.lru_cache(maxsize=1)
def _fetched(reference: Any) -> Callable[..., Any]:
    """Fetch a function once for all shards of a worker, which keeps its compiled programs."""
    from kjax.images.runner import keep_compiled_programs

    keep_compiled_programs()
    # Not by an environment variable: Ray starts workers with one through a shell, and does not
    # quote the path to Python.
    if set_option := getattr(ctypes.CDLL(None), "mallopt", None):
        set_option(M_ARENA_MAX, MOST_ARENAS)
    return require("ray", "--cluster").get(reference)
