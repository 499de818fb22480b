"""Names and sizes that every implementation of the descriptors shares. Nothing here imports JAX."""

HEADS = ("hardnet", "xy", "polar", "combined", "combined_star", "sum", "cat")
ENCODED_HEADS = ("xy", "polar", "combined", "combined_star")
"""Heads with a number of frequencies s."""

TRUNK_LAYERS = ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1))
"""Output channels and stride of the six 3×3 convolutions."""
TRUNK_CHANNELS = TRUNK_LAYERS[-1][0]
TRUNK_STRIDE = 4
DESCRIPTOR_DIM = 128
