"""Efficient aggregation: Σ_p w_p φ^p ⊗ f ⊗ f without building a Kronecker product.

The paper's equation for ψ moves the sum inside: vec(ΦᵀF), where Φ holds the n² convolutional
descriptors and F the n² encoded positions. It needs n²(d+(2s+1)²) numbers instead of n²·d·(2s+1)².
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kjax.model.kernels.convolution import at_least_float32
from kjax.model.position_encoding import dense_matrix


def flatten_positions(feature_map: Float[Array, "*batch n n d"]) -> Float[Array, "*batch n*n d"]:
    """Return Φ: the n×n grid of convolutional descriptors as rows, in row-major order."""
    *batch, rows, columns, channels = feature_map.shape
    return feature_map.reshape(*batch, rows * columns, channels)


def aggregate(
    descriptors: Float[Array, "*batch p d"], positions: Float[Array, "p k"]
) -> Float[Array, "*batch d*k"]:
    """Compute vec(ΦᵀF): the sum over positions of descriptor ⊗ encoded position.

    The channel varies slowest, then the first coordinate's map, then the second's: entry
    (c·(2s+1) + i)·(2s+1) + j. Products accumulate in float32 or better.
    """
    encoded = jnp.einsum(
        "...pc,pk->...ck",
        descriptors,
        positions,
        preferred_element_type=at_least_float32(descriptors.dtype),
    )
    return encoded.reshape(*encoded.shape[:-2], -1)


@jax.custom_vjp
def dense(
    x: Float[Array, "batch inputs"], weights: Float[Array, "inputs outputs"]
) -> Float[Array, "batch outputs"]:
    """Compute x @ weights in the precision of x, summed in float32; likewise its gradients.

    Plain autodiff would compute the gradients' products in float32.
    """
    wide = at_least_float32(x.dtype)
    return jnp.matmul(x, weights.astype(x.dtype), preferred_element_type=wide)


def _dense_backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, weights = kept
    gradient = gradient.astype(x.dtype)
    by_x = jnp.matmul(gradient, weights.astype(x.dtype).T)
    wide = at_least_float32(x.dtype)
    by_weights = jnp.matmul(x.T, gradient, preferred_element_type=wide)
    return by_x, by_weights.astype(weights.dtype)


dense.defvjp(lambda x, weights: (dense(x, weights), (x, weights)), _dense_backward)


def project(
    descriptors: Float[Array, "batch p d"],
    positions: Float[Array, "p k"],
    matrix: Float[Array, "inputs outputs"],
) -> Float[Array, "batch outputs"]:
    """Compute M vec(ΦᵀF), for M given transposed, in the precision of `descriptors`.

    By linearity that is one fully connected layer on vec(Φ) with weights made of F and M. For
    batches of at least n² patches this is faster: one large product, no rearranged feature maps.
    """
    batch, count, _ = descriptors.shape
    dtype = descriptors.dtype
    if batch < count:
        return dense(aggregate(descriptors, positions.astype(dtype)).astype(dtype), matrix)
    return dense(
        descriptors.reshape(batch, -1), dense_matrix(positions.astype(dtype), matrix, dense)
    )


def encode_each(
    descriptors: Float[Array, "*batch p d"], positions: Float[Array, "p k"]
) -> Float[Array, "*batch p d*k"]:
    """Compute g(φ^p, p) = φ^p ⊗ encoded p for every position: the tensor that `aggregate` avoids.

    For similarity maps, and to check `aggregate`.
    """
    encoded = jnp.einsum("...pc,pk->...pck", descriptors, positions)
    return encoded.reshape(*encoded.shape[:-2], -1)


def l2_normalize(
    vectors: Float[Array, "*batch dim"], *, epsilon: float = 1e-10
) -> Float[Array, "*batch dim"]:
    """Compute HardNet's x / √(Σx² + ε), in float32 or better.

    A zero vector (an untrained network's output for a constant patch) becomes the uniform unit
    vector, so that every descriptor has unit norm.
    """
    vectors = vectors.astype(at_least_float32(vectors.dtype))
    squared_norm = jnp.sum(vectors * vectors, axis=-1, keepdims=True)
    uniform = vectors.shape[-1] ** -0.5
    normalized = vectors / jnp.sqrt(squared_norm + epsilon)
    # Not `> 0`: NaN must stay NaN, to be noticed.
    return jnp.where(squared_norm == 0, uniform, normalized)
