"""Training of a detector, from its config to its weights.

Of each view, the best keypoints by the network's scores are taken. Those that the other view has at
the same place and scale, with descriptors that match, are rewarded, and the scores learn to rank
all by their reward. Positions and directions learn from matching keypoints directly.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Int32

from kjax.data.photo_points import ResidentPhotos, photographs_in, read_photos
from kjax.errors import InputError
from kjax.keypoints.config import DetectorRunConfig, RewardConfig
from kjax.keypoints.network import DetectorConfig, DetectorNetwork, init_params
from kjax.keypoints.selection import Grid, locate, make_octaves, score_octaves, strongest
from kjax.keypoints.views import PairConfig, ViewPairs, draw_pairs, project
from kjax.keypoints.weights import (
    WEIGHTS_FILE,
    DetectorWeights,
    find_file,
    read_detector,
    save_detector,
)
from kjax.model.folding import fold
from kjax.train import one_device
from kjax.train.step import TrainState, create_state
from kjax.weights import shipped
from kjax.weights.ledger import check_open
from kjax.weights.source import load_shipped

Metrics = dict[str, Float[Array, ""]]
_VALIDATION = 2**31 - 1
"""Folded into the run's key for validation batches: no step has this number."""
REPEATED = 3.0
"""Distance in pixels within which a keypoint counts as found again."""
PATCH = 32


@dataclasses.dataclass(frozen=True, eq=False)
class DetectorProgram:
    """Everything about a training that is compiled into it; `pairs` is the batch size."""

    model: DetectorConfig
    draw: PairConfig
    reward: RewardConfig
    optimizer: optax.GradientTransformation
    pairs: int
    seed: int
    dtype: str
    describe: Callable[[Array], Array] | None
    extent: float
    """Side of a described patch over the keypoint's diameter."""


class Found(NamedTuple):
    """Keypoints of a view, seen from the photograph."""

    xy: Float[Array, "K 2"]  # pixels of the photograph, as all of these
    sizes: Float[Array, " K"]
    directions: Float[Array, "K 2"]  # of length 1
    zooms: Float[Array, " K"]  # pixels of the photograph in one of the view
    scores: Float[Array, " K"]
    descriptors: Float[Array, "K D"]  # D is 0 without a descriptor


def run(config: DetectorRunConfig, workdir: Path) -> dict[str, float]:
    """Train as the config says, or resume the run in the workdir.

    Writes, besides checkpoints and metrics, `results.json` and the final weights, `detector.npz`.
    Returns the final validation metrics.
    """
    data = config.data
    for folder in filter(None, (data.photos, data.places)):
        if data.only_open:
            check_open("data.photos", photographs_in(folder), shipped.photographs())
    learning, held_out = (
        jax.device_put(read_photos(folder, places, extent=None, progress=config.progress))
        for folder, places in ((data.photos, data.places), (data.validation, ""))
    )
    program = make_program(config)

    def save(state: TrainState) -> None:
        remarks = {
            "photographs": str(learning.counts.shape[0]),
            "pairs": str(config.train.pairs * config.train.steps),
            "seed": str(config.seed),
            **({"started from": config.init} if config.init else {}),
        }
        weights = DetectorWeights(config.model, remarks, state.params)
        save_detector(workdir / WEIGHTS_FILE, weights)

    return one_device.run(
        config,
        workdir,
        start=functools.partial(initial_state, program, config.init),
        advance=functools.partial(take_steps, program, learning),
        evaluate=make_validation(program, held_out, config.train.eval_batches),
        save=save,
    )


def make_program(config: DetectorRunConfig) -> DetectorProgram:
    """Return what the run compiles."""
    describe, extent = None, 0.0
    if config.reward.descriptor:
        source = load_shipped(config.reward.descriptor)
        if len(source.model.context) > 1 or source.model.patch_size != PATCH:
            raise InputError(
                f"reward.descriptor: {config.reward.descriptor} does not describe one patch of "
                f"{PATCH} pixels: use fast"
            )
        model, variables = fold(
            source.model.clone(dtype=np.dtype(config.train.dtype)), source.arrays
        )
        describe, extent = functools.partial(model.apply, variables), source.extent
    return DetectorProgram(
        model=config.model,
        draw=config.draw,
        reward=config.reward,
        optimizer=config.optimizer.optimizer(config.train.steps),
        pairs=config.train.pairs,
        seed=config.seed,
        dtype=config.train.dtype,
        describe=describe,
        extent=extent,
    )


