"""JSON from anyone: whole texts, and files of one object a line.

A damaged line costs itself, never the lines around it.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kjax.errors import one_line

T = TypeVar("T")


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text; all errors are ValueErrors."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


def read_lines(path: Path, parse: Callable[[Any], T], *, what: str) -> list[T]:
    """Read a file of JSON lines; damaged lines are reported on stderr and skipped.

    `parse` converts the JSON value of a line, which should be `what`, e.g. "a record". A missing
    file has no lines.
    """
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n") if path.exists() else [], 1):
        if not line.strip():
            continue
        try:
            found.append(parse_line(line, parse))
        except ValueError as error:
            print(f"{path}, line {number} is not {what} and is skipped: {error}", file=sys.stderr)
    return found


def parse_line(line: bytes, parse: Callable[[Any], T]) -> T:
    """Parse one line; if it is damaged, raise a ValueError with a one-line message."""
    try:
        return parse(parse_json(line.decode("utf-8")))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(one_line(error)) from None


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number that a float can hold."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def append_line(path: Path, content: Mapping[str, Any], parse: Callable[[Any], Any]) -> None:
    """Append a line and fsync it.

    An incomplete last line, as a kill leaves it, is removed if `parse` refuses it.
    """
    with path.open("a+b") as file:
        file.seek(0)
        before = file.read()
        begin = before.rfind(b"\n") + 1
        if begin < len(before):
            try:
                parse_line(before[begin:], parse)
                file.write(b"\n")
            except ValueError:
                file.truncate(begin)
        file.write(json.dumps(content, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
