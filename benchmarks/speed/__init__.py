"""How fast weights describe patches, beside PyTorch."""
