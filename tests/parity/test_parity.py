"""JAX equals PyTorch: every head, both patch sizes, forward, loss, gradients and training."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("skimage")

import torch
from models import ENCODED

from kjax.data.embedded import stereo_patch_pairs
from kjax.parity import torch_reference
from kjax.parity.compare import (
    Comparison,
    compare_descriptors,
    compare_gradients,
    compare_layers,
    compare_training,
    random_state_dict,
)
from kjax.runs.config import LossConfig
from kjax.train.step import StepConfig

CONFIGURATIONS = [
    ("hardnet", 1),
    *[(head, s) for head in ENCODED for s in (1, 2)],
    ("sum", 1),
    ("cat", 1),
]
STEPS, PAIRS = 20, 3
NARROW = (4, 4, 8, 8, 16, 16)


@pytest.fixture(scope="module", params=[32, 64])
def batches(request):
    pairs = stereo_patch_pairs(STEPS * PAIRS, size=request.param)
    return np.split(pairs.astype(np.float32), STEPS)


def make_settings(head, s, batches, **options):
    return Comparison(head=head, s=s, patch_size=batches[0].shape[-1], steps=STEPS, **options)


@pytest.mark.parametrize(("head", "s"), CONFIGURATIONS)
def test_forward_and_training_in_float32(batches, head, s, request):
    """A small learning rate: at the paper's, rounding grows a millionfold in 20 steps.

    What the small rate hides in the parameters, the running statistics and losses show, and the
    test in float64 below. A biased variance moves the statistics by 1e-3 in the five steps.
    """
    settings = make_settings(head, s, batches, learning_rate=1e-4)
    weights = random_state_dict(settings, seed=0)
    for train in (False, True):
        row = compare_descriptors(settings, weights, batches[0][:, 0], train=train)
        assert row.largest <= 1e-5, row
    if settings.patch_size == 64 and s == 1 and head in ENCODED:
        return  # the encoding is as above, and the step that of s=2 here and of s=1 at 32
    if settings.patch_size == 64 and head == "hardnet":
        request.getfixturevalue("optimized")  # its steps take longer than compiling
    check_gradients(settings, weights, batches)
    if settings.patch_size == 64 and (head, s) != ("combined", 2):
        # What a step makes of the gradients depends on neither head nor size, but for the
        # BatchNorms, which all heads have: one head shows it for this size, and takes long enough.
        return
    for row in compare_training(settings, weights, batches[:5]):
        assert row.relative <= 2e-4, row


def check_gradients(settings, weights, batches):
    """One batch agrees to 1e-4, and those before it to that and what their kinks explain.

    A ReLU whose input is within rounding of zero may be open on one side and shut on the other, and
    then the gradients differ by its share. Of some million inputs a few are as near, and which of
    them cross depends on the machine: that happens in about every third batch, a mistake in all.
    HardNet's last BatchNorm, over the descriptors of a batch, is ill-conditioned for a handful of
    them, so it gets larger batches.
    """
    pairs = np.concatenate(batches)
    size = 4 if settings.head == "hardnet" else 3
    for start in range(0, 12 * size, size):
        batch = pairs[start : start + size]
        loss, *gradients = compare_gradients(settings, weights, batch)
        assert loss.largest <= 1e-5, loss
        if max(row.relative for row in gradients) <= 1e-4:
            return
        allowed = kink_allowance(settings, weights, batch)
        for row in gradients:
            assert row.relative <= 1e-4 + allowed[row.quantity], (row, allowed)
    pytest.fail("no batch of twelve agrees to 1e-4")


# A sum of K products, added one after the other, is rounded by about eps · √(K / 24) of its size
# (K roundings of partial sums that grow like a random walk). Layer after layer these add up to
# eps · √(Σ K / 24), with K = 9, 288, 288, 576, 576 and 1152 products; eight times that is all but
# certain to be larger. BatchNorm makes the size of what a ReLU sees one.
CROSSED_BY_ROUNDING = 8 * 2.0**-23 * ((9 + 2 * 288 + 2 * 576 + 1152) / 24) ** 0.5


def kink_allowance(settings, weights, batch):
    """By gradient: how far it moves, in float64, when all ReLUs near zero are shut or all open.

    Twice that, because part of them may cross, in JAX and in PyTorch, and effects may cancel.
    """
    exact = torch_gradients(settings, weights, batch)
    allowed = dict.fromkeys(exact, 0.0)
    for side in (False, True):
        moved = torch_gradients(settings, weights, batch, all_open=side)
        for name, gradient in moved.items():
            change = np.linalg.norm(gradient - exact[name]) / np.linalg.norm(exact[name])
            allowed[name] += 2 * change
    return allowed


def torch_gradients(settings, weights, batch, *, all_open=None):
    """In float64, by name; if asked, with all ReLUs near zero open, or all shut."""
    model = dataclasses.replace(settings, dtype="float64").torch_model(weights).train()

    def set_kinks(module, inputs, output):
        x = inputs[0].detach()
        near = x.abs() < CROSSED_BY_ROUNDING
        return inputs[0] * torch.where(near, float(all_open), (x > 0).double())

    for module in model.modules():
        if isinstance(module, torch.nn.ReLU) and all_open is not None:
            module.register_forward_hook(set_kinks)
    rules = settings.step
    torch_reference.batch_loss(
        model,
        batch.astype(np.float64),
        anchor_swap=rules.loss.anchor_swap,
        joint_batch_norm=rules.joint_batch_norm,
    ).backward()
    return {f"gradient {name}": p.grad.numpy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("head", ["hardnet", "combined_star"])
def test_every_layer(head):
    batch = stereo_patch_pairs(4, size=32)[:, 0].astype(np.float32)
    settings = Comparison(head=head)
    rows = list(compare_layers(settings, random_state_dict(settings, seed=0), batch))
    assert len(rows) == {"hardnet": 7, "combined_star": 12}[head]
    for row in rows:
        assert row.largest <= 1e-5, row


@pytest.mark.parametrize(("head", "s"), [("hardnet", 1), ("polar", 2), ("combined_star", 2)])
@pytest.mark.usefixtures("double_precision")
def test_training_at_the_papers_learning_rate_in_float64(head, s):
    """20 steps at learning rate 10, with both mining rules and both BatchNorm rules among them.

    Narrow, on 16×16 patches: 64-bit convolutions are slow, and above they had the paper's widths.
    """
    batches = np.split(stereo_patch_pairs(STEPS * PAIRS, size=16).astype(np.float64), STEPS)
    step = StepConfig(loss=LossConfig(anchor_swap=s == 2), joint_batch_norm=head == "polar")
    options = {"dtype": "float64", "learning_rate": 10.0, "step": step, "channels": NARROW}
    settings = make_settings(head, s, batches, **options)
    weights = random_state_dict(settings, seed=0)
    for row in compare_gradients(settings, weights, batches[0]):
        assert row.relative <= 1e-9, row
    for row in compare_training(settings, weights, batches):
        assert row.relative <= 1e-6, row
