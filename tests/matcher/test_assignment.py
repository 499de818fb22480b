"""Scores, matches and the loss, each beside a version written out in loops."""

import jax.numpy as jnp
import numpy as np
import pytest
from plane import moved, random_homography

from kjax.matcher.assignment import assign, assignment_loss, log_scores, mutual_partners
from kjax.matcher.network import Said
from kjax.matcher.step import confidence_loss
from kjax.matcher.truth import FAR, MATCH, NONE, TURN_COST, Truth, homography_truth

COUNTS = np.array([[6, 8], [8, 3]], np.int32)
ROOM = 8


@pytest.fixture
def said(rng):
    projected = rng.normal(size=(2, 2, ROOM, 4)).astype("f4")
    matchability, confidence = rng.normal(size=(2, 2, 2, ROOM)).astype("f4")
    return Said(*map(jnp.asarray, (projected, matchability, confidence)))


def softmax(values, axis):
    shares = np.exp(values - values.max(axis=axis, keepdims=True))
    return shares / shares.sum(axis=axis, keepdims=True)


def plain_scores(said, pair):
    """Of the keypoints that exist."""
    first, second = COUNTS[pair]
    projected = np.asarray(said.projected[pair], np.float64)
    alike = projected[0, :first] @ projected[1, :second].T
    able = 1 / (1 + np.exp(-np.asarray(said.matchability[pair], np.float64)))
    both = np.outer(able[0, :first], able[1, :second])
    return softmax(alike, 0) * softmax(alike, 1) * both, able


def test_scores(said):
    scores = np.exp(log_scores(assign(said, jnp.asarray(COUNTS))))
    for pair, (first, second) in enumerate(COUNTS):
        expected, _ = plain_scores(said, pair)
        np.testing.assert_allclose(scores[pair, :first, :second], expected, rtol=1e-5)
        assert scores[pair, first:].sum() + scores[pair, :, second:].sum() == 0


def test_matches_are_mutual_and_sure(said):
    least = 0.02
    found = mutual_partners(assign(said, jnp.asarray(COUNTS)), least)
    for pair in range(2):
        scores, _ = plain_scores(said, pair)
        expected = {
            (i, int(j))
            for i, j in enumerate(scores.argmax(axis=1))
            if scores[:, j].argmax() == i and scores[i, j] >= least
        }
        first, second = np.asarray(found.first[pair]), np.asarray(found.second[pair])
        assert {(i, int(j)) for i, j in enumerate(first) if j != NONE} == expected
        assert {(int(i), j) for j, i in enumerate(second) if i != NONE} == expected
        for i, j in expected:
            assert float(found.scores[pair, i]) == pytest.approx(scores[i, j], rel=1e-5)
    assert (np.asarray(found.first) != NONE).any()


def test_loss(said):
    partners = np.full((2, ROOM), NONE, np.int32)
    partners[0, :3] = [4, 0, 7]
    alone = np.zeros((2, 2, ROOM), bool)
    alone[0, 0, 4:6] = alone[0, 1, 2] = alone[1, 1, 0] = True
    truth = Truth(jnp.asarray(partners), jnp.asarray(alone))
    losses = assignment_loss(assign(said, jnp.asarray(COUNTS)), truth)
    for pair in range(2):
        scores, able = plain_scores(said, pair)
        matched = [-np.log(scores[i, j]) for i, j in enumerate(partners[pair]) if j != NONE]
        sides = [
            np.mean([-np.log(1 - able[side, i]) for i in np.flatnonzero(alone[pair, side])] or [0])
            for side in range(2)
        ]
        expected = 0.5 * np.mean(matched or [0]) + 0.5 * np.mean(sides)
        assert float(losses[pair]) == pytest.approx(expected, rel=1e-5)


def test_confidence_is_of_saying_what_the_last_layer_says():
    partners = jnp.array([[[[1, NONE]] * 2], [[[1, 0]] * 2]], jnp.int32)
    counts = jnp.array([[2, 2]], jnp.int32)
    right = jnp.array([[[[9.0, -9.0]] * 2], [[[9.0, 9.0]] * 2]])
    assert float(confidence_loss(right, partners, counts)) < 1e-3
    assert float(confidence_loss(-right, partners, counts)) > 8
    # Of what only pads, nothing is asked.
    wrong_padding = right.at[0, :, :, 1].set(9.0)
    assert float(confidence_loss(wrong_padding, partners, jnp.array([[1, 1]], jnp.int32))) < 1e-3


def test_truth_by_a_homography(rng):
    counts = np.array([[30, 24]], np.int32)
    homography = random_homography(rng)
    first = rng.uniform(0, 400, (32, 2))
    second = np.concatenate([moved(homography, first[:20]), rng.uniform(0, 400, (12, 2))])
    second = second + rng.normal(0, 1.5, second.shape)
    second[23] = second[2]  # one place, two angles
    angles = rng.uniform(-3, 3, (2, 32))
    between = np.stack([homography, np.linalg.inv(homography)])
    found = homography_truth(
        *(jnp.asarray(part[None], jnp.float32) for part in (np.stack([first, second]), angles)),
        jnp.asarray(between[None], jnp.float32),
        jnp.asarray(counts),
    )
    partners, alone = plain_truth(first[:30], second[:24], angles, homography)
    assert (partners != NONE).sum() > 5
    np.testing.assert_array_equal(found.partners[0, :30], partners)
    for side, expected in enumerate(alone):
        np.testing.assert_array_equal(found.alone[0, side, : len(expected)], expected)
        assert not np.asarray(found.alone[0, side, len(expected) :]).any()


def plain_truth(first, second, angles, homography):
    apart = np.empty((len(first), len(second)))
    cost = np.empty_like(apart)
    there, back = moved(homography, first), moved(np.linalg.inv(homography), second)
    step = 1e-4 * np.stack([np.cos(angles[0]), np.sin(angles[0])], axis=1)[: len(first)]
    ahead = moved(homography, first + step) - there
    for i in range(len(first)):
        for j in range(len(second)):
            forth = np.hypot(*(there[i] - second[j]))
            apart[i, j] = max(forth, np.hypot(*(back[j] - first[i])))
            turn = np.arctan2(ahead[i, 1], ahead[i, 0]) - angles[1, j]
            cost[i, j] = apart[i, j] + TURN_COST * (1 - np.cos(turn)) / 2
    partners = np.full(len(first), NONE)
    for i, j in enumerate(cost.argmin(axis=1)):
        if cost[:, j].argmin() == i and apart[i, j] <= MATCH:
            partners[i] = j
    return partners, [apart.min(axis=1) > FAR, apart.min(axis=0) > FAR]
