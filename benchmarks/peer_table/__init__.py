"""What `benchmarks/peers.py` is made of: methods, scenes with a known truth, records, a page."""
