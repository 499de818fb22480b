"""pycolmap (4 or later) in a process of its own, where JAX is not.

In one process the two may abort, depending on which was imported first. What is printed there goes
to a log, and Ctrl-C ends it as it ends any program. Run as a file, not as a module: that would
import kjax.

    python pycolmap_script.py verify DATABASE
    python pycolmap_script.py map DATABASE PHOTOS OUT THREADS [OPTION=VALUE ...]
"""

import sys

import pycolmap

SEED = 0


def verify(database: str) -> None:
    """Verifies the matches that are in a database."""
    found = pycolmap.TwoViewGeometryOptions()
    found.ransac.random_seed = SEED
    pycolmap.set_random_seed(SEED)
    pycolmap.geometric_verification(
        database,
        verifier_options=pycolmap.GeometricVerifierOptions(num_threads=1),
        two_view_geometry_options=found,
    )


def reconstruct(database: str, photos: str, out: str, threads: str, *mapper: str) -> None:
    """Maps the photographs of a database: a folder below `out` for each model."""
    options = pycolmap.IncrementalPipelineOptions()
    for name, value in (word.split("=") for word in mapper):
        setattr(options.mapper, name, int(value))
    options.num_threads = int(threads)
    options.random_seed = SEED
    pycolmap.set_random_seed(SEED)
    pycolmap.incremental_mapping(database, photos, out, options)


if __name__ == "__main__":
    if sys.argv[1] == "verify":
        verify(*sys.argv[2:])
    else:
        reconstruct(*sys.argv[2:])
