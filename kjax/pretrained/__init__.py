"""Weights that ship inside the package, so that `kjax.load("hardnet")` works offline.

    kjax.pretrained.names()             what there is
    kjax.pretrained.card("hardnet")     data and licence, training, results, limits
    kjax.pretrained.photographs()       source, author and licence of training photographs

A model is three files of this folder, written by `benchmarks/tools/ship.py`: NAME.npz holds the
weights, NAME.json the card that they are checked and rebuilt with, NAME.md the same card for
people. A name can also stand for another one; its NAME.json says for which. photographs.csv is the
ledger of all photographs that the weights learned from, written by `benchmarks/tools/ledger.py`.

Nothing here imports JAX.
"""

from kjax.pretrained.cards import Card
from kjax.pretrained.shipped import DEFAULT, PREFIX, card, find, names, photographs, weights_file

__all__ = ["DEFAULT", "PREFIX", "Card", "card", "find", "names", "photographs", "weights_file"]
