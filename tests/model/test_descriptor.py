import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import ENCODED, make_model, narrow, random_patches
from refusals import assert_refused

import kjax
from kjax.model.descriptor import parameter_count, receptive_field
from kjax.model.layers import BatchNorm, Dropout, initial_kernel
from kjax.model.patches import normalize_patches

BATCH, SIDE = 4, 16  # the same in most tests: single operations are compiled once


def small_model(head, **options):
    """A narrow model, and patches for it."""
    patches = random_patches(np.random.default_rng(1), BATCH, SIDE)
    return *make_model(head, patch_size=SIDE, **narrow(head), **options), patches


PARAMETERS = {  # head, s: count at N=32, count at N=64 (the paper's table)
    ("hardnet", 1): (1_334_560, 4_480_288),
    **{(head, 1): (433_568,) * 2 for head in ("xy", "polar")},
    **{(head, 2): (695_712,) * 2 for head in ("xy", "polar")},
    **{("combined", 1): (581_024,) * 2, ("combined", 2): (1_105_312,) * 2},
    **{("combined_star", 1): (867_008,) * 2, ("combined_star", 2): (1_391_296,) * 2},
    **{(head, 1): (285_984,) * 2 for head in ("sum", "cat")},
}


@pytest.mark.parametrize(("head", "s"), PARAMETERS)
def test_parameter_counts_of_the_paper(head, s):
    assert {head for head, _ in PARAMETERS} == set(kjax.HEADS)
    for patch_size, expected in zip((32, 64), PARAMETERS[head, s], strict=True):
        model = kjax.build(head, s=s, patch_size=patch_size)
        patches = np.zeros((1, patch_size, patch_size), np.float32)
        variables = jax.eval_shape(model.init, jax.random.key(0), patches)
        assert parameter_count(variables) == expected


