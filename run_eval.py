"""Evaluate descriptors and write a report: `python run_eval.py out/first rootsift`.

NAME is a workdir of run_train.py, shipped weights (`kjax info` lists them), a weights file
(`weights.npz:xy,s=1`), a baseline, or a folder of descriptors as official HPatches CSV files.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from kjax.errors import InputError, counted, exit_code
from kjax.interrupts import ending_on_interrupt, run_program

INTERRUPTED = "run_eval: interrupted; finished descriptors are kept"
RESULTS_FILE = "results.json"

EXAMPLES = """examples:
  python run_eval.py out/first rootsift sift mkd
      on the test sets of the run; the report goes to out/first/evaluation/report.html
  python run_eval.py out/lib out/not out/yos --phototour data/liberty data/notredame data/yosemite
      the paper's table: every run is tested on the sets that it was not trained on
  python run_eval.py out/lib tfeat --weights tfeat=tfeat-liberty.params \\
      --hpatches data/hpatches-release --splits a b c --tasks data/tasks --protocols python matlab
  python run_eval.py best rootsift --hpatches data/hpatches-release --descriptors out/csv
      CSV files for the official HPatches toolbox; run again to resume
  python run_eval.py best fast --similarity-maps maps.png
      the paper's figure of similarity maps
"""


def make_parser() -> argparse.ArgumentParser:
    """Build the command-line parser."""
    parser = argparse.ArgumentParser(
        prog="run_eval.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="+", metavar="NAME", help="descriptors, in the order of the tables")
    add("--out", type=Path, help="report folder (default: evaluation/ in the first workdir)")
    add("--phototour", nargs="*", metavar="SET", help="folders, or embedded (default: the runs')")
    add("--hpatches", type=Path, metavar="FOLDER", help="sequences in HPatches' format")
    add("--weights", nargs="+", default=[], metavar="NAME=FILE", help="weights of baselines")
    add = parser.add_argument_group("more options").add_argument
    rules = ("hardnet", "hynet")
    add("--rule", choices=rules, default="hardnet", help="rule of FPR@95 (default: hardnet)")
    add("--splits", nargs="+", default=[], help="a b c full illum view (default: all sequences)")
    add("--tasks", type=Path, metavar="FOLDER", help="official task files (default: generated)")
    add("--protocols", nargs="+", default=["python"], help="python, matlab (default: python)")
    add("--title", default="Evaluation of local descriptors", help="title of the report")
    add("--cache-dir", type=Path, help="descriptor cache (default: $KJAX_CACHE or ~/.cache/kjax)")
    add("--quiet", action="store_true", help="hide progress bars")
    add = parser.add_argument_group("instead of an evaluation").add_argument
    add("--descriptors", type=Path, metavar="DIR", help="write descriptors of --hpatches as CSV")
    add("--overwrite", action="store_true", help="replace CSV files of another descriptor")
    add("--similarity-maps", type=Path, metavar="FILE.png", help="draw maps of kjax models")
    add("--patches", nargs=2, type=Path, metavar="FILE", help="two square images (or a sample)")
    add(
        "--positions",
        nargs="+",
        type=position,
        default=[],
        metavar="ROW,COLUMN",
        help="on the N/4×N/4 grid",
    )
    return parser


def position(text: str) -> tuple[int, int]:
    """Parse ROW,COLUMN."""
    row, column = map(int, text.split(","))
    return row, column


def main(argv: Sequence[str]) -> int:
    """Run the program; bad input is one line on stderr and exit code 2."""
    args = make_parser().parse_args(argv[1:])
    with ending_on_interrupt(INTERRUPTED):
        import kjax.eval.run  # noqa: F401  # takes seconds
    return exit_code("run_eval", lambda: run(args, shlex.join(["python", *argv])))


def run(args: argparse.Namespace, command: str) -> None:
    """Evaluate, or draw similarity maps, or write CSV files."""
    from kjax.baselines import baseline_file
    from kjax.eval.entries import find_entry
    from kjax.eval.report.page import write_report
    from kjax.eval.run import evaluate, export_descriptors, summary
    from kjax.eval.similarity_maps import draw_similarity_maps_of
    from kjax.files.atomic import write_text

    weights = dict(baseline_file(item) for item in args.weights)
    entries = [find_entry(name, weights=weights, cache_dir=args.cache_dir) for name in args.names]
    progress = not args.quiet
    if args.similarity_maps is not None:
        models = {entry.name: entry.model for entry in entries}
        draw_similarity_maps_of(models, args.patches, args.positions, args.similarity_maps)
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
    out.mkdir(parents=True, exist_ok=True)  # fails now rather than after the evaluation
    names = ("phototour", "hpatches", "splits", "tasks", "protocols", "rule", "title")
    options = {name: getattr(args, name) for name in names}
    evaluation, illustrations = evaluate(entries, **options, command=command, progress=progress)
    write_text(out / RESULTS_FILE, evaluation.to_json())
    write_report(out, evaluation, illustrations)
    print(*summary(evaluation), f"report: {out / 'report.html'}", sep="\n")


if __name__ == "__main__":
    run_program(main, INTERRUPTED)
