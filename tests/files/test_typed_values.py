import dataclasses
from typing import Any

from refusals import assert_refused

from kjax.files.typed_values import Schema


@dataclasses.dataclass(frozen=True)
class Leg:
    length: float
    joints: tuple[int, int]
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class Animal:
    legs: list[Leg]
    tail: Leg
    sounds: dict[str, float | str]
    wild: bool
    rest: Any = None
    toes: list[int] = dataclasses.field(default_factory=list)


SCHEMA = Schema(Animal, "animal")
LEG = {"length": 2, "joints": [1, 2]}
VALUES = {"legs": [LEG], "tail": LEG, "sounds": {"loud": 3, "like": "moo"}, "wild": False}


def test_values_become_what_is_declared():
    animal = SCHEMA.read(VALUES | {"rest": [None, {}]})
    leg = Leg(2.0, (1, 2))
    assert animal == Animal([leg], leg, {"loud": 3.0, "like": "moo"}, False, [None, {}])
    assert isinstance(animal.tail.length, float)
    assert SCHEMA.read(dataclasses.asdict(animal)) == animal


def test_what_does_not_fit_is_named():
    for changes, message in (
        ({"wild": 1}, "wild must be True or False, not 1"),
        ({"toes": [True]}, "toes must be a whole number, not True"),
        ({"toes": 3}, "toes must be a list, not 3"),
        ({"sounds": []}, "sounds must be an object, not []"),
        ({"sounds": {"loud": None}}, "sounds must be a number or text, not None"),
        ({"tail": None}, "tail must be a group of fields, not None"),
        ({"tail": LEG | {"joints": [1]}}, "tail.joints needs 2 values, not [1]"),
        ({"tail": LEG | {"joints": 1}}, "tail.joints must be a tuple, not 1"),
        ({"tail": LEG | {"name": 1}}, "tail.name must be text, not 1"),
        ({"tail": {"length": 1}}, "the animal lacks tail.joints"),
        ({"tail": LEG | {"length": 10**400}}, f"tail.length must be a number, not {10**79}…"),
        ({"legs": [LEG | {"lenght": 1}]}, "'legs.lenght': did you mean 'legs.length'?"),
        ({"tial": 1}, "unknown animal field 'tial': did you mean 'tail'?"),
        *((odd, "the animal must be a group of fields, not ") for odd in (None, 3, [], "text")),
    ):
        values = VALUES | changes if isinstance(changes, dict) else changes
        assert message in assert_refused("", SCHEMA.read, values)
