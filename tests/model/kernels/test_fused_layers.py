"""The fused layers, and the GPU kernels behind them, against plain JAX.

The kernels run in Pallas' interpreter, in float32, and where there is a GPU on it, in bfloat16.
"""

import functools
import importlib
import sys
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model, random_patches

import kjax
from kjax.model import CHANNELS
from kjax.model.kernels import batch_norm, fused_layers, gpu_kernels
from kjax.model.kernels.convolution import convolve

SIDE, BATCH, VIEWS = 16, 64, 2
KERNEL_SHAPES = (3, 3, 1, 8), (3, 3, 8, 8), (3, 3, 8, 16)


@pytest.fixture
def normal(rng):
    """Values that bfloat16 holds exactly."""
    return lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.bfloat16).astype(jnp.float32)


def relative(found, expected):
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def close(found, expected, tolerance=1e-5):
    assert relative(found, expected) <= tolerance


def by_view(x):
    return x.reshape(VIEWS, -1, x.shape[-1])


def taps(images):
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1)))
    shifted = [padded[:, i : i + SIDE, j : j + SIDE] for i in range(3) for j in range(3)]
    return by_view(jnp.stack([*shifted, jnp.ones_like(images)], axis=-1))


def plain_normalize(x, views, *, rectify):
    x = x.reshape(views, -1, *x.shape[1:])
    axes = tuple(range(1, x.ndim - 1))
    centred = x - x.mean(axis=axes, keepdims=True)
    var = (centred * centred).mean(axis=axes, keepdims=True)
    normalized = centred / jnp.sqrt(var + 1e-5)
    return (jax.nn.relu(normalized) if rectify else normalized).reshape(-1, *x.shape[2:])


@pytest.mark.parametrize("rectify", [False, True])
def test_normalize_and_its_gradient_equal_autodiff(normal, rectify):
    x, weights = normal(6, 4, 4, 5) * 2 + 3, normal(6, 4, 4, 5)

    def loss(x):
        fixed = jax.lax.stop_gradient(x)
        statistics = batch_norm.batch_statistics(fixed, views=3)
        return (weights * batch_norm.normalize(x, *statistics, rectify, None)).sum()

    def expected_loss(x):
        return (weights * plain_normalize(x, 3, rectify=rectify)).sum()

    close(loss(x), expected_loss(x))
    close(jax.grad(loss)(x), jax.grad(expected_loss)(x))


