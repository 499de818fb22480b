"""Weights: files of them, their names in PyTorch, and which model they belong to."""
