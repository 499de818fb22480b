"""Layers of the HardNet trunk φ, and the trunk itself, as linen modules."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, UInt32

from kjax.model.dimensions import CHANNELS, STRIDES
from kjax.model.initialization import initial_kernel
from kjax.model.kernels import batch_norm, cpu_convolution, fused_layers
from kjax.model.kernels.convolution import convolve
from kjax.model.kernels.fused_layers import Statistics
from kjax.model.precision import at_least_float32

FUSED_LAYERS = 3
"""Layers of the trunk that have kernels of their own for training in reduced precision."""


class BatchNorm(nn.Module):
    """Batch normalisation without scale and shift, as torch does it.

    Flax's own module keeps the biased variance as running statistic; torch keeps the unbiased one.
    Statistics are float32 (or better) and, with `axis_name`, those of the batch over all devices.
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
        """Normalises by the batch's statistics when training, by the running ones otherwise.

        Args:
            x: the batch.
            train: which statistics to use.
            views: when training, into how many equal consecutive parts the batch falls. Each is
                normalised by its own statistics, and the running ones take them up in turn.
            rectify: apply a ReLU as well.
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
        """Lets the running statistics take up each view's, of `count` values on every device."""
        if self.axis_name is not None:
            count = count * jax.lax.axis_size(self.axis_name)
        mean, var = statistics[0], statistics[1] * (count / (count - 1))
        for name, values in (("mean", mean), ("var", var)):
            running = self.get_variable("batch_stats", name)
            for view in range(values.shape[0]):
                running = self.momentum * running + (1 - self.momentum) * values[view]
            self.put_variable("batch_stats", name, running)


class Dropout(nn.Module):
    """Dropout whose mask for an example depends on the key and the example's place in its view.

    With `axis_name` that is the place in the batch over all devices: how many devices share a batch
    does not change what is dropped.
    """

    rate: float
    axis_name: str | None = None

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch *rest"], *, train: bool, views: int = 1
    ) -> Float[Array, "batch *rest"]:
        """Zeroes entries at random and scales up the others, when training."""
        if not train or self.rate == 0:
            return x
        share, size = x.shape[0] // views, x.size // x.shape[0]
        first = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name) * share
        fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        by_view = fold(self.make_rng("dropout"), jnp.arange(views))
        keys = jax.vmap(fold, in_axes=(0, None))(by_view, first + jnp.arange(share)).reshape(-1)
        own = jax.vmap(lambda key: jax.random.bits(key, (2, 1), jnp.uint32))(keys)
        place = jnp.arange(size, dtype=jnp.uint32)[None]
        bits = _mixed(own[:, 0] + place * jnp.uint32(0x9E3779B9), own[:, 1])
        keep = bits < jnp.uint32(round((1 - self.rate) * 2**32))
        dropped = jnp.where(keep.reshape(x.shape), x / (1 - self.rate), 0)
        # Stored once, rather than made anew inside each product that the head takes of it.
        return jax.lax.optimization_barrier(dropped)


def _mixed(
    bits: UInt32[Array, "batch size"], key: UInt32[Array, "batch 1"]
) -> UInt32[Array, "batch size"]:
    """Well-mixed bits: multiply and xor-shift, with the odd constants of `lowbias32`.

    Good enough to drop by, and a tenth of the work of the cipher behind `jax.random`.
    """
    bits = ((bits ^ (bits >> 16)) + key) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