def test_statistics_in_one_pass_are_as_good_as_their_input(normal):
    x = (normal(64, 8, 8, 32) + 3).astype(jnp.bfloat16)
    exact = np.asarray(x, np.float64).reshape(2, -1, 32)
    mean, var = batch_norm.batch_statistics(x, views=2)
    np.testing.assert_allclose(mean, exact.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(var, exact.var(axis=1), rtol=1e-4)


def fused_loss(arrays, weights, axis_name=None, views=VIEWS):
    images, kernel1, kernel2, kernel3 = arrays
    y, first, second = fused_layers.first_two_layers(images, kernel1, kernel2, views, axis_name)
    halved = fused_layers.normalized_halving_convolution(y, *second, kernel3, axis_name)
    return (weights * halved).sum(), (first, second)


def plain_loss(arrays, weights):
    images, kernel1, kernel2, kernel3 = arrays
    z = plain_normalize(convolve(images, kernel1, stride=1), VIEWS, rectify=True)
    z = plain_normalize(convolve(z, kernel2, stride=1), VIEWS, rectify=True)
    return (weights * convolve(z, kernel3, stride=2)).sum()


@pytest.fixture
def arrays(normal):
    shapes = (BATCH, SIDE, SIDE, 1), *KERNEL_SHAPES
    return [normal(*shape) for shape in shapes], normal(BATCH, SIDE // 2, SIDE // 2, 16)


def test_fused_layers_and_their_gradients_equal_autodiff(arrays):
    arrays, weights = arrays
    fused = jax.jit(jax.value_and_grad(fused_loss, has_aux=True))
    (loss, statistics), gradients = fused(arrays, weights)
    expected_loss, expected = jax.jit(jax.value_and_grad(plain_loss))(arrays, weights)
    close(loss, expected_loss, 1e-4)
    for found, gradient in zip(gradients, expected, strict=True):
        close(found, gradient, 1e-4)
    y = by_view(convolve(arrays[0], arrays[1], stride=1))
    close(statistics[0][0], y.mean(axis=1), 1e-4)
    close(statistics[0][1], y.var(axis=1), 1e-4)


@pytest.mark.slow
def test_fused_layers_over_devices_equal_the_whole_batch(arrays):
    """Two devices, each with half of every view."""
    arrays, weights = arrays
    whole = jax.grad(fused_loss, has_aux=True)(arrays, weights)[0]

    def shard(x):
        halves = x.reshape(VIEWS, 2, -1, *x.shape[1:])
        return halves.swapaxes(0, 1).reshape(2, -1, *x.shape[1:])

    def gradients(images, weights, kernels):
        one = functools.partial(fused_loss, axis_name="d")
        return jax.grad(one, has_aux=True)([images, *kernels], weights)[0]

    devices = jax.devices("cpu")[:2]
    mapped = jax.pmap(gradients, axis_name="d", in_axes=(0, 0, None), devices=devices)
    shards = mapped(shard(arrays[0]), shard(weights), arrays[1:])
    close(shards[0], shard(whole[0]), 1e-4)
    for found, expected in zip(shards[1:], whole[1:], strict=True):
        close(found.sum(axis=0), expected, 1e-4)


@pytest.mark.parametrize(
    ("shape", "dtype", "views", "expected"),
    [
        ((1024, 32, 32, 1), jnp.bfloat16, 2, True),
        ((16, 64, 64, 1), jnp.bfloat16, 2, True),
        ((24, 64, 64, 1), jnp.bfloat16, 2, False),
        ((1024, 32, 32, 1), jnp.float32, 2, False),
        ((1022, 32, 32, 1), jnp.bfloat16, 2, False),
        ((1024, 36, 36, 1), jnp.bfloat16, 2, False),
        ((*jax.export.symbolic_shape("batch"), 32, 32, 1), jnp.bfloat16, 1, False),
    ],
)
def test_what_fits(shape, dtype, views, expected):
    assert fused_layers.fits(shape, dtype, CHANNELS, views=views) == expected


def test_which_channels_fit():
    for channels, expected in (((8, 16, 64), True), ((16, 16, 12), False), ((4, 8, 16), False)):
        assert fused_layers.fits((1024, 32, 32, 1), jnp.bfloat16, channels, views=2) == expected


@pytest.fixture
def without_triton(monkeypatch):
    """An H200, as far as JAX tells, and a JAX without Pallas' Triton backend."""
    with monkeypatch.context() as patch:
        patch.delattr("jax.experimental.pallas.triton")
        patch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
        patch.setattr(jax, "default_backend", lambda: "gpu")
        h200 = types.SimpleNamespace(compute_capability="9.0")
        patch.setattr(jax, "local_devices", lambda: [h200])
        yield importlib.reload(gpu_kernels)
    importlib.reload(gpu_kernels)


def test_without_the_triton_backend_xla_does_the_work_after_one_warning(rng, request):
    options = {"patch_size": 16, "channels": 6 * (8,)}
    _, variables = make_model("hardnet", **options)
    model = kjax.build("hardnet", dtype="bfloat16", dropout=0.0, **options)
    patches, weights = random_patches(rng, 64, 16), rng.normal(size=(64, 128))

    def traced():
        def loss(variables):
            trained, _ = model.apply(variables, patches, train=True, mutable="batch_stats")
            folded, own = kjax.fold(model, variables)
            return (weights * (trained + folded.apply(own, patches))).sum()

        return jax.jit(jax.grad(loss)).trace(variables)

    fused = traced()
    assert "pallas_call" in str(fused.jaxpr)
    request.getfixturevalue("without_triton")
    with pytest.warns(RuntimeWarning, match="no Triton backend: .* XLA") as caught:
        plain = traced()
    assert len(caught) == 1
    assert "pallas_call" not in str(plain.jaxpr)
    gradients = (jax.tree.leaves(one.lower().compile()(variables)) for one in (plain, fused))
    for one, other in zip(*gradients, strict=True):
        close(one, other, 0.1)


# Kernels


class Kernels(NamedTuple):
    """How kernels run, and how far from plain JAX in float32 they may be."""

    interpret: bool
    dtype: jnp.dtype
    tolerance: float
    width: int = 32
    """Channels of the first two layers; the third has twice as many."""

    def cast(self, *arrays):
        return [array.astype(self.dtype) for array in arrays]

    def close(self, found, expected):
        close(found, expected, self.tolerance)


# On a GPU results are rounded to bfloat16, and so is what lies between two layers: each time by up
# to half of 2**-8, and at most three times.
ON_GPU = Kernels(interpret=False, dtype=jnp.bfloat16, tolerance=1.5 * 2.0**-8)
INTERPRETED = Kernels(interpret=True, dtype=jnp.float32, tolerance=1e-5)


@pytest.fixture(
    params=[
        pytest.param(INTERPRETED, id="interpreted", marks=pytest.mark.slow),
        pytest.param(INTERPRETED._replace(width=8), id="interpreted narrow"),
        pytest.param(ON_GPU, id="gpu", marks=pytest.mark.gpu),
        pytest.param(ON_GPU._replace(width=16), id="gpu half", marks=pytest.mark.gpu),
        pytest.param(ON_GPU._replace(width=8), id="gpu narrow", marks=pytest.mark.gpu),
    ]
)
def kernels(request):
    # Plain JAX is what is compared with: without TF32.
    with jax.default_matmul_precision("highest"):
        yield request.param


def test_convolution_kernel(normal, kernels):
    width = kernels.width
    x, kernel = normal(BATCH, SIDE, SIDE, width), normal(3, 3, width, width)
    assert gpu_kernels.fits(BATCH // VIEWS, SIDE)
    given, interpret = kernels.cast(x, kernel), kernels.interpret
    y, sums = gpu_kernels.convolve_with_sums(*given, views=VIEWS, interpret=interpret)
    expected = convolve(x, kernel, stride=1)
    kernels.close(y, expected)
    columns = by_view(expected)
    kernels.close(sums, jnp.stack([columns.sum(axis=1), (columns**2).sum(axis=1)], axis=1))


def rectified_twice(images, kernel1, bias1, kernel2, bias2):
    z = jax.nn.relu(convolve(images, kernel1, stride=1) + bias1.reshape(1, 1, 1, -1))
    return jax.nn.relu(convolve(z, kernel2, stride=1) + bias2.reshape(1, 1, 1, -1))


def folded_arrays(normal, count=8, side=SIDE, width=8):
    kernels = (3, 3, 1, width), (width,), (3, 3, width, width), (width,)
    return [normal(*shape) for shape in ((count, side, side, 1), *kernels)]


def test_folded_layers_and_their_gradients_equal_autodiff(normal):
    arrays = folded_arrays(normal)
    weights = normal(8, SIDE, SIDE, 8)

    def gradients(function):
        return jax.grad(lambda *arrays: (weights * function(*arrays)).sum(), range(len(arrays)))

    fused = fused_layers.folded_first_two_layers
    close(fused(*arrays), rectified_twice(*arrays))
    found, expected = (jax.jit(gradients(each))(*arrays) for each in (fused, rectified_twice))
    for found_one, expected_one in zip(found, expected, strict=True):
        close(found_one, expected_one)


@pytest.mark.parametrize(("count", "side"), [(16, SIDE), (8, 32)])
def test_folded_kernel(normal, kernels, count, side):
    arrays = folded_arrays(normal, count, side, kernels.width)
    images, kernel1, bias1, kernel2, bias2 = arrays
    assert gpu_kernels.fits(count, side)
    padded = jnp.pad(images[..., 0], ((0, 0), (2, 2), (2, 2)))
    padded, kernel1, kernel2 = kernels.cast(padded, kernel1, kernel2)
    given = padded, kernel1, bias1, kernel2, bias2
    found = gpu_kernels.folded_first_two_layers(*given, interpret=kernels.interpret)
    kernels.close(found, rectified_twice(*arrays))


@pytest.mark.parametrize(
    ("stride", "kernel_gradient"),
    [(1, gpu_kernels.kernel_gradient), (2, gpu_kernels.halving_kernel_gradient)],
)
def test_kernel_gradients(normal, kernels, stride, kernel_gradient):
    width = kernels.width
    x, kernel = normal(BATCH, SIDE, SIDE, width), normal(3, 3, width, width * stride)
    y, back = jax.vjp(lambda kernel: convolve(x, kernel, stride=stride), kernel)
    dy = normal(*y.shape)
    found = kernel_gradient(*kernels.cast(x, dy), interpret=kernels.interpret)
    kernels.close(found, back(dy)[0])


def test_halving_input_gradient(normal, kernels):
    width = kernels.width
    x, kernel = normal(BATCH, SIDE, SIDE, width), normal(3, 3, width, 2 * width)
    scale, shift = jnp.abs(normal(VIEWS, width)), normal(VIEWS, width)
    y = by_view(x) * scale[:, None] + shift[:, None]

    def after(y):
        return convolve(jax.nn.relu(y).reshape(x.shape), kernel, stride=2)

    out, back = jax.vjp(after, y)
    dy = normal(*out.shape)
    given = *kernels.cast(dy, kernel, x), scale, shift
    passed, sums = gpu_kernels.halving_input_gradient(*given, interpret=kernels.interpret)
    (expected,) = back(dy)
    kernels.close(by_view(passed), expected)
    kernels.close(sums, jnp.stack([expected.sum(axis=1), (expected * y).sum(axis=1)], axis=1))


def test_first_layer_kernels(normal, kernels):
    width = kernels.width
    images = normal(BATCH, SIDE, SIDE)
    first, second = normal(3, 3, 1, width), normal(3, 3, width, width)
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1)))
    scale, shift = jnp.abs(normal(VIEWS, width)), normal(VIEWS, width)
    seen = taps(images)
    interpret = kernels.interpret
    cast_padded, cast_first, cast_second = kernels.cast(padded, first, second)
    gram = gpu_kernels.tap_gram(cast_padded, views=VIEWS, interpret=interpret)
    kernels.close(gram[:, :10, :10], jnp.einsum("vps,vpt->vst", seen, seen))
    y = by_view(convolve(images[..., None], first, stride=1)) * scale[:, None] + shift[:, None]
    z = gpu_kernels.first_layer(cast_padded, cast_first, scale, shift, interpret=interpret)
    kernels.close(by_view(z), jax.nn.relu(y))
    dy = normal(BATCH, SIDE, SIDE, width)
    by_z = jax.vjp(lambda z: convolve(z, second, stride=1), z.astype(jnp.float32))[1](dy)[0]
    given = *kernels.cast(dy), cast_second, cast_padded, cast_first, scale, shift
    found = gpu_kernels.tap_gradient(*given, interpret=interpret)
    passed = jnp.where(y > 0, by_view(by_z), 0)
    kernels.close(found[:, :10], jnp.einsum("vpt,vpc->vtc", seen, passed))


