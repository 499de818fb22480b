"""Weights: files, their names in PyTorch, and the models they belong to."""
