"""Names and sizes that every implementation of the descriptors shares. Nothing here imports JAX."""

HEADS = ("hardnet", "xy", "polar", "combined", "combined_star", "sum", "cat")
ENCODED_HEADS = ("xy", "polar", "combined", "combined_star")
"""Heads with a number of frequencies s."""

CHANNELS = (32, 32, 64, 64, 128, 128)
"""Output channels of the six 3×3 convolutions, as the paper has them."""
STRIDES = (1, 1, 2, 1, 2, 1)
TRUNK_STRIDE = 4
"""The product of `STRIDES`."""
DIMENSION = 128
"""Numbers in the paper's descriptor."""
