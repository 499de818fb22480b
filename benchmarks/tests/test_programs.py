"""Programs that time, distort, kill and compare: what their numbers rest on."""

import dataclasses
import functools
import importlib.util
import random
import sys

import bench
import distort
import kill
import numpy as np
import pairs
import program
import pytest
import ratio
import reconstruct
import refit
from homography_sequences import find_sequences
from models import make_model, narrow, random_patches
from PIL import Image
from speed.inference import END_TO_END, IN_MEMORY

import kjax
from kjax.data.phototour import PatchSet
from kjax.errors import InputError
from kjax.weights.files import save_variables
from kjax.weights.info import ModelInfo, fields_of
from kjax.weights.source import load_source


def test_functions_take_turns_and_the_first_round_does_not_count(monkeypatch):
    now, turns = [0.0], []
    durations = {"first": iter((50.0, 3.0, 2.0)), "second": iter((1.0, 8.0, 5.0))}

    def run(name):
        turns.append(name)
        now[0] += next(durations[name])
        return name

    monkeypatch.setattr(program.time, "perf_counter", lambda: now[0])
    runs = {name: functools.partial(run, name) for name in durations}
    seconds, results = program.take_turns(runs, 2)
    assert turns == ["first", "second"] * 3
    assert seconds == {"first": [3.0, 2.0], "second": [8.0, 5.0]}
    assert results == {"first": "first", "second": "second"}


def test_tables_escape_bars():
    text = program.table(("name", "value"), [("a|b", 1)])
    assert text.splitlines() == ["| name | value |", "| :-- | --: |", r"| a\|b | 1 |"]


def test_ratios_are_to_the_best_batch_in_the_same_place():
    names = ("name", "variant", "place", "rate")
    measured = (
        ("kornia HardNet", "float32", IN_MEMORY, 100.0),
        ("kornia HardNet", "float32", IN_MEMORY, 200.0),
        ("kornia HardNet", "compiled", IN_MEMORY, 400.0),
        ("kornia HardNet", "float32", END_TO_END, 50.0),
        ("exported hardnet", "float32", END_TO_END, 25.0),
        ("kjax hardnet", "float32", IN_MEMORY, 600.0),
        ("kjax hardnet", "float32", END_TO_END, 100.0),
    )
    rows = [dict(zip(names, values, strict=True)) for values in measured]
    in_memory, end_to_end = (bench.ratios_of(row, rows) for row in rows[-2:])
    assert in_memory == {"× torch float32": 3.0, "× best torch": 1.5}
    assert end_to_end == {"× torch float32": 2.0, "× exported": 4.0}


@pytest.mark.parametrize("missing", ["kornia.feature", "torch"])
def test_bench_without_kornia_or_torch(tmp_path, capsys, monkeypatch, missing):
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, missing, None)
    save_variables(tmp_path / "weights.npz", make_model("sum", patch_size=8)[1])
    weights = f"{tmp_path}/weights.npz:sum,patch_size=8"
    options = ("--batches", "2", "--patches", "3", "--repeats", "1")
    assert bench.main([weights, *options]) == 0
    printed, notes = capsys.readouterr()
    expected = {f"kjax {weights}"} | ({"torch twin of HardNet"} if missing != "torch" else set())
    if all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))):
        expected.add(f"exported {weights}")
    _, _, *rows = (line.split(" | ") for line in printed.splitlines() if line[0:1] == "|")
    assert {row[0].removeprefix("| ") for row in rows} == expected
    assert ("nothing to compare with" if missing == "torch" else "stands in for it") in notes


def test_torch_describes_like_kjax(rng):
    torch = pytest.importorskip("torch")
    from speed import torch_inference

    patches = random_patches(rng, 2, 32)
    _, describe = torch_inference.make_hardnet(torch_inference.ON_CPU[0], "cpu")
    theirs = describe(torch.from_numpy(patches)[:, None])
    np.testing.assert_allclose(kjax.load("hardnet").describe(patches), theirs, atol=1e-5)


def finished(folder, weight, metrics='{"step": 1}\n'):
    folder.mkdir()
    np.savez(folder / "weights.npz", kernel=np.array([1.0, weight]))
    (folder / "metrics.jsonl").write_text(metrics)
    return folder