@pytest.mark.parametrize("head", kjax.HEADS)
def test_descriptors_have_unit_norm_for_any_patch(rng, head):
    model, variables = make_model(head)
    patches = random_patches(rng, BATCH, 32)
    patches[1] = 200  # constant
    patches[2] = 0
    untrained, _ = jax.jit(model.init_with_output)(jax.random.key(0), patches)
    for descriptors in (model.apply(variables, patches), untrained):
        assert descriptors.shape == (BATCH, 8192 if head == "cat" else 128)
        assert descriptors.dtype == jnp.float32
        np.testing.assert_allclose(jnp.linalg.norm(descriptors, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("head", ["hardnet", "combined_star"])
def test_range_dtype_channel_axis_jit_and_vmap_do_not_matter(head):
    model, variables, patches = small_model(head)
    expected = model.apply(variables, patches)
    jitted = jax.jit(model.apply)
    np.testing.assert_allclose(jitted(variables, patches), expected, atol=1e-5)
    jitted(variables, patches[::-1])
    assert jitted._cache_size() == 1
    one_by_one = jax.jit(jax.vmap(model.apply, in_axes=(None, 0)))(variables, patches[:, None])
    np.testing.assert_allclose(one_by_one[:, 0], expected, atol=1e-5)
    floats = patches.astype(np.float32)
    forms = floats, floats / 255, patches.astype(np.float16), patches[..., None]
    for same in (*forms, jnp.asarray(patches)):
        np.testing.assert_allclose(model.apply(variables, same), expected, atol=1e-5)


@pytest.mark.parametrize("head", [*ENCODED, "sum"])
def test_one_set_of_weights_runs_on_every_size(rng, head):
    model, variables, _ = small_model(head)
    for size in (16, 20, 64):
        descriptors = model.apply(variables, random_patches(rng, BATCH, size))
        assert descriptors.shape == (BATCH, 16)


def test_a_wrong_shape_or_dtype_gets_one_clear_error():
    for patches, message in (
        (np.zeros((2, 32, 31)), r"grey squares .* not \[2, 32, 31\]"),
        (np.zeros((32, 32)), r"not \[32, 32\]"),
        (np.zeros((2, 32, 32, 3)), r"not \[2, 32, 32, 3\]"),
        (np.zeros((2, 32, 32), np.int32), "uint8 or floating point, not int32"),
        (np.zeros((2, 32, 32), bool), "not bool"),
        (np.zeros((2, 30, 30)), "multiple of 4 and at least 8, not 30"),
        (np.zeros((2, 4, 4)), "at least 8, not 4"),
        (np.zeros((1, 64, 64)), r"16×16 patches, not 64×64: .* patch_size=64"),
        (np.zeros((3, 16, 16)), "3 patches do not fall into 2 equal views"),
    ):
        model, variables, _ = small_model("hardnet" if "patch_size" in message else "xy")
        options = {"train": True, "views": 2, "mutable": True} if "views" in message else {}
        assert_refused(message, model.apply, variables, patches, **options)


def test_refused_models():
    for options, message in (
        ({"head": "combinde"}, "did you mean 'combined'"),
        ({"head": "xy", "patch_size": 33}, "multiple of 4"),
        ({"head": "xy", "dropout": 1.0}, "dropout"),
        ({"head": "xy", "dtype": "int8"}, "dtype must be"),
        ({"head": "xy", "dtype": "float64"}, "jax_enable_x64"),
        ({"head": "xy", "s": 0}, "at least 1"),
        ({"channels": (8, 8, 16)}, "channels must be 6 numbers from 1 to 1024"),
        ({"channels": (8, 8, 16, 16, 32, 0)}, "channels must be 6 numbers"),
        ({"dimension": 0}, "dimension must be from 1 to 1024, not 0"),
        ({"head": "sum", "dimension": 64}, "the head 'sum' has no projection"),
        ({"head": "cat", "context": (1, 4)}, "the head 'cat' has no projection: omit context"),
        *(
            ({"context": widths}, "up to 4 increasing widths from 1 to 16, such as")
            for widths in ((), (2, 4), (1, 1), (1, 17), (1, 2, 3, 4, 5), (1, float("nan")))
        ),
    ):
        with pytest.raises(ValueError, match=message):
            kjax.build(**options)


@pytest.mark.parametrize("head", ["hardnet", "combined", "sum"])
def test_bfloat16_stays_close_and_keeps_float32_outside(rng, head):
    model, variables = make_model(head, patch_size=SIDE)
    half = kjax.build(head, s=1, dtype="bfloat16", patch_size=SIDE)
    patches = random_patches(rng, 8, SIDE)
    train = functools.partial(half.apply, train=True, mutable=["batch_stats"])
    found, updates = jax.jit(train)(variables, patches, rngs={"dropout": jax.random.key(0)})
    assert found.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype("float32")}
    exact = jax.jit(model.apply)(variables, patches)
    cosine = jnp.sum(jax.jit(half.apply)(variables, patches) * exact, axis=1)
    assert cosine.min() > 0.998
    assert cosine.max() < 1, "nothing was computed in lower precision"
    initial = jax.eval_shape(half.init, jax.random.key(0), patches)
    assert {leaf.dtype for leaf in jax.tree.leaves(initial)} == {jnp.dtype("float32")}


def test_dropout_only_in_training_and_scales_what_it_keeps():
    options = {"train": True, "mutable": ["batch_stats"], "method": "feature_maps"}
    maps = []
    for rate, seed in ((0.0, 0), (0.5, 0), (0.5, 0), (0.5, 1)):
        model, variables, patches = small_model("sum", dropout=rate)
        train = jax.jit(functools.partial(model.apply, **options))
        (found,), _ = train(variables, patches, rngs={"dropout": jax.random.key(seed)})
        maps.append(np.asarray(found))
    whole, dropped, again, other = maps
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], 2 * whole[kept], rtol=1e-6)
    assert 0.4 < kept[whole != 0].mean() < 0.6
    np.testing.assert_array_equal(dropped, again)
    assert not np.allclose(dropped, other)
    np.testing.assert_array_equal(model.apply(variables, patches), model.apply(variables, patches))


