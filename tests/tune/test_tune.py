"""`kjax tune` on few small images, and its stages."""

import dataclasses
import json
import shutil
import signal
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from models import make_model
from PIL import Image
from refusals import assert_refused, refused_command

import kjax
from kjax.cli import main, make_parser
from kjax.data import phototour
from kjax.data.phototour import PatchSet, read_phototour, write_phototour
from kjax.runs.config import validate
from kjax.train import loop
from kjax.tune import run, scores, sets, training
from kjax.tune.sets import TuneSettings
from kjax.tune.training import TunedFiles, layers_to_train, make_config
from kjax.weights.files import save_variables
from kjax.weights.info import make_metadata
from kjax.weights.source import load_source, refitted_info, run_info

skimage_data = pytest.importorskip("skimage.data")
pytest.importorskip("cv2")

STEPS = 4


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory):
    """Hide COLMAP, use a separate cache, and make evaluation short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        patch.setenv("KJAX_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(scores, "POINTS", 20)
        patch.setattr(scores, "KEYPOINTS", 60)
        yield


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Random weights of a small model, by file and head."""
    path = tmp_path_factory.mktemp("start") / "weights.npz"
    _, variables = make_model("polar", patch_size=16, channels=(8, 8, 8, 8, 16, 16))
    kjax.save_variables(path, variables)
    return f"{path}:polar,s=1,patch_size=16"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos") / "mine"
    folder.mkdir()
    picture = skimage_data.camera()
    for number in range(5):
        part = picture[60 * number : 60 * number + 200, 100:360]
        Image.fromarray(part).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def general(tmp_path_factory):
    """Forty points, three patches each."""
    rng = np.random.default_rng(0)
    coarse = np.kron(rng.integers(0, 200, (40, 1, 8, 8)), np.ones((1, 1, 8, 8), int))
    patches = (coarse + rng.integers(0, 56, (40, 3, 64, 64))).reshape(-1, 64, 64)
    ids = np.repeat(np.arange(40), 3)
    interest = np.zeros((120, 5))
    interest[:, 0] = ids // 4  # ten photographs that see four points each
    pairs = phototour.sample_test_pairs(ids, matching=50, non_matching=50, seed=0)
    folder = tmp_path_factory.mktemp("sets") / "general"
    return write_phototour(folder, patches.astype(np.uint8), ids, pairs=pairs, interest=interest)


def command(photos, out, start, general):
    words = [photos, "--weights", start, "--general", general, "--out", out, "--quiet"]
    return ["tune", *map(str, [*words, "--steps", STEPS])]


def whole_command(*folders):
    return [*command(*folders), "--layers", "all", "--pairs", "16"]


