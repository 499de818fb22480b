"""Scores, matches and the loss, each beside a version written out in loops."""

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plane import moved, random_homography

from kjax.matcher import assignment
from kjax.matcher.assignment import NONE, Seen, Truth, assign, assignment_loss, find_truth
from kjax.matcher.network import LayerOutput
from kjax.matcher.training import confidence_loss

COUNTS = np.array([[6, 8], [8, 3]], np.int32)
ROOM = 8


@pytest.fixture
def said(rng):
    projected = rng.normal(size=(2, 2, ROOM, 4)).astype("f4")
    matchability, confidence = rng.normal(size=(2, 2, 2, ROOM)).astype("f4")
    return LayerOutput(*map(jnp.asarray, (projected, matchability, confidence)))


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


def test_scores_and_that_matches_are_mutual_and_sure(said):
    least = 0.02
    made = assign(said, jnp.asarray(COUNTS))
    whole, found = np.exp(assignment.log_scores(made)), assignment.mutual_matches(made, least)
    for pair, (rows, columns) in enumerate(COUNTS):
        scores, _ = plain_scores(said, pair)
        np.testing.assert_allclose(whole[pair, :rows, :columns], scores, rtol=1e-5)
        assert whole[pair, rows:].sum() + whole[pair, :, columns:].sum() == 0
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


def test_matches_in_blocks_are_the_same(said):
    counts = jnp.asarray(COUNTS)
    # Copies have equal scores, in one block and in several: the first of them wins.
    said = jax.tree.map(lambda one: one.at[:, :, 5:].set(one[:, :, : ROOM - 5]), said)
    whole = assignment.mutual_matches(assign(said, counts), 0.0)
    assert (np.asarray(whole.first) != NONE).any()
    for block in (1, 2, 4, ROOM):
        found = assignment.matches_in_blocks(said, counts, 0.0, block=block)
        for got, expected in zip(found, whole, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5)


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


def test_what_is_off_the_line_must_not_match(said):
    off_line = np.zeros((2, ROOM, ROOM), bool)
    off_line[0, 1, :3] = off_line[0, 2, 4] = True
    made = assign(said, jnp.asarray(COUNTS))
    nothing = Truth(jnp.full((2, ROOM), NONE, jnp.int32), jnp.zeros((2, 2, ROOM), bool))
    losses = assignment_loss(made, nothing._replace(off_line=jnp.asarray(off_line)))
    scores, _ = plain_scores(said, 0)
    wrong = np.array([scores[1, :3].sum(), scores[2, 4]])
    assert float(losses[0]) == pytest.approx(0.5 * np.mean(-np.log(1 - wrong)), rel=1e-5)
    assert float(losses[1]) == 0


def test_confidence_is_of_saying_what_the_last_layer_says():
    partners = jnp.array([[[[1, NONE]] * 2], [[[1, 0]] * 2]], jnp.int32)
    counts = jnp.array([[2, 2]], jnp.int32)
    right = jnp.array([[[[9.0, -9.0]] * 2], [[[9.0, 9.0]] * 2]])
    assert float(confidence_loss(right, partners, counts)) < 1e-3
    assert float(confidence_loss(-right, partners, counts)) > 8
    # Of what only pads, nothing is asked.
    wrong_padding = right.at[0, :, :, 1].set(9.0)
    assert float(confidence_loss(wrong_padding, partners, jnp.array([[1, 1]], jnp.int32))) < 1e-3


@pytest.mark.parametrize("unknown", [0, 6])
def test_truth_by_places(rng, unknown):
    """Of a plane seen twice, where some keypoints do not know what they see."""
    counts = (30, 24)
    homography = random_homography(rng)
    first = rng.uniform(0, 400, (32, 2))
    second = np.concatenate([moved(homography, first[:20]), rng.uniform(0, 400, (12, 2))])
    second = second + rng.normal(0, 1.5, second.shape)
    second[23] = second[2]  # one place, two angles
    descriptors = rng.normal(size=(2, 32, 4))
    descriptors /= np.linalg.norm(descriptors, axis=-1, keepdims=True)
    flat = np.stack([first, moved(np.linalg.inv(homography), second)])
    places = np.concatenate([flat, np.ones((2, 32, 1))], axis=-1)
    places[0, 3 : 3 + unknown], places[1, 9 : 9 + unknown] = np.nan, np.nan
    cameras = np.stack([np.eye(3, 4), np.column_stack([homography, np.zeros(3)])])
    arrays = (np.stack([first, second]), places, cameras, descriptors)
    *seen, likeness = (jnp.asarray(part[None], jnp.float32) for part in arrays)
    found = find_truth(Seen(*seen), likeness, jnp.array([counts], jnp.int32))
    partners, alone = plain_truth(first[:30], second[:24], places, descriptors, homography)
    assert (partners != NONE).sum() > 5
    np.testing.assert_array_equal(found.partners[0, :30], partners)
    for side, expected in enumerate(alone):
        assert expected.any()
        np.testing.assert_array_equal(found.alone[0, side, : len(expected)], expected)
        assert not np.asarray(found.alone[0, side, len(expected) :]).any()


