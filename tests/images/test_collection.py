"""Image collections: every piece of work is done once, whatever interrupts it."""

import contextlib
import copy
import importlib.util
import inspect
import pickle
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import types

import jax
import numpy as np
import pytest
from models import make_model
from PIL import ExifTags, Image
from refusals import assert_refused, refused_command
from scripts import run_python

import kjax
from kjax.cli import main
from kjax.data.colmap import read_model, read_rows
from kjax.errors import InputError
from kjax.images.collection import matching, pairs
from kjax.images.collection.build import build, map_photographs, summarize
from kjax.images.collection.engine import HERE
from kjax.images.collection.matching import PairStore
from kjax.images.collection.photographs import FeatureFiles, read_collection
from kjax.images.exchange import colmap_database, colmap_program
from kjax.images.exchange.colmap_database import Geometry, add_geometries, read_matches
from kjax.images.exchange.colmap_program import Reconstructor, find_reconstructor
from kjax.matcher.network import MatcherConfig, init_params
from kjax.matcher.weights import MatcherWeights, save_matcher
from kjax.weights.files import save_variables
from kjax.weights.info import Provenance

pytest.importorskip("cv2")
needs_colmap = pytest.mark.skipif(shutil.which("colmap") is None, reason="colmap is not installed")
COUNT = 7


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "w.npz"
    save_variables(path, make_model("hardnet", patch_size=8, channels=(4, 4, 8, 8, 16, 16))[1])
    return str(path)


@pytest.fixture(scope="module")
def describer(weights):
    return kjax.load(weights)


@pytest.fixture
def command(photos, weights):
    options = ["--weights", weights, "--no-map", "--mapper", "colmap", "--keypoints", "150"]
    return ["colmap", str(photos), *options, "--out"]


@pytest.fixture(scope="module")
def some_photos(tmp_path_factory):
    """Views of one noisy plane, each a little further to the right."""
    folder = tmp_path_factory.mktemp("collection") / "photos"
    folder.mkdir()
    coarse = np.random.default_rng(0).integers(0, 256, (32, 64), np.uint8)
    plane = Image.fromarray(coarse).resize((256, 128), Image.Resampling.BICUBIC)
    for number in range(COUNT):
        left = 10 * number
        plane.crop((left, 0, left + 160, 120)).save(folder / f"a photo {number}.png")
    return folder


@pytest.fixture
def photos(some_photos, tmp_path):
    return shutil.copytree(some_photos, tmp_path / "photos")


@pytest.fixture(scope="module")
def finished(some_photos, describer):
    return build(some_photos, some_photos.parent / "out", describer, STAND_IN, **ALONE)


def verify(database, *, log):
    """Stand in for COLMAP: all matches of pairs with more than ten are correct."""
    found = {}
    for pair, indices in read_matches(database).items():
        kept = indices if len(indices) > 10 else indices[:0]
        data = kept.astype("<u4").tobytes()
        found[pair] = Geometry(len(kept), 2, data, 3, b"F", None, None, None, None)
    add_geometries(database, found)


STAND_IN = Reconstructor("stand-in", verify, lambda *_, **__: [])
ALONE = {"max_keypoints": 150, "mapping": False, "ratio": 0.9}


def content(database):
    with contextlib.closing(sqlite3.connect(database)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
            for (name,) in names
        }


