"""Files of one JSON object a line: a damaged line costs itself, never the lines around it."""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from kjax.errors import one_line
from kjax.files.json_text import parse_json

T = TypeVar("T")


def read_lines(path: Path, parse: Callable[[Any], T], *, what: str) -> list[T]:
    """What the lines of a file stand for; a line that does not parse is named on stderr.

    Args:
        path: of the file; if there is none, it has no lines.
        parse: makes the result of a line's JSON value, or raises one of the
            errors that wrong types lead to.
        what: a line should be, e.g. "a record".
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
            print(f"{path}, line {number} is not {what} and is left out: {error}", file=sys.stderr)
    return found


def parse_line(line: bytes, parse: Callable[[Any], T]) -> T:
    """What one line stands for.

    Raises:
        ValueError: the line is damaged, in one line of text.
    """
    try:
        return parse(parse_json(line.decode("utf-8")))
    except UnicodeDecodeError:
        reason = "it is not text in UTF-8"
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
    """Adds a line, and sees it to the disk; half a line before it, which `parse` refuses, goes."""
    end_last_line(path, parse)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(content, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def end_last_line(path: Path, parse: Callable[[Any], Any]) -> None:
    """Readies a file for appending: half a line that a kill left goes, a whole one gets its end."""
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
