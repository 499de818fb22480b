"""HPatches for TensorFlow Datasets."""
