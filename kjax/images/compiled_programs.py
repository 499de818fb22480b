"""Programs that JAX compiled, kept on disk: the next command need not compile them again."""

import os

from kjax.data.cache import cache_root

VARIABLE = "KJAX_COMPILED"
"""An environment variable: "off" keeps nothing."""


def keep_compiled_programs() -> None:
    """Has JAX keep its programs in `compiled` in the cache folder, for commands.

    $JAX_COMPILATION_CACHE_DIR, or what a program has told JAX already, goes first.
    """
    import jax

    told = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if told or os.environ.get(VARIABLE) == "off":
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_root() / "compiled"))
    # Single operations too: `kjax match` has sixty of them, which take as long as the large ones.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
