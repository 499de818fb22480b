"""The trunk's first layers in reduced precision, where most of the time would be spent.

General convolutions are slow with one or 32 channels. Here:

* The first layer's statistics follow from the 10×10 Gram matrix of its inputs (nine neighbours and
  a one), because mean and variance of a linear map are linear and quadratic in its weights. Its
  output is written once, normalised, and never read back for its statistics.
* Its gradient likewise needs only Σ t gᵀ, the products of inputs and incoming gradients. A kernel
  adds these up while it runs the second convolution backwards, and stores no gradient.
* The sums for the gradient of the second layer's BatchNorm are taken while the third convolution
  runs backwards.
* In inference, with BatchNorm folded, the output of the first layer is never stored.

NVIDIA GPUs run `kjax.model.kernels.gpu_kernels`, other devices plain JAX with the same results up
to rounding.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kjax.model.kernels import gpu_kernels
from kjax.model.kernels.batch_norm import (
    from_moments,
    gradient_by_input,
    normalize_by,
    over_devices,
    scale_and_shift,
)
from kjax.model.kernels.convolution import convolve, input_gradient, kernel_gradient

Statistics = tuple[Float[Array, "views c"], Float[Array, "views c"]]
"""Mean and biased variance of each view."""
CHANNELS = (8, 16, 32, 64)
"""Supported numbers of channels."""


def fits(shape: tuple[Any, ...], dtype: Any, channels: Sequence[int], *, views: int) -> bool:
    """Whether the fused layers support a batch of images of this shape, with 32-bit indices."""
    batch, side = shape[:2]
    if not isinstance(batch, int):
        return False  # symbolic, for jax.export
    if dtype != jnp.bfloat16 or batch % views or batch * side**2 * max(CHANNELS) >= 2**31:
        return False
    return all(width in CHANNELS for width in channels[:3]) and gpu_kernels.fits(
        batch // views, side
    )


# Layers 1 and 2


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def first_two_layers(
    images: Float[Array, "batch N N 1"],
    kernel1: Float[Array, "3 3 1 C"],
    kernel2: Float[Array, "3 3 C C2"],
    views: int,
    axis_name: str | None,
) -> tuple[Float[Array, "batch N N C2"], Statistics, Statistics]:
    """Compute convolution, BatchNorm, ReLU and convolution, and both convolutions' statistics.

    The images have the precision of the computation, the kernels float32. The second BatchNorm is
    part of `normalized_halving_convolution`, which accounts for its statistics in the gradient; so
    no gradient flows through the statistics returned here.
    """
    return _first_two_forward(images, kernel1, kernel2, views, axis_name)[0]


def _first_two_forward(
    images: Array, kernel1: Array, kernel2: Array, views: int, axis_name: str | None
) -> tuple[tuple[Array, Statistics, Statistics], tuple[Array, ...]]:
    first, second = kernel1.astype(images.dtype), kernel2.astype(images.dtype)
    padded = jnp.pad(images[..., 0], ((0, 0), (1, 1), (1, 1)))

    def gram_elsewhere(padded: Array) -> Array:
        taps = _taps(padded, views)
        return jnp.einsum("vps,vpt->vst", taps, taps, precision="highest")

    def convolve_elsewhere(x: Array, kernel: Array) -> tuple[Array, Array]:
        y = convolve(x, kernel, stride=1)
        wide = _by_view(y, views)
        return y, jnp.stack([wide.sum(axis=1), (wide * wide).sum(axis=1)], axis=1)

    gram_on_gpu = functools.partial(gpu_kernels.tap_gram, views=views)
    gram = _on_gpu_or(gram_on_gpu, gram_elsewhere)(padded)
    # The convolution's mean and variance: w·t and wᵀ(t tᵀ)w, averaged over pixels.
    rows, count = _tap_rows(first), gram[:, 9, 9][:, None]
    mean = jnp.einsum("vt,tc->vc", gram[:, 9, :9], rows, precision="highest") / count
    square = jnp.einsum("vst,sc,tc->vc", gram[:, :9, :9], rows, rows, precision="highest")
    mean, var = from_moments(mean, square / count, axis_name=axis_name)
    z = _first_layer(padded, first, *scale_and_shift(mean, var))
    convolve_on_gpu = functools.partial(gpu_kernels.convolve_with_sums, views=views)
    y, sums = _on_gpu_or(convolve_on_gpu, convolve_elsewhere)(z, second)
    moments = sums / (y.size // y.shape[-1] // views)
    statistics = from_moments(moments[:, 0], moments[:, 1], axis_name=axis_name)
    return (y, (mean, var), statistics), (padded, kernel1, kernel2, z, gram, mean, var)


def _first_two_backward(
    views: int, axis_name: str | None, kept: tuple[Array, ...], gradients: tuple[Any, ...]
) -> tuple[Array, Array, Array]:
    padded, kernel1, kernel2, z, gram, mean, var = kept
    dy = gradients[0]
    first, second = kernel1.astype(z.dtype), kernel2.astype(z.dtype)
    scale, shift = scale_and_shift(mean, var)

    def products_elsewhere(
        dy: Array, kernel: Array, padded: Array, first: Array, scale: Array, shift: Array
    ) -> Array:
        z = _first_layer(padded, first, scale, shift)
        passed = _by_view(jnp.where(z > 0, input_gradient(dy, kernel, z.shape), 0), views)
        return jnp.einsum("vpt,vpc->vtc", _taps(padded, views), passed, precision="highest")

    products = _on_gpu_or(gpu_kernels.tap_gradient, products_elsewhere)(
        dy, second, padded, first, scale, shift
    )
    rows, count = _tap_rows(first), gram[:, 9, 9][:, None]
    # Means of the gradient before the ReLU, and of its product with the normalised values there.
    total = products[:, 9]
    weighted = jnp.einsum("tc,vtc->vc", rows, products[:, :9], precision="highest")
    along = total / count, scale * (weighted - mean * total) / count
    along_mean, along_std = over_devices(along, axis_name)
    ones = gram[:, :9, 9:10]
    spread = jnp.einsum("vst,tc->vsc", gram[:, :9, :9], rows, precision="highest")
    by_kernel1 = scale[:, None] * (
        products[:, :9]
        - ones * along_mean[:, None]
        - (spread - ones * mean[:, None]) * (scale * along_std)[:, None]
    )
    on_gpu = gpu_kernels.kernel_gradient
    by_kernel2 = _on_gpu_or(on_gpu, functools.partial(kernel_gradient, stride=1))(z, dy)
    # The gradient by the images, in plain JAX: training never needs it, so XLA removes it.
    passed = _by_view(jnp.where(z > 0, input_gradient(dy, second, z.shape), 0), views)
    images = padded[:, 1:-1, 1:-1, None]
    y = _by_view(convolve(images, first, stride=1), views)
    normalized = y * scale[:, None] + shift[:, None]
    by_y = scale[:, None] * (passed - along_mean[:, None] - normalized * along_std[:, None])
    by_images = input_gradient(by_y.reshape(z.shape).astype(dy.dtype), first, images.shape)
    return by_images, by_kernel1.sum(axis=0).reshape(kernel1.shape), by_kernel2


first_two_layers.defvjp(_first_two_forward, _first_two_backward)


# Layers 2 and 3


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def normalized_halving_convolution(
    y: Float[Array, "batch N N C"],
    mean: Float[Array, "views C"],
    var: Float[Array, "views C"],
    kernel: Float[Array, "3 3 C C2"],
    axis_name: str | None,
) -> Float[Array, "batch n n C2"]:
    """Compute BatchNorm, ReLU and a convolution of stride 2.

    `mean` and `var` are the statistics of y; their gradient is part of y's, as in
    `batch_norm.normalize`. The kernel is float32.
    """
    return _halving_forward(y, mean, var, kernel, axis_name)[0]


def _halving_forward(
    y: Array, mean: Array, var: Array, kernel: Array, axis_name: str | None
) -> tuple[Array, tuple[Array, ...]]:
    z = normalize_by(y, mean, var, rectify=True)
    return convolve(z, kernel.astype(y.dtype), stride=2), (y, z, mean, var, kernel)


def _halving_backward(
    axis_name: str | None, kept: tuple[Array, ...], gradient: Array
) -> tuple[Array, Array, Array, Array]:
    y, z, mean, var, kernel = kept
    y, mean, var = lax.optimization_barrier((y, mean, var))  # see batch_norm
    on_gpu = gpu_kernels.halving_kernel_gradient
    by_kernel = _on_gpu_or(on_gpu, functools.partial(kernel_gradient, stride=2))(z, gradient)
    scale, shift = scale_and_shift(mean, var)

    def elsewhere(
        dy: Array, kernel: Array, y: Array, scale: Array, shift: Array
    ) -> tuple[Array, Array]:
        views = scale.shape[0]
        normalized = _by_view(y, views) * scale[:, None] + shift[:, None]
        gradient = _by_view(input_gradient(dy, kernel, y.shape, stride=2), views)
        passed = jnp.where(normalized > 0, gradient, 0)
        sums = jnp.stack([passed.sum(axis=1), (passed * normalized).sum(axis=1)], axis=1)
        return passed.astype(dy.dtype).reshape(y.shape), sums

    passed, sums = _on_gpu_or(gpu_kernels.halving_input_gradient, elsewhere)(
        gradient, kernel.astype(y.dtype), y, scale, shift
    )
    by_y = gradient_by_input(y, mean, var, passed, sums, rectify=False, axis_name=axis_name)
    return by_y, jnp.zeros_like(mean), jnp.zeros_like(var), by_kernel


normalized_halving_convolution.defvjp(_halving_forward, _halving_backward)


# Layers 1 and 2 in inference


@jax.custom_vjp
def folded_first_two_layers(
    images: Float[Array, "batch N N 1"],
    kernel1: Float[Array, "3 3 1 C"],
    bias1: Float[Array, " C"],
    kernel2: Float[Array, "3 3 C C2"],
    bias2: Float[Array, " C2"],
) -> Float[Array, "batch N N C2"]:
    """Compute ReLU(convolution + bias) twice: two folded layers, with float32 weights."""

    def on_gpu(images: Array, kernel1: Array, bias1: Array, kernel2: Array, bias2: Array) -> Array:
        padded = jnp.pad(images[..., 0], ((0, 0), (2, 2), (2, 2)))
        first, second = kernel1.astype(images.dtype), kernel2.astype(images.dtype)
        return gpu_kernels.folded_first_two_layers(padded, first, bias1, second, bias2)

    return _on_gpu_or(on_gpu, _rectified_twice)(images, kernel1, bias1, kernel2, bias2)


folded_first_two_layers.defvjp(
    lambda *arrays: (folded_first_two_layers(*arrays), arrays),
    lambda arrays, dy: jax.vjp(_rectified_twice, *arrays)[1](dy),
)


def _rectified_twice(
    images: Array, kernel1: Array, bias1: Array, kernel2: Array, bias2: Array
) -> Array:
    x = images
    for kernel, bias in ((kernel1, bias1), (kernel2, bias2)):
        y = convolve(x, kernel.astype(x.dtype), stride=1)
        x = jnp.maximum(y + bias.astype(y.dtype).reshape(1, 1, 1, -1), 0)
    return x


# A GPU kernel or, on other devices, plain JAX


def _on_gpu_or(on_gpu: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: lax.platform_dependent(*arrays, cuda=on_gpu, default=elsewhere)


def _first_layer(padded: Array, kernel: Array, scale: Array, shift: Array) -> Array:
    def elsewhere(padded: Array, kernel: Array, scale: Array, shift: Array) -> Array:
        y = convolve(padded[:, 1:-1, 1:-1, None], kernel, stride=1)
        z = _by_view(y, scale.shape[0]) * scale[:, None] + shift[:, None]
        return jnp.maximum(z, 0).astype(y.dtype).reshape(y.shape)

    return _on_gpu_or(gpu_kernels.first_layer, elsewhere)(padded, kernel, scale, shift)


def _taps(padded: Float[Array, "batch P P"], views: int) -> Float[Array, "views pixels 16"]:
    """Each pixel's nine neighbours, a one, and six zeros, in float32."""
    side = padded.shape[1] - 2
    shifted = [padded[:, i : i + side, j : j + side] for i in range(3) for j in range(3)]
    one, zero = jnp.ones_like(shifted[0]), jnp.zeros_like(shifted[0])
    return _by_view(jnp.stack([*shifted, one, *(6 * [zero])], axis=-1), views)


def _tap_rows(kernel: Float[Array, "3 3 1 C"]) -> Float[Array, "9 C"]:
    return kernel.reshape(9, -1).astype(jnp.float32)


def _by_view(x: Array, views: int) -> Float[Array, "views rows c"]:
    return x.reshape(views, -1, x.shape[-1]).astype(jnp.float32)
