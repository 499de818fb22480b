"""Matches of two photographs as one HTML page that needs nothing else, to look into them.

Both photographs, a line for each match; zoom, pan, a filter by score; under the pointer, both
patches of a match, their distance and ratio. The page cuts patches from the photographs itself.
"""

import base64
import hashlib
import html
import io
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32

from kjax.errors import InputError
from kjax.files.atomic import write_text
from kjax.images.drawing import Photo, as_picture, reduced
from kjax.images.features import Features
from kjax.images.matching import Matches

MAX_SIDE = 4096
"""Of a photograph in the page; larger ones are reduced."""
_QUALITY = 90


class Side(NamedTuple):
    """One of the two photographs.

    Attributes:
        name: for people.
        photo: its pixels.
        features: its keypoints.
    """

    name: str
    photo: Photo
    features: Features


def save_match_page(
    path: str | os.PathLike[str],
    first: Side,
    second: Side,
    matches: Matches,
    inliers: Bool[np.ndarray, " K"],
    *,
    extent: float,
) -> None:
    """Writes the page, whole or not at all.

    Args:
        path: of a file .html.
        first: photograph.
        second: the other one.
        matches: of their features.
        inliers: which of them one geometry explains.
        extent: side of a patch over its keypoint's diameter, as `Describer.extent`.
    """
    write_text(Path(path), match_page(first, second, matches, inliers, extent=extent))


def match_page(
    first: Side,
    second: Side,
    matches: Matches,
    inliers: Bool[np.ndarray, " K"],
    *,
    extent: float,
) -> str:
    """The page of `save_match_page` as text."""
    if len(inliers) != len(matches):
        raise InputError(f"{len(matches)} matches have {len(inliers)} inliers: give one for each")
    images, ends = [], []
    for side, rows in zip((first, second), matches.indices.T, strict=True):
        photo, factor = _photo(side)
        images.append(f'<img hidden alt="{_text(side.name)}" src="{photo}">')
        ends += [_rounded(column) for column in _frames(side.features, rows, extent, factor)]
    data = {
        "ends": ends,
        "distance": _rounded(matches.distances, 4),
        "ratio": _rounded(matches.ratios, 4),
        "agrees": inliers.astype(int).tolist(),
        "bits": first.features.distance == "Hamming",
    }
    lowest = np.floor(100 * (1 - matches.ratios.max(initial=0))) / 100
    return _document(
        title=f"{first.name} and {second.name}",
        images="\n".join(images),
        data=data,
        lowest=f"{max(lowest, 0):g}",
        agreeing=bool(inliers.any()),
    )


def _photo(side: Side) -> tuple[str, float]:
    """The photograph as the address of an image, and how much it was reduced."""
    picture = as_picture(side.name, side.photo)
    factor = min(1.0, MAX_SIDE / max(picture.size))
    file = io.BytesIO()
    reduced(picture, factor).save(file, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode(), factor


def _frames(
    features: Features, rows: np.ndarray, extent: float, factor: float
) -> tuple[Float[np.ndarray, " K"], ...]:
    """Of matched keypoints: x and y where pixel centres are at .5, sides, angles in radians."""
    count = len(features)
    scales = features.scales if features.scales is not None else np.ones(count, np.float32)
    angles = features.radians()
    xy = (features.xy[rows] + np.float32(0.5)) * np.float32(factor)
    turned = np.zeros(count, np.float32) if angles is None else angles
    return xy[:, 0], xy[:, 1], scales[rows] * np.float32(extent * factor), turned[rows]


def _rounded(column: Float32[np.ndarray, " K"], digits: int = 3) -> list[float]:
    return [round(value, digits) for value in column.tolist()]


def _document(*, title: str, images: str, data: Any, lowest: str, agreeing: bool) -> str:
    script, style = (_resource(f"match_page.{suffix}") for suffix in ("js", "css"))
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    body = f"""<header>
<h1>{_text(title)}</h1>
<output id="count"></output>
<label>score from <input id="score" type="range" min="{lowest}" max="1" step="0.01"
  value="{lowest}" title="one minus the ratio"> <output id="least"></output></label>
<label><input id="agreeing" type="checkbox"{" checked" if agreeing else ""}> only what one geometry
  explains</label>
<span><button id="closer" type="button" aria-label="zoom in">+</button>
<button id="farther" type="button" aria-label="zoom out">−</button>
<button id="whole" type="button">whole</button></span>
</header>
<main>
<canvas id="view" tabindex="0" role="img" aria-label="Both photographs with their matches. Keys:
 plus, minus and 0 zoom, arrows move, n and p go from match to match."></canvas>
<canvas id="mark" aria-hidden="true"></canvas>
<section id="panel" aria-live="polite" aria-label="the match under the pointer" hidden>
<canvas id="first" width="192" height="192"></canvas><canvas id="second" width="192"
  height="192"></canvas>
<dl><dt>distance</dt><dd id="distance"></dd><dt>ratio</dt><dd id="ratio"></dd>
<dt>score</dt><dd id="score-of"></dd><dt>explained</dt><dd id="agrees"></dd></dl>
</section>
</main>
<noscript>This page draws with JavaScript, which is off.</noscript>
{images}
<script type="application/json" id="data">{content}</script>"""
    return html_page(
        title=f"Matches of {title}", style=style, script=script, body=body, colours="dark"
    )


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return html.escape(text)


def html_page(*, title: str, style: str, script: str, body: str, colours: str) -> str:
    """Return an HTML page that needs no network, font or other file.

    Args:
        title: title of the window.
        style: style sheet.
        script: the only script that may run.
        body: HTML before the script.
        colours: colour schemes of the style, e.g. "light dark".
    """
    # Only this script may run, and nothing may be fetched, whatever the body contains.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="{colours}">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""
