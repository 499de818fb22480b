"""Matches of the pairs of a collection by a learned matcher, pair by pair."""

import functools
from collections.abc import Mapping, Sequence

from tqdm import tqdm

from kjax.images.collection.describing import FeatureFiles
from kjax.images.collection.keys import key_of
from kjax.images.collection.pair_store import PairStore
from kjax.images.collection.pairs import SIDE, Places, in_blocks
from kjax.images.collection.photographs import Photograph
from kjax.images.features import Features
from kjax.images.learned_matching import Matcher


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
) -> None:
    """Matches the pairs that have not been matched yet; the arguments are `match_missing`'s."""

    @functools.lru_cache(maxsize=2 * SIDE)
    def features(place: int) -> Features:
        return files.read(photographs[place])

    missing = set(store.missing("matches", keys.values()))
    todo = [pair for pair, key in keys.items() if key in missing]
    with tqdm(total=len(keys), desc="matching", unit="pair") as bar:
        bar.update(len(keys) - len(todo))
        for (pair,) in in_blocks(todo, 1):
            found = matcher.match(*map(features, pair))
            store.add_matches({keys[pair]: found.indices})
            bar.update()
