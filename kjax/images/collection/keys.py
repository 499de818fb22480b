"""Names of pieces of work, by what goes into them."""

import hashlib
import json
from typing import Any

_DIGITS = 32


def key_of(*content: Any) -> str:
    """A short name for JSON-like values: the same values have the same name, others another."""
    text = json.dumps(content, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
