"""Evaluation: descriptors of patches, the protocols' metrics, and the reports around them.

Nothing is imported here.
"""
