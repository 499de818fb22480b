"""What `run_eval.py` does with its arguments."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from kjax.baselines import baseline_file
from kjax.data.sets import EMBEDDED, read_test_sets
from kjax.errors import InputError, unknown_name
from kjax.eval.entries import Entry, find_entry
from kjax.eval.hpatches.benchmark import Benchmark, open_benchmark
from kjax.eval.report.write import write_report
from kjax.eval.results import DescriptorResult, Evaluation
from kjax.eval.run import Options, run
from kjax.files.atomic import write_text
from kjax.metrics import FPR_RULES

RESULTS_FILE = "results.json"


def evaluate(args: argparse.Namespace, *, command: str) -> None:
    """Evaluates, writes results and report, and prints a summary."""
    progress = not args.quiet
    weights = dict(baseline_file(item) for item in args.weights)
    if args.rule not in FPR_RULES:
        raise unknown_name("FPR rule", args.rule, FPR_RULES)
    entries = [find_entry(word, weights=weights) for word in args.sources]
    out = args.out or default_folder(entries)
    out.mkdir(parents=True, exist_ok=True)  # that an unwritable place is noticed now
    evaluation, illustrations = run(
        entries,
        read_test_sets(test_set_names(args.phototour, entries), progress=progress),
        _benchmark(args, entries),
        title=args.title,
        command=command,
        options=Options(rule=args.rule, cache_dir=args.cache_dir, progress=progress),
    )
    write_text(out / RESULTS_FILE, evaluation.to_json())
    write_report(out, evaluation, illustrations)
    print("\n".join(summary(evaluation)))
    print(f"report: {out / 'report.html'}")


def default_folder(entries: Sequence[Entry]) -> Path:
    """`evaluation` in the first workdir, or else among the other outputs."""
    workdirs = [one.workdir for one in entries if one.workdir is not None]
    return (workdirs[0] if workdirs else Path("out")) / "evaluation"


def test_set_names(asked: Sequence[str] | None, entries: Sequence[Entry]) -> list[str]:
    """Those asked for, or those that the runs were tested on, or the embedded one."""
    if asked is not None:
        return list(asked)
    of_runs = list(dict.fromkeys(name for one in entries for name in one.test_sets))
    ready_only = all(one.csv_folder is not None for one in entries)
    return of_runs or ([] if ready_only else [EMBEDDED])


def summary(evaluation: Evaluation) -> list[str]:
    """A few lines for the terminal."""
    width = max(len(row.name) for row in evaluation.descriptors)
    return [f"{row.name:{width}s}  {'; '.join(_figures(row))}" for row in evaluation.descriptors]


def _figures(row: DescriptorResult) -> Iterable[str]:
    if row.missing is not None:
        yield f"missing: {row.missing}"
    for on_set in row.phototour:
        spread = f" ± {100 * on_set.fpr95_std:.2f}" if on_set.fpr95_std is not None else ""
        yield f"FPR@95 {on_set.test} {100 * on_set.fpr95:.2f}{spread} %"
    for scores in row.hpatches:
        figures = (scores.verification_map, scores.matching_map, scores.retrieval_map)
        yield (
            f"HPatches {scores.split} ({scores.protocol}) "
            f"{' / '.join(f'{100 * figure:.2f}' for figure in figures)} %"
        )
    for warning in row.warnings:
        yield f"warning: {warning}"


def _benchmark(args: argparse.Namespace, entries: Sequence[Entry]) -> Benchmark | None:
    ready = [one.csv_folder for one in entries if one.csv_folder is not None]
    folder = args.hpatches or (ready[0] if ready else None)
    if folder is None:
        if args.splits or args.tasks:
            raise InputError("--splits and --tasks are about HPatches: give --hpatches FOLDER too")
        return None
    return open_benchmark(
        folder,
        splits=args.splits,
        tasks_folder=args.tasks,
        protocols=args.protocols,
        progress=not args.quiet,
    )
