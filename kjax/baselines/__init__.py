"""Rival descriptors, each as a row of an evaluation: see `kjax.baselines.rival`."""
