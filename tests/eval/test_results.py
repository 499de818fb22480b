"""The plain data of an evaluation: to JSON and back."""

import dataclasses
import json

import pytest
from sample_evaluation import descriptor, evaluation, paper_like_evaluation

from kjax.errors import InputError
from kjax.eval.results import Evaluation


@pytest.mark.parametrize(
    "results",
    [
        paper_like_evaluation(),
        evaluation(),
        evaluation(descriptor("ψ <b> | “quoted” \\ \n", missing="no: *weights*")),
    ],
    ids=["full", "empty", "odd names"],
)
def test_json_there_and_back(results):
    text = results.to_json()
    assert Evaluation.from_json(text) == results
    assert json.loads(text) == json.loads(json.dumps(dataclasses.asdict(results)))


def test_names_stay_readable_in_json():
    assert "ψ" in evaluation(descriptor("ψ")).to_json()


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"title": "only"}', '{"colour": "red"}'],
)
def test_anything_else_is_refused_in_one_line(text):
    with pytest.raises(InputError, match="not the results of an evaluation") as error:
        Evaluation.from_json(text)
    assert "\n" not in str(error.value)
