"""Training: the run's input, state, step, loop, checkpoints and log."""
