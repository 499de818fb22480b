"""Names of sets that are no folders, wherever a set's folder is expected."""

EMBEDDED = "embedded"
"""The set that ships with scikit-image."""
TFDS_PREFIX = "tfds:"
"""Begins the name of a set of TensorFlow Datasets, e.g. tfds:phototour/liberty."""
