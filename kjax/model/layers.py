"""Layers of the HardNet trunk φ, their initial weights, and the trunk itself, as linen modules."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Key

from kjax.model import CHANNELS, STRIDES
from kjax.model.kernels import batch_norm, cpu_convolution, fused_layers
from kjax.model.kernels.convolution import at_least_float32, convolve
from kjax.model.kernels.fused_layers import Statistics


def initial_kernel(
    key: Key[Array, ""], shape: Sequence[int], dtype: Any = jnp.float32, *, scale: float = 0.6
) -> Float[Array, "..."]:
    """Return a random matrix with orthonormal columns (or rows), times HardNet's gain of 0.6.

    All axes but the last make up the rows, as for a kernel with its outputs last. The distribution
    and, up to rounding, the values are those of `jax.nn.initializers.orthogonal`.
    """
    rows, columns = math.prod(shape[:-1]), shape[-1]
    tall = (max(rows, columns), min(rows, columns))
    matrix = jax.random.normal(key, tall, at_least_float32(dtype))
    # Q of the QR decomposition by R = chol(AᵀA): a few matrix products, where Householder's method
    # takes seconds on a CPU. It squares the condition number, which is small for tall Gaussian
    # matrices. The second pass removes the rounding errors of the first.
    with jax.default_matmul_precision("highest"):
        for _ in range(2):
            lower = jnp.linalg.cholesky(matrix.T @ matrix)
            matrix = jax.lax.linalg.triangular_solve(
                lower, matrix, left_side=False, lower=True, transpose_a=True
            )
    matrix = matrix if rows >= columns else matrix.T
    return scale * matrix.reshape(shape).astype(dtype)


class BatchNorm(nn.Module):
    """Batch normalisation without scale and shift, as in torch.

    Unlike Flax's own module, the running variance is the unbiased one. Statistics are float32 or
    better and, with `axis_name`, those of the batch over all devices.
    """

    axis_name: str | None = None
    momentum: float = 0.9

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch c"],
        *,
        train: bool,
        views: int = 1,
        rectify: bool = False,
    ) -> Float[Array, "*batch c"]:
        """Normalise by the batch's statistics in training, by the running ones otherwise.

        Each of the `views` equal consecutive parts of a training batch is normalised by its own
        statistics, and updates the running ones in turn. `rectify` also applies a ReLU.
        """
        channels = x.shape[-1]
        dtype = at_least_float32(x.dtype)
        mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), dtype).value
        var = self.variable("batch_stats", "var", jnp.ones, (channels,), dtype).value
        if not train:
            return batch_norm.normalize_by(x, mean[None], var[None], rectify=rectify)
        fixed = jax.lax.stop_gradient(x)
        statistics = batch_norm.batch_statistics(fixed, views=views, axis_name=self.axis_name)
        if not self.is_initializing():
            self.record(statistics, count=x.size // channels // views)
        return batch_norm.normalize(x, *statistics, rectify, self.axis_name)

    def record(self, statistics: Statistics, *, count: int) -> None:
        """Update the running statistics by each view's, of `count` values on every device."""
        if self.axis_name is not None:
            count = count * jax.lax.axis_size(self.axis_name)
        mean, var = statistics[0], statistics[1] * (count / (count - 1))
        for name, values in (("mean", mean), ("var", var)):
            running = self.get_variable("batch_stats", name)
            for view in range(values.shape[0]):
                running = self.momentum * running + (1 - self.momentum) * values[view]
            self.put_variable("batch_stats", name, running)


class Dropout(nn.Module):
    """Dropout whose mask depends only on the key and the example's index in its view.

    With `axis_name` that is the index over all devices, so the mask does not depend on the number
    of devices.
    """

    rate: float
    axis_name: str | None = None

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch *rest"], *, train: bool, views: int = 1
    ) -> Float[Array, "batch *rest"]:
        """Zero random entries and scale up the others, in training."""
        if not train or self.rate == 0:
            return x
        share, size = x.shape[0] // views, x.size // x.shape[0]
        first = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name) * share
        fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        by_view = fold(self.make_rng("dropout"), jnp.arange(views))
        keys = jax.vmap(fold, in_axes=(0, None))(by_view, first + jnp.arange(share)).reshape(-1)
        own = jax.vmap(lambda key: jax.random.bits(key, (2, 1), jnp.uint32))(keys)
        # lowbias32 hash of key and position: a tenth of the work of `jax.random`'s cipher.
        position = jnp.arange(size, dtype=jnp.uint32)[None]
        bits = own[:, 0] + position * jnp.uint32(0x9E3779B9)
        bits = ((bits ^ (bits >> 16)) + own[:, 1]) * jnp.uint32(0x7FEB352D)
        bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
        bits = bits ^ (bits >> 16)
        keep = bits < jnp.uint32(round((1 - self.rate) * 2**32))
        dropped = jnp.where(keep.reshape(x.shape), x / (1 - self.rate), 0)
        # Stored once, rather than recomputed in each of the head's products.
        return jax.lax.optimization_barrier(dropped)


