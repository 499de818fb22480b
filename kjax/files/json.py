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

    Args:
        path: a missing file has no lines.
        parse: converts the JSON value of a line, or raises an error that wrong types lead to.
        what: what a line should be, e.g. "a record".
    """
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
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
        reason = "it is not UTF-8"
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = one_line(error)
    raise ValueError(reason)


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number that a float can hold."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def append_line(path: Path, content: Mapping[str, Any], parse: Callable[[Any], Any]) -> None:
    """Append a line and fsync it; an incomplete last line, which `parse` refuses, is removed."""
    end_last_line(path, parse)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(content, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def end_last_line(path: Path, parse: Callable[[Any], Any]) -> None:
    """Remove an incomplete last line, as a kill leaves it, or add the newline it lacks."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        content = file.read()
        begin = content.rfind(b"\n") + 1
        if begin == len(content):
            return
        try:
            parse_line(content[begin:], parse)
        except ValueError:
            file.truncate(begin)
        else:
            file.write(b"\n")
