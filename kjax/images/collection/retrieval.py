"""One vector for each photograph, from its descriptors: similar photographs have similar ones.

VLAD (Jégou et al., 2010): words are learned from the collection itself by k-means, and a
photograph's vector sums up, word by word, how its descriptors differ from the nearest word. Each
word's part is normalised by itself, so that what repeats in one photograph does not drown the rest
(Arandjelović and Zisserman, 2013).
"""

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Int
from tqdm import tqdm

from kjax.images.collection.describing import FeatureFiles
from kjax.images.collection.engine import HERE, Engine
from kjax.images.collection.photographs import Photograph

WORDS = 64
SAMPLED = 50_000
"""Descriptors of all photographs together that words are learned from."""
ITERATIONS = 15
SEED = 0
AT_ONCE = 16
"""Photographs whose descriptors another machine is sent together."""


def aggregate(
    photographs: Sequence[Photograph], files: FeatureFiles, engine: Engine = HERE
) -> Float32[np.ndarray, "N words_by_D"]:
    """The vectors of photographs, of length 1; of one without keypoints it is 0.

    The engine does the work.
    """
    each = max(1, SAMPLED // len(photographs))
    bar = tqdm(photographs, desc="learning words", unit="photo")
    words = learn_words(np.concatenate([_spread(_rows(files, one), each) for one in bar]))
    vectors = engine.map(
        functools.partial(vlad, words=words),
        ((_rows(files, one),) for one in photographs),
        threads=1,
        shard=AT_ONCE,
    )
    return np.stack(
        list(tqdm(vectors, desc="choosing pairs", unit="photo", total=len(photographs)))
    )


def learn_words(
    rows: Float32[np.ndarray, "N D"], *, count: int = WORDS
) -> Float32[np.ndarray, "words D"]:
    """Centres of k-means; the same rows have the same."""
    generator = np.random.default_rng(SEED)
    words = rows[generator.choice(len(rows), min(count, len(rows)), replace=False)]
    for _ in range(ITERATIONS):
        nearest = nearest_words(rows, words)
        counts = np.bincount(nearest, minlength=len(words))
        sums = np.zeros_like(words)
        np.add.at(sums, nearest, rows)
        # A word that no row is nearest to stays where it is.
        words = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], words)
        words = words.astype(np.float32)
    return words


def nearest_words(
    rows: Float32[np.ndarray, "N D"], words: Float32[np.ndarray, "words D"]
) -> Int[np.ndarray, " N"]:
    """The word that each row is nearest to."""
    return np.argmax(rows @ words.T - (words**2).sum(axis=1) / 2, axis=1)


def vlad(
    rows: Float32[np.ndarray, "N D"], words: Float32[np.ndarray, "words D"]
) -> Float32[np.ndarray, " words_by_D"]:
    """The vector of one photograph."""
    nearest = nearest_words(rows, words)
    sums = np.zeros_like(words)
    np.add.at(sums, nearest, rows - words[nearest])
    return _unit(_unit(sums).reshape(1, -1))[0]


def _unit(rows: Float32[np.ndarray, "N D"]) -> Float32[np.ndarray, "N D"]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def _rows(files: FeatureFiles, photograph: Photograph) -> Float32[np.ndarray, "N D"]:
    return files.read(photograph).descriptors.astype(np.float32)


def _spread(rows: Float32[np.ndarray, "N D"], most: int) -> Float32[np.ndarray, "M D"]:
    """Evenly spaced rows: keypoints come in the order of their strength."""
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)]
