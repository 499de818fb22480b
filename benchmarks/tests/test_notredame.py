"""Labels by order: boundaries, witnesses, and the reader of mosaics."""

import notredame
import numpy as np
import pytest
from PIL import Image

from kjax.errors import InputError

SIZES = np.random.default_rng(1).integers(1, 6, 2000)
POINTS = np.repeat(np.arange(len(SIZES)), SIZES)


def descriptors(seed, noise=0.2):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(len(SIZES), 32))
    return (centres[POINTS] + noise * rng.normal(size=(len(POINTS), 32))).astype(np.float32)


def test_boundaries_of_clear_points_are_found():
    labels = notredame.label_by_order([descriptors(seed) for seed in range(9)])
    assert labels.kept().all()
    np.testing.assert_array_equal(labels.point_ids(), POINTS)
    assert notredame.boundary_scores(labels, POINTS) == {"precision": 1.0, "recall": 1.0}


def test_a_pair_two_apart_spans_an_outlier():
    rows = descriptors(0)
    start = int(np.flatnonzero(POINTS[2:] == POINTS[:-2])[0])
    rows[start + 1] = descriptors(5)[-1]
    labels = notredame.label_by_order([rows])
    assert not labels.new_point[start : start + 2].any()


def test_patches_beside_an_undecided_boundary_are_left_out():
    labels = notredame.Labels(np.array([False, True, False]), np.array([True, False, False]))
    assert labels.kept().tolist() == [False, False, True, True]
    assert labels.point_ids().tolist() == [0, 1, 2, 2]


def test_precision_and_recall_count_only_decided_boundaries():
    labels = notredame.Labels(np.array([1, 1, 0, 0], bool), np.array([0, 0, 0, 1], bool))
    found = notredame.boundary_scores(labels, np.array([0, 1, 1, 2, 3]))
    assert found == {"precision": 0.5, "recall": 0.5}


def test_a_descriptor_is_not_its_own_witness():
    for witness, ranked in (("rootsift", "best"), ("tfeat=file", "ddesc=one.t7")):
        assert notredame.is_witness(witness, ranked)
    kinds = (("rootsift", "sift"), ("mkd-pcawt=file", "mkd-lw=other"), ("ddesc=a.t7", "ddesc=b.t7"))
    for witness, ranked in (*kinds, ("best", "rootsift"), ("sift", "best")):
        assert not notredame.is_witness(witness, ranked)


def measured(rows, count):
    subset = notredame.PatchSequence("toy", np.zeros((count, 1, 1), np.uint8), POINTS)
    kinds = notredame.pair_kinds(subset)
    return {kind: notredame.pair_distances(rows, *pairs) for kind, pairs in kinds.items()}


def test_estimates_the_truth_without_labels():
    """Points are in random order, and no label is used but for the truth."""
    witnesses = {str(seed): measured(descriptors(seed, 0.75), len(POINTS)) for seed in range(3)}
    found = notredame.score(measured(descriptors(9, 0.8), len(POINTS)), witnesses, POINTS)
    assert found["two_points"] == pytest.approx(found["truly_two_points"], abs=0.01)
    assert found["fpr95"] == pytest.approx(found["truth"], rel=0.05)
    assert 0.0005 < found["truth"] < 0.05
    low, high = found["range"]
    assert low <= found["fpr95"] <= high


def test_points_are_ordered_by_photo_and_cell():
    # Photo, x, y of points 7, 7, 3, 5: point 3 lies in the first cell of photo 0.
    interest = np.array([[1, 9, 9], [0, 1, 1], [0, 5, 5], [1, 2, 3]], float)
    order = notredame.order_by_place(np.pad(interest, ((0, 0), (0, 2))), [7, 7, 3, 5], 4.0)
    assert order.tolist() == [2, 3, 0, 1]


def test_reads_the_real_mosaics(shared_data):
    folder = shared_data / "ubc_notredame"
    found = notredame.read_mosaics(folder).patches
    assert found.shape == (512, 64, 64)
    with Image.open(folder / "patches0001.bmp") as image:
        mosaic = np.asarray(image.convert("L"))
    np.testing.assert_array_equal(found[256 + 17], mosaic[64:128, 64:128])


def test_bad_input_is_one_line(tmp_path, capsys):
    (tmp_path / "patches0001.bmp").touch()
    with pytest.raises(InputError, match=r"lacks patches0000\.bmp"):
        notredame.read_mosaics(tmp_path)
    assert notredame.main(["sift", "--notredame", str(tmp_path / "no")]) == 2
    assert "no such folder" in capsys.readouterr().err
    with pytest.raises(InputError, match="no witness"):
        notredame.label_by_order([])
