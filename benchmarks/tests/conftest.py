"""Settings and fixtures of `tests/`, and the folders of programs and helpers on the path."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
sys.path[:0] = [str(ROOT / "benchmarks"), *map(str, (TESTS, TESTS / "eval", TESTS / "matcher"))]

_spec = importlib.util.spec_from_file_location("kjax_tests", TESTS / "conftest.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
globals().update({name: value for name, value in vars(_module).items() if name[0] != "_"})
