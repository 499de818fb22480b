"""Matches of the pairs of a collection, block by block: descriptors come from files when needed."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from tqdm import tqdm

from kjax.images.collection.describing import FeatureFiles
from kjax.images.collection.keys import key_of
from kjax.images.collection.pair_store import PairStore
from kjax.images.collection.pairs import SIDE, Places, in_blocks
from kjax.images.collection.photographs import Photograph
from kjax.images.matching import match_many
from kjax.images.methods import MatchingMethod

METHOD: MatchingMethod = "mutual_ratio"
AT_ONCE = 8
"""Pairs that are one piece of work: a kill costs no more."""


def match_keys(
    photographs: Sequence[Photograph],
    pairs: Sequence[Places],
    files: FeatureFiles,
    *,
    ratio: float,
) -> dict[Places, str]:
    """What the matches of each pair are kept as."""
    keys = [files.key(photograph) for photograph in photographs]
    return {pair: key_of(*(keys[place] for place in pair), METHOD, ratio) for pair in pairs}


def match_missing(
    photographs: Sequence[Photograph],
    keys: Mapping[Places, str],
    files: FeatureFiles,
    store: PairStore,
    *,
    ratio: float,
) -> None:
    """Matches the pairs that have not been matched yet.

    Args:
        photographs: that pairs are places of.
        keys: of all pairs.
        files: of the features.
        store: of what is found.
        ratio: the largest that is kept.
    """

    @functools.lru_cache(maxsize=2 * SIDE)
    def descriptors(place: int) -> np.ndarray:
        return files.read(photographs[place]).descriptors

    missing = set(store.missing("matches", keys.values()))
    todo = [pair for pair, key in keys.items() if key in missing]
    with tqdm(total=len(keys), desc="matching", unit="pair") as bar:
        bar.update(len(keys) - len(todo))
        for block in in_blocks(todo, AT_ONCE):
            places = sorted({place for pair in block for place in pair})
            found = match_many(
                [descriptors(place) for place in places],
                [(places.index(first), places.index(second)) for first, second in block],
                method=METHOD,
                ratio=ratio,
            )
            store.add_matches(
                {keys[pair]: one.indices for pair, one in zip(block, found, strict=True)}
            )
            bar.update(len(block))
