"""An interactive HTML page of the matches of two images, in one self-contained file.

It shows both images with a line for each match, and offers zoom, pan and a filter by score. Under
the pointer it shows both patches of a match, their distance and ratio. The page's script cuts the
patches from the images.
"""

import base64
import hashlib
import html
import io
import json
import os
from importlib import resources
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32

from kjax.errors import InputError
from kjax.files.atomic import write_text
from kjax.images.draw import Photo, as_picture, reduced
from kjax.images.features import Features, Matches

MAX_SIDE = 4096
"""Maximum side of an image in the page, in pixels."""
_QUALITY = 90
_BODY = """<header>
<h1>{title}</h1>
<output id="count"></output>
<label>score from <input id="score" type="range" min="{lowest}" max="1" step="0.01"
  value="{lowest}" title="one minus the ratio"> <output id="least"></output></label>
<label><input id="agreeing" type="checkbox"{checked}> inliers only</label>
<span><button id="closer" type="button" aria-label="zoom in">+</button>
<button id="farther" type="button" aria-label="zoom out">−</button>
<button id="whole" type="button">fit</button></span>
</header>
<main>
<canvas id="view" tabindex="0" role="img" aria-label="Both images with their matches. Keys: plus,
 minus and 0 zoom, arrows move, n and p go from match to match."></canvas>
<canvas id="mark" aria-hidden="true"></canvas>
<section id="panel" aria-live="polite" aria-label="the match under the pointer" hidden>
<canvas id="first" width="192" height="192"></canvas><canvas id="second" width="192"
  height="192"></canvas>
<dl><dt>distance</dt><dd id="distance"></dd><dt>ratio</dt><dd id="ratio"></dd>
<dt>score</dt><dd id="score-of"></dd><dt>inlier</dt><dd id="agrees"></dd></dl>
</section>
</main>
<noscript>This page needs JavaScript.</noscript>
{images}
<script type="application/json" id="data">{data}</script>"""


def save_match_page(
    path: str | os.PathLike[str],
    names: tuple[str, str],
    photos: tuple[Photo, Photo],
    features: tuple[Features, Features],
    matches: Matches,
    inliers: Bool[np.ndarray, " K"],
    *,
    extent: float,
) -> None:
    """Write the page of both images' matches to an .html file, atomically.

    `extent` is the side of a patch over its keypoint's diameter, as `Describer.extent`.
    """
    write_text(Path(path), match_page(names, photos, features, matches, inliers, extent=extent))


def match_page(
    names: tuple[str, str],
    photos: tuple[Photo, Photo],
    features: tuple[Features, Features],
    matches: Matches,
    inliers: Bool[np.ndarray, " K"],
    *,
    extent: float,
) -> str:
    """Return the page of `save_match_page` as text."""
    if len(inliers) != len(matches):
        raise InputError(f"{len(matches)} matches have {len(inliers)} inliers: give one for each")
    images, ends = [], []
    for name, photo, found, rows in zip(names, photos, features, matches.indices.T, strict=True):
        picture = as_picture(name, photo)
        factor = min(1.0, MAX_SIDE / max(picture.size))
        file = io.BytesIO()
        reduced(picture, factor).save(file, "JPEG", quality=_QUALITY)
        content = base64.b64encode(file.getvalue()).decode()
        source = f"data:image/jpeg;base64,{content}"
        images.append(f'<img hidden alt="{html.escape(name)}" src="{source}">')
        # Per keypoint: x and y with pixel centres at .5, the patch's side, the angle in radians.
        xy = (found.xy[rows] + np.float32(0.5)) * np.float32(factor)
        scales, radians = found.scales, found.radians()
        scales = np.ones(len(found), np.float32) if scales is None else scales
        radians = np.zeros(len(found), np.float32) if radians is None else radians
        sides = scales[rows] * np.float32(extent * factor)
        ends += [_rounded(column) for column in (xy[:, 0], xy[:, 1], sides, radians[rows])]
    data = {
        "ends": ends,
        "distance": _rounded(matches.distances, 4),
        "ratio": _rounded(matches.ratios, 4),
        "agrees": inliers.astype(int).tolist(),
        "bits": features[0].distance == "Hamming",
    }
    lowest = np.floor(100 * (1 - matches.ratios.max(initial=0))) / 100
    title = " and ".join(names)
    body = _BODY.format(
        title=html.escape(title),
        lowest=f"{max(lowest, 0):g}",
        checked=" checked" if inliers.any() else "",
        images="\n".join(images),
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )
    style, script = (
        resources.files(__package__).joinpath(f"match_page.{suffix}").read_text(encoding="utf-8")
        for suffix in ("css", "js")
    )
    return html_page(
        title=f"Matches of {title}", style=style, script=script, body=body, colours="dark"
    )


def _rounded(column: Float32[np.ndarray, " K"], digits: int = 3) -> list[float]:
    return [round(value, digits) for value in column.tolist()]


def html_page(*, title: str, style: str, script: str, body: str, colours: str) -> str:
    """Return an HTML page that needs no network, font or other file.

    `colours` are the colour schemes of the style, e.g. "light dark".
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
