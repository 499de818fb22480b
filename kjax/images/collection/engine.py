"""Who does the work on a collection: threads of this machine, or the machines of a Ray cluster.

A stage gives a function and items, and takes results in the order of the items. The function does
the same wherever it runs, and only the driver, which asks for the results, writes files: whatever
dies on the way, an item can be done again.
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

SECONDS_TO_ANSWER = 5.0
"""Until an address counts as silent; Ray itself would try for minutes."""
SHARDS_WAITING = 2
"""For each machine: the next one is there when a shard is done."""
ARENAS, MOST_ARENAS = -8, 2
"""glibc's M_ARENA_MAX. Each shard has new threads, for which it would keep ever more memory: after
64 photographs 1.4 GB, with two arenas from the start 0.7."""
Result = TypeVar("Result")
Value = TypeVar("Value")


class Threads:
    """This machine alone."""

    def share(self, value: Value) -> Value:
        """A value that is part of several items, to be sent once: put what this gives into them."""
        return value

    def map(
        self, function: Callable[..., Result], items: Iterable[tuple], *, threads: int, shard: int
    ) -> Iterator[Result]:
        """What becomes of items, in their order.

        Args:
            function: of an item's parts. It may be called in several threads, and again for an
                item whose worker died.
            items: looked at as late as possible: few of them wait at a time.
            threads: of a machine that call it, at most.
            shard: items that are sent to another machine together, and lost with it.
        """
        del shard  # nothing is sent
        count = min(threads, os.cpu_count() or 1)
        work = in_order(lambda parts: function(*parts), items, count)
        # Closed at once, so that nothing more is begun after a Ctrl-C.
        with contextlib.closing(work):
            for _, done in work:
                yield done.result()


class Cluster:
    """The machines of a Ray cluster, each of which does a shard in its threads, as `Threads` would.

    Photographs and descriptors travel: no folder need be shared. kjax must be installed everywhere.
    """

    def __init__(self, address: str) -> None:
        """Joins the cluster.

        Args:
            address: HOST:PORT of its head, ray://HOST:PORT, or "auto": $RAY_ADDRESS, else the
                cluster that this machine is part of.

        Raises:
            InputError: Ray is missing, or the cluster does not answer.
        """
        self._ray = require("ray", "--cluster")
        address = _running() if address == "auto" else address
        _check_answers(address)
        try:
            self._ray.init(
                address,
                logging_level="ERROR",
                log_to_driver=False,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(f"--cluster {address}: {first_line(error)}") from None

    def share(self, value: Value) -> Value:
        """A reference, in whose place the function finds the value."""
        return self._ray.put(value)

    def map(
        self, function: Callable[..., Result], items: Iterable[tuple], *, threads: int, shard: int
    ) -> Iterator[Result]:
        """As `Threads.map` says. Ray sends a shard whose worker died to another one."""
        machines = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        cores = [int(count) for count in machines if count >= 1]
        if not cores:
            raise InputError("no machine of the cluster has a core to give: add one with ray start")
        # All of the smallest machine's cores, so that shards run in as many threads, not beside
        # as many others: a process that describes takes some hundreds of megabytes.
        do = self._ray.remote(num_cpus=min(cores))(_do_shard)
        sent = self._ray.put(function)
        most = SHARDS_WAITING * sum(count // min(cores) for count in cores)
        waiting: deque[Any] = deque()
        for group in _groups(items, shard):
            lengths = [len(parts) for parts in group]
            # Ray looks for references among the arguments themselves, not inside of them.
            flat = itertools.chain.from_iterable(group)
            waiting.append(do.remote(__version__, [sent], threads, lengths, *flat))
            if len(waiting) >= most:
                yield from self._results(waiting.popleft())
        while waiting:
            yield from self._results(waiting.popleft())

    def _results(self, shard: Any) -> list[Any]:
        errors = self._ray.exceptions
        try:
            return self._ray.get(shard)
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.RayError as error:
            raise InputError(
                f"the cluster gave up on a shard ({first_line(error)}): mend it, and the same "
                "command goes on"
            ) from error


Engine = Threads | Cluster
HERE = Threads()


def _do_shard(
    version: str, function: list[Any], threads: int, lengths: list[int], *parts: Any
) -> list[Any]:
    """A shard of items, on a worker; their parts are all in one row."""
    if version != __version__:
        raise InputError(
            f"a machine of the cluster has kjax {__version__}, this one has {version}: install the "
            "same"
        )
    rest = iter(parts)
    items = [tuple(itertools.islice(rest, length)) for length in lengths]
    return list(HERE.map(_fetched(function[0]), items, threads=threads, shard=len(items)))


@functools.lru_cache(maxsize=1)
def _fetched(function: Any) -> Callable[..., Any]:
    """A function by its reference, once for all shards that a worker does: programs stay."""
    from kjax.images.compiled_programs import keep_compiled_programs

    keep_compiled_programs()
    _keep_memory_small()
    return require("ray", "--cluster").get(function)


def _keep_memory_small() -> None:
    """Where the C library is glibc.

    Not by a variable of the workers' environment: Ray starts such workers by a shell, for which it
    does not quote the path to Python, and one with a space in it is tried for minutes in vain.
    """
    if set_option := getattr(ctypes.CDLL(None), "mallopt", None):
        set_option(ARENAS, MOST_ARENAS)


def _running() -> str:
    """Where Ray's "auto" would look, so that a cluster that has gone is noticed at once.

    Raises:
        InputError: there is none.
    """
    if told := os.environ.get("RAY_ADDRESS"):
        return told
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    noted = Path(temporary, "ray", "ray_current_cluster")
    if not noted.is_file():
        raise InputError(
            "--cluster auto: no Ray cluster runs here: start one with ray start --head"
        )
    return noted.read_text().strip()


def _check_answers(address: str) -> None:
    """Refuses what is not HOST:PORT, or where nobody listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"--cluster {address} does not answer ({error}): start one with ray start --head, and "
            "give the address that it prints"
        ) from None


def _groups(items: Iterable[tuple], size: int) -> Iterator[list[tuple]]:
    rest = iter(items)
    while group := list(itertools.islice(rest, size)):
        yield group
