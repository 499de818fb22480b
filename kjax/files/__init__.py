"""Files: atomic writes, NumPy archives, JSON, images."""
