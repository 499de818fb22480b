"""JSON from files that anyone may have written."""

import json
from typing import Any

DEEPEST = 64
"""The most levels of lists and objects within each other. Ours have five; the readers of what is
parsed call themselves once a level."""


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says.

    Raises:
        ValueError: it is no JSON, not UTF-8, or nested too deeply.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None
    _check_depth(content)
    return content


def _check_depth(content: Any) -> None:
    level = [content]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError("lists or objects are nested too deeply")
