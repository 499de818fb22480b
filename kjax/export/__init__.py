"""Models for use without kjax."""
