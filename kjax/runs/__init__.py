"""Folders of runs: config, checkpoints and files; no training."""

CONFIG_FILE = "config.json"
