"""One rule of precision: sums and statistics are never taken in less than float32."""

from typing import Any

import jax.numpy as jnp


def at_least_float32(dtype: Any) -> Any:
    """Gives float64 for float64, and float32 for anything smaller."""
    return jnp.promote_types(dtype, jnp.float32)
