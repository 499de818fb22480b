"""The fastest way to describe patches on this machine: guessed for few, measured once for many.

Two programs can do it on CPUs: XLA, and onnxruntime where it is installed, which needs no seconds
of compiling and was faster with all that ships on x86_64. Whichever it is, and whatever the batch,
descriptors are the same up to rounding.

$KJAX_DESCRIBE says "jax" or "onnxruntime" to have it so, or "guess" to measure and remember
nothing.
"""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Float32, Num

from kjax.data.cache import cache_root
from kjax.errors import unknown_name
from kjax.extras import require
from kjax.files.atomic import write_json
from kjax.model.describe import cores, default_threads, describe, preferred_batch
from kjax.model.descriptor import Descriptor
from kjax.model.folding import fold_head
from kjax.model.onnx_graph import onnx_model
from kjax.version import __version__

JAX, ONNXRUNTIME, GUESS = "jax", "onnxruntime", "guess"
VARIABLE = "KJAX_DESCRIBE"
ONNX_BATCH = 32
QUICKLY_COMPILED, REPAYS_COMPILING = 8, 16384
"""A batch for XLA that runs plain convolutions, and the patches from which better ones pay."""
X86 = ("x86_64", "AMD64")
"""Where onnxruntime was seen to win."""
REPAYS_MEASURING = 100_000
MEASURED_PATCHES, MEASURING_SECONDS = 1024, 20.0
"""Patches that each way describes, and when no further way is tried."""
MEMORY, LARGEST = "fastest.json", 4096
"""The file in the cache folder, and what no batch or number of threads in it exceeds."""


@dataclasses.dataclass(frozen=True)
class Way:
    """A program, the patches that it takes at a time, and the threads that run it."""

    backend: str
    batch: int
    threads: int