class Convolution(nn.Module):
    """A 3×3 convolution that keeps the size, or halves it with stride 2."""

    inputs: int
    channels: int
    stride: int
    dtype: Any = jnp.float32
    use_bias: bool = False

    def setup(self) -> None:
        """Create the kernel, and the bias of a folded model."""
        dtype = at_least_float32(self.dtype)
        shape = (3, 3, self.inputs, self.channels)
        self.kernel = self.param("kernel", initial_kernel, shape, dtype)
        if self.use_bias:
            self.bias = self.param("bias", nn.initializers.zeros, (self.channels,), dtype)

    def __call__(self, x: Float[Array, "batch N N c"]) -> Float[Array, "batch n n c2"]:
        """Convolve in the precision of `dtype`."""
        x, kernel = x.astype(self.dtype), self.kernel.astype(self.dtype)
        plain = functools.partial(convolve, stride=self.stride)
        if not self.use_bias:
            return plain(x, kernel)
        # Only in inference: training is compared with torch's to the last digit.
        on_cpu = functools.partial(cpu_convolution.convolve, stride=self.stride)
        if cpu_convolution.supports(x):
            y = jax.lax.platform_dependent(x, kernel, cpu=on_cpu, default=plain)
        else:
            y = plain(x, kernel)
        return y + self.bias.astype(self.dtype).reshape(1, 1, 1, -1)


class Trunk(nn.Module):
    """φ: six 3×3 convolutions, N×N → n×n×c with n = N/4, each with BatchNorm and ReLU.

    `folded` convolutions have a bias instead of BatchNorm (see `kjax.fold`).
    """

    channels: tuple[int, ...] = CHANNELS
    dtype: Any = jnp.float32
    axis_name: str | None = None
    folded: bool = False

    @nn.compact
    def __call__(
        self, images: Float[Array, "batch N N 1"], *, train: bool = False, views: int = 1
    ) -> Float[Array, "batch n n c"]:
        """Compute convolutional descriptors of normalised patches."""
        x = images.astype(self.dtype)
        inputs = (1, *self.channels)
        convolutions = [
            Convolution(inputs[i], out, stride, self.dtype, self.folded, name=f"conv{i + 1}")
            for i, (out, stride) in enumerate(zip(self.channels, STRIDES, strict=True))
        ]
        fits = fused_layers.fits(x.shape, self.dtype, self.channels, views=views)
        fused = fits and not self.is_initializing()
        if self.folded:
            if fused:
                first, second, *convolutions = convolutions
                x = fused_layers.folded_first_two_layers(
                    x, first.kernel, first.bias, second.kernel, second.bias
                )
            for convolution in convolutions:
                x = nn.relu(convolution(x))
            return x
        norms = [
            BatchNorm(axis_name=self.axis_name, name=f"norm{i + 1}")
            for i in range(len(convolutions))
        ]
        layers = list(zip(convolutions, norms, strict=True))
        if train and fused:
            (first, norm1), (second, norm2), (third, norm3), *layers = layers
            count = x.size // views
            x, statistics1, statistics2 = fused_layers.first_two_layers(
                x, first.kernel, second.kernel, views, self.axis_name
            )
            norm1.record(statistics1, count=count)
            norm2.record(statistics2, count=count)
            x = fused_layers.normalized_halving_convolution(
                x, *statistics2, third.kernel, self.axis_name
            )
            x = norm3(x, train=True, views=views, rectify=True)
        for convolution, norm in layers:
            x = norm(convolution(x), train=train, views=views, rectify=train)
            x = x if train else nn.relu(x)
        return x
