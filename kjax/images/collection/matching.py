"""Matches of the pairs of a collection, block by block: descriptors come from files when needed."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int32
from tqdm import tqdm

from kjax.images.collection.describing import FeatureFiles
from kjax.images.collection.engine import HERE, Engine
from kjax.images.collection.keys import key_of
from kjax.images.collection.pair_store import PairStore
from kjax.images.collection.pairs import SIDE, Places, among_themselves, in_blocks
from kjax.images.collection.photographs import Photograph
from kjax.images.matching import match_many
from kjax.images.methods import MatchingMethod

METHOD: MatchingMethod = "mutual_ratio"
AT_ONCE = 8
"""Pairs that are one piece of work: a kill costs no more."""
BLOCKS_AT_ONCE = 4
"""Such pieces that another machine is sent together."""


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
    engine: Engine = HERE,
) -> None:
    """Matches the pairs that have not been matched yet.

    Args:
        photographs: that pairs are places of.
        keys: of all pairs.
        files: of the features.
        store: of what is found.
        ratio: the largest that is kept.
        engine: what does the work.
    """

    @functools.lru_cache(maxsize=2 * SIDE)
    def descriptors(place: int) -> np.ndarray:
        return engine.share(files.read(photographs[place]).descriptors)

    def with_descriptors(block: list[Places]) -> tuple:
        places, within = among_themselves(block)
        return within, *map(descriptors, places)

    missing = set(store.missing("matches", keys.values()))
    todo = [pair for pair, key in keys.items() if key in missing]
    blocks = list(in_blocks(todo, AT_ONCE))
    with tqdm(total=len(keys), desc="matching", unit="pair") as bar:
        bar.update(len(keys) - len(todo))
        matched = engine.map(
            functools.partial(match_block, ratio),
            map(with_descriptors, blocks),
            threads=1,
            shard=BLOCKS_AT_ONCE,
        )
        for block, found in zip(blocks, matched, strict=True):
            store.add_matches({keys[pair]: one for pair, one in zip(block, found, strict=True)})
            bar.update(len(block))


def match_block(
    ratio: float, pairs: list[Places], *descriptors: np.ndarray
) -> list[Int32[np.ndarray, "_ 2"]]:
    """The matches of pairs, which are places among descriptors."""
    found = match_many(descriptors, pairs, method=METHOD, ratio=ratio)
    return [one.indices for one in found]
