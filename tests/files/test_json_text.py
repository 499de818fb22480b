import pytest

from kjax.errors import InputError
from kjax.eval.results import Evaluation
from kjax.files.json_text import DEEPEST, parse_json
from kjax.runs.workdir import stored_config

BAD = ["[" * 100_000, '{"a":' * 100_000, "[" * 900 + "]" * 900, "", "{", "[1,]"]


def test_plain_values():
    assert parse_json('{"a": [1, 2.5, null, "é"]}') == {"a": [1, 2.5, None, "é"]}
    assert parse_json('{"é": 1}'.encode()) == {"é": 1}
    assert parse_json("[" * DEEPEST + "]" * DEEPEST)


@pytest.mark.parametrize("text", [*BAD, b'{"a": "\xc3"}', b"\xff\xff", "[" * 66 + "]" * 66])
def test_what_cannot_be_parsed_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


@pytest.mark.parametrize("text", BAD)
def test_readers_of_json_tell_it(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json is damaged"):
        stored_config(tmp_path)
    with pytest.raises(InputError, match="not the results of an evaluation"):
        Evaluation.from_json(text)


def test_results_of_another_kind_are_refused():
    fields = {"title": 3, "command": "", "created": "", "versions": {}, "descriptors": []}
    import json

    with pytest.raises(InputError, match="not the results of an evaluation: 3 is not"):
        Evaluation.from_json(json.dumps(fields))