def initial_state(program: DetectorProgram, init: str = "") -> TrainState:
    """Return the state before the first step, with random parameters or those of a file."""
    params = init_params(program.model, jax.random.key(program.seed))
    if init:
        weights = read_detector(find_file(init))
        if weights.model != program.model:
            raise InputError(f"{init} has another model than config.model: {weights.model}")
        params = jax.tree.map(jnp.asarray, weights.params)
    return create_state(program.optimizer, {"params": params, "batch_stats": {}})


def take_steps(
    program: DetectorProgram, photos: ResidentPhotos, state: TrainState, steps: int
) -> tuple[TrainState, Metrics]:
    """Take steps one by one, and return the metrics' means.

    A step takes longer than its call; inside XLA's loops, CPUs convolve fifteen times slower.
    """
    totals: Metrics = {}
    for _ in range(steps):
        state, metrics = _take_step(program, state, photos)
        totals = {name: totals.get(name, 0.0) + value for name, value in metrics.items()}
    return state, {name: total / steps for name, total in totals.items()}


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _take_step(
    program: DetectorProgram, state: TrainState, photos: ResidentPhotos
) -> tuple[TrainState, Metrics]:
    """Take a step. Everything random comes from `fold_in(key, state.step)`."""
    key = jax.random.fold_in(jax.random.key(program.seed), state.step)
    pairs = draw_pairs(photos, key, jnp.arange(program.pairs), program.draw)
    compute = jax.grad(functools.partial(batch_loss, program), has_aux=True)
    gradients, metrics = compute(state.params, pairs)
    updates, opt_state = program.optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    state = state.replace(step=state.step + 1, params=params, opt_state=opt_state)
    return state, {**metrics, "gradient_norm": optax.tree.norm(gradients)}


def batch_loss(
    program: DetectorProgram, params: Any, pairs: ViewPairs
) -> tuple[Float[Array, ""], Metrics]:
    """Return the loss of a batch, and metrics."""
    views = jax.tree.map(lambda one: one.reshape(-1, *one.shape[2:]), pairs)
    found = find(program, params, views)
    found = jax.tree.map(lambda one: one.reshape(program.pairs, 2, *one.shape[1:]), found)
    losses, metrics = jax.vmap(functools.partial(pair_loss, program))(found, pairs.homographies)
    metrics = {name: value.mean() for name, value in metrics.items()}
    return losses.mean(), {**metrics, "loss": losses.mean()}


def find(program: DetectorProgram, params: Any, views: ViewPairs) -> Found:
    """Detect and describe the keypoints of views, whose first axis has all of them."""
    config, side = program.model, program.draw.side
    octaves = make_octaves(views.grey, config)
    network = DetectorNetwork(config, dtype=jnp.dtype(program.dtype))
    grid, scores, frames, shown, peaks = score_octaves(
        network, params, octaves, views.inside, (side, side)
    )
    # Low but finite: scores beyond the border take part in refined positions.
    scores = jnp.where(shown, scores, -1e4)
    wanted = jnp.where(peaks, jax.lax.stop_gradient(scores), -jnp.inf)
    index = strongest(grid, wanted, program.reward.keypoints)[1]
    refine = functools.partial(locate, grid, smallest=config.smallest)
    located = jax.vmap(refine)(scores, frames, index)
    xy, zooms, turns = jax.vmap(to_photo)(views.homographies, located.xy)
    described = jnp.zeros((*index.shape, 0))
    if program.describe is not None:
        flat = jnp.concatenate([one.reshape(len(one), -1) for one in octaves], axis=1)
        cut = functools.partial(cut_patches, grid)
        patches = jax.vmap(cut)(flat, index, program.extent * located.sizes, -turns)
        described = program.describe(patches.reshape(-1, PATCH, PATCH))
        described = described.reshape(*index.shape, -1).astype(jnp.float32)
    return Found(
        xy=xy,
        sizes=located.sizes * zooms,
        directions=turned(located.directions, turns),
        zooms=zooms,
        scores=jnp.take_along_axis(scores, index, axis=1),
        descriptors=jax.lax.stop_gradient(described),
    )


