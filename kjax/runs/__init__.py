"""Folders of runs: config, checkpoints and files; no training."""
