"""`kjax eval`: evaluate descriptors and write a report."""

import argparse
from pathlib import Path

from kjax.cli.options import add_option, add_quiet, check_output_folder
from kjax.errors import InputError, counted
from kjax.interrupts import ending_on_interrupt

HELP = "evaluate descriptors and write a report"
EXAMPLES = """NAME is a workdir of kjax train, shipped weights (kjax info lists them), a weights
file (weights.npz:xy,s=1), a baseline, or a folder of descriptors as official HPatches CSV files.

examples:
  kjax eval out/first rootsift sift mkd
      on the test sets of the run; the report goes to out/first/evaluation/report.html
  kjax eval out/lib out/not out/yos --phototour data/liberty data/notredame data/yosemite
      the paper's table: every run is tested on the sets that it was not trained on
  kjax eval out/lib tfeat --baseline tfeat=tfeat-liberty.params \\
      --hpatches data/hpatches-release --splits a b c --tasks data/tasks --protocols python matlab
  kjax eval best rootsift --hpatches data/hpatches-release --descriptors out/csv
      CSV files for the official HPatches toolbox; run again to resume
  kjax eval best fast --similarity-maps maps.png
      the paper's figure of similarity maps
"""
INTERRUPTED = "interrupted; finished descriptors are kept"
RESULTS_FILE = "results.json"
TITLE = "Evaluation of local descriptors"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    more = parser.add_argument_group("advanced options")
    instead = parser.add_argument_group("instead of an evaluation")
    text = "descriptors, in the order of the tables"
    parser.add_argument("names", nargs="+", metavar="NAME", help=text)
    unset = "evaluation/ in the first workdir"
    add_option(parser, "--out", Path, "DIR", "report folder", unset=unset)
    text = "folders, or embedded"
    add_option(parser, "--phototour", str, "SET", text, unset="the runs' test sets", nargs="*")
    add_option(parser, "--hpatches", Path, "DIR", "sequences in HPatches' format")
    text = "weights of a baseline, NAME=FILE"
    add_option(parser, "--baseline", str, "NAME=FILE", text, nargs="+")
    add_quiet(parser)
    rules = ("hardnet", "hynet")
    add_option(more, "--rule", rules, "NAME", "rule of FPR@95", default="hardnet")
    text = "a b c full illum view"
    add_option(more, "--splits", str, "NAME", text, unset="all sequences", nargs="+")
    add_option(more, "--tasks", Path, "DIR", "official task files", unset="generated")
    text = "python, matlab"
    add_option(more, "--protocols", str, "NAME", text, unset="python", nargs="+")
    add_option(more, "--title", str, "TEXT", "title of the report", default=TITLE)
    unset = "$KJAX_CACHE or ~/.cache/kjax"
    add_option(more, "--cache-dir", Path, "DIR", "descriptor cache", unset=unset)
    text = "write descriptors of --hpatches as CSV"
    add_option(instead, "--descriptors", Path, "DIR", text)
    text = "replace CSV files of another descriptor"
    instead.add_argument("--overwrite", action="store_true", help=text)
    add_option(instead, "--similarity-maps", Path, "FILE.png", "draw maps of kjax models")
    text = "two square images"
    add_option(instead, "--patches", Path, "FILE", text, unset="a sample", nargs=2)
    text = "positions on the N/4×N/4 grid"
    add_option(instead, "--positions", position, "ROW,COLUMN", text, nargs="+")


def position(text: str) -> tuple[int, int]:
    """Parse ROW,COLUMN."""
    row, column = map(int, text.split(","))
    return row, column


def run(args: argparse.Namespace) -> None:
    """Evaluate, or draw similarity maps, or write CSV files."""
    with ending_on_interrupt(f"kjax eval: {INTERRUPTED}"):
        from kjax.baselines import baseline_file
        from kjax.eval.entries import find_entry
        from kjax.eval.report.page import write_report
        from kjax.eval.run import evaluate, export_descriptors, summary
        from kjax.eval.similarity_maps import draw_similarity_maps_of
        from kjax.files.atomic import write_text

    weights = dict(map(baseline_file, args.baseline or ()))
    entries = [find_entry(name, weights=weights, cache_dir=args.cache_dir) for name in args.names]
    progress = not args.quiet
    if args.similarity_maps is not None:
        models = {entry.name: entry.model for entry in entries}
        positions = args.positions or []
        draw_similarity_maps_of(models, args.patches, positions, args.similarity_maps)
        print(f"wrote {args.similarity_maps}")
        return
    if args.descriptors is not None:
        if args.hpatches is None:
            raise InputError("--descriptors needs patches: give --hpatches FOLDER too")
        for entry in entries:
            out = args.descriptors / entry.name if len(entries) > 1 else args.descriptors
            count = export_descriptors(
                entry, args.hpatches, out, overwrite=args.overwrite, progress=progress
            )
            print(f"wrote {out}: {counted(count, 'sequence')} of {entry.name}")
        return
    workdir = next((one.workdir for one in entries if one.workdir is not None), Path("out"))
    out = args.out or workdir / "evaluation"
    check_output_folder(out)
    evaluation, illustrations = evaluate(
        entries,
        phototour=args.phototour,
        hpatches=args.hpatches,
        splits=args.splits or (),
        tasks=args.tasks,
        protocols=args.protocols or ["python"],
        rule=args.rule,
        title=args.title,
        command=args.typed,
        progress=progress,
    )
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / RESULTS_FILE, evaluation.to_json())
    write_report(out, evaluation, illustrations)
    print(*summary(evaluation), f"report: {out / 'report.html'}", sep="\n")
