"""Architecture: the HardNet trunk φ and every head of the paper, as linen modules.

Modules hold parameters and say what is connected to what; the mathematics is in
`position_encoding`, `aggregation` and `match_kernel`.

Variables of a `Descriptor`, by path (absent where the head has no such part):

    params       trunk/conv1…conv6/kernel        [3, 3, in, out]
                 trunk_polar/conv1…conv6/kernel  second trunk of `combined_star`
                 head/kernel                     [n, n, 128, 128] (`hardnet`) or [K, 128]
                 head/bias                       [128]
    batch_stats  trunk/norm1…norm6/{mean,var}, trunk_polar/…, head/norm/{mean,var} (`hardnet`)
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike
from jaxtyping import Array, Float, UInt32

from kjax.errors import InputError, unknown_name
from kjax.model import aggregation
from kjax.model.dimensions import (
    DESCRIPTOR_DIM,
    HEADS,
    TRUNK_CHANNELS,
    TRUNK_LAYERS,
    TRUNK_STRIDE,
)
from kjax.model.initialization import orthogonal
from kjax.model.kernels import batch_norm, cpu_convolution, fused_layers
from kjax.model.kernels.convolution import convolve
from kjax.model.kernels.fused_layers import Statistics
from kjax.model.patches import as_images, normalize_patches
from kjax.model.position_encoding import CoordinateSystem, PositionKernel, position_matrix
from kjax.model.precision import at_least_float32

BATCH_NORM_EPSILON = batch_norm.EPSILON
FUSED_LAYERS = 3
"""Layers of the trunk that have kernels of their own for training in reduced precision."""

_SYSTEMS: dict[str, tuple[CoordinateSystem, ...]] = {
    "xy": ("xy",),
    "polar": ("polar",),
    "combined": ("xy", "polar"),
    "combined_star": ("xy", "polar"),
}
"""Coordinate systems of the encoded heads, in the order of the head's input."""
_initial_kernel = functools.partial(orthogonal, scale=0.6)


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
        self.kernel = self.param("kernel", _initial_kernel, shape, dtype)
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
    """φ: six 3×3 convolutions, N×N → n×n×128 with n = N/4, each with BatchNorm and ReLU.

    `folded` convolutions carry a bias and BatchNorm is gone (see `kjax.fold`).
    """

    dtype: Any = jnp.float32
    axis_name: str | None = None
    folded: bool = False

    @nn.compact
    def __call__(
        self, images: Float[Array, "batch N N 1"], *, train: bool = False, views: int = 1
    ) -> Float[Array, "batch n n 128"]:
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
        fits = fused_layers.fits(x.shape, self.dtype, views=views)
        if train and fits and not self.is_initializing():
            x, layers = self._first_layers(x, layers, views), layers[FUSED_LAYERS:]
        for convolution, norm in layers:
            x = norm(convolution(x), train=train, views=views, rectify=train)
            x = x if train else nn.relu(x)
        return x

    def _convolutions(self) -> list[Convolution]:
        channels = [1, *(channels for channels, _ in TRUNK_LAYERS)]
        return [
            Convolution(channels[i], out, stride, self.dtype, self.folded, name=f"conv{i + 1}")
            for i, (out, stride) in enumerate(TRUNK_LAYERS)
        ]

    def _without_norms(
        self, x: Array, convolutions: list[Convolution]
    ) -> Float[Array, "batch n n 128"]:
        if fused_layers.fits(x.shape, self.dtype, views=1) and not self.is_initializing():
            first, second, *convolutions = convolutions
            x = fused_layers.folded_first_two_layers(
                x, first.kernel, first.bias, second.kernel, second.bias
            )
        for convolution in convolutions:
            x = nn.relu(convolution(x))
        return x

    def _first_layers(
        self, x: Array, layers: list[tuple[Convolution, BatchNorm]], views: int
    ) -> Float[Array, "batch N2 N2 64"]:
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


