"""Matches of the pairs of a collection by a learned matcher, pair by pair."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int32
from tqdm import tqdm

from kjax.images.collection.describing import FeatureFiles
from kjax.images.collection.engine import HERE, Engine
from kjax.images.collection.keys import key_of
from kjax.images.collection.pair_store import PairStore
from kjax.images.collection.pairs import SIDE, Places, in_blocks
from kjax.images.collection.photographs import Photograph
from kjax.images.features import Features
from kjax.images.learned_matching import Matcher

AT_ONCE = 16
"""Pairs that another machine is sent together."""


def learned_keys(
    photographs: Sequence[Photograph],
    pairs: Sequence[Places],
    files: FeatureFiles,
    matcher: Matcher,
) -> dict[Places, str]:
    """What the matches of each pair are kept as."""
    keys = [files.key(photograph) for photograph in photographs]
    return {
        pair: key_of(*(keys[place] for place in pair), "learned", matcher.sha256) for pair in pairs
    }


def match_learned_missing(
    photographs: Sequence[Photograph],
    keys: Mapping[Places, str],
    files: FeatureFiles,
    store: PairStore,
    matcher: Matcher,
    *,
    engine: Engine = HERE,
) -> None:
    """Matches the pairs that have not been matched yet; the arguments are `match_missing`'s."""

    @functools.lru_cache(maxsize=2 * SIDE)
    def features(place: int) -> Features:
        return engine.share(files.read(photographs[place]))

    missing = set(store.missing("matches", keys.values()))
    todo = [pair for pair, key in keys.items() if key in missing]
    with tqdm(total=len(keys), desc="matching", unit="pair") as bar:
        bar.update(len(keys) - len(todo))
        ordered = [pair for (pair,) in in_blocks(todo, 1)]
        matched = engine.map(
            functools.partial(match_pair, matcher),
            (tuple(map(features, pair)) for pair in ordered),
            threads=1,
            shard=AT_ONCE,
        )
        for pair, found in zip(ordered, matched, strict=True):
            store.add_matches({keys[pair]: found})
            bar.update()


def match_pair(matcher: Matcher, first: Features, second: Features) -> Int32[np.ndarray, "K 2"]:
    """The matches of one pair."""
    return matcher.match(first, second).indices