def test_normalisation_uses_the_unbiased_deviation_and_has_no_gradient_through_it(rng):
    image = jnp.asarray([[0.0, 1.0], [2.0, 3.0]]).reshape(1, 2, 2, 1)
    expected = (np.arange(4) - 1.5) / np.sqrt(5 / 3)
    np.testing.assert_allclose(normalize_patches(image).ravel(), expected, rtol=1e-6)
    image = jnp.asarray(rng.normal(size=(1, 8, 8, 1)), jnp.float32)
    gradient = jax.grad(lambda x: normalize_patches(x)[0, 2, 3, 0])(image)
    expected = np.zeros((1, 8, 8, 1))
    expected[0, 2, 3, 0] = 1 / (np.std(image, ddof=1) + 1e-7)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_batch_norm_keeps_the_unbiased_variance():
    x = jnp.asarray([[1.0], [2.0], [6.0]])
    norm = BatchNorm()
    variables = norm.init(jax.random.key(0), x, train=False)
    y, updates = norm.apply(variables, x, train=True, mutable=["batch_stats"])
    np.testing.assert_allclose(y.ravel(), (np.array([1, 2, 6]) - 3) / np.sqrt(14 / 3), rtol=1e-5)
    np.testing.assert_allclose(updates["batch_stats"]["mean"], 0.1 * 3, rtol=1e-6)
    np.testing.assert_allclose(updates["batch_stats"]["var"], 0.9 + 0.1 * 7, rtol=1e-6)


def test_batch_norm_over_devices_equals_the_whole_batch(rng):
    x = jnp.asarray(rng.normal(3, 2, (4, 6, 5)), jnp.float32)  # four devices with six rows each
    variables = BatchNorm().init(jax.random.key(0), x[0], train=False)

    def apply(norm, x):
        return norm.apply(variables, x, train=True, mutable=["batch_stats"])

    whole, updates = apply(BatchNorm(), x.reshape(24, 5))
    shards, shard_updates = jax.pmap(lambda x: apply(BatchNorm(axis_name="d"), x), axis_name="d")(x)
    np.testing.assert_allclose(shards.reshape(24, 5), whole, atol=1e-6)
    by_device = jax.tree.map(lambda leaf: np.stack([leaf] * 4), updates)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(close, shard_updates, by_device)


@pytest.mark.parametrize(
    ("head", "dtype", "tolerance"),
    [("hardnet", "float32", 1e-5), ("combined_star", "float32", 1e-5), ("sum", "bfloat16", 1e-2)],
)
def test_views_in_one_batch_equal_batches_one_after_the_other(rng, head, dtype, tolerance):
    options = {"patch_size": SIDE} | narrow(head)
    _, variables = make_model(head, **options)
    model = kjax.build(head, s=1, dropout=0.0, dtype=dtype, **options)
    views = [jnp.asarray(random_patches(rng, 8, SIDE)) for _ in range(2)]

    def describe(variables, patches, count):
        options = {"train": True, "views": count, "mutable": ["batch_stats"]}
        found, updates = model.apply(variables, patches, **options)
        return found, {**variables, **updates}

    together, after = jax.jit(describe, static_argnums=2)(variables, jnp.concatenate(views), 2)
    for i, patches in enumerate(views):
        found, variables = jax.jit(describe, static_argnums=2)(variables, patches, 1)
        np.testing.assert_allclose(together[8 * i : 8 * (i + 1)], found, atol=tolerance)
    for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(variables), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=1e-5)


