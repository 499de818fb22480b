"""Sweeps: many small trainings, scored alike, kept as records, shown as the paper's tables."""
