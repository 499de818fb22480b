"""How it is fast: convolutions, BatchNorm, and the kernels for CPUs and GPUs."""
