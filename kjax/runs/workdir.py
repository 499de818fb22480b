"""The folder of a training run: what it was told to do, with which software, and whether to go on.

    config.json     the resolved config, with the pipeline that "auto" came to
    versions.json   software, device, source and pipeline of each start, as a list
    checkpoints/    see `kjax.runs.checkpoint`
    metrics.jsonl   see `kjax.train.metrics_log`
    tensorboard/
    results.json    the final evaluation
    weights.npz     the final weights; with several seeds, weights_<seed>.npz
    .lock           empty; held by the run that is going on here

Only the first process writes. Files are replaced whole, so a kill leaves the old or the new.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import kjax
from kjax.errors import InputError
from kjax.files.atomic import explain_write_errors, partial_prefix, write_json
from kjax.files.json import parse_json
from kjax.runs.config import flat_fields, optional_fields
from kjax.runs.processes import failing_together
from kjax.version import __version__

CONFIG_FILE = "config.json"
VERSIONS_FILE = "versions.json"
LOCK_FILE = ".lock"
CHECKPOINTS_FOLDER = "checkpoints"
RESULTS_FILE = "results.json"
HARMLESS_FIELDS = frozenset(
    {
        "data.pipeline",
        "data.test",
        "progress",
        "tensorboard",
        "train.checkpoint_every",
        "train.eval_every",
        "train.keep_checkpoints",
        "train.log_every",
        "train.steps_per_dispatch",
    }
)
"""Fields that may change between a run and its continuation: they do not change the training."""
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


@contextlib.contextmanager
def claim_workdir(
    workdir: Path, config: Mapping[str, Any], *, notes: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Prepares the folder, and keeps other runs out of it until the block ends.

    With several processes, the first one does both, and all of them hear of it if it cannot. The
    arguments are those of `prepare_workdir`.

    Raises:
        InputError: another run is going on in the folder, or what `prepare_workdir` raises. It is
            left as it was.
    """
    with contextlib.ExitStack() as held:
        with failing_together():
            if jax.process_index() == 0:
                check_workdir(workdir, config)  # before a foreign folder gets a lock file
                held.enter_context(_lock(workdir))
            prepare_workdir(workdir, config, notes=notes)
        yield


def check_workdir(workdir: Path, config: Mapping[str, Any]) -> bool:
    """Whether a run was started in the folder; raises as `prepare_workdir`, changes nothing."""
    with mendable_errors(workdir):
        stored = _read_stored(workdir)
        if stored is not None:
            _check_same_training(workdir, stored, _as_json(config))
    return stored is not None


