"""glue-factory's extractor, on glue-factory where it is installed, otherwise on what stands in."""

import importlib.util
import sys

import numpy as np
import pytest
import skimage.data

torch = pytest.importorskip("torch")

import kjax  # noqa: E402

STAND_IN = {
    "__init__.py": "",
    "models/__init__.py": "",
    "models/utils/__init__.py": "",
    "models/base_model.py": """
from types import SimpleNamespace
import torch

class BaseModel(torch.nn.Module):
    def __init__(self, conf):
        super().__init__()
        self.conf = SimpleNamespace(**{**self.default_conf, **conf})
        self._init(self.conf)

    def set_initialized(self):
        pass

    def forward(self, data):
        assert all(key in data for key in self.required_data_keys)
        return self._forward(data)
""",
    "models/utils/misc.py": """
import torch

def pad_and_stack(sequences, length=None, pad_dim=-2, mode="zeros", bounds=(None, None)):
    length = length or max(len(row) for row in sequences)
    fill = bounds[1] / 2 if mode == "random_c" else 0
    missing = [row.new_full((length - len(row), *row.shape[1:]), fill) for row in sequences]
    return torch.stack([torch.cat(both) for both in zip(sequences, missing)])
""",
}


@pytest.fixture
def extractor(tmp_path, monkeypatch):
    """The class, found by the name that a configuration gives it."""
    if importlib.util.find_spec("gluefactory") is None:
        for name, text in STAND_IN.items():
            path = tmp_path / "gluefactory" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        from kjax.integrations.gluefactory import GlueFactoryExtractor

        yield GlueFactoryExtractor
    else:
        from gluefactory.models import get_model

        yield get_model("kjax.integrations.gluefactory")
    monkeypatch.undo()
    for name in list(sys.modules):
        if name.partition(".")[0] == "gluefactory" or name == "kjax.integrations.gluefactory":
            del sys.modules[name]


def test_a_padded_batch_and_a_fixed_number_of_keypoints(extractor):
    photo = skimage.data.camera() / np.float32(255)
    sizes = [(300, 200), (160, 120)]
    images = np.zeros((2, 1, 200, 300), np.float32)
    for image, (width, height) in zip(images, sizes, strict=True):
        image[0, :height, :width] = photo[:height, :width]
    model = extractor({"weights": "tiny", "max_num_keypoints": 60}).eval()
    found = model({"image": torch.from_numpy(images), "image_size": torch.tensor(sizes)})
    describer, counts = kjax.load("tiny"), []
    for number, (width, height) in enumerate(sizes):
        ours = describer.describe_image(photo[:height, :width], max_keypoints=60)
        row = {name: column[number, : len(ours)].numpy() for name, column in found.items()}
        np.testing.assert_array_equal(row["descriptors"], ours.descriptors)
        np.testing.assert_array_equal(row["keypoints"], ours.xy + np.float32(0.5))
        np.testing.assert_array_equal(row["scales"], ours.scales / 2)
        np.testing.assert_allclose(row["oris"], np.radians(ours.angles), rtol=1e-6)
        np.testing.assert_array_equal(row["keypoint_scores"], ours.scores)
        counts.append(len(ours))
    assert counts[1] < counts[0] == found["keypoints"].shape[1]
    filling = {name: column[1, counts[1] :] for name, column in found.items()}
    for name in ("descriptors", "scales", "oris", "keypoint_scores"):
        assert (filling[name] == 0).all()
    assert ((filling["keypoints"] >= 0) & (filling["keypoints"] <= 200)).all()
    # A fixed number of keypoints, also where there are none.
    conf = {"weights": "tiny", "max_num_keypoints": 70, "force_num_keypoints": True}
    found = extractor(conf)({"image": torch.zeros(2, 3, 64, 64)})
    assert found["keypoints"].shape == (2, 70, 2)
    assert found["descriptors"].shape == (2, 70, 128)
