"""JAX equals PyTorch: every head, forward, loss, gradients and training.

Narrow models in float64 prove the formulas to many digits; in float32, ReLUs within rounding of
zero would make single gradients differ. Each head, and each patch size, has one case with the
paper's widths.
"""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("skimage")

from models import CHANNELS, ENCODED

from kjax.data.embedded import stereo_patch_pairs
from kjax.model import HEADS
from kjax.parity.compare import Comparison, compare_forward, compare_training, random_state_dict
from kjax.runs.config import LossConfig
from kjax.train.step import StepConfig

STEPS, PAIRS, SIDE = 20, 3, 16
LIMITS = {"descriptor": 1e-12, "layer": 1e-12, "loss": 1e-9, "gradient": 1e-9}
"""Maximum relative difference in float64; 1e-6 after training."""


@pytest.fixture(scope="module")
def batches():
    return np.split(stereo_patch_pairs(STEPS * PAIRS, size=SIDE).astype(np.float64), STEPS)


def narrow(head, s=2, dtype="float64", **options):
    sizes = {"patch_size": SIDE, "channels": CHANNELS, "steps": STEPS}
    return Comparison(head=head, s=s, dtype=dtype, **sizes, **options)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(
    ("head", "context"), [*((head, (1.0,)) for head in HEADS), ("xy", (1.0, 4.0))]
)
def test_descriptors_gradients_and_training_in_float64(batches, head, context):
    """20 steps at the paper's learning rate; among the heads are all mining and BatchNorm rules."""
    rules = {"loss": LossConfig(anchor_swap=head in ENCODED), "joint_batch_norm": head == "polar"}
    comparison = narrow(head, step=StepConfig(**rules), context=context)
    if len(context) > 1:
        batches = [np.stack([batch, batch[::-1, ::-1]], axis=2) for batch in batches]
    weights = random_state_dict(comparison, seed=0)
    rows = [
        *compare_forward(comparison, weights, batches[0][:, 0], train=False),
        *compare_forward(comparison, weights, batches[0][:, 0], train=True),
        *compare_training(comparison, weights, batches),
    ]
    for row in rows:
        assert row.relative <= LIMITS.get(row.quantity.split()[0], 1e-6), row


@pytest.mark.parametrize("head", HEADS)
def test_descriptors_and_loss_in_float32(batches, head):
    comparison = narrow(head, dtype="float32")
    weights = random_state_dict(comparison, seed=0)
    pairs = batches[0].astype(np.float32)
    for train in (False, True):
        for row in compare_forward(comparison, weights, pairs[:, 0], train=train):
            assert row.relative <= 1e-5, row
    loss = next(compare_training(comparison, weights, [pairs]))
    assert loss.quantity == "loss"
    assert loss.relative <= 1e-5, loss


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("head", ENCODED)
@pytest.mark.parametrize("s", [1, 3])
def test_other_numbers_of_frequencies(batches, head, s):
    comparison = narrow(head, s)
    weights = random_state_dict(comparison, seed=0)
    for row in compare_forward(comparison, weights, batches[0][:, 0], train=False):
        assert row.relative <= 1e-12, row


@pytest.mark.parametrize(("head", "size"), [*((head, 32) for head in HEADS), ("combined", 64)])
def test_layers_and_descriptors_of_full_width_in_float32(head, size):
    patches = stereo_patch_pairs(PAIRS, size=size)[:, 0].astype(np.float32)
    comparison = Comparison(head=head, patch_size=size)
    weights = random_state_dict(comparison, seed=0)
    rows = [
        row
        for train in (False, True)
        for row in compare_forward(comparison, weights, patches, train=train)
    ]
    assert len(rows) == 2 + {"hardnet": 7, "combined_star": 12}.get(head, 6)
    for row in rows:
        assert row.largest <= 1e-5, row


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
def test_gradients_of_full_width():
    pairs = stereo_patch_pairs(2, size=32).astype(np.float64)
    comparison = Comparison(head="combined_star", dtype="float64")
    for row in compare_training(comparison, random_state_dict(comparison, seed=0), [pairs]):
        assert row.relative <= LIMITS.get(row.quantity.split()[0], 1e-6), row
