"""Describe patches with the faster of two programs: XLA on accelerators, onnxruntime on CPUs.

Descriptors are the same up to rounding. $KJAX_DESCRIBE overrides the choice: "jax" or
"onnxruntime", which imports no JAX. Only onnxruntime computes in int8.
"""

import contextlib
import functools
import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Num

from kjax.data.cache import cache_root
from kjax.errors import InputError, unknown_name
from kjax.extras import jax, jnp, require
from kjax.model.architecture import Architecture
from kjax.model.describe import describe, on_cpu, preferred_batch
from kjax.model.folding import fold_head
from kjax.model.onnx_graph import onnx_model

JAX, ONNXRUNTIME = "jax", "onnxruntime"
VARIABLE = "KJAX_DESCRIBE"
ONNX_BATCH = 32
X86 = ("x86_64", "AMD64")
EIGHT_BITS = {"avx512_vnni", "avx_vnni", "asimddp"}
"""Processors with one of these dot products are faster in int8, by Linux's names."""
QUICKLY_COMPILED, REPAYS_COMPILING = 8, 16384
"""Batch size for which XLA compiles quickly, and the number of patches from which the faster
programs of larger batches repay their compilation."""


class Runner:
    """A folded model with its weights, compiled on first use for few batch shapes."""

    def __init__(
        self, folded: Architecture, weights: Any, *, backend: str | None = None, device: Any = None
    ) -> None:
        """Choose the backend: the argument, $KJAX_DESCRIBE, or what is faster on the device."""
        self.device = find_device(device) if isinstance(device, str) else device
        backend = backend or os.environ.get(VARIABLE)
        if backend not in (None, "", JAX, ONNXRUNTIME):
            raise unknown_name("backend", backend, (JAX, ONNXRUNTIME))
        int8 = folded.dtype == np.int8
        if int8 and (backend == JAX or not on_cpu(self.device)):
            raise InputError("int8 needs onnxruntime on a CPU: choose these, or another dtype")
        if backend == ONNXRUNTIME or int8:
            require("onnx", "describing with onnxruntime")
            require("onnxruntime", "describing with onnxruntime")
        usable = folded.dtype in (np.float32, np.int8) and has_onnxruntime(self.device)
        self.backend = ONNXRUNTIME if usable and backend != JAX else JAX
        self._model, self.weights = fold_head(folded, weights)
        self.dimension = folded.descriptor_size
        if self.backend == JAX:
            self.weights = jax.device_put(self.weights, self.device)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out compiled programs: another process compiles its own."""
        return {name: kept for name, kept in vars(self).items() if not name.startswith("_by_")}

    def on_device(self) -> AbstractContextManager[None]:
        """Make the device JAX's default in a `with` block."""
        if self.backend == ONNXRUNTIME:
            return contextlib.nullcontext()
        current = jax.config.jax_default_device  # type: ignore[attr-defined]
        return jax.default_device(self.device or current)

    def batch_size(self, count: int) -> int:
        """Return the batch size for a number of points; with context, each has several patches."""
        if self.backend == ONNXRUNTIME:
            largest = ONNX_BATCH
        elif on_cpu(self.device) and count < REPAYS_COMPILING:
            largest = QUICKLY_COMPILED
        else:
            largest = preferred_batch()
        # A power of two: images with any number of keypoints share few programs.
        return min(max(largest // len(self._model.context), 1), 1 << max(count - 1, 0).bit_length())

    def describe(
        self,
        patches: Num[np.ndarray, "N *C size size"],
        *,
        threads: int | None = None,
        rounded: bool = False,
        progress: bool = False,
    ) -> Float32[np.ndarray, "N dim"]:
        """Describe patches; those of another size are resized, see `kjax.model.describe`."""
        with self.on_device():
            return describe(
                self._by_onnxruntime if self.backend == ONNXRUNTIME else self._by_jax,
                patches,
                size=self._model.patch_size,
                batch=self.batch_size(len(patches)),
                dimension=self.dimension,
                threads=threads,
                compiles=self.backend == JAX,
                rounded=rounded,
                progress=progress,
            )

    def describe_on_device(
        self, patches: Float[Any, "N *C size size"]
    ) -> Float32[np.ndarray, "N dim"]:
        """Describe finite patches that lie on an accelerator, without copying them to the host."""
        count, batch = len(patches), self.batch_size(len(patches))
        # Blank patches fill up the last batch.
        whole = jnp.pad(patches, [(0, -count % batch), *[(0, 0)] * (patches.ndim - 1)])
        parts = (jax.lax.dynamic_slice_in_dim(whole, at, batch) for at in range(0, count, batch))
        found = [np.asarray(rows, np.float32) for rows in [self._by_jax(part) for part in parts]]
        return np.concatenate([np.empty((0, self.dimension), np.float32), *found])[:count]

    @functools.cached_property
    def _by_jax(self) -> Callable[..., Any]:
        return functools.partial(jax.jit(self.module().apply), self.weights)

    def module(self) -> Any:
        """Return the linen module of the weights."""
        from kjax.model.descriptor import as_module  # brings JAX

        return as_module(self._model)

    @functools.cached_property
    def _by_onnxruntime(self) -> Callable[..., Any]:
        onnxruntime = require("onnxruntime", "describing with onnxruntime")
        options = onnxruntime.SessionOptions()
        # Each of our threads runs its own batch, so that none waits for another in every layer.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        # As many channels to a block as a register holds float32. ARM was measured without blocks.
        block = 16 if "avx512f" in cpu_features() else 8 if platform.machine() in X86 else None
        graph = onnx_model(self._model, self.weights, dtype="float32", block=block)
        session = onnxruntime.InferenceSession(
            graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return lambda block: session.run(["descriptors"], {"patches": np.asarray(block)})[0]


def fastest_dtype(backend: str | None = None, device: Any = None) -> str:
    """Return "int8" for CPUs with 8-bit dot products, by onnxruntime; otherwise "float32"."""
    apple = (platform.system(), platform.machine()) == ("Darwin", "arm64")
    wanted = (backend or os.environ.get(VARIABLE)) != JAX and (apple or EIGHT_BITS & cpu_features())
    return "int8" if wanted and has_onnxruntime(device) else "float32"


def has_onnxruntime(device: Any = None) -> bool:
    """Whether onnxruntime is installed and JAX's device, or the given one, is a CPU."""
    installed = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
    return installed and on_cpu(device)


@functools.cache
def cpu_features() -> frozenset[str]:
    """Return the processor's features by Linux's names; none on other systems."""
    cpuinfo = Path("/proc/cpuinfo")
    return frozenset(cpuinfo.read_text().split() if cpuinfo.exists() else ())


def find_device(name: str) -> Any:
    """Return the device called "cpu", "gpu", or with its index "gpu:1"."""
    kind, _, index = name.partition(":")
    try:
        return jax.local_devices(backend=kind)[int(index or 0)]
    except (RuntimeError, IndexError, ValueError):
        known = ", ".join(f"{one.platform}:{one.id}" for one in jax.local_devices())
        raise InputError(f"no device {name!r}: JAX has {known}") from None


def keep_compiled_programs() -> None:
    """Enable JAX's persistent compilation cache under the cache folder, for commands.

    $JAX_COMPILATION_CACHE_DIR takes precedence; KJAX_COMPILED=off disables the cache.
    """
    folder, smallest = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    imported = "jax" in sys.modules
    configured = getattr(jax.config, folder) if imported else os.environ.get(folder.upper())
    if configured or os.environ.get("KJAX_COMPILED") == "off":
        return
    # Small operations, too: there are dozens, which take as long as the large programs.
    for name, value in ((folder, str(cache_root() / "compiled")), (smallest, 0)):
        if imported:
            jax.config.update(name, value)
        else:
            os.environ[name.upper()] = str(value)
