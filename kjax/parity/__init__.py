"""The PyTorch twin, and the comparison with it."""
