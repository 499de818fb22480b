r"""Measure what tuning to one site gives on another site, and what it costs elsewhere.

    kjax build-patches --photos photos/lewis --out data/lewis --views 4
    python benchmarks/tune.py --weights best --site photos/seneca --test-set data/lewis \
        --test-photos photos/lewis --hpatches data/oxford --general data/azure --out out/tune.jsonl

Tunes at each of --rates and scores the weights before and after: matching of misaligned patches of
the other site (mean of easy, hard and tough), correct matches between its photos and views of them,
and matching on a folder in HPatches' format by its Python rules. Appends a line to --out for each.
Expected: a gain on the other site, and little loss on the folder.
"""

import argparse
import functools
import tempfile
from pathlib import Path

import jax
import numpy as np
import program
from experiments.scoring import Scorer, Tests

from kjax.data.cutting.photographs import list_photos
from kjax.data.phototour import read_with_pairs
from kjax.eval.hpatches.tasks import open_benchmark
from kjax.interrupts import run_script
from kjax.tune.run import tune
from kjax.tune.scores import correct_matches, patch_scores
from kjax.tune.sets import TuneSettings
from kjax.tune.training import ACCELERATOR
from kjax.weights.source import LoadedModel, load_source

SEED = 0


def run(args: argparse.Namespace) -> None:
    """Score before, then after each tuning."""
    scorer = TuningScorer(args)
    report(args, scorer.score(load_source(args.start)), 0.0, 0.0)
    for rate in args.rates:
        with tempfile.TemporaryDirectory() as folder:
            given = {name: getattr(args, name) for name in ("start", "share", "steps", "pairs")}
            own = {"photos": args.site, "general": tuple(args.general), "learning_rate": rate}
            settings, out = TuneSettings(**given, **own, seed=SEED), Path(folder) / "tuned"
            work = functools.partial(tune, settings, out, progress=False)
            seconds, _ = program.timed(work)
            report(args, scorer.score(load_source(str(out))), rate, seconds)


class TuningScorer:
    """Scores of weights on data that they were not tuned to."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.test = read_with_pairs(args.test_set, progress=False)
        self.photos = args.test_photos
        self.names = [str(path.relative_to(self.photos)) for path in list_photos(self.photos)]
        self.folder = Scorer(Tests(benchmark=open_benchmark(args.hpatches, progress=False)))

    def score(self, source: LoadedModel) -> dict[str, float]:
        """Score on the other site and on the folder."""
        scores = patch_scores(source, self.test, seed=SEED)
        scores |= correct_matches(source, self.photos, self.names, seed=SEED, progress=False)
        (found,) = self.folder.score("tuned", source.model, source.variables).hpatches
        return scores | {"hpatches": float(found.matching_map)}


def report(args: argparse.Namespace, scores: dict[str, float], rate: float, seconds: float) -> None:
    """Print the scores, and append them to the file."""
    sets = {"start": args.start, "site": args.site.name, "test": args.test_set.name}
    settings = {"rate": rate, "share": args.share, "steps": args.steps, "pairs": args.pairs}
    record = {
        **sets,
        **settings,
        "general": [Path(name).name for name in args.general],
        "seconds": round(seconds, 1),
        "hardware": jax.devices()[0].device_kind,
        "scores": {name: round(float(np.asarray(value)), 5) for name, value in scores.items()},
    }
    program.append_record(args.out, record)
    print(
        f"{args.site.name} → {args.test_set.name}, rate {rate:g}: misaligned "
        f"{100 * scores['matching']:.1f} %, {scores['correct']:.0f} of {scores['matches']:.0f} "
        f"matches correct, HPatches {100 * scores['hpatches']:.1f} %, {seconds:.0f} s",
        flush=True,
    )


@program.command(run)
def main(add: program.AddArgument) -> None:
    """Add the arguments."""
    add("--weights", dest="start", default="best", help="weights to start from (default: best)")
    add("--site", type=Path, required=True, help="photos or set to tune to")
    add("--test-set", type=Path, required=True, help="patches of another site")
    add("--test-photos", type=Path, required=True, help="photos of the other site")
    add("--hpatches", type=Path, required=True, help="folder in HPatches' format")
    add("--general", nargs="*", default=["embedded"], help="sets against forgetting")
    add("--share", type=float, default=0.5, help="share of general patches (default: 0.5)")
    add("--rates", nargs="+", type=float, default=[ACCELERATOR.rate], help="learning rates")
    add("--steps", type=int, help="number of steps")
    add("--pairs", type=int, help="pairs per batch")
    add("--out", type=Path, required=True, help="file of JSON lines")


if __name__ == "__main__":
    run_script(main)
