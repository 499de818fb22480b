"""Batch normalisation without scale and shift, as pure functions of arrays.

A batch may hold several views, equal consecutive parts that are each normalised by statistics of
their own: one pass over the batch then does what a pass per view would.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kjax.model.kernels import gpu_kernels
from kjax.model.precision import at_least_float32

EPSILON = 1e-5


def batch_statistics(
    x: Float[Array, "batch *rest c"], *, views: int = 1, axis_name: str | None = None
) -> tuple[Float[Array, "views c"], Float[Array, "views c"]]:
    """Mean and biased variance of each channel of each view, over all devices of `axis_name`.

    In less than float32, as E[x²] − E[x]²: one pass over memory, and the rounding of x itself is
    thousands of times larger than that of the difference in float32.
    """
    if at_least_float32(x.dtype) == x.dtype:
        wide = _by_view(x, views)
        mean = over_devices(wide.mean(axis=1), axis_name)
        centred = wide - mean[:, None]
        return mean, over_devices((centred * centred).mean(axis=1), axis_name)
    moments = _moment_sums(x, views) / (x.size // x.shape[-1] // views)
    return from_moments(moments[:, 0], moments[:, 1], axis_name=axis_name)


def from_moments(
    mean: Float[Array, "views c"],
    mean_square: Float[Array, "views c"],
    *,
    axis_name: str | None = None,
) -> tuple[Float[Array, "views c"], Float[Array, "views c"]]:
    """Mean and biased variance over all devices, from each device's E[x] and E[x²]."""
    mean, mean_square = over_devices((mean, mean_square), axis_name)
    return mean, jnp.maximum(mean_square - mean * mean, 0)


def over_devices(values: Any, axis_name: str | None) -> Any:
    """The mean over the devices of `axis_name`, if there is such an axis."""
    return values if axis_name is None else jax.lax.pmean(values, axis_name)


def scale_and_shift(
    mean: Float[Array, "views c"], var: Float[Array, "views c"]
) -> tuple[Float[Array, "views c"], Float[Array, "views c"]]:
    """Normalisation as x · scale + shift."""
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
    """(x − mean)/√(var + ε), then ReLU if asked for.

    `mean` and `var` must be `batch_statistics(x)`: the gradient by x includes what x does through
    them, and they get none of their own. That takes two passes over x, and keeps nothing else.
    """
    return normalize_by(x, mean, var, rectify=rectify)


def normalize_by(
    x: Float[Array, "batch *rest c"],
    mean: Float[Array, "views c"],
    var: Float[Array, "views c"],
    *,
    rectify: bool = False,
) -> Float[Array, "batch *rest c"]:
    """`normalize` by statistics that do not depend on x."""
    normalized = _normalized(x, mean, var)
    if rectify:
        normalized = jnp.maximum(normalized, 0)
    return normalized.astype(x.dtype).reshape(x.shape)


def _normalized(x: Array, mean: Array, var: Array) -> Float[Array, "views rows c"]:
    centred = _by_view(x, mean.shape[0]) - mean[:, None]
    return centred * jax.lax.rsqrt(var + EPSILON)[:, None]


def _forward(
    x: Array, mean: Array, var: Array, rectify: bool, axis_name: str | None
) -> tuple[Array, tuple[Array, Array, Array]]:
    return normalize_by(x, mean, var, rectify=rectify), (x, mean, var)


def _backward(
    rectify: bool, axis_name: str | None, kept: tuple[Array, Array, Array], gradient: Array
) -> tuple[Array, Array, Array]:
    # Without this barrier and the next, XLA would find that some values have been computed before,
    # and store and read them (the ReLU's mask, mostly) where computing them again costs nothing.
    x, mean, var = jax.lax.optimization_barrier(kept)
    sums = _gradient_sums(x, mean, var, gradient, rectify)
    by_x = gradient_by_input(x, mean, var, gradient, sums, rectify=rectify, axis_name=axis_name)
    return by_x, jnp.zeros_like(mean), jnp.zeros_like(var)


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
    """The gradient by x of what `normalize` makes of it, from that by its result.

    Args:
        x: what was normalised.
        mean: its own, as is `var`.
        var: of x.
        gradient: by the result.
        sums: of the gradient by the normalised x before a ReLU, and of its product with that x.
        rectify: whether a ReLU followed through which `gradient` has not yet passed.
        axis_name: mapped axis over which the statistics were shared, if any.
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
    """What x is normalised to, and the gradient by that."""
    normalized = _normalized(x, mean, var)
    wide = _by_view(gradient, mean.shape[0])
    return normalized, jnp.where(normalized > 0, wide, 0) if rectify else wide


def _moment_sums(x: Array, views: int) -> Float[Array, "views 2 c"]:
    """Σx and Σx² of reduced-precision x."""

    def elsewhere(x: Array) -> Array:
        wide = _by_view(x, views)
        return jnp.stack([wide.sum(axis=1), (wide * wide).sum(axis=1)], axis=1)

    if not gpu_kernels.can_sum(x.shape, views):
        return elsewhere(x)
    on_gpu = functools.partial(gpu_kernels.moment_sums, views=views)
    return jax.lax.platform_dependent(x, cuda=on_gpu, default=elsewhere)


def _gradient_sums(
    x: Array, mean: Array, var: Array, gradient: Array, rectify: bool
) -> Float[Array, "views 2 c"]:
    """Sums of the gradient by the normalised x, and of their product."""

    def elsewhere(x: Array, mean: Array, var: Array, gradient: Array) -> Array:
        normalized, passed = _passed(x, mean, var, gradient, rectify)
        return jnp.stack([passed.sum(axis=1), (passed * normalized).sum(axis=1)], axis=1)

    def on_gpu(x: Array, mean: Array, var: Array, gradient: Array) -> Array:
        return gpu_kernels.gradient_sums(gradient, x, *scale_and_shift(mean, var))

    arrays = (x, mean, var, gradient)
    if not (rectify and x.dtype == jnp.bfloat16 and gpu_kernels.can_sum(x.shape, mean.shape[0])):
        return elsewhere(*arrays)
    return jax.lax.platform_dependent(*arrays, cuda=on_gpu, default=elsewhere)


normalize.defvjp(_forward, _backward)


def _by_view(x: Array, views: int) -> Float[Array, "views rows c"]:
    return x.reshape(views, -1, x.shape[-1]).astype(at_least_float32(x.dtype))
