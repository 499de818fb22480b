"""Colours of the report, for light and for dark pages.

Charts are drawn once, in the light colours; in the page these become CSS variables, so that a chart
follows the reader's choice of light or dark. Hence no two roles may share a light colour.
"""

from typing import NamedTuple


class Tone(NamedTuple):
    """A colour on light and on dark ground."""

    light: str
    dark: str


TONES = {
    "paper": Tone("#ffffff", "#12161c"),
    "card": Tone("#fbfcfe", "#191f27"),
    "ink": Tone("#1a2230", "#e4e9f0"),
    "soft": Tone("#566377", "#9fadbf"),
    "rule": Tone("#dde3ea", "#2d3642"),
    "accent": Tone("#2456c6", "#86b0ff"),
    "wash": Tone("#eef3fd", "#1b2740"),
    "alarm": Tone("#8a3d00", "#ffc38a"),
    "alarm-wash": Tone("#fff4e5", "#33230f"),
    "ours": Tone("#3d72e2", "#6a9bff"),
    "rival": Tone("#93a1b3", "#6c7a8c"),
    "rival-wash": Tone("#dfe5ec", "#39434f"),
    "easy": Tone("#14853f", "#43cf7a"),
    "hard": Tone("#d98a06", "#f5b83d"),
    "tough": Tone("#c8261f", "#fa7268"),
    "match": Tone("#2a6fdb", "#639dff"),
    "non-match": Tone("#d4610e", "#f0914a"),
    "series-0": Tone("#2563eb", "#6ea8fe"),
    "series-1": Tone("#c2570c", "#f59e4b"),
    "series-2": Tone("#15803d", "#4ade80"),
    "series-3": Tone("#be185d", "#f472b6"),
    "series-4": Tone("#7c3aed", "#b79dff"),
    "series-5": Tone("#0f766e", "#2dd4bf"),
    "series-6": Tone("#854d0e", "#d6a94e"),
    "series-7": Tone("#b91c1c", "#f98b8b"),
    "series-8": Tone("#475569", "#a3b1c6"),
    "series-9": Tone("#0369a1", "#38bdf8"),
}
SERIES = [role for role in TONES if role.startswith("series-")]


def light(role: str) -> str:
    """The colour of a role, as charts are drawn with."""
    return TONES[role].light


def style_variables() -> str:
    """The colours as CSS variables."""
    grounds = [
        "".join(f"--{role}:{getattr(tone, ground)};" for role, tone in TONES.items())
        for ground in Tone._fields
    ]
    # Paper stays light, whatever the screen is.
    dark = "@media screen and (prefers-color-scheme:dark)"
    return f":root{{{grounds[0]}}}{dark}{{:root{{{grounds[1]}}}}}"