def to_photo(
    homography: Float[Array, "3 3"], xy: Float[Array, "K 2"]
) -> tuple[Float[Array, "K 2"], Float[Array, " K"], Float[Array, " K"]]:
    """Map a view's points to the photograph; return magnification and rotation there, too."""
    moved = jnp.matmul(xy, homography[:, :2].T, precision="highest") + homography[None, :, 2]
    depth = moved[:, 2, None]
    mapped = moved[:, :2] / depth
    slopes = (homography[None, :2, :2] - mapped[..., None] * homography[2, :2][None, None]) / depth[
        ..., None
    ]
    a, b, c, d = slopes.reshape(-1, 4).T
    fixed = jax.lax.stop_gradient(((jnp.abs(a * d - b * c)) ** 0.5, jnp.arctan2(c - b, a + d)))
    return mapped, *fixed


def turned(directions: Float[Array, "*K 2"], angles: Float[Array, "*K"]) -> Float[Array, "*K 2"]:
    """Rotate vectors by angles, and give them length 1."""
    x, y = directions[..., 0], directions[..., 1]
    length = jnp.sqrt(x**2 + y**2 + 1e-6)
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    return jnp.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1) / length[..., None]


def cut_patches(
    grid: Grid,
    flat: Float[Array, " pixels"],
    index: Int[Array, " K"],
    sides: Float[Array, " K"],
    angles: Float[Array, " K"],
) -> Float[Array, "K 32 32"]:
    """Cut the patches of flat scores from their octaves; their sides are in the view's pixels."""
    octave, row, column = (one[:, None, None] for one in grid.place(index))
    step = sides[:, None, None] / PATCH / jnp.exp2(octave)
    offsets = jnp.arange(PATCH, dtype=jnp.float32) - (PATCH - 1) / 2
    u, v = step * offsets[None, :], step * offsets[:, None]
    cosine, sine = jnp.cos(angles)[:, None, None], jnp.sin(angles)[:, None, None]
    width = jnp.asarray(grid.widths)[octave]
    height = jnp.asarray(grid.heights)[octave]
    x = jnp.clip(column + cosine * u - sine * v, 0, width - 1.001)
    y = jnp.clip(row + sine * u + cosine * v, 0, height - 1.001)
    left, top = jnp.floor(x).astype(jnp.int32), jnp.floor(y).astype(jnp.int32)
    corner = jnp.asarray(grid.starts)[octave] + top * width + left
    x, y = x - left, y - top
    upper = flat[corner] * (1 - x) + flat[corner + 1] * x
    lower = flat[corner + width] * (1 - x) + flat[corner + width + 1] * x
    return upper * (1 - y) + lower * y


def pair_loss(
    program: DetectorProgram, found: Found, homographies: Float[Array, "2 3 3"]
) -> tuple[Float[Array, ""], Metrics]:
    """Return the loss of a pair of views, and metrics."""
    config = program.reward
    first, second = (Found(*(column[i] for column in found)) for i in range(2))
    apart, likely = compare(config, first, second)
    agree = first.descriptors @ second.descriptors.T
    one_loss, one_metrics, _ = rank(program, first, homographies[1], apart, likely, agree)
    other_loss, other_metrics, partner = rank(
        program, second, homographies[0], apart.T, likely.T, agree.T
    )
    # Partners are mutual: those of the second view are all.
    repeated = partner >= 0
    count = jnp.maximum(repeated.sum(), 1)
    distance = jnp.where(repeated, apart[partner, jnp.arange(len(partner))], 0).sum() / count
    zoom = jnp.abs(jnp.log2(first.sizes[partner] / second.sizes))
    zoom = jnp.where(repeated, zoom, 0).sum() / count
    # Half of the difference of the vectors: the sine of half the angle between them.
    aside = ((second.directions - first.directions[partner]) ** 2).sum(axis=1)
    turn = jnp.where(repeated, jnp.sqrt(aside + 1e-8) / 2, 0).sum() / count
    # Views that are turned alike agree in any constant direction: there is nothing to learn.
    views = jax.vmap(to_photo)(homographies, jnp.full((2, 1, 2), program.draw.side / 2))[2]
    turned_apart = (1 - jnp.cos(views[0, 0] - views[1, 0])) / 2
    policy = (one_loss + other_loss) / 2
    loss = policy + config.location * distance + config.size * zoom
    loss += config.direction * turned_apart * turn
    reward, share, matches = (one_metrics + other_metrics) / 2
    return loss, {
        "reward": reward,
        "repeated": share,
        "matched": matches,
        "distance": distance,
        "zoom": zoom,
        "turn": turn,
    }


