"""Strict settings for every test: checked shapes, no silent broadcasting, four CPU devices."""

import atexit
import gc
import importlib.metadata
import os
import shutil
import signal
import tempfile

# Shared by the processes of this run (workers, and programs that tests start), and by it alone.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    compiled = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="kjax-tests-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
# Single operations too: many tests need the same hundreds of them.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Tests compile hundreds of small programs and run each a few times.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=4"
    + " --xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true"
)
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # Halves compile times. XLA stops at a flag that it does not know, and these may not stay.
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
    # A quarter less again: every part costs, and the cores that could share them have work.
    os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"
# Tests run on every core already: torch's and NumPy's threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's background jobs ignore Ctrl-C, and so would all programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax
import pytest
from jaxtyping import install_import_hook

install_import_hook("kjax", "beartype.beartype")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiled programs are millions of objects that stay: looking through all of them takes its time.
gc.set_threshold(50_000, 20, 100)

from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

SHARED = Path(__file__).parents[2] / "shared" / "data"


def pytest_configure(config: pytest.Config) -> None:
    # JAX does not write its cache whole: a worker that reads half an entry of another compiles
    # again, after this warning.
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real photographs and released weights that are not ours to ship."""
    if not SHARED.is_dir():
        pytest.skip("the folder of third-party test data is not here")
    return SHARED


@pytest.fixture(autouse=True)
def _needs_gpu(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and jax.default_backend() != "gpu":
        pytest.skip("needs an NVIDIA GPU of compute capability 9 or 10, and a JAX that uses it")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def browser():
    from browser import open_browser

    with open_browser() as browser:
        yield browser


@pytest.fixture
def optimized():
    """XLA's optimisations, for one test: where it has no library, it is far slower without them."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def double_precision():
    """JAX's 64-bit mode, for one test.

    Without XLA's optimisations its convolutions are slow: only for narrow networks.
    """
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture
def disk_calls(monkeypatch) -> list[tuple[str, Path]]:
    """Fills up with ("fsync", what) and ("rename", new name), in the order of the calls."""
    calls: list[tuple[str, Path]] = []

    def note(name, call, path_of):
        def noting(*arguments, **options):
            calls.append((name, path_of(arguments)))
            return call(*arguments, **options)

        return noting

    fsync = note("fsync", os.fsync, lambda given: Path(os.readlink(f"/proc/self/fd/{given[0]}")))
    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("rename", "replace"):
        renaming = note("rename", getattr(os, name), lambda given: Path(given[1]))
        monkeypatch.setattr(os, name, renaming)
    return calls
