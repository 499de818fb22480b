"""The whole descriptor: normalised patches → trunk → head → unit length.

Variables of a `Descriptor` by path, with the paper's channels and dimension (heads lack some):

    params       trunk/conv1…conv6/kernel        [3, 3, in, out]
                 trunk_polar/conv1…conv6/kernel  second trunk of `combined_star`
                 head/kernel                     [n, n, 128, 128] (`hardnet`) or [K, 128]
                 head/bias                       [128]
                 context/kernel                  [128·C, 128], if there are C > 1 patches per point
    batch_stats  trunk/norm1…norm6/{mean,var}, trunk_polar/…, head/norm/{mean,var} (`hardnet`)
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from kjax.errors import InputError
from kjax.model import CHANNELS, DIMENSION, STRIDES, TRUNK_STRIDE, aggregation
from kjax.model.architecture import SYSTEMS, Architecture, check_patch_size
from kjax.model.heads import CatHead, EncodedHead, FullyConnectedHead, SumHead
from kjax.model.kernels.convolution import at_least_float32
from kjax.model.layers import Dropout, Trunk, initial_kernel
from kjax.model.patches import as_images, normalize_patches


class Descriptor(nn.Module, Architecture):
    """Patch → ℓ2-normalised descriptor. Make one with `kjax.build`, which explains the fields.

    Heads `hardnet` and `cat` take patches of `patch_size` only, the others any multiple of 4.
    Parameters, statistics and ℓ2 are float32 or better. A `folded` model has BatchNorm folded into
    its weights: inference only.

    With several widths in `context`, a point has C concentric patches, the widest last. All go
    through the same network; one matrix maps their C unit vectors of 128 numbers to `dimension`.
    """

    def setup(self) -> None:
        """Create the trunk or trunks and the head."""
        trunk = functools.partial(Trunk, self.channels, self.dtype, self.axis_name, self.folded)
        self.trunk = trunk()
        if self.head == "combined_star":
            self.trunk_polar = trunk()
        self.drop = Dropout(self.dropout, self.axis_name)
        dimension = self.dimension
        if self.has_context:
            dimension, dtype = DIMENSION, at_least_float32(self.dtype)
            self.join = nn.Dense(
                self.dimension,
                use_bias=False,
                dtype=dtype,
                param_dtype=dtype,
                kernel_init=functools.partial(initial_kernel, scale=1.0),
                name="context",
            )
        match self.head:
            case "hardnet":
                self.projection = FullyConnectedHead(
                    self.patch_size // TRUNK_STRIDE,
                    self.channels[-1],
                    dimension,
                    self.dtype,
                    self.axis_name,
                    self.folded,
                    name="head",
                )
            case "sum":
                self.projection = SumHead()
            case "cat":
                self.projection = CatHead()
            case _:
                self.projection = EncodedHead(
                    SYSTEMS[self.head],
                    self.position_kernel,
                    self.channels[-1],
                    dimension,
                    self.dtype,
                    self.head_bias,
                    name="head",
                )

    def __call__(
        self,
        patches: ArrayLike,
        *,
        train: bool = False,
        views: int = 1,
        normalize: bool = True,
    ) -> Float[Array, "batch dim"]:
        """Compute ℓ2-normalised descriptors.

        Args:
            patches: `[B,N,N]` or `[B,N,N,1]`, with context `[B,C,N,N]`; uint8 or floating point,
                of any range.
            train: normalise by batch statistics (make `batch_stats` mutable) and drop out
                (pass a key for `dropout`).
            views: number of equal consecutive parts of a training batch. Each is normalised by its
                own statistics, as if passed alone, and updates the running statistics in turn. One
                pass is faster than several.
            normalize: False leaves out ℓ2, for losses that use norms.
        """
        if train and self.folded:
            raise InputError("a folded model cannot be trained: train the original")
        maps = self.feature_maps(patches, train=train, views=views)
        psi = self.projection.aggregate(maps)
        if isinstance(self.projection, FullyConnectedHead):
            psi = self.projection.finish(psi, train=train, views=views)
        if self.has_context:
            parts = aggregation.l2_normalize(psi)
            psi = self.join(parts.reshape(-1, len(self.context) * DIMENSION))
        return aggregation.l2_normalize(psi) if normalize else psi

    def feature_maps(
        self, patches: ArrayLike, *, train: bool = False, views: int = 1
    ) -> list[Array]:
        """Compute the feature map of each part of the head: φ, or φ twice, or φ and φ̃.

        With context, a point's C maps follow each other.
        """
        count = len(self.context)
        if self.has_context:
            if not isinstance(patches, jax.Array | np.ndarray):
                patches = np.asarray(patches)
            if patches.ndim != 4 or patches.shape[1] != count:
                raise InputError(
                    f"patches must be of shape [B,{count},N,N], {count} concentric ones per point, "
                    f"not {list(patches.shape)}"
                )
            patches = patches.reshape(-1, *patches.shape[2:])
        images = as_images(patches)
        size = images.shape[1]
        if self.head in ("hardnet", "cat") and size != self.patch_size:
            raise InputError(
                f"this {self.head!r} model takes {self.patch_size}×{self.patch_size} patches, "
                f"not {size}×{size}: resize them, or build it with patch_size={size}"
            )
        check_patch_size(size)
        images = normalize_patches(images)
        points = images.shape[0] // count
        if points % views:
            raise InputError(f"{points} patches do not fall into {views} equal views")
        phi = self.drop(self.trunk(images, train=train, views=views), train=train, views=views)
        if self.head == "combined":
            return [phi, phi]
        if self.head == "combined_star":
            phi_polar = self.trunk_polar(images, train=train, views=views)
            return [phi, self.drop(phi_polar, train=train, views=views)]
        return [phi]

    def unnormalized(self, patches: ArrayLike) -> Float[Array, "batch dim"]:
        """Compute ψ before ℓ2 (for `hardnet`: before its last BatchNorm, unless that is folded)."""
        return self.projection.aggregate(self.feature_maps(patches))

    def local_encodings(
        self, patches: ArrayLike, *, weighted: bool = True
    ) -> Float[Array, "batch p dim"]:
        """Compute the contribution of every position to ψ; their sum is `unnormalized`.

        With `weighted=False` encoded heads leave out the centre weight w_p, as the paper's
        similarity maps do; the sum then is not ψ.
        """
        return self.projection.encode_each(self.feature_maps(patches), weighted=weighted)


def build(
    head: str = "combined_star",
    *,
    s: int = 2,
    patch_size: int = 32,
    dropout: float = 0.3,
    head_bias: bool = True,
    dtype: Any = "float32",
    axis_name: str | None = None,
    channels: Sequence[int] = CHANNELS,
    dimension: int = DIMENSION,
    context: Sequence[int | float] = (1,),
    **position_constants: float,
) -> Descriptor:
    """Build the linen module of one of the paper's descriptors.

    Args:
        head: one of `kjax.HEADS`; the default is the paper's best.
        s: number of frequencies of encoded heads.
        patch_size: side N of the patches.
        dropout: dropout rate before the head in training.
        head_bias: whether encoded heads learn a bias.
        dtype: "float32" or "bfloat16"; or "float64", to compare numerics, with
            `jax.config.update("jax_enable_x64", True)`.
        axis_name: mapped device axis over which BatchNorm shares its statistics, if any.
        channels: output channels of the six convolutions; fewer make a faster model.
        dimension: descriptor size; `sum` and `cat` have the size of their maps.
        context: widths of a point's concentric patches, in patch sides, e.g. `(1, 4)`.
        **position_constants: other fields of `kjax.PositionKernel`, e.g. `kappa_xy=2.0`.

    Examples:
        >>> model = kjax.build(head="polar", s=1)
        >>> variables = model.init(jax.random.key(0), patches)
        >>> descriptors = model.apply(variables, patches)
    """
    given: dict[str, Any] = {"patch_size": patch_size, "dropout": dropout, "head_bias": head_bias}
    given |= {"axis_name": axis_name, "dimension": dimension, **position_constants}
    model = Descriptor.of(head, s=s, dtype=dtype, channels=channels, context=context, **given)
    if model.dtype == jnp.float64 and not jax.config.read("jax_enable_x64"):
        raise InputError('dtype "float64" needs jax.config.update("jax_enable_x64", True)')
    return model


def as_module(model: Architecture) -> Descriptor:
    """Return the linen module of an architecture."""
    return model if isinstance(model, Descriptor) else Descriptor(**vars(model))


def receptive_field(row: int, column: int) -> tuple[int, int, int, int]:
    """Return the pixels that φ^p sees: first and one-past-last row, then column.

    They are not clipped to the patch: beyond it, convolutions see zeros.
    """
    radius, jump = 0, 1
    for stride in STRIDES:
        radius += jump
        jump *= stride
    top, left = row * jump - radius, column * jump - radius
    return top, top + 2 * radius + 1, left, left + 2 * radius + 1


def parameter_count(variables: Any) -> int:
    """Return the number of learned parameters, without BatchNorm's running statistics."""
    return sum(leaf.size for leaf in jax.tree.leaves(variables.get("params", {})))
