"""Fast convolutions, BatchNorm and nearest neighbours, with kernels for CPUs and GPUs."""
