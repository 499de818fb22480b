"""Relative poses from matched points, and `kjax match --geometry essential`."""

import math

import cv2
import numpy as np
import pytest
from PIL import ExifTags, Image
from refusals import assert_refused, refused_command

import kjax
from kjax.cli import main
from kjax.data.colmap import PIXEL_CENTRE, Camera
from kjax.images import poses

CAMERA = Camera(640, 480, 500.0, (500.0, 320.0, 240.0, -0.1))
WIDER = Camera(800, 600, 450.0, (450.0, 410.0, 290.0))


def seen(points, camera):
    matrix = np.array([[camera.focal, 0, camera.parameters[1]], [0, camera.focal, 0], [0, 0, 1]])
    matrix[1, 2] = camera.parameters[2]
    distortion = np.array([*camera.parameters[3:], 0, 0, 0, 0][:4])
    return cv2.projectPoints(points, np.zeros(3), np.zeros(3), matrix, distortion)[0][:, 0]


def test_poses_of_two_cameras(rng):
    points = rng.uniform((-2, -2, 4), (2, 2, 8), (300, 3))
    turn = cv2.Rodrigues(np.array([0.05, -0.2, 0.03]))[0]
    along = np.array([0.8, 0.1, 0.2])
    views = seen(points, CAMERA), seen(points @ turn.T + along, WIDER)
    a, b = (view - PIXEL_CENTRE + rng.normal(0, 0.3, view.shape) for view in views)
    b[:60] += rng.uniform(20, 90, (60, 2))
    found = kjax.relative_pose(a, b, CAMERA, WIDER)
    cosine = (np.trace(found.rotation.T @ turn) - 1) / 2
    assert math.degrees(math.acos(min(cosine, 1))) < 0.2
    assert math.degrees(math.acos(found.translation @ along / np.linalg.norm(along))) < 1
    assert found.inliers[60:].mean() > 0.9
    assert found.inliers[:60].mean() < 0.1
    rays = [
        np.column_stack([poses.rays_of(view - PIXEL_CENTRE, camera), np.ones(300)])
        for view, camera in zip(views, (CAMERA, WIDER), strict=True)
    ]
    assert np.abs((rays[1] @ found.essential * rays[0]).sum(axis=1)).max() < 2e-3
    again = kjax.relative_pose(a, b, CAMERA, WIDER)
    np.testing.assert_array_equal(found.rotation, again.rotation)
    for count in (0, 4, 9, 60):
        assert kjax.relative_pose(a[:count], b[:count], CAMERA, WIDER) is None


def test_cameras_and_points_are_checked():
    xy = np.zeros((9, 2))
    unknown = Camera(640, 480, 500.0, (500.0,) * 8)
    assert_refused("unsupported camera model", kjax.relative_pose, xy, xy, unknown)
    assert_refused("threshold is 0", kjax.relative_pose, xy, xy, CAMERA, threshold=0.0)
    assert_refused("focal length is -1", poses.camera_of_focal, -1.0, (640, 480))


@pytest.fixture
def corner(tmp_path, monkeypatch):
    """Two photographs of two walls that meet, by cameras side by side."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(np.arange(320.0), np.arange(240.0))
    texture = cv2.resize(rng.integers(0, 256, (60, 120), np.uint8), (960, 480), None, 0, 0, 2)
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.FocalLengthIn35mmFilm] = 33.75  # 300 pixels
    for name, offset in (("a.jpg", 0.0), ("b.jpg", 0.6)):
        across, down = (x - 159.5) / 300, (y - 119.5) / 300
        # Walls: depth 4 + |X|.
        ways = [(4 + side * offset) / (1 - side * across) for side in (1, -1)]
        depth = np.minimum(*(np.where(one > 0, one, np.inf) for one in ways))
        at = (across * depth + offset) * 150 + 480, down * depth * 150 + 240
        view = cv2.remap(texture, *(one.astype("f4") for one in at), cv2.INTER_LINEAR)
        Image.fromarray(view).save(name, quality=95, exif=exif if name == "a.jpg" else Image.Exif())
    return tmp_path


def test_the_command_says_where_the_second_camera_is(corner, capsys):
    words = ["match", "a.jpg", "b.jpg", "--weights=tiny", "--save=m.npz", "--geometry=essential"]
    assert "b.jpg has no focal length in EXIF data: give --focal" in refused_command(capsys, *words)
    assert main([*words, "--focal", "300"]) == 0
    said = capsys.readouterr().out
    assert "agree with one relative pose" in said
    assert "right, down, forward" in said
    with np.load("m.npz") as saved:
        assert str(saved["geometry_is"]) == "essential"
        np.testing.assert_allclose(saved["rotation"], np.eye(3), atol=0.02)
        assert saved["translation"] @ [-1, 0, 0] > 0.99
    for more, message in (
        (["--focal", "1", "2", "3"], "one or two numbers"),
        (["--geometry=auto", "--focal", "300"], "are for --geometry essential"),
        (["--cameras", "."], "no images.bin"),
    ):
        assert message in refused_command(capsys, *words, *more)
