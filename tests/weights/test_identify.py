import pytest
from models import make_model

from kjax.errors import InputError
from kjax.model.descriptor import build
from kjax.weights.fields import parse_fields
from kjax.weights.files import save_variables
from kjax.weights.identify import display_name, model_of, only_model, possible_models
from kjax.weights.source import load_source


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ("combined", build("combined")),
        ("polar,s=1,patch_size=64", build("polar", s=1, patch_size=64)),
        ("hardnet,patch_size=16", build("hardnet", patch_size=16)),
    ],
)
def test_named_models(fields, model):
    assert model_of(parse_fields(fields)) == model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("polr", "did you mean 'polar'"),
        ("polar,s", "give the head, then"),
        ("polar,s=-1", "give the head, then"),
        ("polar,kappa_xy=2", "give the head, then"),
        ("polar,s=0", "at least 1"),
        ("polar,patch_size=30", "multiple of 4"),
    ],
)
def test_names_of_no_model(fields, message):
    with pytest.raises(InputError, match=message):
        model_of(parse_fields(fields))


@pytest.mark.parametrize(
    ("head", "s", "names"),
    [
        ("hardnet", 1, ["hardnet N=16"]),
        ("xy", 1, ["xy s=1", "polar s=1"]),
        ("polar", 3, ["xy s=3", "polar s=3"]),
        ("combined", 1, ["combined s=1"]),
        ("combined", 2, ["combined s=2"]),
        ("combined_star", 2, ["combined_star s=2"]),
        ("sum", 1, ["sum", "cat"]),
        ("cat", 1, ["sum", "cat"]),
    ],
)
def test_what_weights_fit(head, s, names, tmp_path):
    _, variables = make_model(head, s=s, patch_size=16)
    assert [display_name(model) for model in possible_models(variables)] == names
    path = tmp_path / "weights.npz"
    save_variables(path, variables)
    for announced in (
        lambda: only_model(possible_models(variables)),
        lambda: load_source(str(path)).model,
    ):
        if len(names) == 1:
            assert display_name(announced()) == names[0]
        else:
            with pytest.raises(InputError, match=r"fits several heads, .* as in weights"):
                announced()


def test_the_advice_given_for_several_heads_works(tmp_path):
    path = tmp_path / "mine.npz"
    save_variables(path, make_model("polar", s=3)[1])
    source = load_source(str(path))
    with pytest.raises(InputError, match=r"as in mine.npz:xy,s=3$"):
        assert source.model
    assert display_name(load_source(f"{path}:xy,s=3").model) == "xy s=3"


def test_a_head_without_bias():
    _, variables = make_model("combined", patch_size=16, head_bias=False)
    assert not only_model(possible_models(variables)).head_bias