def test_every_difference_is_an_error(tmp_path):
    one = finished(tmp_path / "one", 0.1)
    kill.compare(one, finished(tmp_path / "same", 0.1))
    with pytest.raises(InputError, match="kernel differs"):
        kill.compare(one, finished(tmp_path / "last bit", np.nextafter(0.1, 1)))
    with pytest.raises(InputError, match="metrics differ"):
        kill.compare(one, finished(tmp_path / "log", 0.1, metrics=""))


def test_kills_are_counted_and_failures_reported(tmp_path):
    def kill_a(code, seconds):
        training = [sys.executable, "-c", code]
        return kill.kill_once(training, tmp_path, random.Random(0), seconds, saving=False)

    for name in ("4", "12", "14.orbax-checkpoint-tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert kill.unfinished(tmp_path) == {"14.orbax-checkpoint-tmp"}
    assert kill_a("import time; time.sleep(600)", 0.1).endswith("checkpoints: 4, 12")
    assert kill_a("pass", 600) == ""
    with pytest.raises(InputError, match="ZeroDivisionError"):
        kill_a("1 / 0", 600)


def test_largest_ratio_by_hand():
    """Of ten matches with ratios 0.82, 0.84, …, 1.0, those up to 0.9 are right."""
    ratios = np.arange(82, 101, 2) / 100
    right = ratios <= 0.9
    assert ratio.precision(ratios, right, 0.94) == pytest.approx(5 / 7)
    assert ratio.largest_ratio(ratios, right, 5 / 7) == 0.95  # 0.96 is the next match's
    assert ratio.largest_ratio(ratios, right, 1.0) == 0.91
    assert ratio.largest_ratio(ratios, ~right, 1.0) == 0.9  # none fits


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """One grey and one colour photo."""
    data = pytest.importorskip("skimage.data")
    folder = tmp_path_factory.mktemp("photos")
    Image.fromarray(data.camera()[100:196, 180:308]).save(folder / "camera.png")
    Image.fromarray(data.chelsea()[80:170, 100:200]).save(folder / "cat.png")
    return folder


@pytest.fixture(scope="module")
def made(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "distorted"
    files = [str(photos / name) for name in ("camera.png", "cat.png")]
    assert distort.main([*files, "--out", str(out), "--quiet"]) == 0
    return out


def test_distortions_grow(made):
    cv2 = pytest.importorskip("cv2")
    sequences = {one.name: one for one in find_sequences([made])}
    effects = ("blur", "jpeg", "light", "noise")
    assert list(sequences) == [f"{stem}-{name}" for stem in ("camera", "cat") for name in effects]
    pixels = {}
    for name, sequence in sequences.items():
        np.testing.assert_array_equal(sequence.homographies, np.stack([np.eye(3)] * 5))
        first, *others = pixels[name] = [np.asarray(Image.open(one)) for one in sequence.photos]
        errors = [np.mean((first.astype(float) - other) ** 2) for other in others]
        assert (np.diff(errors) > 0).all(), name
    first = pixels["camera-noise"][0].astype(float)
    middle = (first > 60) & (first < 190)  # far from clipping
    added = (pixels["camera-noise"][2] - first)[middle]
    assert added.std() == pytest.approx(distort.NOISES[1], rel=0.1)
    _, file = cv2.imencode(".jpg", pixels["camera-jpeg"][0], [cv2.IMWRITE_JPEG_QUALITY, 40])
    np.testing.assert_array_equal(pixels["camera-jpeg"][1], cv2.imdecode(file, 0))
    assert pixels["camera-light"][-1].mean() < 0.4 * pixels["camera-light"][0].mean()


def test_a_seed_makes_the_same_noise(made, photos, tmp_path):
    for seed, same in ((0, True), (1, False)):
        out = tmp_path / str(seed)
        options = ["--out", str(out), "--quiet", f"--seed={seed}"]
        assert distort.main([str(photos / "cat.png"), *options]) == 0
        again, before = ((root / "cat-noise" / "img3.png").read_bytes() for root in (out, made))
        assert (again == before) is same


def test_bad_photos_write_nothing(tmp_path, capsys):
    (tmp_path / "text.png").write_text("text")
    Image.fromarray(np.zeros((8, 90), np.uint8)).save(tmp_path / "small.png")
    for files, message in (
        (("absent.png",), "no such file"),
        (("text.png",), "cannot read"),
        (("small.png",), "smaller than 32 pixels"),
        (("small.png", "small.png"), "several photos are called small"),
    ):
        paths = [str(tmp_path / name) for name in files]
        assert distort.main([*paths, "--out", str(tmp_path / "out"), "--quiet"]) == 2
        error = capsys.readouterr().err
        assert (message in error, error.count("\n")) == (True, 1)
        assert not (tmp_path / "out").exists()


def test_overlap_of_two_views():
    view, half = np.eye(3), np.array([[1.0, 0, 480], [0, 1, 0], [0, 0, 1]])
    assert pairs.overlap(view, view) == 1
    assert pairs.overlap(view, half) == pytest.approx(0.5)
    assert pairs.overlap(view, half @ half @ half) == 0


def test_photos_that_share_points_are_true_pairs(tmp_path):
    for name, count in (("other", 2), ("scene", 3)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number}.jpg").write_text(f"{name} {number}")
    # Photos 0 and 2 share 50 points, photo 1 shares 49 with both.
    seen = {0: range(50), 1: range(1, 50), 2: range(50)}
    tracks = np.concatenate([list(points) for points in seen.values()])
    images = np.repeat(list(seen), [len(points) for points in seen.values()])
    np.savez(tmp_path / "scene.npz", image=images, track=tracks)
    folders = [tmp_path / "other", tmp_path / "scene"]
    assert pairs.join_photos(folders, tmp_path, tmp_path / "out") == {(2, 4)}
    assert (tmp_path / "out" / "00004.jpg").read_text() == "scene 2"


@pytest.mark.parametrize("weights", ["nobody", "nobody+learned"])
def test_unknown_weights_are_refused_before_colmap_runs(monkeypatch, tmp_path, capsys, weights):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "colmap").write_text(f"#!/bin/sh\necho ran >> {tmp_path}/log.txt\n")
    (tmp_path / "colmap").chmod(0o755)
    (tmp_path / "photos").mkdir()
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(tmp_path / "photos" / "a.png")
    arguments = [str(tmp_path / "photos"), "--command", weights, "--out", str(tmp_path / "out")]
    assert reconstruct.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "log.txt").exists()