class FullyConnectedHead(nn.Module):
    """HardNet's head: W vec(φ), then BatchNorm. W is kept as its n² blocks W_p."""

    side: int
    dtype: Any = jnp.float32
    axis_name: str | None = None
    folded: bool = False

    def setup(self) -> None:
        """Creates W, and the bias that folding leaves behind."""
        shape = (self.side, self.side, TRUNK_CHANNELS, DESCRIPTOR_DIM)
        dtype = at_least_float32(self.dtype)
        self.kernel = self.param("kernel", _initial_kernel, shape, dtype)
        if self.folded:
            self.bias = self.param("bias", nn.initializers.zeros, (DESCRIPTOR_DIM,), dtype)
        else:
            self.norm = BatchNorm(axis_name=self.axis_name)

    def aggregate(self, maps: Sequence[Array]) -> Float[Array, "batch 128"]:
        """W vec(φ) + w, before BatchNorm."""
        (phi,) = maps
        # Flat: a contraction over three axes makes XLA transpose φ before the product.
        flat = phi.reshape(phi.shape[0], -1)
        total = aggregation.dense(flat, self.kernel.reshape(-1, DESCRIPTOR_DIM))
        return total + self.bias.reshape(1, -1) if self.folded else total

    def finish(self, aggregated: Float[Array, "batch 128"], *, train: bool, views: int) -> Array:
        """BatchNorm over the descriptor's entries."""
        return aggregated if self.folded else self.norm(aggregated, train=train, views=views)

    def encode_each(self, maps: Sequence[Array], *, weighted: bool) -> Float[Array, "batch p 128"]:
        """g_fc(φ^p, p) = W_p φ^p + w/n²; `weighted` has no meaning here."""
        del weighted
        (phi,) = maps
        encoded = jnp.einsum("bijc,ijcd->bijd", phi.astype(self.kernel.dtype), self.kernel)
        if self.folded:
            encoded = encoded + self.bias.reshape(1, 1, 1, -1) / self.side**2
        return aggregation.flatten_positions(encoded)


class EncodedHead(nn.Module):
    """The paper's head: M vec(ΦᵀF) + m′, for one coordinate system or two side by side."""

    systems: tuple[CoordinateSystem, ...]
    position_kernel: PositionKernel
    dtype: Any = jnp.float32
    use_bias: bool = True

    def setup(self) -> None:
        """Creates M, transposed, and m′ = n² m."""
        inputs = len(self.systems) * TRUNK_CHANNELS * self.position_kernel.dim
        dtype = at_least_float32(self.dtype)
        self.kernel = self.param("kernel", _initial_kernel, (inputs, DESCRIPTOR_DIM), dtype)
        if self.use_bias:
            # HardNet's initialiser sets every bias it meets to 0.01.
            constant = nn.initializers.constant(0.01)
            self.bias = self.param("bias", constant, (DESCRIPTOR_DIM,), dtype)

    def aggregate(self, maps: Sequence[Array]) -> Float[Array, "batch 128"]:
        """M Σ_p w_p g(φ^p, p) + m′."""
        matrices = jnp.split(self.kernel, len(self.systems))
        first, *others = [
            aggregation.project(aggregation.flatten_positions(phi), positions, matrix)
            for (phi, positions), matrix in zip(
                self._with_positions(maps, weighted=True), matrices, strict=True
            )
        ]
        projected = sum(others, start=first)
        return projected + self.bias.reshape(1, -1) if self.use_bias else projected

    def finish(self, aggregated: Float[Array, "batch 128"], *, train: bool, views: int) -> Array:
        """The same: nothing stands between the projection and the ℓ2 normalisation."""
        del train, views
        return aggregated

    def encode_each(self, maps: Sequence[Array], *, weighted: bool) -> Float[Array, "batch p 128"]:
        """M g(φ^p, p) + m for every position, with g multiplied by w_p if `weighted`."""
        maps = [phi.astype(self.kernel.dtype) for phi in maps]
        encoded = [
            aggregation.encode_each(aggregation.flatten_positions(phi), positions)
            for phi, positions in self._with_positions(maps, weighted=weighted)
        ]
        projected = jnp.einsum("bpk,kd->bpd", jnp.concatenate(encoded, axis=-1), self.kernel)
        if not self.use_bias:
            return projected
        return projected + self.bias.reshape(1, 1, -1) / projected.shape[1]

    def _with_positions(
        self, maps: Sequence[Array], *, weighted: bool
    ) -> Iterator[tuple[Array, Float[Array, "p k"]]]:
        for phi, system in zip(maps, self.systems, strict=True):
            matrix = position_matrix(phi.shape[1], self.position_kernel, system, weighted=weighted)
            yield phi, jnp.asarray(matrix, self.kernel.dtype)


class SumHead(nn.Module):
    """Σ_p φ^p: no position at all (the paper's lower baseline)."""

    def aggregate(self, maps: Sequence[Array]) -> Float[Array, "batch 128"]:
        """Sum over positions, in float32 or better."""
        (phi,) = maps
        if phi.dtype != at_least_float32(phi.dtype):
            # Fused with the layer before it, JAX 0.11.2 gets this sum of bfloat16 wrong on CPUs.
            phi = jax.lax.optimization_barrier(phi)
        return phi.sum(axis=(1, 2), dtype=at_least_float32(phi.dtype))

    def finish(self, aggregated: Float[Array, "batch 128"], *, train: bool, views: int) -> Array:
        """The same: there is nothing to finish."""
        del train, views
        return aggregated

    def encode_each(self, maps: Sequence[Array], *, weighted: bool) -> Float[Array, "batch p 128"]:
        """φ^p itself; `weighted` has no meaning here."""
        del weighted
        (phi,) = maps
        return aggregation.flatten_positions(phi.astype(at_least_float32(phi.dtype)))


