"""Run a tuning stage by stage, skip finished stages, and report scores before and after."""

import datetime
import functools
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from kjax.eval.report.page import render
from kjax.eval.report.tables import Cell, make_table
from kjax.files.atomic import write_json, write_text, write_whole
from kjax.files.json import parse_json
from kjax.runs.workdir import plain_versions
from kjax.tune.scores import EMBEDDED_PAIR, HELD_OUT, Scores, map_photographs, score
from kjax.tune.sets import COLMAP_FOLDER, OwnSets, make_sets
from kjax.tune.settings import TuneSettings, claim
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
    `report.html`. Below it are `sets`, `run` and maybe `colmap`.

    Raises:
        InputError: the input is invalid, or the folder has other settings.
        kjax.interrupts.Stopped: after Ctrl-C during training; the same call resumes.
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
    before, after = scores["before"], scores["after"]
    worse = warning(settings.start, trained, before, after)
    write_report(out, settings, sets, trained, before, after)
    return "\n".join(filter(None, (table(before, after), worse)))


def rows(before: Scores, after: Scores) -> list[tuple[str, float, float]]:
    """Return the keys of all known scores with both values, in order."""

    def with_precision(scores: Mapping[str, float]) -> Scores:
        matches = scores.get("matches")
        return {**scores, "precision": scores["correct"] / matches} if matches else dict(scores)

    first, second = with_precision(before), with_precision(after)
    return [(key, first[key], second[key]) for key in LABELS if key in first and key in second]


def formatted(key: str, value: float) -> str:
    """Format a score as a count or a percentage."""
    if key in COUNTS:
        return f"{int(value):,}"
    return f"{100 * value:.{2 if key.startswith('fpr95') else 1}f}"


def table(before: Scores, after: Scores) -> str:
    """Return the scores as a table for the terminal."""
    scores = rows(before, after)
    width = max(len(LABELS[key]) for key, *_ in scores)
    lines = [f"{'':{width}}  {'before':>10}  {'after':>10}"]
    for key, *values in scores:
        cells = "".join(f"  {formatted(key, value):>10}" for value in values)
        lines.append(f"{LABELS[key]:{width}}{cells}")
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
    before: Scores,
    after: Scores,
) -> None:
    """Write `report.html`, which needs no other file."""
    compared = []
    for key, *values in rows(before, after):
        best = (min if key.startswith("fpr95") else max)(values)
        cells = [
            Cell(formatted(key, value), value, best=value == best != values[1 - number])
            for number, value in enumerate(values)
        ]
        columns = {("", ""): Cell(LABELS[key]), ("", "Before"): cells[0], ("", "After"): cells[1]}
        compared.append(("rival", columns))
    held = len(sets.held_out_photos)
    facts = [
        warning(settings.start, trained, before, after),
        f"Patches of {sets.points[0]:,} points to train on and {sets.points[1]:,} held out, from "
        f"{sets.made_from}.",
        f"Held out: {held} images and every point that they see." if held else "",
        *trained.how,
    ]
    caption = "The weights before and after tuning."
    page = render(
        f"Tuned to {settings.photos.resolve().name}",
        [
            {"title": "Before and after", "tables": [make_table(caption, compared)]},
            {"title": "How", "facts": [fact for fact in facts if fact]},
        ],
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=shlex.join(["kjax", "tune", str(settings.photos), "--from", settings.start]),
        versions=plain_versions(),
    )
    write_text(out / REPORT_FILE, page)