@pytest.fixture(scope="module")
def tuned(photos, start, general, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "out"
    assert main(whole_command(photos, out, start, general)) == 0
    return out


@pytest.mark.slow
def test_files_of_a_tuning(tuned):
    found = kjax.load(str(tuned))
    assert (found.extent, found.ratio) == (6.8, 0.9)  # of the crops, and nothing is known
    assert found.describe(np.zeros((2, 16, 16), np.uint8)).shape == (2, 128)
    config = validate(json.loads((tuned / "config.json").read_text()))
    assert config.init.endswith("weights.npz:polar,s=1,patch_size=16")
    assert config.data.shares == (0.5, 0.5)
    assert load_source(str(tuned)).info.train_sets == ("mine", "general")
    assert "All layers: 4 steps of 16 pairs" in (tuned / "report.html").read_text()


@pytest.mark.slow
def test_stopped_and_resumed(tuned, photos, start, general, tmp_path, monkeypatch, capsys):
    plain = loop.Schedule.next_stop

    def stop_after_two(schedule, step):
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return plain(schedule, step)

    out = tmp_path / "out"
    words = whole_command(photos, out, start, general)
    with monkeypatch.context() as patch:
        patch.setattr(loop.Schedule, "next_stop", stop_after_two)
        assert main(words) == 130
    messages = capsys.readouterr().err
    assert "using homographies instead of tracks: colmap is not on the PATH" in messages
    assert "stopped after step 3: run the same command to resume" in messages
    assert not (out / "weights.npz").exists()
    assert main(words) == 0
    with np.load(out / "weights.npz") as own, np.load(tuned / "weights.npz") as whole:
        for name in whole:
            np.testing.assert_array_equal(own[name], whole[name], err_msg=name)


@pytest.mark.slow
def test_settings_may_change_until_training_starts(photos, start, general, tmp_path, capsys):
    out = tmp_path / "out"
    words = whole_command(photos, out, start, general)
    assert main([*words, "--pairs", "20000"]) == 2  # after notes on the sets
    assert "choose a batch of 1 to" in capsys.readouterr().err
    assert main([*words, "--steps", "1"]) == 0
    assert "steps was 1 and is 2" in refused_command(capsys, *words, "--steps", "2")
    missing = ("tune", photos, "--out", tmp_path / "x", "--general", "nowhere")
    assert "--general nowhere: no such set" in refused_command(capsys, *missing)


@pytest.mark.parametrize("missing", ["cv2", "jinja2", "skimage", "only one image"])
def test_requirements_come_first(missing, start, general, photos, tmp_path, monkeypatch, capsys):
    early = Mock(side_effect=AssertionError("COLMAP runs before the requirements are checked"))
    monkeypatch.setattr(sets, "_reconstruct", early)
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "only one image":
        others = shutil.ignore_patterns("[1-4].png")
        photos = shutil.copytree(photos, tmp_path / "photos", ignore=others)
    words = whole_command(photos, tmp_path / "out", start, general)
    assert missing in refused_command(capsys, *words)
    assert not (tmp_path / "out").exists()


def test_other_folders_are_refused(photos, start, general, tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("dear")
    words = whole_command(photos, tmp_path, start, general)
    assert "not from kjax tune" in refused_command(capsys, *words)


# The last layer alone


@pytest.fixture(scope="module")
def refitted(photos, start, general, tmp_path_factory):
    """The default on a CPU."""
    out = tmp_path_factory.mktemp("refitted") / "out"
    assert main(command(photos, out, start, general)) == 0
    return out


@pytest.mark.slow
def test_files_of_a_refitting(refitted, start, capsys):
    assert not (refitted / "config.json").exists()
    found = kjax.load(str(refitted))
    before, after = load_source(start), load_source(str(refitted))
    assert found.describe(np.zeros((2, 16, 16), np.uint8)).shape == (2, 128)
    own, other = (one.variables["params"] for one in (before, after))
    jax.tree.map(np.testing.assert_array_equal, own["trunk"], other["trunk"])
    assert not np.array_equal(own["head"]["kernel"], other["head"]["kernel"])
    page = (refitted / "report.html").read_text()
    own = json.loads((refitted / "sets" / "sets.json").read_text())["points"][0]
    facts = ("Only the last layer", "colmap is not on the PATH", f"mine {own}, general {own}")
    facts += ("Held-out images show places that training images show too",)
    for text in ("Tuned to mine", f"--out {refitted} --quiet --steps {STEPS}</code>", *facts):
        assert text in page
    before, after = json.loads((refitted / "scores.json").read_text()).values()
    assert before.keys() == after.keys()
    assert {"matching/held-out", "fpr95/embedded", "correct", "matches"} <= before.keys()
    assert before != after
    assert main(["info", str(refitted)]) == 0
    assert "refitted on" in capsys.readouterr().out


@pytest.mark.slow
def test_a_refitting_is_not_repeated_nor_changed(refitted, photos, start, general, capsys):
    made = [refitted / "run" / "weights.npz", refitted / "scores.json", refitted / "sets/sets.json"]
    before = [path.stat().st_mtime_ns for path in made]
    again = command(photos, refitted, start, general)
    assert main(again) == 0
    assert "before" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in made] == before
    error = refused_command(capsys, *again, "--steps", "5")
    assert "other settings: steps was 4 and is 5" in error


def test_layers_to_train(start, tmp_path, monkeypatch):
    source, hardnet = load_source(start), load_source("hardnet")
    assert layers_to_train(tmp_path, None, source) == ("last", False)
    assert layers_to_train(tmp_path, None, hardnet) == ("all", False)
    monkeypatch.setattr(training, "jax", SimpleNamespace(default_backend=lambda: "gpu"))
    assert layers_to_train(tmp_path, None, source) == ("all", False)
    message = "only heads that end with their projection"
    assert_refused(message, layers_to_train, tmp_path, "last", hardnet)
    (tmp_path / "run").mkdir()
    for name in ("weights.npz", "weights.json"):
        (tmp_path / "run" / name).touch()
    assert layers_to_train(tmp_path, None, source) == ("last", True)


def test_extent_and_ratio_outlive_refitting_and_training(tmp_path):
    source = load_source("tiny")
    info = refitted_info(source, "tiny", nested=(), sets=["mine"])
    (tmp_path / "weights.json").write_text(json.dumps(make_metadata(info)))
    save_variables(tmp_path / "weights.npz", source.variables)
    found = load_source(str(tmp_path))
    assert (found.extent, found.ratio) == (source.extent, source.ratio)
    config = {"init": str(tmp_path), "augment": {"area": (0.5, 1.0)}, "data": {"train": []}}
    later = run_info(config | {"loss": {}})
    assert (later.extent, later.ratio) == (source.extent, source.ratio) != (12.0, 0.9)
    (tmp_path / "weights.json").write_text('{"kjax": 1}')
    assert_refused(r"weights\.json", load_source, str(tmp_path))


# Sets


def test_the_last_images_of_each_folder_are_held_out():
    names = [f"{folder}/{number:02d}.jpg" for number in range(10) for folder in "ba"] + ["one.jpg"]
    held = [name for name, out in zip(names, sets.hold_out(names), strict=True) if out]
    assert sorted(held) == ["a/08.jpg", "a/09.jpg", "b/08.jpg", "b/09.jpg"]
    assert_refused("only one image", sets.hold_out, ["one.jpg"])


@pytest.mark.parametrize("groups", ["0123456789", "0123478789", "0000000000"])
def test_images_that_share_points_are_held_out_together(groups):
    """Images see six points of their group, which are not trained on if another is held out."""
    photo, place = np.repeat(np.arange(10), 18), np.tile(np.r_[:6, :6, 6:12], 10)
    shared = 100 + 6 * np.array([int(group) for group in groups])[photo] + place - 6
    ids = np.where(place < 6, 6 * photo + place, shared)  # own points have two patches
    interest = np.stack([photo, ids, *np.zeros((3, 180))], axis=1)
    names = tuple(phototour.SetPhotograph(number, f"{number}.png", "") for number in range(10))
    patches = np.zeros((180, 64, 64), np.uint8)
    cut = PatchSet("cut", patches, ids, interest=interest, photographs=names)
    train, held_out, overlap = sets.split(cut)
    assert overlap == (groups == "0000000000")
    assert set(held_out.interest[:, 0]) == ({6, 8, 9} if "878" in groups else {8, 9})
    assert set(train.interest[:, 0]) == set(range(10)) - set(held_out.interest[:, 0])
    assert not set(train.interest[:, 1]) & set(ids[np.isin(photo, held_out.interest[:, 0])])


def test_a_set_is_split_by_images_or_by_points(general, tmp_path):
    found = sets.make_sets(TuneSettings(general, "best"), tmp_path / "known", progress=False)
    assert found.points == (32, 8)
    assert found.held_out_photos == ()
    assert len(read_phototour(found.held_out, progress=False).patches) == 24
    plain = read_phototour(general, progress=False)
    unknown = write_phototour(tmp_path / "unknown", plain.patches, plain.point_ids)
    found = sets.make_sets(TuneSettings(unknown, "best"), tmp_path / "out", progress=False)
    assert found.points == (32, 8)


@pytest.mark.parametrize("least", [10, 1000])
def test_tracks_are_used_if_there_are_enough(photos, tmp_path, monkeypatch, capsys, least):
    rng = np.random.default_rng(0)
    interest = np.zeros((200, 5))
    interest[:, 0] = np.repeat(np.arange(5), 40)  # each point is seen twice by one photograph
    patches = rng.integers(0, 255, (200, 64, 64), np.uint8)
    names = [path.name for path in sorted(photos.iterdir())]
    photographs = tuple(phototour.SetPhotograph(i, name, "") for i, name in enumerate(names))
    cut = PatchSet("cut", patches, np.arange(200) // 2, interest=interest, photographs=photographs)
    monkeypatch.setattr(sets, "cut_reconstruction", lambda *args, **options: cut)
    monkeypatch.setattr(sets, "LEAST_POINTS", least)
    monkeypatch.setattr(sets, "LEAST_HELD_OUT_POINTS", least)
    settings = TuneSettings(photos, "best", colmap=tmp_path, database=photos / names[0])
    found = sets.make_sets(settings, tmp_path / "out", progress=False)
    assert found.held_out_photos == ("4.png",)
    if least == 10:
        assert found.points == (80, 20)
        assert found.made_from == "COLMAP tracks"
    else:
        assert "give 80 points to train on and 20 held out" in capsys.readouterr().err
        assert found.made_from.startswith("random homographies")


# Training and report


def test_config_of_a_tuning(tmp_path):
    own = sets.OwnSets(tmp_path / "mine", tmp_path / "other", (100, 20), "", ())
    settings = TuneSettings(tmp_path, "fast")
    source = load_source("fast")
    config = make_config(settings, source, own)
    assert config.model.build().clone(dtype=source.model.dtype) == source.model
    assert config.loss.nested == source.nested != ()
    assert config.train.pairs == 200
    assert config.data.train == (str(tmp_path / "mine"), "embedded")
    assert (config.augment.area, config.augment.misalignment) == ((0.15, 0.5), 1.0)
    alone = make_config(dataclasses.replace(settings, share=0.0), source, own)
    assert alone.data.train == (str(tmp_path / "mine"),)
    assert alone.train.pairs == 100
    assert_refused("--share 1: choose at least 0 and", dataclasses.replace, settings, share=1.0)


def test_defaults_equal_those_of_the_command(tmp_path):
    args = make_parser().parse_args(["tune", str(tmp_path), "--out", "x"])
    plain = TuneSettings(tmp_path, "best")
    for name in ("start", "share", "layers", "steps", "pairs", "learning_rate", "seed"):
        assert getattr(args, name) == getattr(plain, name), name


def test_table_of_scores_and_warning():
    before = {"matching/held-out": 0.5, "fpr95/embedded": 0.1, "correct": 900.0, "matches": 1e3}
    after = {"matching/held-out": 0.625, "fpr95/embedded": 0.2, "correct": 1.2e3, "matches": 1.5e3}
    lines = run.table(run.rows(before, after)).splitlines()
    values = ("before after", "50.0 62.5", "10.00 20.00", "900 1,200", "90.0 80.0")
    assert [line.split()[-2:] for line in lines] == [value.split() for value in values]
    trained = TunedFiles((), (), "train longer")
    assert run.warning("best", trained, before, after) == ""
    assert run.warning("best", trained, {}, {}) == ""
    message = run.warning("best", trained, after, before)
    assert message == "Worse on the held-out images: keep using best, or train longer."