class Runner:
    """A folded model with its weights, compiled for few shapes."""

    def __init__(
        self, folded: Descriptor, weights: Mapping[str, Any], *, backend: str | None = None
    ) -> None:
        """Prepares nothing yet.

        Args:
            folded: a model as `kjax.fold` gives it.
            weights: the same.
            backend: "jax", "onnxruntime" or "guess"; $KJAX_DESCRIBE, if it is not given.

        Raises:
            InputError: there is no such backend, or its package is missing.
        """
        self._backend = backend or os.environ.get(VARIABLE) or None
        if self._backend not in (None, JAX, ONNXRUNTIME, GUESS):
            raise unknown_name("backend", self._backend, (JAX, ONNXRUNTIME, GUESS))
        if self._backend == ONNXRUNTIME:
            require("onnx", "describing with onnxruntime")
            require("onnxruntime", "describing with onnxruntime")
        self._model, self._weights = fold_head(folded, weights)
        self.dimension = self._dimension()

    def __getstate__(self) -> dict[str, Any]:
        """Programs stay where they are: another process makes its own."""
        return {name: kept for name, kept in vars(self).items() if not name.startswith("_by_")}

    def describe(self, patches: Num[np.ndarray, "N size size"]) -> Float32[np.ndarray, "N dim"]:
        """Descriptors of patches of the model's size."""
        return self.describe_in(self.way(patches), patches)

    def describe_on_device(
        self, patches: Float[Array, "N size size"]
    ) -> Float32[np.ndarray, "N dim"]:
        """The same by JAX, of finite patches that lie on the device and do not leave it."""
        count = len(patches)
        # A power of two, as below.
        batch = min(preferred_batch(), 1 << max(count - 1, 0).bit_length())
        rows = [self._by_jax(_batch(patches, at, batch)) for at in range(0, count, batch)]
        found = [np.asarray(part, np.float32) for part in rows]
        return np.concatenate([np.empty((0, self.dimension), np.float32), *found])[:count]

    def describe_in(
        self, way: Way, patches: Num[np.ndarray, "N size size"]
    ) -> Float32[np.ndarray, "N dim"]:
        """The same in a given way."""
        # A power of two: photographs with any number of keypoints run one of few programs.
        batch = min(way.batch, 1 << max(len(patches) - 1, 0).bit_length())
        return describe(
            self._by_onnxruntime if way.backend == ONNXRUNTIME else self._by_jax,
            patches,
            size=self._model.patch_size,
            batch=batch,
            dimension=self.dimension,
            threads=way.threads,
            compiles=way.backend == JAX,
            progress=False,
        )

    def way(self, patches: Num[np.ndarray, "N size size"]) -> Way:
        """The fastest: as remembered, or measured if there are many, or as a guess."""
        guess = self._guess(len(patches))
        measurable = self._backend is None and jax.default_backend() == "cpu"
        if not measurable or len(patches) < REPAYS_COMPILING:
            return guess
        if (known := _remembered().get(self._key())) or len(patches) < REPAYS_MEASURING:
            return known or guess
        fastest = self._measured(patches[:MEASURED_PATCHES])
        _remember(self._key(), fastest)
        return fastest

    def _guess(self, count: int) -> Way:
        batch, on_cpu = preferred_batch(), jax.default_backend() == "cpu"
        wins = platform.machine() in X86
        wanted = self._backend == ONNXRUNTIME or (self._backend != JAX and wins)
        if on_cpu and wanted and self._has_onnx():
            return Way(ONNXRUNTIME, ONNX_BATCH, default_threads())
        if on_cpu and count < REPAYS_COMPILING:
            batch = QUICKLY_COMPILED
        return Way(JAX, batch, default_threads())

    def _measured(self, patches: Num[np.ndarray, "N size size"]) -> Way:
        ways = [Way(JAX, preferred_batch(), cores()), Way(JAX, 4 * preferred_batch(), cores())]
        if self._has_onnx():
            ways.insert(0, Way(ONNXRUNTIME, ONNX_BATCH, cores()))
        if cores() > 2:  # which may be two to a processor
            ways += [dataclasses.replace(way, threads=cores() // 2) for way in ways]
        begun = time.monotonic()
        seconds: dict[Way, float] = {}
        for way in ways:
            if seconds and time.monotonic() - begun > MEASURING_SECONDS:
                break
            self.describe_in(way, patches)  # compiles
            started = time.perf_counter()
            self.describe_in(way, patches)
            seconds[way] = time.perf_counter() - started
        return min(seconds, key=seconds.__getitem__)

    def _dimension(self) -> int:
        """Of a descriptor: as its projection says, and of heads without one as their maps give."""
        if "head" in self._weights["params"]:
            return int(self._weights["params"]["head"]["kernel"].shape[-1])
        blank = np.zeros((1, self._model.patch_size, self._model.patch_size), np.float32)
        return int(jax.eval_shape(self._model.apply, self._weights, blank).shape[1])

    def _has_onnx(self) -> bool:
        installed = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
        return installed and self._model.dtype == jnp.float32

    def _key(self) -> str:
        """What the fastest way depends on."""
        model = self._model
        return ", ".join(
            [
                processor(),
                f"{cores()} cores",
                *(f"{name} {version}" for name, version in _versions().items()),
                f"{model.head} {'-'.join(map(str, model.channels))}",
                f"{model.patch_size}×{model.patch_size} {jnp.dtype(model.dtype)}",
            ]
        )

    @functools.cached_property
    def _by_jax(self) -> Callable[..., Any]:
        return functools.partial(jax.jit(self._model.apply), self._weights)

    @functools.cached_property
    def _by_onnxruntime(self) -> Callable[..., Any]:
        onnxruntime = require("onnxruntime", "describing with onnxruntime")
        options = onnxruntime.SessionOptions()
        # Threads of ours have a batch each: they need not wait for each other in every layer.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        model = onnx_model(self._model, self._weights, dtype="float32", block=_onnx_block())
        graph = model.SerializeToString()
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        return lambda block: session.run(["descriptors"], {"patches": np.asarray(block)})[0]


@functools.partial(jax.jit, static_argnums=2)
def _batch(
    patches: Float[Array, "N size size"], start: ArrayLike, batch: int
) -> Float[Array, "{batch} size size"]:
    """So many patches from one on; behind the last there are blank ones."""
    whole = jnp.pad(patches, ((0, -len(patches) % batch), (0, 0), (0, 0)))
    return jax.lax.dynamic_slice_in_dim(whole, start, batch)


def processor() -> str:
    """The model's name where Linux tells it, and the architecture."""
    return " ".join([*_cpuinfo("model name")[:1], platform.machine()])


def _onnx_block() -> int:
    """Channels that onnxruntime holds together: as many as float32 in a register."""
    return 16 if any("avx512f" in flags.split() for flags in _cpuinfo("flags")) else 8


def _cpuinfo(field: str) -> list[str]:
    """A field of every processor, where Linux tells it."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(field)]


def _versions() -> dict[str, str]:
    found = {"kjax": __version__, "jaxlib": importlib.metadata.version("jaxlib")}
    if importlib.util.find_spec("onnxruntime"):
        found["onnxruntime"] = importlib.metadata.version("onnxruntime")
    return found


def _remembered() -> dict[str, Way]:
    """Ways by key; none if nobody has measured, or the file is damaged."""
    try:
        known = json.loads((cache_root() / MEMORY).read_text(encoding="utf-8"))
        ways = {key: Way(**way) for key, way in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return {key: way for key, way in ways.items() if _is_sane(way)}


def _is_sane(way: Way) -> bool:
    sizes = (way.batch, way.threads)
    return way.backend in (JAX, ONNXRUNTIME) and all(
        isinstance(size, int) and 0 < size <= LARGEST for size in sizes
    )


def _remember(key: str, way: Way) -> None:
    ways = _remembered() | {key: way}
    try:
        cache_root().mkdir(parents=True, exist_ok=True)
        write_json(
            cache_root() / MEMORY, {key: dataclasses.asdict(way) for key, way in ways.items()}
        )
    except OSError:
        return  # a cache that cannot be written to costs the next one some seconds
