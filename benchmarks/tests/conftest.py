"""Settings and fixtures of `tests/`, and the folders of programs and helpers on the path."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
sys.path[:0] = [str(ROOT / "benchmarks"), *map(str, (TESTS, TESTS / "eval", TESTS / "matcher"))]

_spec = importlib.util.spec_from_file_location("kjax_tests", TESTS / "conftest.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
globals().update({name: value for name, value in vars(_module).items() if name[0] != "_"})


@pytest.fixture(scope="session")
def patch_set(tmp_path_factory):
    """Random patches, three of each of ten points, which are the same up to their grey."""
    from kjax.data.phototour import PatchSet

    rng = np.random.default_rng(0)
    coarse = np.kron(rng.integers(40, 200, (10, 16, 16)), np.ones((1, 4, 4), int))
    patches = np.concatenate([coarse, coarse + 10, coarse + 20]).astype(np.uint8)
    return PatchSet("coarse", patches, np.tile(np.arange(10), 3), tmp_path_factory.mktemp("set"))
