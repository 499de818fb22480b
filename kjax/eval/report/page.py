"""The page of an evaluation: its sections, and their rendering by template.html.

A section is a dictionary with a title and any of: text, warnings, facts, tables, charts, pictures
(caption and address), pairs (caption, and tiles of address and distance), parts (sections with a
smaller title) and folds (sections shown on demand).
"""

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from kjax.errors import counted
from kjax.eval.hpatches.scores import TASKS
from kjax.eval.report import charts, tables
from kjax.eval.report.published import PAPER_SETS
from kjax.eval.report.tables import Arrangement, arrange, percent, scoreboard
from kjax.eval.results import Evaluation, Illustrations, Result
from kjax.extras import require
from kjax.files.atomic import explain_write_errors, write_text

Section = dict[str, Any]


def write_report(
    folder: Path, evaluation: Evaluation, illustrations: Illustrations | None = None
) -> None:
    """Write `report.html`, which needs no other file; sections without data are left out."""
    date = evaluation.created.replace("T", " ").replace("Z", " UTC").replace("+00:00", " UTC")
    page = render(
        evaluation.title,
        compose(evaluation, illustrations or Illustrations()),
        date=date,
        command=evaluation.command,
        versions=evaluation.versions,
    )
    with explain_write_errors(
        f"the report to {folder}", "free some space or choose another folder"
    ):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "report.html", page)


def render(
    title: str,
    sections: Sequence[Section],
    *,
    date: str = "",
    command: str = "",
    versions: Mapping[str, str] | None = None,
) -> str:
    """Render a page; sections with nothing but a title are left out."""
    jinja2 = require("jinja2", "writing reports")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: charts.printable(value) if type(value) is str else value,
    )
    # Only the template's own script may run, whatever a name contains.
    environment.filters["sha256"] = lambda text: base64.b64encode(
        hashlib.sha256(str(text).encode()).digest()
    ).decode()
    return environment.get_template("template.html").render(
        title=title,
        sections=[one for one in sections if any(one[key] for key in one if key != "title")],
        date=date,
        command=command,
        versions=versions or {},
    )


def compose(evaluation: Evaluation, illustrations: Illustrations) -> list[Section]:
    """The sections of a report, in order."""
    results = evaluation.descriptors
    tests = {scores.test.lower() for one in results for scores in one.phototour}
    look = charts.looks(results)
    found, missing = tables.source_tables(results)
    pairs = [
        {
            "caption": f"{one.descriptor} on {one.test}: "
            + ("matching pairs furthest apart" if one.matching else "closest non-matching pairs"),
            "tiles": [
                (pair_address(pair), f"{distance:.3f}" if np.isfinite(distance) else tables.DASH)
                for pair, distance in zip(one.patches, one.distances, strict=True)
            ],
        }
        for one in illustrations.hard_pairs
        if len(one.patches)
    ]
    maps = [
        (f"Similarity maps of {name}: one row per position.", png_address(png))
        for name, png in illustrations.similarity.items()
    ]
    return [
        {
            "title": "Summary",
            "warnings": [f"{one.name}: {warning}" for one in results for warning in one.warnings],
            "facts": headlines(evaluation),
        },
        {
            # Any set may have the format.
            "title": "Verification of pairs" if tests.isdisjoint(PAPER_SETS) else "PhotoTourism",
            **_verification(evaluation, look),
        },
        {"title": "HPatches", "parts": _hpatches(evaluation)},
        {
            "title": "Hardest errors",
            "text": pairs
            and "The worst errors of each descriptor, worst first, with their distances. Some are "
            "errors of the labels.",
            "pairs": pairs,
        },
        {
            "title": "Similarity maps",
            "text": maps
            and "The similarity of a position p of one patch to all positions of another, scaled "
            "to 0…1; red is largest. The red box is the receptive field of p.",
            "pictures": maps,
        },
        {"title": "Training", "charts": charts.training_charts(illustrations.training, look)},
        {"title": "Descriptors", "tables": found},
        {"title": "Missing", "tables": missing},
    ]


def _verification(evaluation: Evaluation, look: Mapping[str, charts.Key]) -> Section:
    """Tables of every FPR rule; curves and distances are the same under all of them."""
    arrangements = arrange(evaluation.descriptors)
    parts: list[Section] = []
    for arrangement in arrangements[:1]:
        curves = charts.curve_charts(arrangement, look)
        parts += [{"title": title, "charts": [one]} for title, one in curves.items()]
        # One training set represents all: the pairs are the same.
        settings = {setting.test: setting for setting in reversed(arrangement.settings)}
        drawn = [charts.distance_charts(arrangement, one) for one in reversed(settings.values())]
        drawn = [one for one in drawn if one.panels]
        folds = [{"title": one.caption.split(";")[0], "charts": [one]} for one in drawn[1:]]
        if drawn:
            parts.append({"title": "Distances of pairs", "charts": drawn[:1], "folds": folds})
    return {
        "tables": [tables.fpr_table(one) for one in arrangements],
        "parts": parts,
        "folds": [
            {"title": "Areas under the curves", "tables": [tables.areas_table(one)]}
            for one in arrangements
        ],
    }


