r"""Remove attention heads from a matcher, as a start for further training.

    python benchmarks/thin_matcher.py best --heads 2 --self-every 2 --out thin.npz
    kjax train-matcher --config matcher --config.init=thin.npz \
        --config.model.heads=2 --config.model.head_size=32 --config.model.self_every=2 …

Removes the heads that contribute least to the tokens, by the norm of their value-output product.
Self-attention keeps the same heads in all layers, because these share position encodings. The
matcher is worse until it is trained further.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import program
from jaxtyping import Float, Int

from kjax.errors import InputError
from kjax.interrupts import run_script
from kjax.matcher.network import MatcherConfig
from kjax.matcher.weights import MatcherWeights, find_matcher, read_matcher, save_matcher


def run(args: argparse.Namespace) -> None:
    """Read, thin and write."""
    if args.out.suffix != ".npz":
        raise InputError(f"--out {args.out}: unsupported file type: use .npz")
    weights = read_matcher(find_matcher(args.matcher))
    model = weights.model
    if not 1 <= args.heads <= model.heads:
        raise InputError(f"the matcher has 1 to {model.heads} heads")
    save_matcher(args.out, thinned(weights, args.heads, args.self_every))
    print(f"{args.out}: {args.heads} heads of {model.size}")


def thinned(weights: MatcherWeights, heads: int, self_every: int | None = None) -> MatcherWeights:
    """Return the matcher with the strongest heads of its layers."""
    model, layers = weights.model, weights.model.layers
    params = jax.tree.map(np.asarray, dict(weights.params))
    blocks = params["layers"]
    kept = {"cross": _largest(_strengths(model, blocks, "cross"), heads)}
    own = _largest(_strengths(model, blocks, "self").mean(axis=0), heads)
    kept["self"] = np.tile(own, (layers, 1))
    for name, parts in (("self", 3), ("cross", 2)):
        blocks[f"{name}_in"] = _columns(model, blocks[f"{name}_in"], parts, kept[name])
        kernel = _by_head(model, blocks[f"{name}_out"]["kernel"])
        rows = np.take_along_axis(kernel, kept[name][:, :, None, None], axis=1)
        blocks[f"{name}_out"]["kernel"] = rows.reshape(layers, -1, model.width)
    embedding = {**params["embedding"], "frequencies": params["embedding"]["frequencies"][own]}
    every = model.self_every if self_every is None else self_every
    fewer = dataclasses.replace(model, heads=heads, head_size=model.size, self_every=every)
    remarks = {**weights.remarks, "thinned": f"from {model.heads} heads, not trained since"}
    params = {"embedding": embedding, "layers": blocks}
    return dataclasses.replace(weights, model=fewer, remarks=remarks, params=params)


def _by_head(
    model: MatcherConfig, kernel: Float[np.ndarray, "L inner width"]
) -> Float[np.ndarray, "L heads size width"]:
    return kernel.reshape(len(kernel), model.heads, model.size, -1)


def _strengths(model: MatcherConfig, blocks: Any, name: str) -> Float[np.ndarray, "L heads"]:
    """Norm of each head's value-output product, relative to the sum over heads."""
    values = blocks[f"{name}_in"]["kernel"]
    values = values.reshape(*values.shape[:2], -1, model.heads, model.size)[:, :, -1]
    back = _by_head(model, blocks[f"{name}_out"]["kernel"])
    norms = np.linalg.norm(np.einsum("lwhs,lhsv->lhwv", values, back), axis=(2, 3))
    return norms / np.maximum(norms.sum(axis=1, keepdims=True), 1e-12)


def _largest(strengths: Float[np.ndarray, "*L heads"], count: int) -> Int[np.ndarray, "*L count"]:
    """Indices of the largest, in order."""
    return np.sort(np.argsort(-strengths, axis=-1, kind="stable")[..., :count], axis=-1)


def _columns(
    model: MatcherConfig, dense: dict[str, np.ndarray], parts: int, kept: Int[np.ndarray, "L K"]
) -> dict[str, np.ndarray]:
    """Columns of queries, keys and values of the kept heads."""

    def of_kept(leaf: np.ndarray) -> np.ndarray:
        apart = leaf.reshape(*leaf.shape[:-1], parts, model.heads, model.size)
        places = kept.reshape(len(kept), *[1] * (apart.ndim - 3), -1, 1)
        return np.take_along_axis(apart, places, axis=-2).reshape(*leaf.shape[:-1], -1)

    return {name: of_kept(leaf) for name, leaf in dense.items()}


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("matcher", help="shipped name, workdir or file")
    add("--heads", type=int, required=True, help="number of heads to keep")
    add("--self-every", type=int, metavar="N", help="self-attend to every Nth keypoint only")
    add("--out", type=Path, required=True, help="path of the new matcher, .npz")


if __name__ == "__main__":
    run_script(main)
