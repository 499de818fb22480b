"""Batch normalisation without scale and shift, as pure functions of arrays.

A batch may hold several views: equal consecutive parts that are each normalised by their own
statistics. One pass over the batch then does what a pass per view would.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kjax.model import EPSILON
from kjax.model.kernels import gpu_kernels
from kjax.model.kernels.convolution import at_least_float32


def batch_statistics(
    x: Float[Array, "batch *rest c"], *, views: int = 1, axis_name: str | None = None
) -> tuple[Float[Array, "views c"], Float[Array, "views c"]]:
    """Compute mean and biased variance of each channel of each view, over all devices.

    Below float32, the variance is E[x²] − E[x]²: one pass over memory, and the rounding of x itself
    is thousands of times larger than that of the difference in float32.
    """
    if at_least_float32(x.dtype) == x.dtype:
        wide = _by_view(x, views)
        mean = over_devices(wide.mean(axis=1), axis_name)
        centred = wide - mean[:, None]
        return mean, over_devices((centred * centred).mean(axis=1), axis_name)

    def elsewhere(x: Array) -> Array:
        wide = _by_view(x, views)
        return jnp.stack([wide.sum(axis=1), (wide * wide).sum(axis=1)], axis=1)

    if gpu_kernels.can_sum(x.shape, views):
        on_gpu = functools.partial(gpu_kernels.moment_sums, views=views)
        sums = jax.lax.platform_dependent(x, cuda=on_gpu, default=elsewhere)
    else:
        sums = elsewhere(x)
    moments = sums / (x.size // x.shape[-1] // views)
    return from_moments(moments[:, 0], moments[:, 1], axis_name=axis_name)


def from_moments(
    mean: Float[Array, "views c"],
    mean_square: Float[Array, "views c"],
    *,
    axis_name: str | None = None,
) -> tuple[Float[Array, "views c"], Float[Array, "views c"]]:
    """Compute mean and biased variance over all devices from each device's E[x] and E[x²]."""
    mean, mean_square = over_devices((mean, mean_square), axis_name)
    return mean, jnp.maximum(mean_square - mean * mean, 0)


def over_devices(values: Any, axis_name: str | None) -> Any:
    """Average over the devices of `axis_name`, if any."""
    return values if axis_name is None else jax.lax.pmean(values, axis_name)


def scale_and_shift(
    mean: Float[Array, "views c"], var: Float[Array, "views c"]
) -> tuple[Float[Array, "views c"], Float[Array, "views c"]]:
    """Return scale and shift such that the normalisation is x · scale + shift."""
    scale = jax.lax.rsqrt(var + EPSILON)
    return scale, -mean * scale


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def normalize(
    x: Float[Array, "batch *rest c"],
    mean: Float[Array, "views c"],
    var: Float[Array, "views c"],
    rectify: bool,
    axis_name: str | None,
) -> Float[Array, "batch *rest c"]:
    """Compute (x − mean)/√(var + ε), followed by a ReLU if `rectify`.

    `mean` and `var` must be `batch_statistics(x)`: the gradient with respect to x includes the path
    through them, and they get none of their own. That takes two passes over x and keeps only x.
    """
    return normalize_by(x, mean, var, rectify=rectify)


def normalize_by(
    x: Float[Array, "batch *rest c"],
    mean: Float[Array, "views c"],
    var: Float[Array, "views c"],
    *,
    rectify: bool = False,
) -> Float[Array, "batch *rest c"]:
    """Compute `normalize` with statistics that do not depend on x."""
    normalized = _normalized(x, mean, var)
    if rectify:
        normalized = jnp.maximum(normalized, 0)
    return normalized.astype(x.dtype).reshape(x.shape)


def _normalized(x: Array, mean: Array, var: Array) -> Float[Array, "views rows c"]:
    centred = _by_view(x, mean.shape[0]) - mean[:, None]
    return centred * jax.lax.rsqrt(var + EPSILON)[:, None]


def _backward(
    rectify: bool, axis_name: str | None, kept: tuple[Array, Array, Array], gradient: Array
) -> tuple[Array, Array, Array]:
    # Without this barrier and the next, XLA would reuse values of the forward pass: storing and
    # reading them (mostly the ReLU's mask) costs more than computing them again.
    x, mean, var = jax.lax.optimization_barrier(kept)

    def elsewhere(x: Array, mean: Array, var: Array, gradient: Array) -> Array:
        normalized, passed = _passed(x, mean, var, gradient, rectify)
        return jnp.stack([passed.sum(axis=1), (passed * normalized).sum(axis=1)], axis=1)

    def on_gpu(x: Array, mean: Array, var: Array, gradient: Array) -> Array:
        return gpu_kernels.gradient_sums(gradient, x, *scale_and_shift(mean, var))

    arrays = (x, mean, var, gradient)
    if rectify and x.dtype == jnp.bfloat16 and gpu_kernels.can_sum(x.shape, mean.shape[0]):
        sums = jax.lax.platform_dependent(*arrays, cuda=on_gpu, default=elsewhere)
    else:
        sums = elsewhere(*arrays)
    by_x = gradient_by_input(x, mean, var, gradient, sums, rectify=rectify, axis_name=axis_name)
    return by_x, jnp.zeros_like(mean), jnp.zeros_like(var)


normalize.defvjp(
    lambda x, mean, var, rectify, axis_name: (
        normalize_by(x, mean, var, rectify=rectify),
        (x, mean, var),
    ),
    _backward,
)


def gradient_by_input(
    x: Float[Array, "batch *rest c"],
    mean: Float[Array, "views c"],
    var: Float[Array, "views c"],
    gradient: Float[Array, "batch *rest c"],
    sums: Float[Array, "views 2 c"],
    *,
    rectify: bool,
    axis_name: str | None,
) -> Float[Array, "batch *rest c"]:
    """Compute the gradient of `normalize` with respect to x, from the gradient by its result.

    `sums` are those of the gradient by the normalised x before a ReLU, and of its product with it.
    `rectify` says whether `gradient` must still pass the ReLU.
    """
    means = over_devices(sums / (x.size // x.shape[-1] // mean.shape[0]), axis_name)
    x, mean, var, means = jax.lax.optimization_barrier((x, mean, var, means))
    normalized, passed = _passed(x, mean, var, gradient, rectify)
    scale = jax.lax.rsqrt(var + EPSILON)[:, None]
    by_x = scale * (passed - means[:, :1] - normalized * means[:, 1:])
    return by_x.astype(x.dtype).reshape(x.shape)


def _passed(
    x: Array, mean: Array, var: Array, gradient: Array, rectify: bool
) -> tuple[Float[Array, "views rows c"], Float[Array, "views rows c"]]:
    """Return the normalised x, and the gradient by it."""
    normalized = _normalized(x, mean, var)
    wide = _by_view(gradient, mean.shape[0])
    return normalized, jnp.where(normalized > 0, wide, 0) if rectify else wide


def _by_view(x: Array, views: int) -> Float[Array, "views rows c"]:
    return x.reshape(views, -1, x.shape[-1]).astype(at_least_float32(x.dtype))
