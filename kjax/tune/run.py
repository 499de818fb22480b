"""Run a tuning stage by stage, skip finished stages, and report scores before and after."""

import datetime
import functools
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from kjax.eval.report.page import render
from kjax.eval.report.tables import Cell, make_table
from kjax.files.atomic import write_json, write_text, write_whole
from kjax.files.json import parse_json
from kjax.runs.workdir import plain_versions
from kjax.tune.scores import EMBEDDED_PAIR, HELD_OUT, Scores, map_photographs, score
from kjax.tune.sets import COLMAP_FOLDER, OwnSets, TuneSettings, claim, make_sets
from kjax.tune.training import TunedFiles, layers_to_train, refit_last, train_all
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


def tune(settings: TuneSettings, out: Path, *, progress: bool = True) -> str:
    """Tune weights, or resume in a folder; return a table of scores before and after.

    The folder gets `weights.npz`, its metadata or config, so that the folder can be loaded, and
    `report.html`. Below it are `sets`, `run` and maybe `colmap`. Ctrl-C during training raises
    `kjax.interrupts.Stopped`; the same call resumes.
    """
    settings = settings.absolute()
    source = load_source(settings.start)
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
    write_report(out, settings, sets, trained, compared, worse)
    return "\n".join([table(compared), *filter(None, [worse])])


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
            best = (min if rate else max)(values)
            texts = [
                f"{int(value):,}" if key in COUNTS else f"{100 * value:.{2 if rate else 1}f}"
                for value in values
            ]
            cells = [
                Cell(text, value, best=value == best and values[0] != values[1])
                for text, value in zip(texts, values, strict=True)
            ]
            found.append((label, cells))
    return found


def table(compared: Sequence[tuple[str, Sequence[Cell]]]) -> str:
    """Return the rows as a table for the terminal."""
    width = max(len(label) for label, _ in compared)
    lines = [
        ("", "before", "after"),
        *((label, *(c.text for c in cells)) for label, cells in compared),
    ]
    return "\n".join(f"{label:{width}}  {old:>10}  {new:>10}" for label, old, new in lines)


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
) -> None:
    """Write `report.html`, which needs no other file."""
    columns = [("", ""), ("", "Before"), ("", "After")]
    body = [
        ("rival", dict(zip(columns, [Cell(label), *cells], strict=True)))
        for label, cells in compared
    ]
    held = len(sets.held_out_photos)
    facts = [
        worse,
        f"Patches of {sets.points[0]:,} points to train on and {sets.points[1]:,} held out, from "
        f"{sets.made_from}.",
        f"Held out: {held} images and every point that they see." if held else "",
        *trained.how,
    ]
    caption = "The weights before and after tuning."
    page = render(
        f"Tuned to {settings.photos.resolve().name}",
        [
            {"title": "Before and after", "tables": [make_table(caption, body)]},
            {"title": "How", "facts": list(filter(None, facts))},
        ],
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=shlex.join(["kjax", "tune", str(settings.photos), "--from", settings.start]),
        versions=plain_versions(),
    )
    write_text(out / REPORT_FILE, page)
