"""The descriptors: the paper's section 3.

This file has the names and sizes that all implementations share, without importing JAX.
"""

HEADS = ("hardnet", "xy", "polar", "combined", "combined_star", "sum", "cat")
ENCODED_HEADS = ("xy", "polar", "combined", "combined_star")
"""Heads with a number of frequencies s."""
CHANNELS = (32, 32, 64, 64, 128, 128)
"""Output channels of the paper's six 3×3 convolutions."""
STRIDES = (1, 1, 2, 1, 2, 1)
TRUNK_STRIDE = 4
"""Product of `STRIDES`."""
DIMENSION = 128
"""Size of the paper's descriptor."""
EPSILON = 1e-5
"""BatchNorm's, added to variances."""