def test_database_of_all_pairs(some_photos, describer, finished):
    summary = summarize(finished.database, [])
    assert (summary.photos, summary.pairs) == (COUNT, COUNT * (COUNT - 1) // 2)
    assert COUNT - 1 <= summary.verified_pairs <= summary.pairs
    pixels = [np.asarray(Image.open(some_photos / f"a photo {number}.png")) for number in (2, 3)]
    direct = [describer.describe_image(one, max_keypoints=150) for one in pixels]
    expected = kjax.match(*(one.descriptors for one in direct), method="mutual_ratio", ratio=0.9)
    found = read_matches(finished.database)["a photo 2.png", "a photo 3.png"]
    assert len(found) > 10
    np.testing.assert_array_equal(found, expected.indices)


@pytest.mark.slow
def test_database_by_a_learned_matcher(photos, tmp_path, describer, finished):
    model = MatcherConfig(layers=1, width=32, heads=2, dimension=describer.dimension)
    origin = Provenance("w", describer.sha256, describer.dimension)
    weights = MatcherWeights(model, origin, {}, init_params(model, jax.random.key(0)))
    save_matcher(tmp_path / "matcher.npz", weights)
    # Pickled, as it is sent to other machines.
    matcher = pickle.loads(pickle.dumps(kjax.load_matcher(str(tmp_path / "matcher.npz"))))
    matcher.check_weights(describer.sha256, describer.dimension)
    # It is untrained: accept any score.
    plain = matcher.match
    matcher.match = lambda first, second: plain(first, second, least_score=0.0)
    first = build(photos, tmp_path / "out", describer, STAND_IN, **ALONE, matcher=matcher)
    found = read_matches(first.database)
    assert sum(map(len, found.values())) > 0
    matcher.match = None  # everything is done
    again = build(photos, tmp_path / "out", describer, STAND_IN, **ALONE, matcher=matcher)
    for pair, indices in read_matches(again.database).items():
        np.testing.assert_array_equal(indices, found[pair])
    assert content(again.database)["matches"] != content(finished.database)["matches"]


class Stopped(BaseException):
    """Like Ctrl-C or a kill."""


@pytest.mark.parametrize(
    ("place", "method", "calls"),
    [(FeatureFiles, "write", 3), (PairStore, "add_matches", 2), (PairStore, "add_geometries", 1)],
)
def test_runs_resume(place, method, calls, photos, tmp_path, describer, finished, monkeypatch):
    real, count = getattr(place, method), [0]

    def counted(limit):
        def call(*arguments):
            count[0] += 1
            if count[0] > limit:
                raise Stopped
            return real(*arguments)

        count[0] = 0
        monkeypatch.setattr(place, method, call)

    counted(calls)
    with pytest.raises(Stopped):
        build(photos, tmp_path / "out", describer, STAND_IN, **ALONE)
    assert not (tmp_path / "out" / "database.db").exists()
    counted(1000)
    resumed = build(photos, tmp_path / "out", describer, STAND_IN, **ALONE)
    pieces = {"write": COUNT, "add_matches": 3, "add_geometries": 2}
    assert count[0] == pieces[method] - calls
    assert content(resumed.database) == content(finished.database)
    counted(0)
    build(photos, tmp_path / "out", describer, STAND_IN, **ALONE)


def test_a_new_image_only_needs_its_own_pairs(photos, tmp_path, describer, finished, monkeypatch):
    out = shutil.copytree(finished.database.parent, tmp_path / "out")
    image = Image.open(photos / "a photo 0.png")
    image.transpose(Image.Transpose.ROTATE_180).save(photos / "z.png")
    (photos / "broken.jpg").write_text("no picture")
    matched, real = [], PairStore.add_matches
    note = lambda self, found: (matched.extend(found), real(self, found))  # noqa: E731
    monkeypatch.setattr(PairStore, "add_matches", note)
    (left_out,) = build(photos, out, describer, STAND_IN, **ALONE).left_out
    assert len(matched) == COUNT
    assert "broken.jpg" in left_out
    monkeypatch.setattr(matching, "METHOD_VERSION", 9, raising=False)
    build(photos, out, describer, STAND_IN, **ALONE)
    assert len(matched) == COUNT + COUNT * (COUNT + 1) // 2


@pytest.mark.parametrize(
    "change",
    [
        {"ratio": 0.7, "selection": "retrieval", "neighbours": 2},
        pytest.param({"max_keypoints": 100}, marks=pytest.mark.slow),
        {"upright": True},
    ],
)
def test_other_settings_do_not_reuse_old_results(change, photos, tmp_path, describer, finished):
    describer, change = copy.copy(describer), dict(change)
    describer.upright = change.pop("upright", False)
    shutil.copytree(finished.database.parent, tmp_path / "a")
    shutil.copytree(tmp_path / "a" / "work" / "features", tmp_path / "b" / "work" / "features")
    first, second = (
        content(build(photos, tmp_path / out, describer, STAND_IN, **ALONE | change).database)
        for out in ("a", "b")
    )
    assert first == second != content(finished.database)


KILLED = """
import os, signal, sys
from kjax.images.collection.matching import PairStore
real, calls = PairStore.add_matches, []
def add(self, found):
    real(self, found)
    calls.append(found)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
PairStore.add_matches = add
from kjax.cli import main
main(sys.argv[1:])
"""


@needs_colmap
@pytest.mark.slow
def test_a_killed_command_resumes(command, tmp_path):
    killed = run_python(KILLED, *command, tmp_path / "killed")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for out in ("killed", "whole"):
        assert main([*command, str(tmp_path / out)]) == 0
    found = content(tmp_path / "killed" / "database.db")
    assert found == content(tmp_path / "whole" / "database.db")
    assert any(row[1] for row in found["two_view_geometries"])


def test_other_folders_are_refused(photos, describer):
    assert_refused("is not empty", build, photos, photos, describer, STAND_IN)


# Pairs


def test_pairs_by_order_and_position():
    assert pairs.exhaustive(3) == [(0, 1), (0, 2), (1, 2)]
    assert pairs.sequential(4, 2) == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]
    line = [np.array([6e6, x, 0.0]) for x in (0.0, 30.0, 1.0, 31.0)]
    assert pairs.spatial(line, 1) == [(0, 2), (1, 3)]
    assert_refused("1 of 3 images have no GPS position", pairs.spatial, [*line[:2], None], 1)