def prepare_workdir(
    workdir: Path, config: Mapping[str, Any], *, notes: Mapping[str, str] | None = None
) -> bool:
    """Makes the folder ready for a new run, or for going on with the run that is in it.

    Args:
        workdir: absent, empty, or the folder of a run with this config.
        config: the resolved config as plain nested dictionaries (`ConfigDict.to_dict()`).
        notes: more about this start, to stand beside its versions.

    Returns:
        Whether a run has been started here before.

    Raises:
        InputError: the folder cannot be written, or holds something else. It is left as it was.
    """
    if jax.process_index() != 0:
        return (workdir / CONFIG_FILE).exists()
    started_before = check_workdir(workdir, config)
    with mendable_errors(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        # Written even if unchanged: that a full disk is noticed now, not at the first checkpoint.
        write_json(workdir / CONFIG_FILE, _as_json(config))
        _record_versions(workdir / VERSIONS_FILE, notes or {})
    return started_before


@contextlib.contextmanager
def _lock(workdir: Path) -> Iterator[None]:
    """Holds the folder's lock, which the operating system drops when the process ends, however.

    The file stays: were it removed, two runs could hold locks on two files of one name.
    """
    with mendable_errors(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        file = os.open(workdir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take_lock(file, workdir)
        yield
    finally:
        os.close(file)


def _take_lock(file: int, workdir: Path) -> None:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"another run is going on in the workdir {workdir}: wait for it, stop it, or choose "
            "another workdir"
        ) from error
    except (ImportError, OSError):
        # Some network file systems, and Windows. Better to train than to refuse.
        print(
            f"{workdir} is on a file system without locks: see that no other run uses it",
            file=sys.stderr,
        )


def stored_config(workdir: Path) -> dict[str, Any]:
    """The config of the run in a folder, which is only read.

    Raises:
        InputError: there is none.
    """
    if not (workdir / CONFIG_FILE).is_file():
        raise InputError(f"{workdir} is not of a run: it has no {CONFIG_FILE}")
    return _read_json(workdir / CONFIG_FILE, dict)


def stored_pipeline(workdir: Path) -> str | None:
    """The input pipeline of the run in a folder; None if there is no run.

    Raises:
        InputError: its config is damaged.
    """
    if not (workdir / CONFIG_FILE).is_file():
        return None
    return flat_fields(stored_config(workdir)).get("data.pipeline")


def weights_files(workdir: Path, seeds: Sequence[int]) -> list[Path]:
    """The files of the final weights of each seed, once there are any."""
    if len(seeds) == 1:
        return [workdir / "weights.npz"]
    return [workdir / f"weights_{seed}.npz" for seed in seeds]


def versions() -> dict[str, Any]:
    """Software, device and source of this process."""
    device = jax.devices()[0]
    return {
        "kjax": __version__,
        "source": source_version(Path(kjax.__file__).parents[1]),
        "python": platform.python_version(),
        **{name: _package_version(name) for name in PACKAGES},
        "backend": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
    }


def plain_versions() -> dict[str, str]:
    """`versions` as text: the source as its commit, and nothing that is not known."""
    found = versions()
    source = found.pop("source")
    commit = f"{source['commit'][:12]}{' + changes' if source['dirty'] else ''}" if source else None
    named = {**found, "commit": commit}
    return {name: str(value) for name, value in named.items() if value is not None}


def source_version(tree: Path) -> dict[str, Any] | None:
    """Commit of a source tree and whether its code differs; None if it is no git checkout."""
    commit = _git(tree, "rev-parse", "HEAD")
    # kjax may be installed in an environment that lies inside somebody else's checkout.
    top = _git(tree, "rev-parse", "--show-toplevel")
    if not commit or not top or Path(top) != tree.resolve():
        return None
    # Records and their page are what runs write: they are no part of what ran.
    changed = _git(tree, "status", "--porcelain", "-uno", "--", ".", *_WRITTEN_BY_RUNS)
    added = _git(tree, "ls-files", "--others", "--exclude-standard", "--", "*.py")
    return {"commit": commit, "dirty": bool(changed or added)}


_WRITTEN_BY_RUNS = (":(exclude)results", ":(exclude)docs")


def _git(tree: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(tree), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_stored(workdir: Path) -> dict[str, Any] | None:
    """The config of the run in the folder, None if it is absent or empty."""
    if workdir.exists() and not workdir.is_dir():
        raise InputError(f"the workdir {workdir} is a file: choose another")
    path = workdir / CONFIG_FILE
    if not path.exists():
        # A kill before the first file had its name leaves a partial one, which is nobody's.
        # Neither is the lock, which comes even before.
        found = workdir.iterdir() if workdir.exists() else ()
        names = {path.name for path in found} - {LOCK_FILE}
        others = [name for name in names if not name.startswith(partial_prefix(path))]
        if others:
            raise InputError(
                f"the workdir {workdir} has files but no {CONFIG_FILE}, so they are not of a run "
                f"({sorted(others)[0]}, …): choose an empty or absent folder"
            )
        return None
    return _read_json(path, dict)


def _read_json(path: Path, kind: type, advice: str = "restore it") -> Any:
    try:
        content = parse_json(path.read_bytes())
    except ValueError as error:
        content = error
    if not isinstance(content, kind):
        raise InputError(f"{path} is damaged: {advice}, or choose another workdir")
    return content


def _as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as it comes back from a file: tuples become lists."""
    return json.loads(json.dumps(config))


def _check_same_training(workdir: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    absent = _as_json(optional_fields())
    before, now = absent | flat_fields(old), absent | flat_fields(new)
    changed = [
        f"{name} was {json.dumps(before.get(name, 'absent'), ensure_ascii=False)} and "
        f"is {json.dumps(now.get(name, 'absent'), ensure_ascii=False)}"
        for name in sorted(before.keys() | now.keys())
        if name not in HARMLESS_FIELDS and before.get(name, _ABSENT) != now.get(name, _ABSENT)
    ]
    if changed:
        raise InputError(
            f"the workdir {workdir} is of a run with another config: {'; '.join(changed)}: "
            "choose another workdir, or the config that was used there"
        )


_ABSENT = object()


def _record_versions(path: Path, notes: Mapping[str, str]) -> None:
    """Adds an entry, unless the last start was with the same."""
    entries = _read_json(path, list, "remove it") if path.exists() else []
    current = {**versions(), **notes}
    if not entries or entries[-1] != current:
        write_json(path, [*entries, current])


def mendable_errors(workdir: Path) -> contextlib.AbstractContextManager[None]:
    """Turns whatever keeps files from being read or written into one line."""
    return explain_write_errors(
        f"to the workdir {workdir}",
        "free some space or mend the folder and run the same command again, or choose another",
    )