class Convolution(nn.Module):
    """A 3×3 convolution that keeps the size, or halves it with stride 2."""

    inputs: int
    channels: int
    stride: int
    dtype: Any = jnp.float32
    use_bias: bool = False

    def setup(self) -> None:
        """Creates the kernel, and the bias that folding leaves behind."""
        dtype = at_least_float32(self.dtype)
        shape = (3, 3, self.inputs, self.channels)
        self.kernel = self.param("kernel", initial_kernel, shape, dtype)
        if self.use_bias:
            self.bias = self.param("bias", nn.initializers.zeros, (self.channels,), dtype)

    def __call__(self, x: Float[Array, "batch N N c"]) -> Float[Array, "batch n n c2"]:
        """The convolution in the precision of `dtype`."""
        y = self._convolve(x.astype(self.dtype), self.kernel.astype(self.dtype))
        return y + self.bias.astype(self.dtype).reshape(1, 1, 1, -1) if self.use_bias else y

    def _convolve(self, x: Array, kernel: Array) -> Float[Array, "batch n n c2"]:
        plain = functools.partial(convolve, stride=self.stride)
        # Only in inference: training is compared with torch's to the last digit.
        if not self.use_bias or not cpu_convolution.pays(x):
            return plain(x, kernel)
        on_cpu = functools.partial(cpu_convolution.convolve, stride=self.stride)
        return jax.lax.platform_dependent(x, kernel, cpu=on_cpu, default=plain)


class Trunk(nn.Module):
    """φ: six 3×3 convolutions, N×N → n×n×c with n = N/4, each with BatchNorm and ReLU.

    `folded` convolutions carry a bias and BatchNorm is gone (see `kjax.fold`).
    """

    channels: tuple[int, ...] = CHANNELS
    dtype: Any = jnp.float32
    axis_name: str | None = None
    folded: bool = False

    @nn.compact
    def __call__(
        self, images: Float[Array, "batch N N 1"], *, train: bool = False, views: int = 1
    ) -> Float[Array, "batch n n c"]:
        """Convolutional descriptors of normalised patches."""
        x = images.astype(self.dtype)
        convolutions = self._convolutions()
        if self.folded:
            return self._without_norms(x, convolutions)
        norms = [
            BatchNorm(axis_name=self.axis_name, name=f"norm{i}")
            for i in range(1, len(convolutions) + 1)
        ]
        layers = list(zip(convolutions, norms, strict=True))
        fits = fused_layers.fits(x.shape, self.dtype, self.channels, views=views)
        if train and fits and not self.is_initializing():
            x, layers = self._first_layers(x, layers, views), layers[FUSED_LAYERS:]
        for convolution, norm in layers:
            x = norm(convolution(x), train=train, views=views, rectify=train)
            x = x if train else nn.relu(x)
        return x

    def _convolutions(self) -> list[Convolution]:
        inputs = (1, *self.channels)
        return [
            Convolution(inputs[i], out, stride, self.dtype, self.folded, name=f"conv{i + 1}")
            for i, (out, stride) in enumerate(zip(self.channels, STRIDES, strict=True))
        ]

    def _without_norms(
        self, x: Array, convolutions: list[Convolution]
    ) -> Float[Array, "batch n n c"]:
        if (
            fused_layers.fits(x.shape, self.dtype, self.channels, views=1)
            and not self.is_initializing()
        ):
            first, second, *convolutions = convolutions
            x = fused_layers.folded_first_two_layers(
                x, first.kernel, first.bias, second.kernel, second.bias
            )
        for convolution in convolutions:
            x = nn.relu(convolution(x))
        return x

    def _first_layers(
        self, x: Array, layers: list[tuple[Convolution, BatchNorm]], views: int
    ) -> Float[Array, "batch N2 N2 c"]:
        """The first three layers, as training runs them in reduced precision."""
        (first, norm1), (second, norm2), (third, norm3) = layers[:FUSED_LAYERS]
        y, statistics1, statistics2 = fused_layers.first_two_layers(
            x, first.kernel, second.kernel, views, self.axis_name
        )
        norm1.record(statistics1, count=x.size // views)
        norm2.record(statistics2, count=x.size // views)
        y = fused_layers.normalized_halving_convolution(
            y, *statistics2, third.kernel, self.axis_name
        )
        return norm3(y, train=True, views=views, rectify=True)
