"""Python's zlib is loaded before pycolmap's, or a warning is printed."""

import importlib.util
import sys

import pytest
from scripts import output_of, run_python

WARNED = "pycolmap was imported before zlib"
PRETEND = """
import sys, types
sys.modules.pop("zlib", None)
{imports}
"""
PRETENDED = 'sys.modules["pycolmap._core"] = types.ModuleType("pycolmap._core")'
CACHED = """
{imports}
import io
import jax, jax.numpy as jnp
import numpy as np

jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x))(jnp.ones((50, 50))).block_until_ready()
if {compress}:
    np.savez_compressed(io.BytesIO(), noise=np.random.default_rng(0).random(10**5))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="symbols are shared on Linux")
@pytest.mark.skipif("zlib" in sys.builtin_module_names, reason="this Python has its zlib built in")
@pytest.mark.parametrize(
    ("imports", "warned"),
    [
        (f"{PRETENDED}; import kjax", True),
        (f"{PRETENDED}; import zlib; import kjax", True),
        (f"import zlib; {PRETENDED}; import kjax", False),
        (f"import kjax; {PRETENDED}", False),
    ],
)
def test_a_pycolmap_that_came_first_is_reported(imports, warned):
    done = run_python(PRETEND.format(imports=imports))
    assert done.returncode == 0, done.stderr
    assert (WARNED in done.stderr) == warned


@pytest.mark.parametrize(
    ("imports", "compress"),
    [
        ("import kjax, pycolmap", True),
        ("import zlib, pycolmap, kjax", True),
        ("import pycolmap, kjax", False),
    ],
)
def test_any_order_with_jaxs_cache(imports, compress, tmp_path):
    if importlib.util.find_spec("pycolmap") is None:
        pytest.skip("pycolmap is not installed")
    if not compress and importlib.util.find_spec("zstandard") is None:
        pytest.skip("zstandard is not installed: JAX's cache needs zlib")
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    output_of(CACHED.format(imports=imports, compress=compress), **cache)
    assert list(tmp_path.iterdir())
