"""The heads of the paper's table of models: from feature maps to one vector, as linen modules.

Modules hold the parameters; the mathematics is in `position_encoding` and `aggregation`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from kjax.model import DIMENSION, aggregation
from kjax.model.kernels.convolution import at_least_float32
from kjax.model.layers import BatchNorm, initial_kernel
from kjax.model.position_encoding import CoordinateSystem, PositionKernel, position_matrix


class FullyConnectedHead(nn.Module):
    """HardNet's head: W vec(φ), then BatchNorm. W is stored as its n² blocks W_p."""

    side: int
    channels: int
    dimension: int = DIMENSION
    dtype: Any = jnp.float32
    axis_name: str | None = None
    folded: bool = False

    def setup(self) -> None:
        """Create W, and the bias of a folded model."""
        shape = (self.side, self.side, self.channels, self.dimension)
        dtype = at_least_float32(self.dtype)
        self.kernel = self.param("kernel", initial_kernel, shape, dtype)
        if self.folded:
            self.bias = self.param("bias", nn.initializers.zeros, (self.dimension,), dtype)
        else:
            self.norm = BatchNorm(axis_name=self.axis_name)

    def aggregate(self, maps: Sequence[Array]) -> Float[Array, "batch dim"]:
        """Compute W vec(φ) + w, before BatchNorm."""
        (phi,) = maps
        # Flat: a contraction over three axes makes XLA transpose φ before the product.
        flat = phi.reshape(phi.shape[0], -1)
        total = aggregation.dense(flat, self.kernel.reshape(-1, self.dimension))
        return total + self.bias.reshape(1, -1) if self.folded else total

    def finish(self, aggregated: Float[Array, "batch dim"], *, train: bool, views: int) -> Array:
        """Apply BatchNorm to the descriptor's entries."""
        return aggregated if self.folded else self.norm(aggregated, train=train, views=views)

    def encode_each(self, maps: Sequence[Array], *, weighted: bool) -> Float[Array, "batch p dim"]:
        """Compute g_fc(φ^p, p) = W_p φ^p + w/n²; `weighted` has no effect."""
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
    channels: int
    dimension: int = DIMENSION
    dtype: Any = jnp.float32
    use_bias: bool = True

    def setup(self) -> None:
        """Create M, transposed, and m′ = n² m."""
        inputs = len(self.systems) * self.channels * self.position_kernel.dim
        dtype = at_least_float32(self.dtype)
        self.kernel = self.param("kernel", initial_kernel, (inputs, self.dimension), dtype)
        if self.use_bias:
            # HardNet's initialiser sets every bias it meets to 0.01.
            constant = nn.initializers.constant(0.01)
            self.bias = self.param("bias", constant, (self.dimension,), dtype)

    def aggregate(self, maps: Sequence[Array]) -> Float[Array, "batch dim"]:
        """Compute M Σ_p w_p g(φ^p, p) + m′."""
        matrices = jnp.split(self.kernel, len(self.systems))
        first, *others = [
            aggregation.project(aggregation.flatten_positions(phi), positions, matrix)
            for (phi, positions), matrix in zip(
                self._with_positions(maps, weighted=True), matrices, strict=True
            )
        ]
        projected = sum(others, start=first)
        return projected + self.bias.reshape(1, -1) if self.use_bias else projected

    def encode_each(self, maps: Sequence[Array], *, weighted: bool) -> Float[Array, "batch p dim"]:
        """Compute M g(φ^p, p) + m for every position, with g multiplied by w_p if `weighted`."""
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
    """Σ_p φ^p, without positions (the paper's lower baseline)."""

    def aggregate(self, maps: Sequence[Array]) -> Float[Array, "batch dim"]:
        """Sum over positions, in float32 or better."""
        (phi,) = maps
        if phi.dtype != at_least_float32(phi.dtype):
            # Fused with the layer before it, JAX 0.11.2 gets this sum of bfloat16 wrong on CPUs.
            phi = jax.lax.optimization_barrier(phi)
        return phi.sum(axis=(1, 2), dtype=at_least_float32(phi.dtype))

    def encode_each(self, maps: Sequence[Array], *, weighted: bool) -> Float[Array, "batch p dim"]:
        """Return φ^p; `weighted` has no effect."""
        del weighted
        (phi,) = maps
        return aggregation.flatten_positions(phi.astype(at_least_float32(phi.dtype)))


class CatHead(nn.Module):
    """vec(φ), without tolerance to shifts (the paper's other baseline)."""

    def aggregate(self, maps: Sequence[Array]) -> Float[Array, "batch dim"]:
        """Return vec(φ): channel slowest, then row, then column."""
        (phi,) = maps
        return jnp.moveaxis(phi, -1, 1).reshape(phi.shape[0], -1)

    def encode_each(self, maps: Sequence[Array], *, weighted: bool) -> Float[Array, "batch p dim"]:
        """Return φ^p ⊗ e_p; `weighted` has no effect."""
        del weighted
        (phi,) = maps
        descriptors = aggregation.flatten_positions(phi)
        one_hot = jnp.eye(descriptors.shape[1], dtype=descriptors.dtype)
        return aggregation.encode_each(descriptors, one_hot)
