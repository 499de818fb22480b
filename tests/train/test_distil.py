import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import make_model, narrow
from programs import NARROW, synthetic_set
from refusals import assert_refused

import kjax
from kjax.model.aggregation import l2_normalize
from kjax.model.folding import fold
from kjax.runs.config import DistillConfig, LossConfig, ModelConfig
from kjax.train.distil import Teacher, distillation_loss, load_start, load_teacher
from kjax.train.losses import nested_pair_loss, pair_loss
from kjax.weights.files import save_variables
from kjax.weights.info import ModelInfo, fields_of
from kjax.weights.source import run_info


def unit_rows(rng, count=6, dim=8):
    return l2_normalize(jnp.asarray(rng.normal(size=(count, dim)), jnp.float32))


def test_descriptors_are_matched_by_their_squared_distance(rng):
    student, teacher = [tuple(unit_rows(rng) for _ in range(2)) for _ in range(2)]
    expected = [
        np.square(np.asarray(own) - np.asarray(other)).sum(axis=1)
        for own, other in zip(student, teacher, strict=True)
    ]
    found = distillation_loss(student, teacher, "descriptors")
    np.testing.assert_allclose(found, np.mean(expected, axis=0), rtol=1e-5)


def test_distances_do_not_see_a_turned_space(rng):
    student = unit_rows(rng), unit_rows(rng)
    turn = jnp.asarray(np.linalg.qr(rng.normal(size=(8, 8)))[0], jnp.float32)
    turned = tuple(view @ turn for view in student)
    assert distillation_loss(student, turned, "distances").max() < 1e-10
    assert distillation_loss(student, turned, "descriptors").min() > 0.1
    assert distillation_loss(student, student[::-1], "distances").min() > 1e-3


def test_nested_losses_are_a_weighted_mean(rng):
    raw = [3 * unit_rows(rng) for _ in range(2)]
    plain = LossConfig(name="hynet", norm_weight=0.5)

    def loss(width):
        parts = [view[:, :width] for view in raw]
        normalized = (l2_normalize(part) for part in parts)
        return pair_loss(*normalized, plain, unnormalized=tuple(parts))

    nested = dataclasses.replace(plain, nested=(2, 4), nested_weight=0.25)
    found, alone, (whole, two, four) = jax.jit(
        lambda: (
            nested_pair_loss(*raw, nested),
            nested_pair_loss(*raw, plain),
            [loss(width) for width in (8, 2, 4)],
        )
    )()
    expected = (whole.loss + 0.25 * (two.loss + four.loss)) / 1.5
    np.testing.assert_allclose(found.loss, expected, rtol=1e-6)
    np.testing.assert_array_equal(found.negative, whole.negative)
    np.testing.assert_array_equal(alone.loss, whole.loss)


@pytest.mark.parametrize("head", ["hardnet", "polar", "sum"])
def test_an_ordered_teacher_has_the_same_distances(head):
    options = NARROW if head == "sum" else NARROW | {"dimension": 16}
    teacher = Teacher(*fold(*make_model(head, **options)))
    patches = synthetic_set().patches
    ordered = teacher.ordered(patches)
    small = jnp.asarray(patches[:, ::8, ::8], jnp.float32).reshape(-1, 2, 8, 8)

    @jax.jit
    def describe(variables):
        return jnp.concatenate(dataclasses.replace(teacher, variables=variables).describe(small))

    before, after = (describe(one.variables) for one in (teacher, ordered))
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-5)
    first, later = (float(jnp.square(rows[:, :4]).sum(axis=1).mean()) for rows in (before, after))
    assert later > first + 0.05 if head != "sum" else later == first


def test_teachers_that_cannot_teach():
    student, size = kjax.build("xy", patch_size=16), "patches of 32 pixels, the model 16"
    for teacher, message in (("bset", "did you mean 'best'"), ("best", size)):
        assert_refused(message, load_teacher, DistillConfig(teacher=teacher), student)


def test_a_weights_file_teaches_as_the_model_it_describes(tmp_path):
    bare, described = tmp_path / "bare.npz", tmp_path / "described.safetensors"
    model, variables = make_model("combined", kappa_rho=3.0, **narrow("combined"))
    save_variables(bare, variables)
    save_variables(described, variables, info=ModelInfo(model=fields_of(model)))
    student = kjax.build("xy")
    alone = DistillConfig(teacher=str(bare))
    assert_refused(r"use config\.distill\.match=distances", load_teacher, alone, student)
    for path, kappa in ((bare, 8.0), (described, 3.0)):
        found = load_teacher(DistillConfig(teacher=str(path), match="distances"), student)
        assert (found.model.head, found.model.folded) == ("combined", True)
        assert found.model.position_kernel.kappa_rho == kappa


def model_config(**changes) -> ModelConfig:
    return ModelConfig(**kjax.weights.shipped.card("best").model | changes)


def test_the_sets_of_the_start_count_as_trained_on():
    card = kjax.weights.shipped.card("best")
    config = {"init": "kjax-best", "augment": {"area": (0.5, 1.0)}, "loss": {}}
    config["data"] = {"train": ["sets/mine"]}
    assert run_info(config).train_sets == (*card.train_sets, "mine")


def test_bare_weights_start_any_model_that_they_fit(tmp_path):
    path = tmp_path / "weights.npz"
    kjax.save_variables(path, make_model("polar", s=1)[1])
    for head in ("xy", "polar"):
        config = model_config(head=head, s=1, patch_size=64, kappa_xy=3.0)
        assert load_start(str(path), config) is not None
    message = r'with s 1: set --config.model.s="1"$'
    assert_refused(message, load_start, str(path), model_config(head="polar"))


def test_weights_of_another_model_are_refused():
    for changes, message in (
        ({"head": "polar"}, r'with head combined_star: set --config.model.head="combined_star"$'),
        ({"s": 1}, "with s 2: set"),
        ({"patch_size": 64}, "with patch_size 32: set"),
        ({"kappa_rho": 3.0}, "with kappa_rho 8.0: set"),
        ({"head_bias": False}, "with head_bias True: set"),
        ({"channels": (8, 8, 16, 16, 32, 32), "dimension": 64}, r"channels \(32.*, dimension 128:"),
    ):
        assert_refused(message, load_start, "best", model_config(**changes))


def test_precision_and_dropout_may_differ():
    assert load_start("best", model_config(dtype="float32", dropout=0.0)) is not None
    assert load_start("", model_config()) is None
    assert load_teacher(DistillConfig(), kjax.build("xy")) is None
    assert_refused("did you mean 'best'", load_start, "bset", model_config())
