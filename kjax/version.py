"""Version of the package, in a file of its own so that the build can read it."""

__version__ = "0.4.0"
