"""`kjax describe`: outputs have the requested settings, whatever was there before."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from models import make_model
from PIL import Image
from refusals import refused_command

import kjax
from kjax.cli import main, options
from kjax.cli.options import named_photographs
from kjax.data.cutting import MAX_SIDE
from kjax.data.cutting.photographs import read_photograph
from kjax.images.describer import Describer, load
from kjax.images.exchange.hloc import FeatureWriter, read_features
from kjax.images.exchange.npz import read_npz, write_npz
from kjax.images.exchange.outputs import SIDECAR, parse_settings
from kjax.images.features import Features
from kjax.weights.files import save_variables

pytest.importorskip("cv2")
pytest.importorskip("h5py")

OUTPUTS = {
    "hloc": ("--out", "f.h5"),
    "npz": ("--out", "f"),
    "colmap": ("--out", "f", "--format", "colmap"),
}
ONE = {"file": ("--out", "f.npz")}
"""Output of a single photograph."""
COUNT = 20


@pytest.fixture(scope="module")
def describers(tmp_path_factory):
    """Describers by the names of two weights files, compiled once."""
    folder = tmp_path_factory.mktemp("weights")
    _, variables = make_model("hardnet", patch_size=8)
    found = {}
    for name, shift in (("w.npz", 0.0), ("other.npz", 0.01)):
        kernel = variables["params"]["head"]["kernel"] + shift
        params = variables["params"] | {"head": {"kernel": kernel}}
        save_variables(folder / name, variables | {"params": params})
        found[name] = load(str(folder / name))
        found[name].name = name
    return found


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch, describers):
    """A folder with weights, and two folders with images of the same name."""
    monkeypatch.chdir(tmp_path)
    for name in describers:
        (tmp_path / name).touch()
    monkeypatch.setattr("kjax.images.describer.load", lambda word, **_: describers[word])
    rng = np.random.default_rng(0)
    for folder in ("a", "b"):
        (tmp_path / "my photos" / folder).mkdir(parents=True)
        save_photograph(tmp_path / "my photos" / folder / "000.png", rng)
    return tmp_path


@pytest.mark.parametrize("form", ["uint8", "binary"])
@pytest.mark.parametrize("kind", ["hloc", "npz"])
def test_quantized_descriptors_record_their_distance(kind, form, describers):
    photograph = read_photograph("my photos/a/000.png")
    whole = describers["w.npz"].describe_image(photograph, max_keypoints=COUNT).descriptors
    assert describe("my photos/a", *OUTPUTS[kind], "--quantize", form) == 0
    features = read_features("f.h5", "000.png") if kind == "hloc" else read_npz("f/000.png.npz")
    stored, distance = features.descriptors, features.distance
    assert features.weights_sha256 == describers["w.npz"].sha256
    np.testing.assert_array_equal(stored, kjax.quantize(whole, form))
    assert distance == {"uint8": "L2", "binary": "Hamming"}[form]
    assert len(kjax.match(stored, stored, distance=distance)) == len(stored)


def save_photograph(path, rng):
    coarse = rng.integers(0, 256, (12, 16), np.uint8)
    Image.fromarray(coarse).resize((64, 48), Image.Resampling.BICUBIC).save(path)


def words_of(*words, weights="w.npz", keypoints=COUNT, side=MAX_SIDE, upright=False):
    settings = ["--weights", weights, "--keypoints", str(keypoints), "--max-side", str(side)]
    return ["describe", *words, *settings, *["--upright"] * upright]


def describe(*words, **settings):
    return main(words_of(*words, **settings))


def written(output):
    """Return settings by name."""
    if output == "hloc":
        texts = FeatureWriter("f.h5").attributes(FeatureWriter.PROVENANCE)
    elif output == "file":
        texts = {"000.png": str(np.load("f.npz")["provenance"])}
    elif output == "npz":
        paths = {path.relative_to("f").as_posix()[:-4]: path for path in Path("f").rglob("*.npz")}
        texts = {name: str(np.load(path)["provenance"]) for name, path in paths.items()}
    else:
        lines = Path("f", SIDECAR).read_text().splitlines()
        texts = {json.loads(line)["name"]: line for line in lines}
    return {name: parse_settings(text) for name, text in texts.items()}


def stamps(folder="."):
    files = (os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)
    return {file: os.stat(file).st_mtime_ns for file in files}


@pytest.mark.parametrize("output", [*OUTPUTS, *ONE])
def test_outputs_record_settings_and_refuse_others(output, capsys, monkeypatch):
    where = (OUTPUTS | ONE)[output]
    assert describe("my photos/a", *where) == 0
    (origin,) = written(output).values()
    assert origin["weights"] == "w.npz"
    assert len(origin["sha256"]) == len(origin["photograph"]) == 64
    expected = {"model": "hardnet N=8", "patch_size": 8, "dtype": "float32", "extent": 12.0}
    assert (expected | {"max_keypoints": COUNT}).items() <= origin.items()
    # To those of earlier ones.
    added = {"stored": "float32", "max_side": MAX_SIDE, "upright": False, "version": 1}
    without = {key: value for key, value in origin.items() if key not in added}
    assert added.items() <= parse_settings(json.dumps(without)).items()
    before = stamps()
    capsys.readouterr()

    weights = f"weights w.npz (SHA-256 {origin['sha256'][:12]}…), not other.npz"
    for folder, settings, message in (
        ("a", {"keypoints": 19}, "keypoints 20, not 19"),
        ("a", {"side": 99}, "maximum side 3200, not 99"),
        ("a", {"weights": "other.npz"}, weights),
        ("a", {"upright": True}, "upright False, not True"),
        ("b", {}, "has another photograph as 000.png than"),
    ):
        error = refused_command(capsys, *words_of(f"my photos/{folder}", *where, **settings))
        assert message in error
        assert "--overwrite" in error
    assert describe("my photos/a", *where) == 0
    assert "1 of 1 photograph is in" in capsys.readouterr().out
    assert stamps() == before, "the same command changes nothing"

    assert describe("my photos/a", *where, "--overwrite", weights="other.npz", keypoints=5) == 0
    (again,) = written(output).values()
    assert (again["weights"], again["max_keypoints"]) == ("other.npz", 5)
    assert again["sha256"] != origin["sha256"]
    assert describe("my photos/a", *where, weights="other.npz", keypoints=5) == 0
    assert describe("my photos/b", *where, "--overwrite") == 0
    monkeypatch.setattr("kjax.images.describer.FEATURE_VERSION", 9, raising=False)
    error = refused_command(capsys, *words_of("my photos/b", *where))
    assert "version of the method 2, not 9" in error


@pytest.mark.parametrize(
    ("output", "content"),
    [("hloc", None), ("npz", None), ("npz", b""), ("npz", b"PK\x03\x04"), ("colmap", b"0 128\n")],
)
def test_outputs_without_settings_are_refused_and_replaced(output, content, inside, capsys):
    features = Features(np.ones((1, 2), np.float32), np.ones((1, 128), np.float32), (64, 48))
    (inside / "f").mkdir()
    if content is not None:
        (inside / "f" / f"000.png.{'npz' if output == 'npz' else 'txt'}").write_bytes(content)
    elif output == "hloc":
        with FeatureWriter("f.h5") as writer:
            writer.add("000.png", features)
    else:
        write_npz("f/000.png.npz", features)
    error = refused_command(capsys, *words_of("my photos/a", *OUTPUTS[output]))
    assert "does not record the settings of 000.png: use --overwrite" in error
    assert describe("my photos/a", *OUTPUTS[output], "--overwrite") == 0
    assert written(output)["000.png"]["max_keypoints"] == COUNT


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_stopped_and_resumed(output, overwrite, monkeypatch):
    more = ("--overwrite",) if overwrite else ()
    if overwrite:
        assert describe("my photos", *OUTPUTS[output], keypoints=7) == 0
    calls = []
    describe_grey = Describer.describe_grey

    def interrupted_once(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return describe_grey(*args, **kwargs)

    monkeypatch.setattr(Describer, "describe_grey", interrupted_once)
    assert describe("my photos", *OUTPUTS[output], *more) == 130
    if overwrite and output != "hloc":
        # Files with the earlier settings are left, and not mistaken for new ones.
        assert describe("my photos", *OUTPUTS[output]) == 2
        assert describe("my photos", *OUTPUTS[output], *more) == 0
    else:
        assert describe("my photos", *OUTPUTS[output]) == 0
        assert len(calls) == 3, "the first was not described again"
    found = written(output)
    assert {one["max_keypoints"] for one in found.values()} == {COUNT}
    assert sorted(found) == ["a/000.png", "b/000.png"]
    assert found["a/000.png"]["photograph"] != found["b/000.png"]["photograph"]


def test_crash_before_the_file_is_closed(monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(FeatureWriter, "close", lambda self: None)
        assert describe("my photos/a", "--out", "f.h5") == 0
    assert not Path("f.h5").exists(), "everything is in parts"
    error = refused_command(capsys, *words_of("my photos/a", "--out", "f.h5", keypoints=3))
    assert "keypoints 20, not 3" in error
    assert describe("my photos/a", "--out", "f.h5", "--overwrite", keypoints=3) == 0
    assert written("hloc")["000.png"]["max_keypoints"] == 3


def test_crash_between_the_sidecar_and_the_text(monkeypatch):
    assert describe("my photos/a", *OUTPUTS["colmap"], keypoints=7) == 0

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("kjax.images.exchange.outputs.write_colmap_text", killed)
        assert describe("my photos/a", *OUTPUTS["colmap"], "--overwrite", keypoints=3) == 130
    assert describe("my photos/a", *OUTPUTS["colmap"], keypoints=3) == 0
    count = int(Path("f/000.png.txt").read_text().split()[0])
    assert 0 < count <= 3, "not the text of the other settings"


def test_a_truncated_line_of_the_sidecar_is_skipped():
    assert describe("my photos/a", *OUTPUTS["colmap"]) == 0
    with open(f"f/{SIDECAR}", "a", encoding="utf-8") as file:
        file.write('{"name": "b/0')
    save_photograph("my photos/a/001.png", np.random.default_rng(1))
    assert describe("my photos/a", *OUTPUTS["colmap"]) == 0
    lines = Path("f", SIDECAR).read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["000.png", "001.png"]


def test_a_read_only_folder_is_refused_before_any_work(capsys, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(options.tempfile, "TemporaryFile", refuse)
    for out in ("f", "f.h5", "deep/er/f"):
        error = refused_command(capsys, *words_of("my photos", "--out", out))
        assert "cannot write into the folder" in error
        assert "Permission denied" in error


def test_unreadable_images_are_left_out(inside, capsys):
    photos = inside / "my photos" / "a"
    Image.new("L", (40, 40), 7).save(photos / "blank.png")
    (photos / "dangling.png").symlink_to("nowhere.png")
    nan = np.full((40, 40), np.nan, np.float32)
    Image.fromarray(nan).save(photos / "nan.tif")
    (photos / "text.png").write_text("hello")
    (inside / "f.v2").mkdir()  # a dot in the name of a folder
    assert describe("my photos/a", "--out", "f.v2") == 1
    printed = capsys.readouterr()
    assert "2 of 5 photographs are in f.v2" in printed.out
    for name in ("dangling.png", "nan", "text.png"):
        assert any("left out" in line and name in line.lower() for line in printed.err.splitlines())
    assert f"no keypoints in {photos / 'blank.png'}" in printed.err
    assert len(read_npz("f.v2/blank.png.npz")) == 0
    (photos / "000.png").unlink()
    (photos / "000.png").symlink_to("nowhere.png")
    assert describe("my photos/a", "--out", "f.v2") == 1, "an image has disappeared"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["my photos"], ["a/000.png", "b/000.png"]),
        (["my photos/a"], ["000.png"]),
        (["my photos/a", "my photos/b/000.png"], ["a/000.png", "b/000.png"]),
        (["my photos/*/*.png"], ["a/000.png", "b/000.png"]),
        (["my photos/*"], ["a/000.png", "b/000.png"]),
        (["my photos/a", "my photos/a/000.png", "./my photos/b/../a"], ["000.png"]),
        (["my photos", "w.png"], ["my photos/a/000.png", "my photos/b/000.png", "w.png"]),
    ],
)
def test_names(words, names, inside, monkeypatch):
    (inside / "w.png").write_bytes(b"")
    found = named_photographs(words)
    assert sorted(found) == names
    assert all(path.name == name.rpartition("/")[2] for name, path in found.items())
    (inside / "my photos" / "a" / "folder.png").mkdir()
    assert list(named_photographs(["my photos/a"])) == ["000.png"]
    monkeypatch.chdir(inside / "my photos" / "a")
    assert sorted(named_photographs(["../b", "000.png"])) == ["a/000.png", "b/000.png"]


@pytest.mark.skipif(sys.platform == "darwin", reason="its names are always UTF-8")
def test_a_name_that_is_not_utf8_is_refused(inside, capsys):
    (inside / "my photos" / os.fsdecode(b"\xff.png")).write_bytes(b"")
    assert "rename the file" in refused_command(capsys, *words_of("my photos", "--out", "f"))