def compare(
    config: RewardConfig, first: Found, second: Found
) -> tuple[Float[Array, "K K"], Float[Array, "K K"]]:
    """Return how far keypoints are apart, in pixels of the views, and their reward as partners."""
    offsets = first.xy[:, None] - second.xy[None]
    zooms = jnp.sqrt(first.zooms[:, None] * second.zooms[None])
    apart = jnp.sqrt((offsets**2).sum(axis=-1) + 1e-6) / zooms
    octaves = jnp.abs(jnp.log2(first.sizes[:, None] / second.sizes[None]))
    sizes = jnp.sqrt(first.sizes[:, None] * second.sizes[None]) / zooms
    near = jnp.exp(-((apart / (config.sigma + config.reach * sizes)) ** 2) / 2)
    likely = near * jnp.maximum(1 - octaves / config.octaves, 0)
    return apart, jax.lax.stop_gradient(likely)


def rank(
    program: DetectorProgram,
    own: Found,
    other: Float[Array, "3 3"],
    apart: Float[Array, "K K"],
    likely: Float[Array, "K K"],
    agree: Float[Array, "K K"],
) -> tuple[Float[Array, ""], Float[Array, "3"], Int[Array, " K"]]:
    """Return a view's loss, three metrics, and its keypoints' partners, −1 for none.

    Rows are the view's keypoints, columns those of the other view, whose homography is given.
    """
    number = jnp.arange(len(own.xy))
    seen = project(jnp.linalg.inv(other), own.xy)
    visible = ((seen > 0) & (seen < program.draw.side - 1)).all(axis=1)
    partner = likely.argmax(axis=1)
    mutual = likely.argmax(axis=0)[partner] == number
    reward = jnp.where(mutual & visible, likely[number, partner], 0)
    matched = repeated = (apart[number, partner] < REPEATED) & (reward > 0)
    if program.describe is not None:
        match = agree.argmax(axis=1)
        back = agree.argmax(axis=0)[match] == number
        matched = back & visible & (apart[number, match] < REPEATED)
        reward = jnp.where(matched, reward, 0)
    # Shares of the visible ones by scores, to be those by reward: bounded, so scores cannot run
    # away.
    log_shares = own.scores - jax.nn.logsumexp(jnp.where(visible, own.scores, -1e9))
    loss = -(reward * log_shares).sum() / (reward.sum() + 1e-3)
    total = jnp.maximum(visible.sum(), 1)
    metrics = jnp.stack([one.sum() for one in (reward, repeated, matched)]) / total
    return loss, metrics, jnp.where(repeated, partner, -1)


def make_validation(
    program: DetectorProgram, photos: ResidentPhotos, batches: int
) -> Callable[[TrainState], dict[str, float]]:
    """Return a function that validates a state, always on the same pairs.

    `error` is the share of visible keypoints that are not matched correctly.
    """

    def validate(state: TrainState) -> dict[str, float]:
        numbers = [_validate(program, state.params, photos, jnp.int32(i)) for i in range(batches)]
        means = {name: float(np.mean([one[name] for one in numbers])) for name in numbers[0]}
        return {**means, "error": 1 - means["matched"]}

    return validate


@functools.partial(jax.jit, static_argnums=0)
def _validate(
    program: DetectorProgram, params: Any, photos: ResidentPhotos, number: Int32[Array, ""]
) -> Metrics:
    key = jax.random.fold_in(jax.random.key(program.seed), _VALIDATION)
    pairs = draw_pairs(
        photos, jax.random.fold_in(key, number), jnp.arange(program.pairs), program.draw
    )
    metrics = batch_loss(program, params, pairs)[1]
    return {name: metrics[name] for name in ("repeated", "matched", "distance", "zoom", "turn")}
