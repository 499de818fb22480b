"""Damaged and hostile files for every reader of kjax: see `python -m tests.fuzz --help`."""
