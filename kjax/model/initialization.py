"""Orthogonal initial weights, without the cost of a general QR decomposition."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kjax.model.precision import at_least_float32


def initial_kernel(
    key: Key[Array, ""], shape: Sequence[int], dtype: Any = jnp.float32
) -> Float[Array, "..."]:
    """HardNet's start: orthogonal, with a gain of 0.6."""
    return orthogonal(key, shape, dtype, scale=0.6)


def orthogonal(
    key: Key[Array, ""], shape: Sequence[int], dtype: Any = jnp.float32, *, scale: float = 1.0
) -> Float[Array, "..."]:
    """A random matrix with orthonormal columns (or rows, if there are more columns), times a scale.

    All axes but the last make up the rows, as for a kernel with its outputs last. The distribution
    and, up to rounding, the values are those of `jax.nn.initializers.orthogonal`.
    """
    rows, columns = math.prod(shape[:-1]), shape[-1]
    tall = (max(rows, columns), min(rows, columns))
    gaussian = jax.random.normal(key, tall, at_least_float32(dtype))
    # Twice: the second pass takes away what rounding left of the first.
    unit = _orthonormal_columns(_orthonormal_columns(gaussian))
    matrix = unit if rows >= columns else unit.T
    return scale * matrix.reshape(shape).astype(dtype)


def _orthonormal_columns(matrix: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """Q of the decomposition QR whose R has a positive diagonal, by R = chol(AᵀA).

    A few matrix products, where Householder's method takes seconds on a CPU. It squares the
    condition number, which for tall Gaussian matrices is small.
    """
    with jax.default_matmul_precision("highest"):
        lower = jnp.linalg.cholesky(matrix.T @ matrix)
        return jax.lax.linalg.triangular_solve(
            lower, matrix, left_side=False, lower=True, transpose_a=True
        )
