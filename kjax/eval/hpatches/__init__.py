"""The HPatches benchmark: tasks, descriptors, and both official protocols."""
