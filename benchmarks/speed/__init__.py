"""Speed of description, of kjax and of HardNet in PyTorch."""
