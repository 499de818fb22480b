"""Patches in: readers, downloads, the stream of pairs, and the pipelines that feed it to a step.

Nothing is imported here. Only `kjax.data.pipelines` and `kjax.data.tfds` know TensorFlow.
"""