def test_automatic_choice_of_pairs(monkeypatch):
    monkeypatch.setattr(pairs, "aggregate", lambda *_: None)
    for name in ("exhaustive", "most_similar", "spatial"):
        monkeypatch.setattr(pairs, name, lambda *_, name=name: [name])
    photo, choose = types.SimpleNamespace(position=None), inspect.unwrap(pairs.choose_pairs)
    for count, chosen in ((41, "exhaustive"), (42, "most_similar")):
        assert choose([photo] * count, None, "auto", 20) == [chosen]
    assert choose([photo] * 3, None, "spatial", 20) == ["spatial"]


def test_blocks_have_every_pair_once_and_few_images():
    every = pairs.exhaustive(50)
    blocks = list(pairs.in_blocks(every, 24))
    assert sorted(pair for block in blocks for pair in block) == every
    assert max(map(len, blocks)) == 24
    for block in blocks:
        assert len({place for pair in block for place in pair}) <= 2 * pairs.SIDE


def test_retrieval_finds_images_of_the_same_things(rng, monkeypatch):
    monkeypatch.setattr(pairs, "CLUSTERS", 8)
    things = np.tile(rng.normal(size=(3, 40, 16)), (3, 1, 1))
    rows = list((things + 0.05 * rng.normal(size=things.shape)).astype(np.float32))
    centres = pairs.learn_centres(np.concatenate(rows))
    vectors = np.stack([pairs.vlad(one, centres) for one in rows])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    expected = {pair for pair in pairs.exhaustive(9) if (pair[1] - pair[0]) % 3 == 0}
    assert set(pairs.most_similar(vectors, 2)) == expected
    # Four images that show one thing and four others: the four get more than two each.
    vectors = np.eye(8)
    vectors[:4, 0] = 1
    found = pairs.most_similar(vectors, 2)
    assert set(pairs.exhaustive(4)) <= set(found)
    assert {place for pair in found for place in pair} == set(range(8))
    assert not pairs.vlad(np.empty((0, 16), np.float32), centres).any()


# Cameras


