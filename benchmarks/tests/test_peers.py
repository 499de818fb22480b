"""The comparison with peers: areas, true geometry, names of methods, records and the page."""

import argparse
import dataclasses
import math

import cv2
import numpy as np
import peers
import pytest
import skimage.data
from peer_table import boosted, geometry, methods, page, records, scenes
from program import read_card

from kjax.baselines import BASELINES
from kjax.baselines.descriptor import Unavailable
from kjax.data.colmap import Camera, Model, ModelImage, Points3D
from kjax.data.cutting.keypoints import NO_ANGLE, Keypoints
from kjax.images import poses
from kjax.weights import shipped

CAMERA = Camera(1024, 768, 900.0, (900.0, 512.0, 384.0, -0.05))
SHAPES = ((768, 1024),) * 2
RECORD = records.PeerRecord(
    "best:steady+0.9", 2048, "graf", "homographies", 5, 2000.0, 900, 800, [0.5] * 10, [1.0] * 5,
    None, None, "", "2 cores", {"kjax": "0"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("errors", "area"),
    [([], 0), ([0.0, 0.0], 1), ([None, math.inf], 0), ([5.0], 0.75), ([20.0, 0.0], 0.5)],
)
def test_area_under_recall(errors, area):
    """The curve is straight between errors: one of 5 rises to 1 there, (5 · 1/2 + 5) / 10."""
    assert geometry.area_under_recall(errors, 10) == pytest.approx(area)


@pytest.fixture
def views(rng):
    """Points in front of two cameras, the cameras' relative pose, and the points' pixels."""
    xyz = rng.uniform([-2, -2, 4], [2, 2, 8], (200, 3))
    rotation = cv2.Rodrigues(np.array([0.05, -0.2, 0.1]))[0]
    translation = np.array([1.0, 0.1, 0.2])
    pixels = []
    for turn, move in ((np.eye(3), np.zeros(3)), (rotation, translation)):
        focal, x, y, radial = CAMERA.parameters
        matrix = np.array([[focal, 0, x], [0, focal, y], [0, 0, 1]])
        distortion = np.array([radial, 0, 0, 0])
        seen = cv2.projectPoints(xyz, cv2.Rodrigues(turn)[0], move, matrix, distortion)[0]
        pixels.append(seen[:, 0] - 0.5)
    return xyz, rotation, translation, pixels


def test_pose_errors(views, rng):
    _, rotation, translation, (a, b) = views
    truth = scenes.PoseTruth((CAMERA, CAMERA), SHAPES, rotation, translation)
    off, error, refined, stricter = truth.judge(a, b)
    assert off.max() < 0.05
    assert max(error, refined, *stricter) < 0.05
    assert truth.judge(a, b + np.array([0, 30])).off.max() > 10
    turned = dataclasses.replace(truth, rotation=cv2.Rodrigues(np.array([0, 0, 0.1]))[0] @ rotation)
    assert turned.judge(a, b).error == pytest.approx(math.degrees(0.1), abs=0.1)
    assert truth.judge(a[:3], b[:3])[1:] == (None, None, (None,) * 3)
    noisy = truth.judge(a, b + rng.normal(scale=0.3, size=b.shape))
    assert len({noisy.error, *noisy.stricter}) > 1, "thresholds matter"


def test_poses_are_refined_in_spite_of_outliers(views, rng):
    _, rotation, translation, (a, b) = views
    a, b = (points + rng.normal(0, 0.5, points.shape) for points in (a, b))
    b[:40] += rng.uniform(20, 100, (40, 2))
    rays = [scenes._rays(points, CAMERA, SHAPES[0]) for points in (a, b)]
    nearby = cv2.Rodrigues(np.array([0, 0.004, 0]))[0] @ rotation, translation + 0.02
    threshold = 1 / CAMERA.focal
    found = poses.refined_pose(*rays, nearby, threshold=threshold)
    # The pose of the 160 inliers alone, whose noise nothing can undo.
    inliers = [one[40:] for one in rays]
    best = poses.refined_pose(*inliers, (rotation, translation), threshold=threshold)
    before, after, least = (
        geometry.pose_error(one, rotation, translation) for one in (nearby, found, best)
    )
    assert after < before / 2
    assert after == pytest.approx(least, abs=0.05)


def test_pairs_share_enough_points(views, tmp_path):
    xyz, rotation, translation, (a, b) = views
    ids = np.arange(len(xyz))
    images = {
        1: ModelImage("a.png", 1, np.eye(3), np.zeros(3), a, ids),
        2: ModelImage("b.png", 1, rotation, translation, b, ids),
        3: ModelImage("c.png", 1, rotation, translation, b[:2], ids[:2] + 10_000),
    }
    more = np.arange(10_000, 10_002)
    points = Points3D(np.append(ids, more), np.vstack([xyz, xyz[:2]]), np.zeros(len(xyz) + 2))
    scene = scenes.pose_scene("toy", tmp_path, Model({1: CAMERA}, images, points))
    assert [(pair.first, pair.second) for pair in scene.pairs] == [(0, 1)]
    np.testing.assert_allclose(scene.pairs[0].truth.translation, translation, atol=1e-12)


def test_rotated_photos_keep_their_homography(rng):
    photo = scenes.resized(skimage.data.camera())
    truth = scenes.PlaneTruth(np.eye(3), photo.shape)
    pair = scenes.ScenePair(0, 1, truth)
    plane = scenes.PeerScene("toy", "homographies", [lambda: photo] * 2, [pair])
    quarter = scenes.turned_scene([plane], 90)
    np.testing.assert_array_equal(quarter.photos[1](), np.rot90(photo, -1))
    a = rng.uniform(0, 1000, (40, 2))
    b = np.column_stack([photo.shape[0] - 1 - a[:, 1], a[:, 0]])
    off, error, *_ = quarter.pairs[0].truth.judge(a, b)
    assert off.max() < 1e-9
    assert error < 1e-3


def test_names_of_methods():
    assert methods.parse("best:largest+0.9") == ("best", "largest", "0.9", False)
    assert methods.parse("aliked+lightglue") == ("aliked", "strongest", "lightglue", False)
    assert methods.parse("best+learned+aligned") == ("best", "strongest", "learned", True)
    assert "lund" in methods.parse("best:steady+0.9").trained_on
    assert methods.parse("aliked").trained_on == set()
    assert methods.parse("best@9:steady+0.9").digest == read_card("best")["sha256"][:12]
    for name, own in (("fast:steady", "fast"), ("kjax-hardnet", "hardnet"), ("rootsift", "sift")):
        assert methods.parse(f"{name}+learned").own_matcher == own
    features = {methods.parse(name).features for name in page.METHODS}
    others = {"aliked", "disk", *boosted.NAMES}
    assert features - set(BASELINES) - others <= set(shipped.list_weights())
    assert not any(methods.parse(name).is_ours for name in ("sift", "rootsift", *boosted.NAMES))


CHECKOUT = """
import torch


class FeatureBooster(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(config["output_dim"]))

    def forward(self, descriptors, keypoints):
        return torch.cat([descriptors, keypoints], dim=1) + self.shift
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder like FeatureBooster's repository, whose network hands its input on."""
    torch = pytest.importorskip("torch")
    (tmp_path / "featurebooster.py").write_text(CHECKOUT)
    (tmp_path / "config.yaml").write_text(
        "".join(f"{name}: {{output_dim: 132}}\n" for name in boosted.NAMES.values())
    )
    (tmp_path / "models").mkdir()
    for name in boosted.NAMES.values():
        torch.save({"shift": torch.full((132,), -0.1)}, tmp_path / "models" / f"{name}.pth")
    return tmp_path


def test_featurebooster_gets_what_its_authors_feed_it(checkout):
    pytest.importorskip("yaml")
    photo = scenes.resized(skimage.data.camera())
    found = methods.describer(methods.parse("boost-f"), 50, "cpu", checkout)(photo)
    rows = found.descriptors + 0.1
    np.testing.assert_allclose(np.linalg.norm(rows[:, :128], axis=1), 1, atol=1e-5)
    plain = methods.describer(methods.parse("sift"), 50, "cpu")(photo)
    cosines = (rows[:, :128] * plain.descriptors).sum(axis=1)
    np.testing.assert_allclose(cosines, np.linalg.norm(plain.descriptors, axis=1), rtol=1e-5)
    angles = np.array([NO_ANGLE, -90], np.float32)
    points = Keypoints(np.array([[50, 20], [64, 24]], np.float32), angles + 7, angles, angles)
    expected = [[0, -4 / 70, 3, 0], [14 / 70, 0, -41.5, 1.5 * math.pi]]
    np.testing.assert_allclose(boosted.geometry(points, (48, 100)), expected, atol=1e-6)
    bits = methods.describer(methods.parse("boost-b"), 50, "cpu", checkout)(photo).descriptors
    np.testing.assert_array_equal(bits, found.descriptors >= 0)


def test_featurebooster_needs_a_checkout(tmp_path):
    for folder, message in ((None, "--featurebooster FOLDER"), (tmp_path, "not a checkout")):
        with pytest.raises(Unavailable, match=message):
            methods.describer(methods.parse("boost-f"), 50, "cpu", folder)


def test_thresholds_are_selected_on_one_scene_and_used_on_others():
    one = dataclasses.replace(RECORD, kind="poses", scene="fountain", errors=[5.0] * 5)
    validation = dataclasses.replace(one, stricter=[[6.0] * 5, [1.0] * 5, [9.0] * 5])
    tested = dataclasses.replace(
        one, scene="entry", errors=[0.0] * 5, stricter=[[2.0] * 5, [3.0] * 5, [4.0] * 5]
    )
    other = dataclasses.replace(tested, method="disk")  # not measured on the validation scene
    before = dataclasses.replace(one, scene="sceaux")  # measured with one threshold
    found, pixels = records.with_own_threshold([validation, tested, other, before])
    assert pixels == {RECORD.method: 0.2}
    assert {record.scene: record.errors[0] for record in found} == {"fountain": 1.0, "entry": 3.0}


def test_latest_records_and_uncertainty(tmp_path):
    path = tmp_path / "peers.jsonl"
    better = dataclasses.replace(RECORD, correct=760, errors=[0.0] * 5, hardware="a GPU")
    slow = dataclasses.replace(RECORD, correct=1, describe_seconds=1.0, match_seconds=2.0)
    for one in (RECORD, better, slow):
        records.append(path, one)
    found = records.read(path)
    assert found == [RECORD, better, slow]
    assert records.latest(found) == [better], "records with seconds do not change the tables"
    assert records.latest_timed(found) == [slow]
    assert "differ by at most 5.0 %" in page.spread_of_repeats([RECORD, better])
    assert page.spread_of_repeats([RECORD]) == ""
    assert page.bold_best([["a", "1,000", "2.0 †"], ["b", "900", "1.0"]], 1) == [
        ["a", "**1,000**", "2.0 †"],
        ["b", "900", "**1.0**"],
    ]


def test_recorded_methods_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "hardware", lambda name, device: device)
    args = argparse.Namespace(device="here", timed=False, matcher=None)
    args.results = tmp_path / "peers.jsonl"
    known = dataclasses.replace(RECORD, method="rootsift", hardware="there", describe_seconds=1.0)
    records.append(args.results, known)
    graf = scenes.PeerScene("graf", "homographies", [], [])
    assert peers.recorded(2048, graf, args)("rootsift")
    assert not peers.recorded(1000, graf, args)("rootsift")
    learned = dataclasses.replace(RECORD, method=page.OURS, weights=methods.parse("best").digest)
    assert not learned.is_fair
    digest = methods.matcher_digest(page.OURS)
    for matcher, current in (("", False), ("of another", False), (digest, True)):
        records.append(args.results, dataclasses.replace(learned, matcher=matcher))
        assert peers.recorded(2048, graf, args)(page.OURS) is current
    shown = [one.matcher for one in page.read_shown(args.results) if one.method == page.OURS]
    assert shown == ["", digest]
    args.timed = True
    assert not peers.recorded(2048, graf, args)("rootsift")
    args.device = "there"
    assert peers.recorded(2048, graf, args)("rootsift")
