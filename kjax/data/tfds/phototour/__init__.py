"""PhotoTourism for TensorFlow Datasets."""
