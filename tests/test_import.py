"""What `import kjax` costs, seen from a fresh interpreter."""

import numpy as np
import pytest
from PIL import Image
from scripts import output_of


def test_import_is_quick():
    code = "import time; t = time.perf_counter(); import kjax; print(time.perf_counter() - t)"
    assert min(float(output_of(code)) for _ in range(2)) < 1.5


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (
            "import kjax, kjax.weights.source, kjax.train.run, kjax.cli; kjax.build, kjax.fold",
            "(tensorflow|torch|cv2|matplotlib)$",
        ),
        ("import kjax.data.download, kjax.data.pipelines, kjax.data.sets", "tensorflow"),
        ("import kjax.train.run", "tensorflow"),
        ("import kjax.baselines", "(jax|cv2|torch|scipy)$"),
        # Beside JAX, OpenCV's SIFT takes twice the time.
        ("from kjax.data import embedded, reconstruction, selfsupervised", "jax$"),
        pytest.param("import kjax.integrations.kornia", "jax$", marks=pytest.mark.slow),
    ],
)
def test_other_frameworks_are_imported_on_demand(code, heavy):
    if "kornia" in code:
        pytest.importorskip("kornia")
    code += f"; import re, sys; print([name for name in sys.modules if re.match({heavy!r}, name)])"
    assert output_of(code) == "[]\n"


def test_commands_by_onnxruntime_import_no_jax(tmp_path):
    photo = (np.random.default_rng(0).random((12, 16)) * 255).astype(np.uint8)
    Image.fromarray(photo).resize((160, 120)).save(tmp_path / "a.png")
    code = f"""
import os, sys, kjax.cli
os.chdir({str(tmp_path)!r})
assert kjax.cli.main("match a.png a.png --weights tiny --quiet --save m.npz".split()) == 0
assert kjax.cli.main("describe a.png --weights best --out a.h5 --quantize uint8".split()) == 0
assert kjax.cli.main("describe a.png --weights tiny --out a.npz --dtype int8".split()) == 0
print([name for name in ("jax", "flax", "scipy") if name in sys.modules])
"""
    assert output_of(code).splitlines()[-1] == "[]"
    assert '"dtype": "int8"' in str(np.load(tmp_path / "a.npz")["provenance"])


@pytest.mark.parametrize(
    ("platforms", "asked"), [("", True), ("cpu", False)], ids=["found", "overruled"]
)
def test_plugins_for_accelerators_are_left_to_jax(tmp_path, platforms, asked):
    (tmp_path / "jax_plugins").mkdir()
    code = f"""
import os, sys
os.environ["JAX_PLATFORMS"] = {platforms!r}
sys.path.append({str(tmp_path)!r})
from kjax.model.describe import on_cpu
print(on_cpu(), "jax" in sys.modules)
"""
    assert output_of(code).split() == ["True", str(asked)]


def test_every_public_name_is_there_and_others_are_attribute_errors():
    import kjax

    for name in kjax.__all__:
        assert getattr(kjax, name) is not None
    assert "build" in dir(kjax)
    assert not hasattr(kjax, "biuld")
