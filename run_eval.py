"""Evaluate descriptors and write a report: `python run_eval.py out/first rootsift`.

NAME is a workdir of run_train.py, shipped weights (`kjax info` lists them), a weights file
(`weights.npz:xy,s=1`), a baseline, or a folder of descriptors as official HPatches CSV files.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from kjax.errors import InputError, exit_code
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
    more = parser.add_argument_group("more options")
    add = more.add_argument
    add(
        "--rule",
        choices=("hardnet", "hynet"),
        default="hardnet",
        help="rule of FPR@95 (default: hardnet)",
    )
    add("--splits", nargs="+", default=[], help="a b c full illum view (default: all sequences)")
    add("--tasks", type=Path, metavar="FOLDER", help="official task files (default: generated)")
    add("--protocols", nargs="+", default=["python"], help="python, matlab (default: python)")
    add("--title", default="Evaluation of local descriptors", help="title of the report")
    add("--cache-dir", type=Path, help="descriptor cache (default: $KJAX_CACHE or ~/.cache/kjax)")
    add("--quiet", action="store_true", help="hide progress bars")
    other = parser.add_argument_group("instead of an evaluation")
    add = other.add_argument
    add(
        "--descriptors",
        type=Path,
        metavar="DIR",
        help="write descriptors of --hpatches as CSV files",
    )
    add("--overwrite", action="store_true", help="replace CSV files of another descriptor")
    add(
        "--similarity-maps",
        type=Path,
        metavar="FILE.png",
        help="draw similarity maps of kjax models",
    )
    add(
        "--patches",
        nargs=2,
        type=Path,
        metavar="FILE",
        help="two square images (default: a sample)",
    )
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

    def run() -> None:
        from kjax.baselines import baseline_file
        from kjax.eval.entries import find_entry

        weights = dict(baseline_file(item) for item in args.weights)
        entries = [
            find_entry(name, weights=weights, cache_dir=args.cache_dir) for name in args.names
        ]
        if args.similarity_maps is not None:
            draw_maps(args, entries)
        elif args.descriptors is not None:
            write_csv_files(args, entries)
        else:
            evaluate(args, entries, shlex.join(["python", *argv]))

    return exit_code("run_eval", run)


def evaluate(args: argparse.Namespace, entries: list, command: str) -> None:
    """Evaluate, write results and report, and print a summary."""
    from kjax.data.sets import EMBEDDED, read_test_sets
    from kjax.eval.hpatches.tasks import open_benchmark
    from kjax.eval.report.page import write_report
    from kjax.eval.run import run
    from kjax.files.atomic import write_text

    workdirs = [one.workdir for one in entries if one.workdir is not None]
    out = args.out or (workdirs[0] if workdirs else Path("out")) / "evaluation"
    out.mkdir(parents=True, exist_ok=True)  # fails now rather than after the evaluation
    tests, progress = args.phototour, not args.quiet
    ready = [one.csv_folder for one in entries if one.csv_folder is not None]
    if tests is None:
        of_runs = list(dict.fromkeys(name for one in entries for name in one.test_sets))
        tests = of_runs or ([] if len(ready) == len(entries) else [EMBEDDED])
    benchmark, folder = None, args.hpatches or next(iter(ready), None)
    if folder is not None:
        benchmark = open_benchmark(
            folder,
            splits=args.splits,
            tasks_folder=args.tasks,
            protocols=args.protocols,
            progress=progress,
        )
    elif args.splits or args.tasks:
        raise InputError("--splits and --tasks need HPatches: give --hpatches FOLDER too")
    evaluation, illustrations = run(
        entries,
        read_test_sets(tests, progress=progress),
        benchmark,
        title=args.title,
        command=command,
        rule=args.rule,
        progress=progress,
    )
    write_text(out / RESULTS_FILE, evaluation.to_json())
    write_report(out, evaluation, illustrations)
    width = max(len(row.name) for row in evaluation.descriptors)
    for row in evaluation.descriptors:
        figures = [f"missing: {row.missing}"] if row.missing is not None else []
        for on_set in row.phototour:
            spread = f" ± {100 * on_set.fpr95_std:.2f}" if on_set.fpr95_std is not None else ""
            figures.append(f"FPR@95 {on_set.test} {100 * on_set.fpr95:.2f}{spread} %")
        for one in row.hpatches:
            shares = (one.verification_map, one.matching_map, one.retrieval_map)
            texts = " / ".join(f"{100 * share:.2f}" for share in shares)
            figures.append(f"HPatches {one.split} ({one.protocol}) {texts} %")
        figures += [f"warning: {warning}" for warning in row.warnings]
        print(f"{row.name:{width}s}  {'; '.join(figures)}")
    print(f"report: {out / 'report.html'}")


def write_csv_files(args: argparse.Namespace, entries: list) -> None:
    """Write the descriptors of an HPatches folder, a folder per descriptor if there are several."""
    from kjax.eval.run import export_descriptors

    if args.hpatches is None:
        raise InputError("--descriptors needs patches: give --hpatches FOLDER too")
    for entry in entries:
        out = args.descriptors / entry.name if len(entries) > 1 else args.descriptors
        count = export_descriptors(
            entry, args.hpatches, out, overwrite=args.overwrite, progress=not args.quiet
        )
        print(f"wrote {out}: {count} sequence{'' if count == 1 else 's'} of {entry.name}")


def draw_maps(args: argparse.Namespace, entries: list) -> None:
    """Draw the paper's figure of similarity maps."""
    import numpy as np

    from kjax.data.embedded import stereo_patch_pairs
    from kjax.eval.similarity_maps import draw_similarity_maps, read_patch

    for entry in entries:
        if entry.model is None:
            raise InputError(f"{entry.name} has no similarity maps: choose kjax models")
    sizes = {entry.model[0].patch_size for entry in entries}
    if len(sizes) > 1:
        raise InputError("the models have different patch sizes: draw one figure for each size")
    (size,) = sizes
    pair = (
        stereo_patch_pairs(1, size=size, seed=0)[0]
        if args.patches is None
        else np.stack([read_patch(path, size) for path in args.patches])
    )
    models = {entry.name: entry.model for entry in entries}
    draw_similarity_maps(models, pair[0], pair[1], args.positions, args.similarity_maps)
    print(f"wrote {args.similarity_maps}")


if __name__ == "__main__":
    run_program(main, INTERRUPTED)
