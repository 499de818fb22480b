"""Weights tuned to one's own photographs: `kjax tune`.

photographs → `sets` (patches, some photographs held out) → `training` (from given weights, mixed
with general patches) → `scores` (before and after) → `report`; `run` does one after the other.
"""