def test_dropout_differs_between_examples_and_views_and_keeps_its_rate():
    ones = jnp.ones((64, 8, 8, 128))
    dropped = Dropout(0.3).apply({}, ones, train=True, views=2, rngs={"dropout": jax.random.key(0)})
    kept = np.asarray(dropped != 0).reshape(64, -1)
    np.testing.assert_allclose(dropped[dropped != 0], 1 / 0.7, rtol=1e-6)
    assert abs(kept.mean() - 0.7) < 0.003
    agreement = (kept[:, None] == kept[None]).mean(axis=-1)[~np.eye(64, dtype=bool)]
    assert abs(agreement.mean() - (0.7**2 + 0.3**2)) < 0.003
    assert agreement.max() < 0.62  # no two masks alike, nor neighbours within one:
    assert abs((kept[:, 1:] == kept[:, :-1]).mean() - 0.58) < 0.003


def test_dropout_does_not_depend_on_how_the_batch_is_shared():
    ones, rngs = jnp.ones((16, 40)), {"dropout": jax.random.key(3)}
    whole = Dropout(0.5).apply({}, ones, train=True, views=2, rngs=rngs)
    by_device = ones.reshape(2, 4, 2, 40).swapaxes(0, 1).reshape(4, 4, 40)
    drop = functools.partial(Dropout(0.5, "d").apply, {}, train=True, views=2, rngs=rngs)
    shards = jax.pmap(drop, axis_name="d")(by_device)
    found = shards.reshape(4, 2, 2, 40).swapaxes(0, 1).reshape(16, 40)
    np.testing.assert_array_equal(found, whole)


def test_receptive_field_by_its_gradient():
    """The pixels that move φ at a position are those that `receptive_field` names."""
    model, variables = make_model("sum", patch_size=64, **narrow("sum"))
    trunk_input = jnp.asarray(np.random.default_rng(0).normal(size=(1, 64, 64, 1)), jnp.float32)

    def response(image, row, column):
        bound = model.bind(variables)
        return bound.trunk(image)[0, row, column].sum()

    gradient = jax.jit(jax.grad(response))
    for row, column in [(8, 8), (8, 5), (0, 15)]:
        touched = np.argwhere(np.asarray(gradient(trunk_input, row, column))[0, :, :, 0])
        top, bottom, left, right = np.clip(receptive_field(row, column), 0, 64)
        np.testing.assert_array_equal(touched.min(axis=0), (top, left))
        np.testing.assert_array_equal(touched.max(axis=0) + 1, (bottom, right))


@pytest.mark.parametrize(("head", "rows"), [("hardnet", 16), ("combined", 2 * 9 * 16)])
def test_widths_are_those_of_the_arrays(head, rows):
    model, variables, patches = small_model(head)
    kernels = [variables["params"]["trunk"][f"conv{i}"]["kernel"] for i in range(1, 7)]
    assert tuple(kernel.shape[-1] for kernel in kernels) == narrow(head)["channels"]
    assert variables["params"]["head"]["kernel"].shape[-2:] == (rows, 16)
    assert model.apply(variables, patches).shape == (BATCH, 16)


def test_context_is_one_network_for_all_patches_and_one_matrix(rng):
    head = "combined_star"
    assert kjax.build(head, context=(1,)) == kjax.build(head), "nothing changes"
    options = {"patch_size": SIDE, "channels": narrow(head)["channels"], "dropout": 0.0}
    model, variables = make_model(head, context=(1, 2, 4), dimension=24, **options)
    others = dict(variables["params"])
    kernel = others.pop("context")["kernel"]
    assert kernel.shape == (3 * 128, 24)
    patches = random_patches(rng, 3 * BATCH, SIDE).reshape(BATCH, 3, SIDE, SIDE)
    one_patch = kjax.build(head, s=1, **options)
    parts = [one_patch.apply({**variables, "params": others}, patches[:, i]) for i in range(3)]
    joined = np.concatenate(parts, axis=1) @ kernel
    found = model.apply(variables, patches, normalize=False)
    np.testing.assert_allclose(found, joined, atol=1e-5, rtol=0)
    unit = joined / np.linalg.norm(joined, axis=1, keepdims=True)
    np.testing.assert_allclose(model.apply(variables, patches), unit, atol=1e-5)
    train = functools.partial(model.apply, variables, train=True, mutable=["batch_stats"])
    both, _ = train(patches, views=2)
    halves = [train(half)[0] for half in np.split(patches, 2)]
    np.testing.assert_allclose(both, np.concatenate(halves), atol=1e-5)
    initial = jax.jit(model.init)(jax.random.key(0), patches)["params"]["context"]["kernel"]
    np.testing.assert_allclose(initial.T @ initial, np.eye(24), atol=1e-5)
    for wrong in (patches[:, 0], patches[:, :2], patches[:2, 0][..., None]):
        message = r"of shape \[B,3,N,N\], 3 concentric ones per"
        assert_refused(message, model.apply, variables, wrong)
    assert_refused("3 patches do not fall into 2 equal views", train, patches[:3], views=2)