def test_sum_kernels(normal, kernels):
    width = 2 * kernels.width
    x, gradient = normal(32, 8, 8, width), normal(32, 8, 8, width)
    scale, shift = jnp.abs(normal(VIEWS, width)), normal(VIEWS, width)
    assert gpu_kernels.can_sum(x.shape, VIEWS)
    columns = by_view(x)
    cast_x, cast_gradient = kernels.cast(x, gradient)
    found = gpu_kernels.moment_sums(cast_x, views=VIEWS, interpret=kernels.interpret)
    kernels.close(found, jnp.stack([columns.sum(axis=1), (columns**2).sum(axis=1)], axis=1))
    y = columns * scale[:, None] + shift[:, None]
    passed = jnp.where(y > 0, by_view(gradient), 0)
    given = cast_gradient, cast_x, scale, shift
    found = gpu_kernels.gradient_sums(*given, interpret=kernels.interpret)
    kernels.close(found, jnp.stack([passed.sum(axis=1), (passed * y).sum(axis=1)], axis=1))


# On a GPU, from layers to descriptors and trainings


def no_worse_than_plain(found, plain, exact):
    """Fused or not, bfloat16 rounds as often: half as much again is no other arithmetic."""
    for one, other, best in zip(*map(jax.tree.leaves, (found, plain, exact)), strict=True):
        assert relative(one, best) <= 1.5 * relative(other, best) + 2.0**-9


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("count", "side", "width"),
    [(BATCH, 16, 32), (48, 32, 32), (16, 64, 32), (48, 32, 16), (48, 32, 8)],
)
def test_layers_and_gradients_in_bfloat16(normal, count, side, width):
    shapes = (3, 3, 1, width), (3, 3, width, width), (3, 3, width, 2 * width)
    images, *weights = (normal(*shape) for shape in ((count, side, side, 1), *shapes))
    arrays = [images.astype(jnp.bfloat16), *weights]
    channels = (width, width, 2 * width)
    assert fused_layers.fits(arrays[0].shape, jnp.bfloat16, channels, views=VIEWS)
    outer = normal(count, side // 2, side // 2, 2 * width)

    def fused(arrays):
        return fused_loss(arrays, outer)[0].astype(jnp.float32)

    def plain(arrays):
        return plain_loss([array.astype(arrays[0].dtype) for array in arrays], outer)

    found, ordinary = (jax.jit(jax.grad(each))(arrays) for each in (fused, plain))
    with jax.default_matmul_precision("highest"):
        exact = jax.jit(jax.grad(plain))([images, *weights])
    no_worse_than_plain(found, ordinary, exact)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 3, 8, 100, 129])
@pytest.mark.parametrize("head", ["hardnet", "combined_star"])
def test_descriptors_of_any_number_of_patches_in_bfloat16(rng, head, count):
    """With eight the fused kernel runs, with the others plain JAX: there is no edge between."""
    model, variables = make_model(head)
    patches = random_patches(rng, count, 32)
    with jax.default_matmul_precision("highest"):
        exact = model.apply(variables, patches)
    folded, weights = kjax.fold(model.clone(dtype=jnp.bfloat16), variables)
    found = jax.jit(folded.apply)(weights, patches)
    assert found.shape == exact.shape
    plain = model.clone(dtype=jnp.bfloat16).apply(variables, patches)
    no_worse_than_plain(found, plain, exact)
