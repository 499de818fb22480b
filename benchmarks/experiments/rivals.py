"""Records of descriptors that are not trained here, for the same tables."""

from collections.abc import Sequence
from pathlib import Path

import jax
from tqdm import tqdm

from experiments.records import Record, append_record, read_records
from experiments.scoring import Tests
from experiments.sweep import software
from kjax.baselines.load import RIVALS
from kjax.errors import InputError, unknown_name
from kjax.eval.entries import find_entry
from kjax.eval.results import DescriptorResult
from kjax.eval.run import Options, examine


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
    known = {record.name for record in read_records(records)}
    missing = []
    for name in tqdm(names or list(RIVALS), desc="rivals", unit="rival"):
        if f"rivals/{name}" in known:
            continue
        entry = find_entry(name, weights=weights)
        if entry.missing is not None:
            missing.append(f"{name}: {entry.missing}")
            continue
        found = examine(entry, tests.sets, tests.benchmark, Options(progress=False))
        append_record(records, _record(name, found.result))
    return missing


def _record(name: str, result: DescriptorResult) -> Record:
    return Record(
        name=f"rivals/{name}",
        experiment="rivals",
        group="",
        train=[],
        seed=None,
        result=result.concise(),
        pairs=0,
        seconds=0.0,
        compile_seconds=0.0,
        config={},
        hardware=jax.devices()[0].device_kind,
        versions=software(),
    )
