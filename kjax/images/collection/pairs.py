"""Which photographs of a collection are matched with which."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from kjax.errors import InputError, unknown_name

PairsWord = Literal["auto", "exhaustive", "retrieval", "sequential", "spatial"]
Places = tuple[int, int]
"""Two photographs of a collection, the earlier one first."""
SIDE = 16
"""Photographs on either side of the pairs that are worked on together."""
_ROWS = 256
"""Photographs that are compared with all others at once."""


def check_word(word: str) -> None:
    """Refuses a way of choosing pairs that there is not."""
    if word not in get_args(PairsWord):
        raise unknown_name("--pairs", word, get_args(PairsWord))


def resolved(word: str, count: int, neighbours: int) -> str:
    """What "auto" stands for: all pairs where these are no more than those by retrieval."""
    if word != "auto":
        return word
    return "exhaustive" if count <= 2 * neighbours + 1 else "retrieval"


def exhaustive(count: int) -> list[Places]:
    """All pairs."""
    return list(itertools.combinations(range(count), 2))


def sequential(count: int, neighbours: int) -> list[Places]:
    """Each photograph with so many that follow it."""
    return [
        (first, second)
        for first in range(count)
        for second in range(first + 1, min(first + 1 + neighbours, count))
    ]


def spatial(positions: Sequence[Float[np.ndarray, "3"] | None], neighbours: int) -> list[Places]:
    """Each photograph with so many others that were taken nearest to it.

    Raises:
        InputError: some do not say where they were taken.
    """
    known = [position for position in positions if position is not None]
    if len(known) < len(positions):
        raise InputError(
            f"{len(positions) - len(known)} of {len(positions)} photographs do not say where they "
            "were taken: choose --pairs retrieval"
        )
    places = np.stack(known)
    return _nearest(
        len(places),
        neighbours,
        lambda rows: np.linalg.norm(places[rows, None] - places[None], axis=-1),
    )


def most_similar(vectors: Float[np.ndarray, "N D"], neighbours: int) -> list[Places]:
    """Each photograph with so many others whose vectors have the largest products with its own."""
    return _nearest(len(vectors), neighbours, lambda rows: -(vectors[rows] @ vectors.T))


def _nearest(count: int, neighbours: int, distances: Callable[[slice], np.ndarray]) -> list[Places]:
    """Pairs by the smallest distances of some photographs, the rows, to all."""
    chosen = set()
    for start in range(0, count, _ROWS):
        for place, row in enumerate(distances(slice(start, start + _ROWS)), start=start):
            row[place] = np.inf
            nearest = np.argsort(row, kind="stable")[: min(neighbours, count - 1)]
            chosen |= {(min(place, other), max(place, other)) for other in nearest.tolist()}
    return sorted(chosen)


def among_themselves(block: Sequence[Places]) -> tuple[list[int], list[Places]]:
    """The photographs of some pairs, and the pairs as places among these."""
    used = sorted({place for pair in block for place in pair})
    return used, [(used.index(first), used.index(second)) for first, second in block]


def in_blocks(pairs: Iterable[Places], most: int) -> Iterator[list[Places]]:
    """All pairs in blocks of few photographs, and of no more than so many pairs."""

    def tile(pair: Places) -> Places:
        return pair[0] // SIDE, pair[1] // SIDE

    for _, same in itertools.groupby(sorted(pairs, key=lambda pair: (tile(pair), pair)), tile):
        block = list(same)
        yield from (block[at : at + most] for at in range(0, len(block), most))