def test_reconstructions_that_reach_colmap_are_marked():
    seconds = {"describe": 1.0, "match": 2.0, "map": 3.0}
    first = reconstruct.ReconstructionRow(9, 50, 36, 8, 70, 1, 9, 100, 400, 4.0, 0.5, "A", seconds)
    points = (100, 120, 110, 120)
    rows = [dataclasses.replace(first, points=number) for number in points]
    lines = reconstruct.table(rows).splitlines()[2:]
    images, points = zip(*(line.split(" | ")[4:6] for line in lines), strict=True)
    assert images == ("9 of 9", "9 of 9", "9 of 9 ≥", "9 of 9 ≥")
    assert points == ("100", "120", "110", "120 ≥")


def test_refitting_writes_weights_and_prints_the_gain(tmp_path, monkeypatch, capsys):
    """On a set of 60 points; the new weights describe themselves as refitted."""
    model, variables = make_model("xy", **narrow("xy"))
    save_variables(tmp_path / "own.safetensors", variables, info=ModelInfo(model=fields_of(model)))
    patches = random_patches(np.random.default_rng(0), 120, 64)
    points = PatchSet("own", patches, np.repeat(np.arange(60), 2), tmp_path)
    monkeypatch.setattr(refit, "read_train_sets", lambda names, progress: [points])
    options = ["--widths", "8", "--steps", "2", "--quiet", "--out", str(tmp_path / "new.npz")]
    assert refit.main([str(tmp_path / "own.safetensors"), *options]) == 0
    assert "all 16: " in capsys.readouterr().out
    assert not np.array_equal(
        load_source(str(tmp_path / "new.npz")).variables["params"]["head"]["kernel"],
        variables["params"]["head"]["kernel"],
    )
