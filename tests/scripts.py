"""Programs that are files, not modules of the package, and programs in new interpreters."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


def load_script(path: Path) -> ModuleType:
    """The file as a module, without the seconds that another process takes to begin."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_python(code: str, *arguments, cwd=None, **environment) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that finds the same modules, and wait for its end."""
    path = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
    )


def output_of(code: str, *arguments, **options) -> str:
    """Return what code prints in a new interpreter; it must succeed."""
    done = run_python(code, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
