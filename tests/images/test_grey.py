import cv2
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import assert_refused

from kjax.data.cutting.photographs import to_grey


def test_colours_weigh_as_in_opencv_at_every_depth(rng):
    colour = rng.random((5, 7, 3), np.float32)
    for order, code in (("rgb", cv2.COLOR_RGB2GRAY), ("bgr", cv2.COLOR_BGR2GRAY)):
        grey = to_grey(colour, order=order)
        np.testing.assert_allclose(grey, cv2.cvtColor(colour, code), atol=1e-6)
    image = rng.integers(0, 256, (4, 6), np.uint8)
    np.testing.assert_allclose(to_grey(image.astype(np.uint16) * 257), image, atol=1e-4)
    np.testing.assert_allclose(to_grey(np.full((2, 2, 3), 255, np.uint8)), 255, atol=1e-3)
    colour = rng.random((3, 4, 4), np.float32)
    np.testing.assert_array_equal(to_grey(colour), to_grey(colour[..., :3]))
    np.testing.assert_array_equal(to_grey(colour[..., :1]), colour[..., 0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, jnp.bfloat16])
def test_floats_keep_their_range(dtype):
    image = np.array([[-1.5, 0.25], [1.0, 300.0]]).astype(dtype)
    grey = to_grey(image)
    assert grey.dtype == jnp.float32
    np.testing.assert_array_equal(grey, image.astype(np.float32))


def test_batches_of_narrow_images_are_not_taken_for_colour(rng):
    images = rng.random((2, 5, 3), np.float32)
    np.testing.assert_array_equal(to_grey(images, batched=True), images)
    assert to_grey(images).shape == (2, 5)
    assert to_grey(images[..., None], batched=True).shape == (2, 5, 3)


def test_refuses_what_is_no_image():
    for image, message in (
        (np.zeros((3, 3), np.int32), "int32"),
        (np.zeros((3, 3), bool), "bool"),
        (np.zeros(3, np.uint8), r"\[H,W\] or \[H,W,C\]"),
        (np.zeros((3, 3, 2), np.uint8), r"\[3, 3, 2\]"),
    ):
        assert_refused(message, to_grey, image)
        assert_refused("did you mean 'bgr'", to_grey, np.zeros((3, 3), np.uint8), order="bgrr")
