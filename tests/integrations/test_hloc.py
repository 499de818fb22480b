"""hloc's extractor and matcher: found and called as hloc does it, and by hloc itself."""

import importlib
import importlib.util
import inspect
import sys

import cv2
import numpy as np
import pytest
import skimage.data
from PIL import Image
from refusals import assert_refused
from scripts import output_of

torch = pytest.importorskip("torch")

import kjax  # noqa: E402
from kjax.images.exchange import hloc as files  # noqa: E402
from kjax.images.features import Matches  # noqa: E402
from kjax.integrations.hloc import EXTRACTION, MATCHING, register  # noqa: E402

BASE_MODEL = """
import torch

class BaseModel(torch.nn.Module):
    default_conf = {}
    required_inputs = []

    def __init__(self, conf):
        super().__init__()
        self.conf = {**self.default_conf, **conf}
        self._init(self.conf)

    def forward(self, data):
        assert all(key in data for key in self.required_inputs)
        return self._forward(data)
"""
REAL = """
import sys
from pathlib import Path

from kjax.integrations.hloc import register
from hloc import extract_features, match_features, pairs_from_exhaustive

register()
photos, outputs, names = Path(sys.argv[1]), Path(sys.argv[2]), ["left.png", "right.png"]
conf = {"model": {"name": "kjax", "weights": "tiny", "max_keypoints": 300},
        "preprocessing": {"grayscale": True, "resize_max": 500}, "output": "feats-kjax"}
extract_features.main(conf, photos, outputs)
pairs_from_exhaustive.main(outputs / "pairs.txt", image_list=names)
for name in ("NN-mutual", "NN-ratio", "kjax"):
    match_features.main(
        match_features.confs[name], outputs / "pairs.txt", Path(outputs, "feats-kjax.h5"),
        matches=outputs / f"{name}.h5",
    )
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with the modules of hloc that `register` and a lookup by name need."""
    root = tmp_path / "likehloc"
    for folder in ("", "utils", "extractors", "matchers"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "__init__.py").touch()
    (root / "utils" / "base_model.py").write_text(BASE_MODEL)
    for program in ("extract_features", "match_features"):
        (root / f"{program}.py").write_text("confs = {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    register("likehloc")
    yield "likehloc"
    for name in [name for name in sys.modules if name.partition(".")[0] == "likehloc"]:
        del sys.modules[name]


def find_model(package, folder, conf):
    """As hloc's `dynamic_load` does: the one class that a module of this name defines."""
    place = f"{package}.{folder}.{conf['model']['name']}"
    module = __import__(place, fromlist=[""])
    base = importlib.import_module(f"{package}.utils.base_model").BaseModel
    (model,) = [
        found
        for _, found in inspect.getmembers(module, inspect.isclass)
        if found.__module__ == place and issubclass(found, base)
    ]
    return model({**conf["model"], "weights": "tiny", "max_keypoints": 50}).eval()


def test_extractor(package):
    assert importlib.import_module(f"{package}.extract_features").confs["kjax"] == EXTRACTION
    photo = skimage.data.camera()[:200, :300] / np.float32(255)
    model = find_model(package, "extractors", EXTRACTION)
    found = model({"image": torch.from_numpy(photo)[None, None]})
    expected = kjax.load("tiny").describe_image(photo, max_keypoints=50)
    np.testing.assert_array_equal(found["descriptors"][0].T, expected.descriptors)
    np.testing.assert_array_equal(found["keypoints"][0], expected.xy)
    np.testing.assert_array_equal(found["scales"][0], expected.scales / 2)
    np.testing.assert_array_equal(found["oris"][0], expected.angles)
    np.testing.assert_array_equal(found["scores"][0], expected.scores)
    # hloc would store float32 as float16, which is too coarse for positions.
    assert found["keypoints"].dtype == torch.float64
    colour = model({"image": torch.from_numpy(np.stack([photo] * 3)[None])})
    np.testing.assert_allclose(colour["keypoints"], found["keypoints"], atol=0.01)

    found = model({"image": torch.zeros(1, 1, 64, 64)})
    assert found["keypoints"].shape == (1, 0, 2)
    assert found["descriptors"].shape == (1, 128, 0)


def test_matcher(package, rng):
    assert importlib.import_module(f"{package}.match_features").confs["kjax"] == MATCHING
    first = rng.normal(size=(30, 8)).astype(np.float32)
    second = np.concatenate([first[::-1] + 0.01, first[:5] + 3]).astype(np.float32)
    sides = {"descriptors0": first, "descriptors1": second}
    data = {name: torch.tensor(rows.T)[None] for name, rows in sides.items()}
    found = find_model(package, "matchers", MATCHING)(data)
    np.testing.assert_array_equal(found["matches0"][0], np.arange(30)[::-1])
    assert found["matching_scores0"].shape == (1, 30)
    assert (found["matching_scores0"] > 0.5).all()


def test_learned_matcher(package, rng, tmp_path, monkeypatch):
    """It gets all that hloc has of both photographs, in hloc's units."""
    seen = []
    note = lambda *sides, **how: seen.append((sides, how)) or Matches.none()  # noqa: E731
    monkeypatch.setattr(kjax, "match", note)
    data = {}
    for side in "01":
        data[f"keypoints{side}"] = torch.from_numpy(rng.uniform(0, 90, (1, 5, 2)))
        data[f"descriptors{side}"] = torch.from_numpy(rng.normal(size=(1, 8, 5)))
        data[f"image_size{side}"] = torch.tensor([[100.0, 80.0]])
    data["scales0"] = torch.full((1, 5), 3.0)
    model = {"name": "kjax", "method": "learned", "matcher": "out/matcher"}
    found = find_model(package, "matchers", {"model": model})(data)
    assert found["matches0"].shape == (1, 5)
    (((first, second), how),) = seen
    assert how["matcher"] == "out/matcher"
    np.testing.assert_allclose(first.xy, data["keypoints0"][0], atol=1e-4)
    np.testing.assert_allclose(second.descriptors, data["descriptors1"][0].T, atol=1e-6)
    np.testing.assert_array_equal(first.scales, np.full(5, 6, np.float32))
    assert first.image_size == (100, 80)
    assert second.scales is None
    del data["image_size1"]
    matcher = find_model(package, "matchers", {"model": model})
    assert_refused("image 1 of the pair lacks image_size", matcher, data)


def test_hloc_itself(tmp_path):
    for needed in ("hloc", "pycolmap"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    photos = tmp_path / "photos"
    photos.mkdir()
    left, right, _ = skimage.data.stereo_motorcycle()
    for name, photo in (("left.png", left), ("right.png", right)):
        Image.fromarray(photo).save(photos / name)
    output_of(REAL, photos, tmp_path)
    features = files.read_features(tmp_path / "feats-kjax.h5", "left.png")
    assert features.image_size == (left.shape[1], left.shape[0])
    assert 250 < len(features) <= 300
    # hloc describes the photograph at 500 pixels, and gives positions in the whole one.
    grey = cv2.imread(str(photos / "left.png"), cv2.IMREAD_GRAYSCALE).astype(np.float32)
    size = (500, round(500 * left.shape[0] / left.shape[1]))
    small = cv2.resize(grey, size, interpolation=cv2.INTER_AREA) / 255
    ours = kjax.load("tiny").describe_image(small, max_keypoints=300)
    grown = (ours.xy + 0.5) * np.array(features.image_size) / size - 0.5
    np.testing.assert_allclose(features.xy, grown, atol=1e-3)
    # hloc stores descriptors in float16: of unit vectors, that is 2^-12 at most.
    np.testing.assert_allclose(features.descriptors, ours.descriptors, atol=2**-11)
    for name in ("NN-mutual", "NN-ratio", "kjax"):
        indices, _ = files.read_matches(tmp_path / f"{name}.h5", "left.png", "right.png")
        assert len(indices) > 50, name