def save_with_exif(path, *, lens, main=(), position=None, size=(120, 80)):
    exif = Image.Exif()
    for tag, value in dict(main).items():
        exif[tag] = value
    exif.get_ifd(ExifTags.IFD.Exif).update(lens)
    if position:
        exif.get_ifd(ExifTags.IFD.GPSInfo).update(position)
    noise = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    Image.fromarray(noise).save(path, exif=exif)


@needs_colmap
@pytest.mark.slow
def test_cameras_are_guessed_as_colmap_does(tmp_path, describer):
    folder = tmp_path / "cameras"
    folder.mkdir()
    base = ExifTags.Base
    maker = {base.Make: "Maker", base.Model: "One"}
    film = {base.FocalLengthIn35mmFilm: 28}
    for name, size in (("a", (120, 80)), ("b", (120, 80)), ("c", (80, 120))):
        save_with_exif(folder / f"{name}.jpg", lens=film, main=maker, size=size)
    save_with_exif(folder / "d.jpg", lens=film)
    save_with_exif(folder / "e.jpg", lens={})
    save_with_exif(folder / "f.jpg", lens={base.FocalLengthIn35mmFilm: 50}, main=maker)
    built = build(folder, tmp_path / "out", describer, STAND_IN, **ALONE)
    theirs, log = tmp_path / "theirs.db", tmp_path / "log.txt"
    options = {"SiftExtraction.use_gpu": 0, "SiftExtraction.max_num_features": 5}
    colmap_program._run_colmap("feature_extractor", theirs, {"image_path": folder, **options}, log)
    query = (
        "SELECT name, camera_id, model, width, height, params, prior_focal_length FROM images "
        "JOIN cameras USING (camera_id) ORDER BY name"
    )
    assert read_rows(built.database, query) == read_rows(theirs, query)


def test_sensors_and_positions(tmp_path):
    base, gps = ExifTags.Base, ExifTags.GPS
    lens = {base.FocalLength: 10.0, base.ExifImageWidth: 4000}
    lens |= {base.FocalPlaneXResolution: 200.0, base.FocalPlaneResolutionUnit: 4}
    south = {gps.GPSLatitude: (0.0, 30.0, 0.0), gps.GPSLatitudeRef: "S"}
    west = {gps.GPSLongitude: (90.0, 0.0, 0.0), gps.GPSLongitudeRef: "W"}
    save_with_exif(tmp_path / "a.jpg", lens=lens, position=south | west)
    save_with_exif(tmp_path / "b.jpg", lens={base.FocalLength: 10.0}, position=south)
    (first, second), left_out = read_collection(tmp_path)
    assert not left_out
    assert first.camera.focal == pytest.approx(10 / 20 * 120)
    assert second.camera == ("b.jpg", None)
    half = np.deg2rad(0.5)
    expected = [0, -np.cos(half), -np.sin(half)]
    np.testing.assert_allclose(first.position / 6_371_000, expected, atol=1e-9)
    assert second.position is None
    together, _ = read_collection(tmp_path, single_camera=True)
    assert len({one.camera.identity for one in together}) == 1


# The real programs


@pytest.mark.slow
@pytest.mark.parametrize("program", ["colmap", "pycolmap"])
def test_images_are_mapped(program, shared_data, tmp_path, capsys):
    try:
        find_reconstructor(program)
    except InputError as missing:
        pytest.skip(str(missing))
    folder = tmp_path / "photos"
    folder.mkdir()
    for path in sorted((shared_data / "photos" / "sceaux").glob("*.jpg"))[:4]:
        Image.open(path).reduce(2).save(folder / path.name, quality=92)
    out = tmp_path / "out"
    words = ["colmap", str(folder), "--out", str(out), "--weights", "tiny", "--keypoints", "800"]
    assert main([*words, "--mapper", program, "--single-camera", "--report"]) == 0
    model = read_model(out / "sparse" / "0")
    assert len(model.images) == 4
    said = capsys.readouterr().out
    assert f"4 of 4 photographs registered, {len(model.points.ids):,} points" in said
    assert len(colmap_database.read_geometries(out / "database.db")) == 6
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Cameras and points" in page
    assert page.count("verified matches</figcaption>") == 6
    assert page.count("<image") == 0  # vector graphics


