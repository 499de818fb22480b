"""Exchange with PyTorch: state dicts in and out, a reference implementation, and a comparison."""

from kjax.interop.files import load_variables, save_variables
from kjax.interop.state_dict import from_torch, to_torch

__all__ = ["from_torch", "load_variables", "save_variables", "to_torch"]