@pytest.mark.parametrize("shape", [(3, 3, 1, 32), (3, 3, 32, 64), (40, 8), (8, 40), (16, 16)])
def test_initial_weights_are_those_of_a_general_qr_with_gain_0_6(shape):
    key = jax.random.key(3)
    kernel = initial_kernel(key, shape)
    general = jax.nn.initializers.orthogonal(scale=0.6)(key, shape, jnp.float32)
    np.testing.assert_allclose(kernel, general, atol=2e-5)
    matrix = np.asarray(kernel).reshape(-1, shape[-1])
    short = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    np.testing.assert_allclose(short.T @ short, 0.36 * np.eye(short.shape[1]), atol=2e-6)


def test_initial_parameters_of_a_model():
    model, _, patches = small_model("xy")
    params = jax.jit(model.init)(jax.random.key(0), patches)["params"]
    for layer in (params["trunk"]["conv4"], params["head"]):
        matrix = np.asarray(layer["kernel"]).reshape(-1, layer["kernel"].shape[-1])
        np.testing.assert_allclose(matrix.T @ matrix, 0.36 * np.eye(matrix.shape[1]), atol=1e-5)
    np.testing.assert_allclose(params["head"]["bias"], 0.01)


@pytest.mark.parametrize("s", [1, 2])
@pytest.mark.parametrize("head", kjax.HEADS)
def test_encodings_add_up_to_the_descriptor_and_similarities_to_the_inner_product(head, s):
    model, variables, patches = small_model(head, s=s)
    encodings = model.apply(variables, patches[:2], method="local_encodings")
    expected = model.apply(variables, patches[:2], method="unnormalized")
    largest = float(abs(expected).max())
    np.testing.assert_allclose(encodings.sum(axis=1), expected, atol=1e-5 * largest)
    psi_a, psi_b = np.asarray(expected, np.float64)
    table = encodings[0] @ encodings[1].T
    assert table.shape == (16, 16)
    scale = np.linalg.norm(psi_a) * np.linalg.norm(psi_b)
    assert float(table.sum()) == pytest.approx(psi_a @ psi_b, abs=1e-5 * scale)


def test_hardnet_encodings_are_the_blocks_of_the_fully_connected_layer():
    model, variables, patches = small_model("hardnet")
    (phi,) = model.apply(variables, patches, method="feature_maps")
    encodings = model.apply(variables, patches, method="local_encodings")
    kernel = np.asarray(variables["params"]["head"]["kernel"])
    expected = np.asarray(phi)[0, 3, 1] @ kernel[3, 1]
    np.testing.assert_allclose(encodings[0, 3 * 4 + 1], expected, atol=1e-5)


def test_centre_weights_are_left_out_on_request():
    model, variables, patches = small_model("polar", head_bias=False)
    weighted, plain = (
        model.apply(variables, patches, weighted=weighted, method="local_encodings")
        for weighted in (True, False)
    )
    np.testing.assert_allclose(weighted[0, 0], np.exp(-1) * plain[0, 0], rtol=1e-4)
