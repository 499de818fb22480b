"""Programs are kept on disk, unless somebody says otherwise."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
from kjax.images.compiled_programs import keep_compiled_programs
keep_compiled_programs()
import jax
print(jax.config.jax_compilation_cache_dir)
"""


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, "{cache}/compiled"),
        ({"KJAX_COMPILED": "off"}, "None"),
        ({"JAX_COMPILATION_CACHE_DIR": "/elsewhere"}, "/elsewhere"),
    ],
)
def test_where_programs_are_kept(variables, folder, tmp_path):
    kept = {name: value for name, value in os.environ.items() if name[:4] != "JAX_"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**kept, "KJAX_CACHE": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == folder.format(cache=tmp_path)