def test_keypoints_of_unknown_places_are_off_each_others_lines(rng):
    """Two cameras with the same calibration see points; some know of them, others do not."""
    points = rng.uniform([-3, -3, 4], [3, 3, 9], (20, 3))
    matrix = np.array([[500.0, 0, 400], [0, 500, 300], [0, 0, 1]])
    turn = cv2.Rodrigues(np.array([0, 0.2, 0]))[0]
    move = np.array([1.0, 0.2, 0.3])
    cameras = matrix @ np.stack([np.eye(3, 4), np.column_stack([turn, move])])
    mapped = np.einsum("sij,nj->sni", cameras, np.column_stack([points, np.ones(20)]))
    xy = mapped[..., :2] / mapped[..., 2:]
    places = np.stack([points, points])
    places[0, :8] = places[1, 4:10] = np.nan
    cross = np.array([[0, -move[2], move[1]], [move[2], 0, -move[0]], [-move[1], move[0], 0]])
    fundamental = np.linalg.inv(matrix).T @ cross @ turn @ np.linalg.inv(matrix)
    lines = np.column_stack([xy[0], np.ones(20)]) @ fundamental.T
    back = np.column_stack([xy[1], np.ones(20)]) @ fundamental
    residual = np.abs(lines @ np.column_stack([xy[1], np.ones(20)]).T)
    nearer = np.minimum(
        residual / np.linalg.norm(lines[:, :2], axis=1)[:, None],
        residual / np.linalg.norm(back[:, :2], axis=1)[None],
    )
    known = np.isfinite(places).all(axis=-1)
    expected = (nearer > assignment.OFF_LINE) & ~(known[0][:, None] & known[1][None])
    expected[18:] = expected[:, 17:] = False
    arrays = (xy, places, cameras, np.ones((2, 20, 4)) / 2)
    *seen, likeness = (jnp.asarray(part[None], jnp.float32) for part in arrays)
    counts = jnp.array([[18, 17]], jnp.int32)
    found = find_truth(Seen(*seen), likeness, counts, by_lines=True)
    sure = np.abs(nearer - assignment.OFF_LINE) > 0.01
    np.testing.assert_array_equal(found.off_line[0][sure], expected[sure])
    assert 20 < expected.sum() < 300
    assert not np.diag(found.off_line[0]).any()
    seen[2] = seen[2].at[:, 1, :, 3].set(0.0)  # both at one place: there are no lines
    same_place = find_truth(Seen(*seen), likeness, counts, by_lines=True)
    assert not np.asarray(same_place.off_line).any()
    assert find_truth(Seen(*seen), likeness, counts).off_line is None


def plain_truth(first, second, places, descriptors, homography):
    apart = np.full((len(first), len(second)), np.inf)
    cost = np.full_like(apart, np.inf)
    there, back = moved(homography, first), moved(np.linalg.inv(homography), second)
    known = np.isfinite(places).all(axis=-1)
    for i in range(len(first)):
        for j in range(len(second)):
            ways = [np.hypot(*(there[i] - second[j]))] if known[0, i] else []
            ways += [np.hypot(*(back[j] - first[i]))] if known[1, j] else []
            apart[i, j] = max(ways, default=np.inf)
            if len(ways) == 2:
                alike = descriptors[0, i] @ descriptors[1, j]
                cost[i, j] = apart[i, j] + assignment.UNLIKE * (1 - alike) / 2
    partners = np.full(len(first), NONE)
    for i, j in enumerate(cost.argmin(axis=1)):
        seen = known[0, i] and known[1, j]
        if cost[:, j].argmin() == i and seen and apart[i, j] <= assignment.MATCH:
            partners[i] = j
    alone = [apart.min(axis=1) > assignment.FAR, apart.min(axis=0) > assignment.FAR]
    return partners, [one & known[side, : len(one)] for side, one in enumerate(alone)]


def test_what_is_behind_a_camera_is_far_away():
    camera = np.eye(3, 4)[None]
    places = np.array([[[1.0, 2.0, 2.0], [1.0, 2.0, -2.0], [np.nan] * 3]])
    found = assignment.project(*(jnp.asarray(part, jnp.float32) for part in (camera, places)))
    np.testing.assert_allclose(found[0, 0], [0.5, 1])
    assert found[0, 1].min() > 1e5
    assert np.isnan(found[0, 2]).all()
