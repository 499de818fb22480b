"""What `import kjax` costs, seen from a fresh interpreter."""

import subprocess
import sys

HEAVY = ("tensorflow", "torch", "cv2", "matplotlib")


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_import_is_quick():
    code = "import time; t = time.perf_counter(); import kjax; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(2)) < 1.5


def test_using_models_loading_runs_and_training_pull_in_no_other_framework():
    code = f"""
import sys, kjax, kjax.weights.source, kjax.train.run, kjax.cli
kjax.build, kjax.fold
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    assert run(code).strip() == "[]"


def test_every_public_name_is_there():
    import kjax

    for name in kjax.__all__:
        assert getattr(kjax, name) is not None


def test_unknown_names_are_attribute_errors():
    import kjax

    assert "build" in dir(kjax)
    assert not hasattr(kjax, "biuld")
