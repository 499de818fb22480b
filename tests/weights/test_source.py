import pytest
from models import make_model
from refusals import assert_refused

from kjax.errors import InputError
from kjax.model.descriptor import as_module, build
from kjax.weights.files import save_variables
from kjax.weights.info import display_name, parse_fields
from kjax.weights.source import facts, load_source, model_of, possible_models

NARROW = (8, 8, 8, 8, 16, 16)


def test_named_models():
    for text, model in (
        ("combined", build("combined")),
        ("polar,s=1,patch_size=64", build("polar", s=1, patch_size=64)),
        ("hardnet,patch_size=16", build("hardnet", patch_size=16)),
        ("polr", "did you mean 'polar'"),
        ("polar,s", "give the head, then"),
        ("polar,s=-1", "give the head, then"),
        ("polar,kappa_xy=2", "give the head, then"),
        ("polar,s=0", "at least 1"),
        ("polar,patch_size=30", "multiple of 4"),
    ):
        if not isinstance(model, str):
            assert as_module(model_of(parse_fields(text))) == model
        else:
            assert_refused(model, lambda words: model_of(parse_fields(words)), text)


@pytest.mark.parametrize(
    ("head", "s", "names"),
    [
        ("hardnet", 1, ["hardnet N=16 c=8-8-8-8-16-16 D=24"]),
        ("xy", 1, ["xy s=1 c=8-8-8-8-16-16 D=24", "polar s=1 c=8-8-8-8-16-16 D=24"]),
        ("polar", 3, ["xy s=3 c=8-8-8-8-16-16 D=24", "polar s=3 c=8-8-8-8-16-16 D=24"]),
        ("combined", 2, ["combined s=2 c=8-8-8-8-16-16 D=24"]),
        ("combined_star", 2, ["combined_star s=2 c=8-8-8-8-16-16 D=24"]),
        ("sum", 1, ["sum", "cat"]),
    ],
)
def test_models_that_weights_fit(head, s, names, tmp_path):
    widths = {} if head == "sum" else {"channels": NARROW, "dimension": 24}
    biased = head != "combined"
    _, variables = make_model(head, s=s, patch_size=16, head_bias=biased, **widths)
    assert [display_name(model) for model in possible_models(variables)] == names
    path = tmp_path / "mine.npz"
    save_variables(path, variables)
    source = load_source(str(path))
    shown = facts([source])["patch size"]
    assert shown == ("16" if head == "hardnet" else "any multiple of 4 (default: 32)")
    if len(names) == 1:
        assert display_name(source.model) == names[0]
        assert source.model.head_bias == biased
        return
    advice = {"sum": "sum"}.get(head, f"xy,s={s}")
    with pytest.raises(InputError, match=rf"fits several heads, .* as in mine.npz:{advice}$"):
        assert source.model
    assert display_name(load_source(f"{path}:{advice}").model) == names[0]
