"""Parts of `benchmarks/peers.py`: methods, scenes with known geometry, records and the page."""
