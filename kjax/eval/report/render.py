"""Charts to SVG for the page, and to PNG or SVG files beside Markdown, by matplotlib."""

import contextlib
import io
import math
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any, Literal

from kjax.eval.report.page_parts import Charts, Key, Panel
from kjax.eval.report.phrases import letters_width, printable
from kjax.eval.report.theme import TONES, light
from kjax.extras import require

WIDTH = 320
"""Of a panel, in CSS pixels and in points of matplotlib alike."""
_POINTS_PER_INCH = 72
_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_PNG_DPI = 132
_ANONYMOUS: dict[str, Any] = {"png": None, "svg": {"Date": None, "Creator": None}}
"""What matplotlib is told to leave out of a file's metadata; PNG holds no date."""
_ABOVE, _BELOW = 26, 37
"""Room for a panel's title, and for the labels below it."""
_PNG_COLUMNS = 3
_KEY_WIDTH = 50
"""Of a mark in a legend, with the space about it."""
LINES: dict[str, Any] = {"line": "-", "dashed": "--", "dotted": ":", "dashdot": "-."}
MARKERS = {"circle": "o", "square": "s", "cross": "X", "diamond": "D", "triangle": ">"}


def panel_svg(panel: Panel, prefix: str) -> str:
    """A panel as an SVG element to stand inside a page.

    Args:
        panel: what to draw.
        prefix: makes its identifiers unique in the page.
    """
    with _style():
        figure = _figure(WIDTH, panel.height)
        _draw(panel, figure, 0, 0)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True)
    return _inline(buffer.getvalue(), panel.alt, prefix)


def charts_image(charts: Charts, kind: Literal["png", "svg"]) -> bytes:
    """All panels and the legend in one picture; the same charts give the same bytes."""
    columns = min(_PNG_COLUMNS, len(charts.panels))
    rows = math.ceil(len(charts.panels) / columns)
    step = max(panel.height for panel in charts.panels)
    with _style():
        figure = _figure(columns * WIDTH, rows * step + _legend_height(charts, columns))
        for place, panel in enumerate(charts.panels):
            _draw(panel, figure, WIDTH * (place % columns), step * (place // columns))
        _draw_legend(figure, charts, columns)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=_PNG_DPI, metadata=_ANONYMOUS[kind])
    return buffer.getvalue()


def proxy(key: Key) -> Any:
    """What stands for a key in a legend of matplotlib's."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colour = light(key.colour)
    if key.mark == "bar":
        return Patch(facecolor=colour)
    if key.mark == "hatched":
        return Patch(facecolor=light("rival-wash"), edgecolor=colour, hatch="////", linewidth=0)
    if key.mark in MARKERS:
        return Line2D([], [], color=colour, marker=MARKERS[key.mark], linestyle="", markersize=5)
    return Line2D([], [], color=colour, linestyle=LINES[key.mark], linewidth=2)


@contextlib.contextmanager
def _style() -> Iterator[None]:
    mpl = require("matplotlib", "drawing charts")
    settings: Any = {
        "font.family": "sans-serif",
        "font.size": 10.5,
        "axes.titlesize": 11.5,
        "axes.labelsize": 10,
        "xtick.labelsize": 10,
        "ytick.labelsize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 9,
        "axes.titley": 1.0,  # fixed: looking for room takes a tenth of the time
        "axes.edgecolor": light("rule"),
        "axes.labelcolor": light("soft"),
        "axes.titlecolor": light("ink"),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": light("rule"),
        "grid.linewidth": 0.7,
        "xtick.color": light("rule"),
        "ytick.color": light("rule"),
        "xtick.labelcolor": light("soft"),
        "ytick.labelcolor": light("soft"),
        "xtick.major.pad": 5,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "text.color": light("ink"),
        "text.parse_math": False,  # names may hold dollar signs
        "figure.facecolor": light("paper"),
        "axes.facecolor": light("paper"),
        "hatch.linewidth": 1.2,
        "svg.fonttype": "none",  # the page's font, and text that can be found and copied
        "svg.hashsalt": "kjax",  # the same figures give the same file
    }
    with warnings.catch_warnings(), mpl.rc_context(settings):
        # A name may hold letters that the PNG's font lacks; the page shows them all the same.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _figure(width: int, height: int) -> Any:
    from matplotlib.figure import Figure

    return Figure((width / _POINTS_PER_INCH, height / _POINTS_PER_INCH))


def _draw(panel: Panel, figure: Any, x: int, y: int) -> None:
    """Draws a panel with its upper left corner at (x, y), in points from the figure's."""
    # Fixed margins: a layout engine would draw everything several times.
    width, height = _POINTS_PER_INCH * figure.get_size_inches()
    bottom = height - y - panel.height + _BELOW
    box = (
        (x + panel.left) / width,
        bottom / height,
        (WIDTH - panel.left - panel.right) / width,
        (panel.height - _ABOVE - _BELOW) / height,
    )
    axis = figure.add_axes(box)
    axis.set_title(printable(panel.title), x=(8 - panel.left) / (WIDTH - panel.left - panel.right))
    panel.draw(axis)


def _legend_columns(charts: Charts, columns: int) -> int:
    """As many as fit below the panels: what is wider than these would be cut at both sides."""
    widest = _KEY_WIDTH + max(letters_width(key.label) for key in charts.legend)
    return min(len(charts.legend), 2 * columns, max(1, columns * WIDTH // widest))


def _legend_height(charts: Charts, columns: int) -> int:
    if not charts.legend:
        return 0
    return 12 + 17 * math.ceil(len(charts.legend) / _legend_columns(charts, columns))


def _draw_legend(figure: Any, charts: Charts, columns: int) -> None:
    if not charts.legend:
        return
    # matplotlib leaves out labels that begin with an underscore.
    labels = [re.sub("^_", "\u2009_", printable(key.label)) for key in charts.legend]
    figure.legend(
        [proxy(key) for key in charts.legend],
        labels,
        loc="lower center",
        ncols=_legend_columns(charts, columns),
        frameon=False,
    )


def _inline(svg: str, alt: str, prefix: str) -> str:
    """An SVG file of matplotlib's as an element of a page: own identifiers, theme's colours."""
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            # Both would leak into the page: who made the picture, and a style for everything.
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.attrib = _page_attributes(element.attrib, prefix)
        if element.tag != "text":
            element.text = element.tail = None
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": printable(alt)}
    return ElementTree.tostring(root, encoding="unicode")


def _page_attributes(attributes: dict[str, str], prefix: str) -> dict[str, str]:
    found = {name.removeprefix(_XLINK): value for name, value in attributes.items()}
    # Variables work in styles only.
    style = found.pop("style", "") + "".join(
        f";{name}: {found.pop(name)}" for name in ("fill", "stroke") if name in found
    )
    style = re.sub(r"font-family: [^;]*;?", "", style)
    style = re.sub(r"#[0-9a-f]{6}", _variable, style)
    found |= {"style": style.strip("; ")} if style else {}
    if "id" in found:
        found["id"] = f"{prefix}-{found['id']}"
    if "d" in found:
        found["d"] = re.sub(r"\d+\.\d+", _rounded, " ".join(found["d"].split()))
    return {
        name: re.sub(r"^#|(?<=url\()#", f"#{prefix}-", value) if "#" in value else value
        for name, value in found.items()
    }


def _variable(found: re.Match[str]) -> str:
    role = _ROLES.get(found[0])
    return f"var(--{role})" if role else found[0]


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


_ROLES = {tone.light: role for role, tone in TONES.items()}
