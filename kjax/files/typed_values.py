"""Dataclasses made from JSON-like values, with the names and types of their fields checked."""

import contextlib
import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from kjax.errors import InputError, unknown_name

T = TypeVar("T")
_IN_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    dict: "an object",
    list: "a list",
    tuple: "a tuple",
}
_LONGEST_QUOTE = 80


@dataclasses.dataclass(frozen=True)
class Schema(Generic[T]):
    """A dataclass, perhaps of further dataclasses, to be read from values, and words about it.

    Attributes:
        kind: the dataclass.
        name: what one of them is called, e.g. "config".
        wrong: the message about a field's value, from its {path}, what it {must} be, and {value}.
        remedy: what to do where fields are missing.
    """

    kind: type[T]
    name: str
    wrong: str = "{path} {must}, not {value}"
    remedy: str = ""

    def read(self, values: Any) -> T:
        """The dataclass that the values stand for; fields with a default may be absent.

        Raises:
            InputError: a field is unknown, missing or of another type. The message is about the
                first such field, and suggests the nearest name.
        """
        return self._dataclass(self.kind, values, "")

    @functools.cached_property
    def types(self) -> dict[str, Any]:
        """The declared types of all fields, also of inner dataclasses, by their dotted path."""
        return dict(_walk(self.kind, ""))

    @functools.cached_property
    def groups(self) -> dict[str, list[str]]:
        """The fields' names in each dataclass, by its dotted path; the outermost has none."""
        groups: dict[str, list[str]] = {}
        for path in self.types:
            group, _, name = path.rpartition(".")
            groups.setdefault(group, []).append(name)
        return groups

    def optional(self) -> dict[str, Any]:
        """Default values of the fields that have one and hold no fields, by their dotted path."""
        kinds = {"": self.kind} | self.types
        return {
            _join(group, name): default
            for group in self.groups
            for name, default in _defaults(_inner_dataclass(kinds[group])).items()
            if _join(group, name) not in self.groups
        }

    def unknown(self, path: str) -> InputError:
        """The error about a field that does not exist.

        It suggests the nearest name in the same dataclass, or the same name in another.
        """
        group, _, name = path.rpartition(".")
        if group not in self.groups:
            return unknown_name(f"{self.name} group", group, filter(None, self.groups))
        siblings = [_join(group, sibling) for sibling in self.groups[group]]
        elsewhere = [p for p in self.types if p.endswith(f".{name}") and p not in self.groups]
        if elsewhere and not difflib.get_close_matches(path, siblings, n=1):
            siblings = elsewhere
        return unknown_name(f"{self.name} field", path, siblings)

    def wrong_type(self, path: str, value: Any) -> InputError:
        """The error about a value that is not of its field's type."""
        return self._misfit(path, f"must be {_in_words(self.types[path])}", value)

    def _dataclass(self, kind: Any, values: Any, path: str) -> Any:
        if not isinstance(values, Mapping):
            raise self._misfit(path, "must be a group of fields", values)
        hints = _field_types(kind)
        for name in values:
            if name not in hints:
                raise self.unknown(_join(path, name))
        needed = [name for name in hints if name not in values and name not in _defaults(kind)]
        if needed:
            lacking = ", ".join(_join(path, name) for name in needed)
            raise InputError(f"the {self.name} lacks {lacking}{self.remedy}")
        return kind(**{n: self._typed(hints[n], v, _join(path, n)) for n, v in values.items()})

    def _typed(self, hint: Any, value: Any, path: str) -> Any:
        """The value as what is declared; whole numbers pass for floating ones, lists for tuples."""
        origin, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
        if dataclasses.is_dataclass(hint):
            return self._dataclass(hint, value, path)
        if origin is types.UnionType:
            return self._one_of(hint, value, path)
        if origin in (list, tuple) and isinstance(value, list | tuple):
            if origin is list or inner[1:] == (...,):
                inner = inner[:1] * len(value)
            if len(inner) != len(value):
                raise self._misfit(path, f"needs {len(inner)} values", value)
            # Curves have thousands of numbers: what needs no thought is passed over quickly.
            return origin(
                one if type(one) is kind else self._typed(kind, one, path)
                for kind, one in zip(inner, value, strict=True)
            )
        if origin is dict and isinstance(value, dict):
            return {name: self._typed(inner[1], one, path) for name, one in value.items()}
        return self._plain(origin, value, path)

    def _one_of(self, hint: Any, value: Any, path: str) -> Any:
        for kind in typing.get_args(hint):
            with contextlib.suppress(InputError):
                return self._typed(kind, value, path)
        raise self._misfit(path, f"must be {_in_words(hint)}", value)

    def _plain(self, kind: Any, value: Any, path: str) -> Any:
        if kind is Any or (kind is types.NoneType and value is None):
            return value
        accepted = (int, float) if kind is float else kind
        if isinstance(value, accepted) and (kind is bool or not isinstance(value, bool)):
            with contextlib.suppress(OverflowError):  # a whole number of hundreds of digits
                return kind(value)
        raise self._misfit(path, f"must be {_in_words(kind)}", value)

    def _misfit(self, path: str, must: str, value: Any) -> InputError:
        quote = repr(value)
        if len(quote) > _LONGEST_QUOTE:
            quote = f"{quote[:_LONGEST_QUOTE]}…"
        if not path:
            return InputError(f"the {self.name} {must}, not {quote}")
        return InputError(self.wrong.format(path=path, must=must, value=quote))


def _walk(kind: Any, group: str) -> Iterator[tuple[str, Any]]:
    """Paths and types of a dataclass's fields, each followed by those within it."""
    for name, hint in _field_types(kind).items():
        yield _join(group, name), hint
        if inner := _inner_dataclass(hint):
            yield from _walk(inner, _join(group, name))


def _inner_dataclass(hint: Any) -> Any:
    """The dataclass that a type is, or is a list of; else None."""
    if typing.get_origin(hint) is list:
        (hint,) = typing.get_args(hint)
    return hint if dataclasses.is_dataclass(hint) else None


@functools.cache
def _field_types(kind: Any) -> dict[str, Any]:
    declared = typing.get_type_hints(kind)
    return {field.name: declared[field.name] for field in dataclasses.fields(kind)}


@functools.cache
def _defaults(kind: Any) -> dict[str, Any]:
    blank = dataclasses.MISSING
    return {
        field.name: field.default if field.default_factory is blank else field.default_factory()
        for field in dataclasses.fields(kind)
        if field.default is not blank or field.default_factory is not blank
    }


def _in_words(hint: Any) -> str:
    """What a value of a type is called; that it may be None goes without saying."""
    if typing.get_origin(hint) is types.UnionType:
        kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return " or ".join(_in_words(kind) for kind in kinds)
    return _IN_WORDS.get(typing.get_origin(hint) or hint, "a group of fields")


def _join(group: str, name: str) -> str:
    return f"{group}.{name}" if group else name
