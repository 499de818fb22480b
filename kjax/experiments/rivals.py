"""Records of descriptors that are not trained here, for the same tables."""

from collections.abc import Sequence
from pathlib import Path

import jax
from tqdm import tqdm

from kjax.baselines.rival import RIVALS
from kjax.errors import InputError, unknown_name
from kjax.eval.contenders import find_contender
from kjax.eval.results import DescriptorResult
from kjax.eval.run import Options, run
from kjax.experiments.records import Record, append_record, read_records
from kjax.experiments.scoring import Tests, hpatches_metrics
from kjax.experiments.sweep import software


def score_rivals(
    names: Sequence[str] | None, tests: Tests, records: Path, *, weights: dict[str, str]
) -> list[str]:
    """Scores those that are not recorded yet.

    Args:
        names: of rivals; None for all.
        tests: what they are scored on.
        records: file to add to.
        weights: files of rivals that need them, by name.

    Returns:
        Why some could not be scored.
    """
    for name in names or ():
        if name not in RIVALS:
            raise unknown_name("rival", name, RIVALS)
    if not tests.sets and tests.benchmark is None:
        raise InputError("nothing to score on: give --test or --hpatches")
    known = {record.cell for record in read_records(records)}
    missing = []
    for name in tqdm(names or list(RIVALS), desc="rivals", unit="rival"):
        if f"rivals/{name}" in known:
            continue
        contender = find_contender(name, weights=weights)
        if contender.missing is not None:
            missing.append(f"{name}: {contender.missing}")
            continue
        evaluation, _ = run(
            [contender],
            tests.sets,
            tests.benchmark,
            title=name,
            command="",
            options=Options(progress=False),
        )
        append_record(records, _record(name, evaluation.descriptors[0]))
    return missing


def _record(name: str, found: DescriptorResult) -> Record:
    metrics = {f"fpr95/{scores.test}": scores.fpr95 for scores in found.phototour}
    for on_split in found.hpatches:
        metrics |= hpatches_metrics(on_split)
    return Record(
        cell=f"rivals/{name}",
        experiment="rivals",
        group="",
        row=found.name,
        train=[],
        seed=None,
        parameters=found.parameters,
        dimension=found.dimension,
        pairs=0,
        seconds=0.0,
        compile_seconds=0.0,
        metrics=metrics,
        tested_pairs={
            scores.test: [scores.matching_pairs, scores.non_matching_pairs]
            for scores in found.phototour
        },
        config={},
        hardware=jax.devices()[0].device_kind,
        versions=software(),
    )
