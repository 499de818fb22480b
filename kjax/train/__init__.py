"""Training of descriptors: losses, augmentation, step, loop and whole runs."""
