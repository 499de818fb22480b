"""Run pycolmap (4 or later) in its own process, without JAX.

In one process the two may abort, depending on which was imported first. Run this as a file, not as
a module: that would import kjax.

    python pycolmap_script.py verify DATABASE
    python pycolmap_script.py map DATABASE IMAGES OUT THREADS [OPTION=VALUE ...]
"""

import sys

import pycolmap

SEED = 0


def verify(database: str) -> None:
    """Verify the matches in a database."""
    options = pycolmap.TwoViewGeometryOptions()
    options.ransac.random_seed = SEED
    pycolmap.set_random_seed(SEED)
    pycolmap.geometric_verification(
        database,
        verifier_options=pycolmap.GeometricVerifierOptions(num_threads=1),
        two_view_geometry_options=options,
    )


def reconstruct(database: str, images: str, out: str, threads: str, *mapper: str) -> None:
    """Map the images of a database: one folder below `out` per model."""
    options = pycolmap.IncrementalPipelineOptions()
    for name, value in (option.split("=") for option in mapper):
        setattr(options.mapper, name, int(value))
    options.num_threads = int(threads)
    options.random_seed = SEED
    pycolmap.set_random_seed(SEED)
    pycolmap.incremental_mapping(database, images, out, options)


if __name__ == "__main__":
    if sys.argv[1] == "verify":
        verify(*sys.argv[2:])
    else:
        reconstruct(*sys.argv[2:])
