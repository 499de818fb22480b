"""TensorFlow Datasets builders, one folder each; importing one registers it with `tfds.load`."""
