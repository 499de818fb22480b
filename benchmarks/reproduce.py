r"""Train the paper's models alike, score them by its protocols, and write the tables.

    kjax download liberty notredame yosemite hpatches --out data
    python benchmarks/reproduce.py heads --data data --train liberty notredame yosemite \
        --hpatches data/hpatches-release --splits a b c
    python benchmarks/reproduce.py rivals --data data --test liberty notredame yosemite \
        --hpatches data/hpatches-release --splits a b c
    python benchmarks/reproduce.py page

heads      every head on every set alone, with every seed
ablation   one setting changed at a time, scored on a validation set
final      the models that ship
recipes    trials of augmentations, losses and optimisers; also photometry, light (narrow models)
           and open (openly licensed photos), with the settings of the records in results/
rivals     descriptors of others
page       docs/results.md and its figure, from the records
claims     print the table of docs/claims.md, from the records of --rows (default: heads)

Each training appends a line to `<results>/<experiment>.jsonl`. Stop with Ctrl-C; the same command
resumes with the first missing training. Override any field of the config for all trainings:
`--config.model.dtype=bfloat16 --config.train.steps=2000`. Use another `--name` to keep such
trainings apart.

A record names its commit, so uncommitted changes are refused unless --allow-changes is given.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import trainings
from program import make_parser, read_records

from kjax.errors import InputError, check_name, exit_code
from kjax.interrupts import run_script

if TYPE_CHECKING:
    from experiments.scoring import Tests

TRAINED = (*trainings.EXPERIMENTS, "recipes", "photometry", "light", "open")


def parse_arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments, and the overrides of the config ("model.s=1", …)."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("experiment", choices=(*TRAINED, "rivals", "page", "claims"))
    add("--name", help="name of the file of records (default: the experiment)")
    add("--results", type=Path, default=Path("results"), help="folder of records")
    add("--data", type=Path, default=Path("data"), help="folder of the sets")
    add("--train", nargs="+", default=[], help="names of training sets")
    add("--test", nargs="*", help="names of test sets (default: the training sets)")
    add("--hpatches", type=Path, help="folder in HPatches' format")
    add("--splits", nargs="*", default=[], help="HPatches splits (default: all sequences)")
    add("--tasks", type=Path, help="folder of HPatches' task files")
    add("--protocols", nargs="+", default=["python"], choices=("python", "matlab"))
    add("--validation", help="folder of the validation set, or embedded")
    add("--jitter", help="name of the set for misaligned patches")
    add("--rows", nargs="+", help="models or settings to run (default: all)")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--weights", type=Path, help="folder for trained weights")
    add("--rival-weights", nargs="*", default=[], metavar="RIVAL=FILE")
    add("--allow-changes", action="store_true", help="record uncommitted code")
    add("--page", type=Path, default=Path("docs"), help="folder of the page")
    add("--quiet", action="store_true", help="show no progress bars")
    args, rest = parser.parse_known_args(argv)
    if stray := [item for item in rest if not item.startswith("--config.")]:
        parser.error(f"unknown arguments: {' '.join(stray)}")
    args.name = args.name or args.experiment
    return args, [item.removeprefix("--config.") for item in rest]


def make_trainings(args: argparse.Namespace, settings: list[str]) -> list[trainings.Training]:
    """Return the trainings to run."""
    if not args.train:
        raise InputError("no training set: name sets in the --data folder with --train")
    known = trainings.rows_of(args.experiment)
    for row in args.rows or ():
        check_name(f"row of {args.experiment}", row, known)
    rows = {row: known[row] for row in args.rows or known}
    made = trainings.make_trainings(args.experiment, rows, args.train, args.seeds, settings)
    return [dataclasses.replace(training, experiment=args.name) for training in made]


def open_tests(args: argparse.Namespace) -> "Tests":
    """Open the test sets."""
    from experiments.scoring import Tests

    from kjax.data.embedded import embedded_test
    from kjax.data.phototour import read_phototour
    from kjax.data.sets import EMBEDDED, read_test_sets
    from kjax.eval.hpatches.tasks import open_benchmark

    progress = not args.quiet
    validation = benchmark = jittered = None
    if args.validation == EMBEDDED:
        validation = embedded_test(progress=progress)
    elif args.validation:
        validation = read_phototour(args.validation, progress=progress)
    if args.hpatches:
        rules = {"splits": args.splits, "tasks_folder": args.tasks, "protocols": args.protocols}
        benchmark = open_benchmark(args.hpatches, **rules, progress=progress)
    if args.jitter:
        jittered = read_phototour(args.data / args.jitter, progress=progress)
    names = args.train if args.test is None else args.test
    sets = read_test_sets([str(args.data / name) for name in names], progress=progress)
    return Tests(sets=sets, benchmark=benchmark, validation=validation, jittered=jittered)


def check_commit(allow_changes: bool) -> None:
    """Raise if the code differs from its commit."""
    import kjax
    from kjax.runs import workdir

    source = workdir.source_version(Path(kjax.__file__).parents[1])
    if source and source["dirty"] and not allow_changes:
        raise InputError(
            "there are uncommitted changes, so records could not name their code: commit them, or "
            "pass --allow-changes"
        )


def run(args: argparse.Namespace, settings: list[str]) -> int:
    """Train, score others, or write the page; return 1 if trainings failed."""
    if args.experiment == "page":
        from experiments.page import write_page

        write_page(args.results, args.page)
        print(f"wrote {args.page / 'results.md'}")
        return 0
    if args.experiment == "claims":
        from experiments.claims import claims_table

        names = args.rows or ["heads"]
        print(claims_table({one: read_records(args.results / f"{one}.jsonl") for one in names}))
        return 0
    if args.experiment == "rivals":
        from experiments.sweep import score_rivals

        from kjax.baselines import baseline_file

        weights = dict(baseline_file(item) for item in args.rival_weights)
        check_commit(args.allow_changes)
        records = args.results / "rivals.jsonl"
        for line in score_rivals(args.rows, open_tests(args), records, weights=weights):
            print(f"not scored: {line}")
        return 0
    planned = make_trainings(args, settings)
    for training in planned:
        training.config()  # report a wrong setting before the first training
    check_commit(args.allow_changes)

    from experiments.scoring import Scorer
    from experiments.sweep import ResidentSets, Sweep

    sweep = Sweep(
        sets=ResidentSets(args.data, not args.quiet),
        scorer=Scorer(open_tests(args)),
        records=args.results / f"{args.name}.jsonl",
        weights=args.weights,
        progress=not args.quiet,
    )
    failed = sweep.run(planned)
    if failed:
        print(f"{failed} of {len(planned)} trainings failed")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; bad input prints one line to stderr and returns 2."""
    args, settings = parse_arguments(argv)
    return exit_code("reproduce", lambda: run(args, settings))


if __name__ == "__main__":
    run_script(main, ": run the same command to resume")
