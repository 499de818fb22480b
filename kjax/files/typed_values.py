"""Dataclasses from JSON-like values, with the names and types of their fields checked."""

import contextlib
import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from kjax.errors import InputError, unknown_name

T = TypeVar("T")
_IN_WORDS: dict[Any, str] = {
    **{int: "a whole number", float: "a number", bool: "True or False", str: "text"},
    **{dict: "an object", list: "a list", tuple: "a tuple"},
}


@dataclasses.dataclass(frozen=True)
class Schema(Generic[T]):
    """A dataclass to be read from values, with its name in messages; it may hold others.

    `wrong` is the template of messages about a value.
    """

    kind: type[T]
    name: str
    wrong: str = "{path} {must}, not {value}"

    def read(self, values: Any) -> T:
        """Return the dataclass, or raise an InputError about the first wrong field."""
        return self._read_fields(self.kind, values, "")

    def _read_fields(self, kind: Any, values: Any, path: str) -> Any:
        if not isinstance(values, Mapping):
            raise self._error(path, "must be a group of fields", values)
        hints, prefix = typing.get_type_hints(kind), f"{path}." if path else ""
        fields = {field.name: field for field in dataclasses.fields(kind)}
        for name in values:
            if name not in fields:
                known = [f"{prefix}{own}" for own in fields]
                raise unknown_name(f"{self.name} field", f"{prefix}{name}", known)
        for name, field in fields.items():
            # Without a default, both are dataclasses.MISSING.
            if name not in values and field.default is field.default_factory:
                raise InputError(f"the {self.name} lacks {prefix}{name}")
        return kind(**{n: self._read(hints[n], v, f"{prefix}{n}") for n, v in values.items()})

    def _read(self, hint: Any, value: Any, path: str) -> Any:
        """Return the value as declared; integers pass for floats, lists for tuples."""
        origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
        if dataclasses.is_dataclass(hint):
            return self._read_fields(hint, value, path)
        if origin is Any or (origin is types.NoneType and value is None):
            return value
        if origin is types.UnionType:
            for kind in inner:
                with contextlib.suppress(InputError):
                    return self._read(kind, value, path)
        elif origin in (list, tuple) and isinstance(value, list | tuple):
            if origin is list or inner[1:] == (...,):
                inner = inner[:1] * len(value)
            if len(inner) != len(value):
                raise self._error(path, f"needs {len(inner)} values", value)
            return origin(  # curves have thousands of numbers, most of the right type
                one if type(one) is kind else self._read(kind, one, path)
                for kind, one in zip(inner, value, strict=True)
            )
        elif origin is dict and isinstance(value, dict):
            return {name: self._read(inner[1], one, path) for name, one in value.items()}
        elif isinstance(value, int | float if origin is float else origin) and (
            origin is bool or not isinstance(value, bool)
        ):
            with contextlib.suppress(OverflowError):  # an integer of hundreds of digits
                return origin(value)
        raise self._error(path, f"must be {_in_words(hint)}", value)

    def _error(self, path: str, must: str, value: Any) -> InputError:
        quote = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}…"
        wrong = self.wrong if path else f"the {self.name} {{must}}, not {{value}}"
        return InputError(wrong.format(path=path, must=must, value=quote))


def _in_words(hint: Any) -> str:
    """Describe a type; that a value may be None goes without saying."""
    if typing.get_origin(hint) is types.UnionType:
        kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return " or ".join(_in_words(kind) for kind in kinds)
    return _IN_WORDS.get(typing.get_origin(hint) or hint, "a group of fields")
