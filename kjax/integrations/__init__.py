"""kjax inside other libraries: one file each, which imports that library."""
