"""Strict settings for every test: checked shapes, no silent broadcasting, four CPU devices."""

import os
import tempfile

# Shared by the processes of this run (workers, and programmes that tests start), and by it alone.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="kjax-tests-"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=4"
    # Tests compile a hundred small programmes and run each a few times.
    + " --xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true"
)

import jax
import pytest
from jaxtyping import install_import_hook

install_import_hook("kjax", "beartype.beartype")
jax.config.update("jax_numpy_rank_promotion", "raise")

from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real photographs and released weights that are not ours to ship."""
    if not SHARED.is_dir():
        pytest.skip("the folder of third-party test data is not here")
    return SHARED


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def double_precision():
    """JAX's 64-bit mode, for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
