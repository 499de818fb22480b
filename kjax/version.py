"""The version of the package, apart from it so that building and the modules below can read it."""

__version__ = "0.2.0"