class CatHead(nn.Module):
    """vec(φ): no tolerance to a shift of position (the paper's other baseline)."""

    def aggregate(self, maps: Sequence[Array]) -> Float[Array, "batch dim"]:
        """vec(φ), channel slowest, then row, then column."""
        (phi,) = maps
        return jnp.moveaxis(phi, -1, 1).reshape(phi.shape[0], -1)

    def finish(self, aggregated: Float[Array, "batch dim"], *, train: bool, views: int) -> Array:
        """The same: there is nothing to finish."""
        del train, views
        return aggregated

    def encode_each(self, maps: Sequence[Array], *, weighted: bool) -> Float[Array, "batch p dim"]:
        """φ^p ⊗ e_p, which meets only itself; `weighted` has no meaning here."""
        del weighted
        (phi,) = maps
        descriptors = aggregation.flatten_positions(phi)
        one_hot = jnp.eye(descriptors.shape[1], dtype=descriptors.dtype)
        return aggregation.encode_each(descriptors, one_hot)


class Descriptor(nn.Module):
    """Patch → ℓ2-normalised descriptor. Make one with `kjax.build`.

    Attributes:
        head: which row of the paper's table of models (see `HEADS`).
        patch_size: N. `hardnet` and `cat` take this size only; the others any multiple of 4.
        position_kernel: constants of the encoded heads.
        dropout: rate of dropout on φ while training.
        head_bias: whether encoded heads learn m′.
        dtype: precision of the computation; parameters, statistics and ℓ2 are never in less than
            float32.
        axis_name: mapped axis over which BatchNorm's statistics are shared, if any.
        folded: BatchNorm has been folded into the weights: inference only.
    """

    head: str
    patch_size: int = 32
    position_kernel: PositionKernel = PositionKernel()
    dropout: float = 0.3
    head_bias: bool = True
    dtype: Any = jnp.float32
    axis_name: str | None = None
    folded: bool = False

    def setup(self) -> None:
        """Makes the trunk or trunks and the head."""
        self.trunk = self._new_trunk()
        if self.head == "combined_star":
            self.trunk_polar = self._new_trunk()
        self.drop = Dropout(self.dropout, self.axis_name)
        self.projection = self._new_head()

    def __call__(
        self,
        patches: ArrayLike,
        *,
        train: bool = False,
        views: int = 1,
        normalize: bool = True,
    ) -> Float[Array, "batch dim"]:
        """ℓ2-normalised descriptors.

        Args:
            patches: `[B,N,N]` or `[B,N,N,1]`, uint8 or floating point, of any range.
            train: normalise by batch statistics (make `batch_stats` mutable) and drop out
                (pass a key for `dropout`).
            views: when training, treat the batch as so many equal consecutive parts: each is
                normalised by its own statistics, as if it were passed alone, and the running
                statistics take them up one after the other. One pass is faster than several.
            normalize: False leaves out ℓ2, for a loss that looks at norms.
        """
        if train and self.folded:
            raise InputError("a folded model has no BatchNorm to train: train the original")
        maps = self.feature_maps(patches, train=train, views=views)
        aggregated = self.projection.aggregate(maps)
        finished = self.projection.finish(aggregated, train=train, views=views)
        return aggregation.l2_normalize(finished) if normalize else finished

    def feature_maps(
        self, patches: ArrayLike, *, train: bool = False, views: int = 1
    ) -> list[Array]:
        """The feature map that each part of the head sees: φ, or φ twice, or φ and φ̃."""
        images = normalize_patches(self._checked(patches))
        if images.shape[0] % views:
            raise InputError(f"{images.shape[0]} patches do not fall into {views} equal views")
        phi = self.drop(self.trunk(images, train=train, views=views), train=train, views=views)
        if self.head == "combined":
            return [phi, phi]
        if self.head == "combined_star":
            phi_polar = self.trunk_polar(images, train=train, views=views)
            return [phi, self.drop(phi_polar, train=train, views=views)]
        return [phi]

    def unnormalized(self, patches: ArrayLike) -> Float[Array, "batch dim"]:
        """ψ before ℓ2 (for `hardnet`: before its last BatchNorm, unless that is folded)."""
        return self.projection.aggregate(self.feature_maps(patches))

    def local_encodings(
        self, patches: ArrayLike, *, weighted: bool = True
    ) -> Float[Array, "batch p dim"]:
        """Contribution of every position to ψ; their sum is `unnormalized`.

        With `weighted=False` encoded heads leave out the centre weight w_p, as the paper does when
        it draws similarity maps; the sum then is not ψ.
        """
        return self.projection.encode_each(self.feature_maps(patches), weighted=weighted)

    def _new_trunk(self) -> Trunk:
        return Trunk(dtype=self.dtype, axis_name=self.axis_name, folded=self.folded)

    def _new_head(self) -> FullyConnectedHead | EncodedHead | SumHead | CatHead:
        match self.head:
            case "hardnet":
                side = self.patch_size // TRUNK_STRIDE
                return FullyConnectedHead(
                    side, self.dtype, self.axis_name, self.folded, name="head"
                )
            case "sum":
                return SumHead()
            case "cat":
                return CatHead()
            case _:
                systems = _SYSTEMS[self.head]
                return EncodedHead(
                    systems, self.position_kernel, self.dtype, self.head_bias, name="head"
                )

    def _checked(self, patches: ArrayLike) -> Float[Array, "batch N N 1"]:
        images = as_images(patches)
        size = images.shape[1]
        if self.head in ("hardnet", "cat"):
            if size != self.patch_size:
                raise InputError(
                    f"this {self.head!r} model takes {self.patch_size}×{self.patch_size} patches, "
                    f"not {size}×{size}: resize them, or build it with patch_size={size}"
                )
        else:
            _check_patch_size(size)
        return images


