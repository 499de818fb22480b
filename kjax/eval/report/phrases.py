"""Numbers and names as a reader wants them. What is not finite becomes a dash."""

import math
import re

NOTHING = "–"
_SHORT_NAME = 21


def percent(share: float | None, digits: int = 2) -> str:
    """A share (0…1) as a percentage, without the sign."""
    if share is None or not math.isfinite(share):
        return NOTHING
    return f"{100 * share:.{digits}f}"


def interval(bounds: tuple[float, float] | None) -> str:
    """A confidence interval of a share, in per cent; nothing if it is unknown or not finite."""
    if bounds is None:
        return ""
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{percent(low)}, {percent(high)}]"


def decimal(number: float) -> str:
    """A number with three decimals."""
    return f"{number:.3f}" if math.isfinite(number) else NOTHING


def count(number: int | None) -> str:
    """A whole number with thousands apart."""
    return NOTHING if number is None else f"{number:,}"


def finite(value: float | None) -> float | None:
    """The value, or None if it is not finite."""
    return None if value is None or not math.isfinite(value) else value


def joined(parts: list[str]) -> str:
    """A list in a sentence: "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def shortened(name: str) -> str:
    """A name that fits beside a bar."""
    return name if len(name) <= _SHORT_NAME else f"{name[: _SHORT_NAME - 1]}…"


def letters_width(text: str) -> int:
    """About how wide a label is, in CSS pixels."""
    return round(5.7 * len(text))


def printable(text: str) -> str:
    """Text on one line without control characters, which neither page nor picture can show."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def slugged(text: str) -> str:
    """Text as a part of a file's name or an anchor."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def percent_with_std(share: float | None, std: float | None, digits: int = 2) -> str:
    """A share in per cent, with its standard deviation if there is one."""
    spread = f" ± {percent(std, digits)}" if finite(std) is not None else ""
    return percent(share, digits) + spread
