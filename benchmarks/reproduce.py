r"""Trains the paper's models alike, scores them by its protocols, and writes its tables.

    kjax download liberty notredame yosemite hpatches --to data
    python benchmarks/reproduce.py heads --data data --train liberty notredame yosemite \
        --hpatches data/hpatches-release --splits a b c
    python benchmarks/reproduce.py rivals --data data --test liberty notredame yosemite \
        --hpatches data/hpatches-release --splits a b c
    python benchmarks/reproduce.py page

`heads` trains every model on every set with every seed; `ablation` changes one setting at a time
and scores on a validation set; `recipes`, `light`, `open` and `final` train on all sets together:
ways of training, light models with and without a teacher, ways of training on photographs that
anyone may use, and the models that ship; `rivals` scores other descriptors; `page` turns what is
recorded into tables and figures.

Each training is a line of `<results>/<what>.jsonl` as soon as it is done. Stopped, by Ctrl-C or
by --seconds, the same command goes on with the first that is missing. Any field of the config can
be set for all of them: `--config.model.dtype=bfloat16 --config.train.steps=2000`. Another `--name`
keeps such trainings apart from others of the same kind.

A record names the commit that it ran with. Code that differs from it is refused, unless
--allow-changes says to write "+ changes" behind it.
"""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kjax.errors import InputError, unknown_name

if TYPE_CHECKING:
    from experiments.scoring import Tests
    from experiments.trainings import Training

TRAINED = ("heads", "ablation", "recipes", "light", "open", "final")
SEEDS = (0, 1, 2)


def parse_arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command line, and what it says about the config ("model.s=1", …)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=(*TRAINED, "rivals", "page"))
    parser.add_argument("--name", help="of the records, if not what is done")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of records")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the sets")
    parser.add_argument("--train", nargs="+", default=[], help="names of training sets")
    parser.add_argument("--test", nargs="*", help="names of test sets; those for training")
    parser.add_argument("--hpatches", type=Path, help="folder in HPatches' format")
    parser.add_argument("--splits", nargs="*", default=[], help="of HPatches; none: all sequences")
    parser.add_argument("--tasks", type=Path, help="folder of HPatches' task files")
    parser.add_argument("--protocols", nargs="+", default=["python"], help="python, matlab")
    parser.add_argument("--validation", help="a set's folder, or embedded")
    parser.add_argument("--jitter", help="name of the set for misaligned patches")
    parser.add_argument("--rows", nargs="+", help="models, or questions; all")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--weights", type=Path, help="folder for trained weights")
    parser.add_argument("--rival-weights", nargs="*", default=[], metavar="RIVAL=FILE")
    parser.add_argument("--seconds", type=float, help="begin no other training after so many")
    parser.add_argument("--allow-changes", action="store_true", help="record uncommitted code")
    parser.add_argument("--page", type=Path, default=Path("docs"), help="folder of the page")
    parser.add_argument("--quiet", action="store_true", help="no bars")
    args, rest = parser.parse_known_args(argv)
    if stray := [word for word in rest if not word.startswith("--config.")]:
        parser.error(f"unknown arguments: {' '.join(stray)}")
    args.name = args.name or args.what
    if not args.name.replace("-", "").isalnum():
        parser.error(f"--name {args.name}: give letters, digits and hyphens")
    return args, [word.removeprefix("--config.") for word in rest]


def make_trainings(args: argparse.Namespace, settings: list[str]) -> "list[Training]":
    """The trainings asked for."""
    from experiments import trainings

    if not args.train:
        raise InputError("nothing to train on: name sets in the --data folder with --train")
    names = list(trainings.EXPERIMENTS[args.what])
    for row in args.rows or ():
        if row not in names:
            raise unknown_name(f"row of {args.what}", row, names)
    rows = args.rows or names
    made = trainings.make_trainings(args.what, rows, args.train, args.seeds, settings)
    return [dataclasses.replace(training, experiment=args.name) for training in made]


def open_tests(args: argparse.Namespace) -> "Tests":
    """What is tested on."""
    from experiments.scoring import Tests

    from kjax.data.phototour import read_phototour
    from kjax.data.set_names import EMBEDDED
    from kjax.data.test_sets import read_test_sets
    from kjax.eval.hpatches.benchmark import open_benchmark

    progress = not args.quiet
    validation = None
    if args.validation == EMBEDDED:
        from kjax.data.embedded import embedded_test

        validation = embedded_test(progress=progress)[0]
    elif args.validation:
        validation = read_phototour(args.validation, progress=progress)
    names = args.train if args.test is None else args.test
    return Tests(
        sets=read_test_sets([str(args.data / name) for name in names], progress=progress),
        benchmark=open_benchmark(
            args.hpatches,
            splits=args.splits,
            tasks_folder=args.tasks,
            protocols=args.protocols,
            progress=progress,
        )
        if args.hpatches
        else None,
        validation=validation,
        jittered=read_phototour(args.data / args.jitter, progress=progress)
        if args.jitter
        else None,
    )


def check_commit(allow_changes: bool) -> None:
    """Refuses to record what no commit holds.

    Raises:
        InputError: the code differs from its commit.
    """
    import kjax
    from kjax.runs.workdir import source_version

    source = source_version(Path(kjax.__file__).parents[1])
    if source and source["dirty"] and not allow_changes:
        raise InputError(
            "the code has changes that are not committed, so records could not name what they ran "
            "with: commit them, or give --allow-changes"
        )


def train(args: argparse.Namespace, settings: list[str]) -> int:
    """Runs the trainings; the exit code says whether any is left."""
    from experiments.compiled_training import Sets
    from experiments.scoring import Scorer
    from experiments.sweep import Sweep

    trainings = make_trainings(args, settings)
    for training in trainings:
        training.config()  # a wrong setting is noticed before the first training
    check_commit(args.allow_changes)
    progress = not args.quiet
    sweep = Sweep(
        sets=Sets(args.data, progress),
        scorer=Scorer(open_tests(args)),
        records=args.results / f"{args.name}.jsonl",
        weights=args.weights,
        seconds=args.seconds,
        progress=progress,
    )
    left = sweep.run(trainings)
    if left:
        print(f"{left} of {len(trainings)} trainings are left: the same command goes on")
    return 1 if left else 0


def holds_trainings(path: Path) -> bool:
    """Whether a file is of this program's records: other benchmarks keep theirs beside them."""
    with path.open(encoding="utf-8") as lines:
        return '"experiment"' in next(lines, "")


def main(argv: list[str]) -> int:
    """Does what is asked."""
    args, settings = parse_arguments(argv)
    if args.what == "page":
        from experiments.page import write_page
        from experiments.records import read_records
        from experiments.trainings import DEFAULTS

        files = sorted(filter(holds_trainings, args.results.glob("*.jsonl")))
        if not files:
            raise InputError(f"{args.results} holds no records: run heads or ablation first")
        records = [record for path in files for record in read_records(path)]
        write_page(records, args.page, defaults=DEFAULTS)
        print(f"wrote {args.page / 'results.md'}")
        return 0
    if args.what == "rivals":
        from experiments.rivals import score_rivals

        from kjax.baselines.load import rival_file

        weights = dict(rival_file(item) for item in args.rival_weights)
        check_commit(args.allow_changes)
        for line in score_rivals(
            args.rows, open_tests(args), args.results / "rivals.jsonl", weights=weights
        ):
            print(f"not scored: {line}")
        return 0
    return train(args, settings)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped: the same command goes on with the first training that is missing")