LARGEST_S, LARGEST_PATCH = 16, 512
"""Limits of `build`, ten times what anyone has used: configs and cards may come from elsewhere."""


def build(
    head: str = "combined_star",
    *,
    s: int = 2,
    patch_size: int = 32,
    dropout: float = 0.3,
    head_bias: bool = True,
    dtype: Any = "float32",
    axis_name: str | None = None,
    **position_constants: float,
) -> Descriptor:
    """The linen module of one of the paper's descriptors.

    Args:
        head: one of `kjax.HEADS`; the default is the paper's best.
        s: number of frequencies of encoded heads.
        patch_size: side N of the patches.
        dropout: rate of dropout before the head while training.
        head_bias: whether encoded heads learn a bias.
        dtype: "float32" or "bfloat16"; or "float64", for comparing numerics, with
            `jax.config.update("jax_enable_x64", True)`.
        axis_name: name of the mapped device axis, to share BatchNorm's statistics.
        **position_constants: other fields of `kjax.PositionKernel`, e.g. `kappa_xy=2.0`.

    Examples:
        >>> model = kjax.build(head="polar", s=1)
        >>> variables = model.init(jax.random.key(0), patches)
        >>> descriptors = model.apply(variables, patches)
    """
    if head not in HEADS:
        raise unknown_name("head", head, HEADS)
    _check_patch_size(patch_size)
    if s > LARGEST_S or patch_size > LARGEST_PATCH:
        raise InputError(
            f"s={s} and patches of {patch_size}×{patch_size} pixels would fill the memory: choose "
            f"s up to {LARGEST_S} and patches up to {LARGEST_PATCH}"
        )
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must be at least 0 and below 1, not {dropout}")
    _check_dtype(dtype)
    return Descriptor(
        head=head,
        patch_size=patch_size,
        position_kernel=PositionKernel(s=s, **position_constants),
        dropout=dropout,
        head_bias=head_bias,
        dtype=jnp.dtype(dtype),
        axis_name=axis_name,
    )


def receptive_field(row: int, column: int) -> tuple[int, int, int, int]:
    """First and one-past-last row, first and one-past-last column, of the pixels that φ^p sees.

    Not clipped to the patch: beyond its border lies the convolutions' zero padding.
    """
    radius, jump = 0, 1
    for _, stride in TRUNK_LAYERS:
        radius += jump
        jump *= stride
    top, left = row * jump - radius, column * jump - radius
    return top, top + 2 * radius + 1, left, left + 2 * radius + 1


def parameter_count(variables: Any) -> int:
    """Number of learned parameters (BatchNorm's running statistics are not learned)."""
    return sum(leaf.size for leaf in jax.tree.leaves(variables.get("params", {})))


def _check_dtype(dtype: Any) -> None:
    if dtype not in ("float32", "bfloat16", "float64", jnp.float32, jnp.bfloat16, jnp.float64):
        raise InputError(f"dtype must be 'float32', 'bfloat16' or 'float64', not {dtype!r}")
    if jnp.dtype(dtype) == jnp.float64 and not jax.config.read("jax_enable_x64"):
        raise InputError('dtype "float64" needs jax.config.update("jax_enable_x64", True)')


def _check_patch_size(size: int) -> None:
    if size < 2 * TRUNK_STRIDE or size % TRUNK_STRIDE:
        raise InputError(f"the patch size must be a multiple of 4 and at least 8, not {size}")