# Engines


def test_mapping_without_a_model_leaves_an_empty_folder(tmp_path):
    sparse = tmp_path / "sparse"
    map_photographs(tmp_path / "a.db", tmp_path, sparse, 3, STAND_IN, tmp_path / "log.txt")
    assert list(sparse.iterdir()) == []


def test_results_come_in_order_and_nothing_starts_after_a_stop():
    begun = []

    def work(number, stopping):
        begun.append(number)
        if stopping:
            raise Stopped
        time.sleep(0.02)
        return number

    doubled = HERE.map(lambda one: 2 * one, ((one,) for one in range(9)), threads=4, shard=1)
    assert list(doubled) == [2 * one for one in range(9)]
    with pytest.raises(Stopped) as stop:
        list(HERE.map(work, ((one, one == 2) for one in range(9)), threads=1, shard=1))
    time.sleep(0.2)
    assert len(begun) <= 4, stop  # the next one may be on its way


CLUSTERED = """
import importlib, os, signal, sys
import ray
from ray.cluster_utils import Cluster
from kjax.cli import main
from kjax.images.collection import matching, photographs

def dying_once(module, name, flag):
    def dying(*parts):
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return getattr(importlib.import_module(module), name)(*parts)
        os.kill(os.getpid(), signal.SIGKILL)
    return dying

folder, *words = sys.argv[1:]
for module, name in ((photographs, "describe_content"), (matching, "match_block")):
    setattr(module, name, dying_once(module.__name__, name, f"{folder}/{name}"))
photographs.AT_ONCE, matching.BLOCKS_AT_ONCE = 2, 1
machine = {"num_cpus": 1, "object_store_memory": 100_000_000}
cluster = Cluster(initialize_head=True, head_node_args=machine)
cluster.add_node(**machine)
code = main([*words, "--cluster", cluster.address])
ray.shutdown()
cluster.shutdown()
print("exit code", code)
"""


@needs_colmap
@pytest.mark.slow
def test_a_cluster_with_dying_workers_makes_the_same_database(photos, command, tmp_path):
    if importlib.util.find_spec("ray") is None:  # importing it here would leave its threads
        pytest.skip("ray is not installed")
    whole = (photos / "a photo 0.png").read_bytes()
    (photos / "broken.png").write_bytes(whole[: len(whole) // 2])
    command = [*command[:-1], "--pairs", "retrieval", "--neighbours", "4", "--out"]
    flags = tmp_path / "flags"
    flags.mkdir()
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="ray") as short:
        there = run_python(CLUSTERED, flags, *command, tmp_path / "there", RAY_TMPDIR=short)
    assert there.returncode == 0, there.stderr[-3000:]
    assert there.stdout.endswith("exit code 1\n")
    assert there.stderr.count("left out") == 1, there.stderr[-3000:]
    assert f"cannot decode {photos / 'broken.png'}" in there.stderr
    assert {path.name for path in flags.iterdir()} == {"describe_content", "match_block"}
    assert main([*command, str(tmp_path / "here")]) == 1
    found = content(tmp_path / "there" / "database.db")
    assert len(found["keypoints"]) == COUNT
    assert found == content(tmp_path / "here" / "database.db")


def test_a_missing_cluster_is_reported_in_one_line(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("kjax.images.exchange.colmap_program.find_reconstructor", lambda _: None)
    words = ["colmap", str(photos), "--out", str(tmp_path / "out"), "--cluster"]
    monkeypatch.setitem(sys.modules, "ray", None)
    message = "kjax colmap: --cluster needs ray: pip install 'kjax[cluster]'\n"
    assert refused_command(capsys, *words, "auto") == message
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert "no Ray cluster runs here" in refused_command(capsys, *words, "auto")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    for address in ("auto", "127.0.0.1:1", "nonsense"):
        assert "does not answer" in refused_command(capsys, *words, address)
