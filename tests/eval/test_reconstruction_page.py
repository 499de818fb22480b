import numpy as np

from kjax.data.colmap import Model, ModelImage, Points3D
from kjax.eval.report.reconstruction import scene_of


def test_a_scene_is_seen_from_its_mean_camera():
    """Two cameras that stand on both sides of the origin and look along the world's x axis."""
    rotation = np.array([[0.0, -1, 0], [0, 0, -1], [1, 0, 0]])  # right is −y, down is −z
    nothing = np.empty((0, 2)), np.empty(0, np.int64)
    images = {
        number: ModelImage(str(number), 1, rotation, -rotation @ [0.0, y, 0], *nothing)
        for number, y in enumerate((2, -2))
    }
    points = Points3D(np.array([1]), np.array([[5.0, 0, 1]]), np.array([0.5]))
    seen, centres, directions = scene_of(Model({}, images, points))
    np.testing.assert_allclose(seen, [[0, -1, 5]], atol=1e-12)
    np.testing.assert_allclose(centres, [[-2, 0, 0], [2, 0, 0]], atol=1e-12)
    np.testing.assert_allclose(directions, [[0, 0, 1]] * 2, atol=1e-12)
