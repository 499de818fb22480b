"""Run a tuning stage by stage, skip finished stages, and report scores before and after."""

import datetime
import functools
import shutil
from collections.abc import Sequence
from pathlib import Path

from kjax.data.cutting.photographs import list_photos
from kjax.data.sets import TFDS_PREFIX
from kjax.eval.report.page import render
from kjax.eval.report.tables import Cell, make_table
from kjax.extras import require
from kjax.files.atomic import write_json, write_text, write_whole
from kjax.files.json import parse_json
from kjax.runs.workdir import plain_versions
from kjax.tune.scores import EMBEDDED_PAIR, HELD_OUT, Scores, map_photographs, score
from kjax.tune.sets import (
    COLMAP_FOLDER,
    OwnSets,
    TuneSettings,
    claim,
    hold_out,
    is_set,
    make_sets,
)
from kjax.tune.training import TunedFiles, layers_to_train, refit_last, train_all
from kjax.weights.shipped import no_surroundings
from kjax.weights.source import load_source

SCORES_FILE, REPORT_FILE = "scores.json", "report.html"
LABELS = {
    key: label
    for name, where in ((HELD_OUT, "held-out images"), (EMBEDDED_PAIR, "embedded pair"))
    for key, label in {
        f"matching/{name}": f"Matching mAP of misaligned patches, {where}, %",
        **{f"matching {level}/{name}": f"… {level}" for level in ("easy", "hard", "tough")},
        f"fpr95/{name}": f"False positive rate at 95 % recall, {where}, %",
    }.items()
} | {
    "correct": "Correct matches with views of held-out images",
    "precision": "… share of all matches, %",
    "images": "Held-out images that COLMAP registers",
    "points": "… their 3-D points",
}
"""Labels of scores, in the order of the table."""
COUNTS = ("correct", "images", "points")
OVERLAP = "Held-out images show places that training images show too: elsewhere, expect less gain."


def tune(
    settings: TuneSettings, out: Path, *, command: str = "kjax tune", progress: bool = True
) -> str:
    """Tune weights, or resume in a folder; return a table of scores before and after.

    The folder can then be loaded as weights, and has `report.html`. Ctrl-C during training raises
    `kjax.interrupts.Stopped`; the same call resumes. The report shows `command`.
    """
    tfds = any(name.startswith(TFDS_PREFIX) for name in settings.general)
    for module in ("cv2", "skimage", "jinja2", *(["tensorflow_datasets"] if tfds else [])):
        require(module, "kjax tune")
    if not is_set(settings.photos):
        hold_out([str(path) for path in list_photos(settings.photos)])  # raises if there is one
    settings = settings.absolute()
    source = load_source(settings.start)
    if source.model.has_context:
        raise no_surroundings(settings.start)
    layers, started = layers_to_train(out, settings.layers, source)
    claim(out, settings, training_started=started)
    sets = make_sets(settings, out, progress=progress)
    train = train_all if layers == "all" else refit_last
    trained = train(settings, source, sets, out, progress=progress)
    for path in trained.files:
        write_whole(out / path.name, functools.partial(shutil.copyfile, path))
    scores_path = out / SCORES_FILE
    scores = parse_json(scores_path.read_bytes()) if scores_path.is_file() else {}
    if not scores or (settings.compare_maps and "points" not in scores["after"]):
        base = settings.database or out / COLMAP_FOLDER / "database.db"
        for name, one in (("before", source), ("after", load_source(str(out)))):
            scores[name] = score(one, sets, settings.photos, seed=settings.seed, progress=progress)
            if settings.compare_maps:
                scores[name] |= map_photographs(
                    one, settings.photos, sets.held_out_photos, base, progress=progress
                )
        write_json(scores_path, scores)
    worse = warning(settings.start, trained, scores["before"], scores["after"])
    compared = rows(scores["before"], scores["after"])
    write_report(out, settings, sets, trained, compared, worse, command)
    return "\n".join(filter(None, [table(compared), OVERLAP if sets.overlap else "", worse]))


def rows(before: Scores, after: Scores) -> list[tuple[str, list[Cell]]]:
    """Return the label and both values of all known scores, in order."""
    both = [
        one | ({"precision": one["correct"] / one["matches"]} if one.get("matches") else {})
        for one in (before, after)
    ]
    found = []
    for key, label in LABELS.items():
        if all(key in one for one in both):
            values = [one[key] for one in both]
            rate = key.startswith("fpr95")
            best = (min if rate else max)(values) if values[0] != values[1] else None
            cells = []
            for value in values:
                percent = f"{100 * value:.{2 if rate else 1}f}"
                text = f"{int(value):,}" if key in COUNTS else percent
                cells.append(Cell(text, value, best=value == best))
            found.append((label, cells))
    return found


def table(compared: Sequence[tuple[str, Sequence[Cell]]]) -> str:
    """Return the rows as a table for the terminal."""
    width = max(len(label) for label, _ in compared)
    lines = [f"{'':{width}}  {'before':>10}  {'after':>10}"]
    for label, (old, new) in compared:
        lines.append(f"{label:{width}}  {old.text:>10}  {new.text:>10}")
    return "\n".join(lines)


def warning(start: str, trained: TunedFiles, before: Scores, after: Scores) -> str:
    """Return a warning if the tuned weights are worse, else an empty string."""
    key = f"matching/{HELD_OUT}"
    if key not in before or after[key] >= before[key]:
        return ""
    return f"Worse on the held-out images: keep using {start}, or {trained.advice}."


def write_report(
    out: Path,
    settings: TuneSettings,
    sets: OwnSets,
    trained: TunedFiles,
    compared: Sequence[tuple[str, Sequence[Cell]]],
    worse: str,
    command: str,
) -> None:
    """Write `report.html`, which needs no other file."""
    columns = [("", ""), ("", "Before"), ("", "After")]
    lines = [[Cell(label), *cells] for label, cells in compared]
    body = [("rival", dict(zip(columns, line, strict=True))) for line in lines]
    held = len(sets.held_out_photos)
    points = "Patches of {:,} points to train on and {:,} held out, from".format(*sets.points)
    held_out = f"Held out: {held} images and every point found in them." if held else ""
    overlap = OVERLAP if sets.overlap else ""
    facts = [worse, f"{points} {sets.made_from}.", held_out, overlap, *trained.how]
    caption = "The weights before and after tuning."
    page = render(
        f"Tuned to {settings.photos.resolve().name}",
        [
            {"title": "Before and after", "tables": [make_table(caption, body)]},
            {"title": "How", "facts": list(filter(None, facts))},
        ],
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=command,
        versions=plain_versions(),
    )
    write_text(out / REPORT_FILE, page)
