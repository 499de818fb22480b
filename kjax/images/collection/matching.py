"""Matches of the pairs of a collection, block by block: features come from files when needed."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32
from tqdm import tqdm

from kjax.images.collection.describing import FeatureFiles
from kjax.images.collection.engine import HERE, Engine
from kjax.images.collection.keys import key_of
from kjax.images.collection.pair_store import PairStore
from kjax.images.collection.pairs import SIDE, Places, among_themselves, in_blocks
from kjax.images.collection.photographs import Photograph
from kjax.images.features import Features, MatchingMethod
from kjax.images.learned_matching import Matcher
from kjax.images.matching import match_many

METHOD: MatchingMethod = "mutual_ratio"
AT_ONCE, BLOCKS_AT_ONCE = 8, 4
"""Of nearest neighbours: see `Way`."""
LEARNED_AT_ONCE, LEARNED_BLOCKS_AT_ONCE = 1, 16


class Way(NamedTuple):
    """How pairs are matched.

    Attributes:
        settings: all that its matches depend on, besides features.
        match_block: gives the matches of pairs, which are places among the features behind them.
        at_once: pairs that are one piece of work: a kill costs no more.
        blocks_at_once: such pieces that another machine is sent together.
    """

    settings: tuple[Any, ...]
    match_block: Callable[..., list[Int32[np.ndarray, "_ 2"]]]
    at_once: int
    blocks_at_once: int


def by_neighbours(ratio: float) -> Way:
    """Mutual nearest neighbours, with the largest ratio that is kept."""
    match_block = functools.partial(match_neighbours, ratio)
    return Way((METHOD, ratio), match_block, AT_ONCE, BLOCKS_AT_ONCE)


def by_matcher(matcher: Matcher) -> Way:
    """A learned matcher, pair by pair."""
    match_block = functools.partial(match_learned, matcher)
    settings = ("learned", matcher.sha256)
    return Way(settings, match_block, LEARNED_AT_ONCE, LEARNED_BLOCKS_AT_ONCE)


def match_keys(
    photographs: Sequence[Photograph], pairs: Sequence[Places], files: FeatureFiles, way: Way
) -> dict[Places, str]:
    """What the matches of each pair are kept as."""
    keys = [files.key(photograph) for photograph in photographs]
    return {pair: key_of(*(keys[place] for place in pair), *way.settings) for pair in pairs}


def match_missing(
    photographs: Sequence[Photograph],
    keys: Mapping[Places, str],
    files: FeatureFiles,
    store: PairStore,
    way: Way,
    *,
    engine: Engine = HERE,
) -> None:
    """Matches the pairs that have not been matched yet.

    Args:
        photographs: that pairs are places of.
        keys: of all pairs.
        files: of the features.
        store: of what is found.
        way: how.
        engine: what does the work.
    """

    @functools.lru_cache(maxsize=2 * SIDE)
    def features(place: int) -> Features:
        return engine.share(files.read(photographs[place]))

    def with_features(block: list[Places]) -> tuple:
        places, within = among_themselves(block)
        return within, *map(features, places)

    missing = set(store.missing("matches", keys.values()))
    todo = [pair for pair, key in keys.items() if key in missing]
    blocks = list(in_blocks(todo, way.at_once))
    with tqdm(total=len(keys), desc="matching", unit="pair") as bar:
        bar.update(len(keys) - len(todo))
        matched = engine.map(
            way.match_block, map(with_features, blocks), threads=1, shard=way.blocks_at_once
        )
        for block, found in zip(blocks, matched, strict=True):
            store.add_matches({keys[pair]: one for pair, one in zip(block, found, strict=True)})
            bar.update(len(block))


def match_neighbours(
    ratio: float, pairs: list[Places], *features: Features
) -> list[Int32[np.ndarray, "_ 2"]]:
    """The matches of pairs, which are places among features."""
    descriptors = [one.descriptors for one in features]
    return [one.indices for one in match_many(descriptors, pairs, method=METHOD, ratio=ratio)]


def match_learned(
    matcher: Matcher, pairs: list[Places], *features: Features
) -> list[Int32[np.ndarray, "_ 2"]]:
    """The same by a learned matcher."""
    return [matcher.match(features[first], features[second]).indices for first, second in pairs]
