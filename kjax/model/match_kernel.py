"""A match-kernel perspective: descriptor similarity as a sum over all pairs of positions.

Every head turns position p of a patch into an encoding g(φ^p, p) ∈ ℝ^D such that the unnormalised
descriptor is Σ_p g(φ^p, p) (`Descriptor.local_encodings`). The similarity of two patches is then
Σ_pq g(φ_a^p, p)ᵀ g(φ_b^q, q), and one row of that table, seen as an n×n image, shows what
position p of patch a responds to in patch b.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def similarity_map(
    encodings_a: Float[Array, "*batch p dim"],
    encodings_b: Float[Array, "*batch q dim"],
    *,
    row: int,
    column: int,
) -> Float[Array, "*batch n n"]:
    """Similarity of position (row, column) of patch a with every position of patch b."""
    side = round(encodings_b.shape[-2] ** 0.5)
    position = row * round(encodings_a.shape[-2] ** 0.5) + column
    similarities = jnp.einsum("...d,...qd->...q", encodings_a[..., position, :], encodings_b)
    return similarities.reshape(*similarities.shape[:-1], side, side)


def rescale_to_unit(similarities: Float[Array, "*batch n m"]) -> Float[Array, "*batch n m"]:
    """Shifts and scales each map to [0, 1], as the paper draws it; a constant map becomes 0."""
    lowest = similarities.min(axis=(-2, -1), keepdims=True)
    spread = similarities.max(axis=(-2, -1), keepdims=True) - lowest
    return (similarities - lowest) / jnp.where(spread > 0, spread, 1)
