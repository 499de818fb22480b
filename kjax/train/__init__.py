"""Training: state, step and, in time, the loop around them."""