def _hpatches(evaluation: Evaluation) -> list[Section]:
    """A part per protocol; of its other splits there are only folded tables."""
    parts: dict[str, Section] = {}
    for setting, scored in scoreboard(evaluation.descriptors).items():
        headline = tables.headline_table(setting, scored)
        details = tables.detail_tables(setting, scored)
        if setting.protocol in parts:
            fold = {"title": f"Tables of {setting.label}", "tables": [headline, *details]}
            parts[setting.protocol]["folds"].append(fold)
        else:
            parts[setting.protocol] = {
                "title": setting.label.capitalize(),
                "tables": [headline],
                "charts": charts.hpatches_charts(setting, scored),
                "folds": [{"title": "By level, pool and sequence", "tables": details}],
            }
    return list(parts.values())


def headlines(evaluation: Evaluation) -> list[str]:
    """Summarise the results in a few sentences."""
    results = evaluation.descriptors
    if not results:
        return ["No descriptor was evaluated."]
    scored = [one for one in results if one.missing is None]
    ours, missing = sum(one.ours for one in scored), len(results) - len(scored)
    sentences = [
        f"{counted(len(scored), 'descriptor')} compared: {ours} of kjax and "
        f"{counted(len(scored) - ours, 'baseline')}"
        + (f"; {missing} more unavailable." if missing else ".")
    ]
    for arrangement in arrange(results):
        sentences += _lowest_fpr(arrangement)
        for one in arrangement.results:
            if (difference := arrangement.paper_difference(one)) is not None:
                side = "above" if difference > 0 else "below"
                sentences.append(
                    f"{one.name} is {abs(100 * difference):.2f} percentage points {side} the "
                    "paper's mean FPR@95."
                )
    boards = scoreboard(results)
    first = {setting.protocol: setting for setting in reversed(boards)}
    for setting in reversed(first.values()):
        board = boards[setting]
        won: dict[str, list[str]] = {}
        for task in TASKS:
            shares = [tables.finite(getattr(one, f"{task}_map")) or 0.0 for _, one in board]
            best = board[int(np.argmax(shares))][0].name
            won.setdefault(best, []).append(f"{task} ({percent(max(shares))} %)")
        winners = [f"{name} at {tables.joined(tasks)}" for name, tasks in won.items()]
        sentences.append(f"Highest mAP on HPatches, {setting.label}: {'; '.join(winners)}.")
    return sentences


def _lowest_fpr(arrangement: Arrangement) -> list[str]:
    """The best of ours and the best baseline, among those with a value in every column."""
    columns = len(arrangement.settings)
    best: dict[bool, tuple[float, Result]] = {}
    for one in arrangement.results:
        mean = arrangement.mean(one)
        if mean is not None and mean[2] == columns:
            found = (mean[0], one)
            best[one.ours] = min(best.get(one.ours, found), found, key=lambda pair: pair[0])
    if not best:
        return []
    owners = {True: "kjax models", False: "baselines"}
    figures = [
        f"{best[ours][1].name} among {owner} ({percent(best[ours][0])} %)"
        for ours, owner in owners.items()
        if ours in best
    ]
    if columns > 1:
        return [f"Lowest mean FPR@95 over {columns} settings: {', '.join(figures)}."]
    setting = arrangement.settings[0]
    sentence = f"Lowest FPR@95 on {setting.label}: {', '.join(figures)}."
    scores = [arrangement.scores(one, setting) for _, one in best.values()]
    bounds = [s.fpr95_interval for s in scores if s and tables.interval(s.fpr95_interval)]
    if len(bounds) == 2 and bounds[0] and bounds[1]:
        overlap = bounds[0][0] <= bounds[1][1] and bounds[1][0] <= bounds[0][1]
        verdict = "overlap" if overlap else "do not overlap"
        sentence += f" Their 95 % confidence intervals {verdict}."
    return [sentence]


# Pictures


def png_address(png: bytes) -> str:
    """A PNG as an address inside the page."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def pair_address(pair: UInt8[np.ndarray, "2 height width"]) -> str:
    """Both patches side by side, enlarged to about 64 pixels, with a transparent gap."""
    from PIL import Image

    scale = max(1, 64 // max(pair.shape[1:]))
    large = pair.repeat(scale, axis=1).repeat(scale, axis=2)
    opaque = np.stack([large, np.full_like(large, 255)], axis=-1)
    gap = np.zeros((opaque.shape[1], 4, 2), np.uint8)
    buffer = io.BytesIO()
    image = np.concatenate([opaque[0], gap, opaque[1]], axis=1)
    Image.fromarray(image, "LA").save(buffer, "PNG", optimize=True)
    return png_address(buffer.getvalue())
