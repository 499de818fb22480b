"""The folder of a training run: its config, its software versions, and whether it can resume.

    config.json     the config, with the pipeline that "auto" resolved to
    versions.json   software, device, source and pipeline of each start, as a list
    checkpoints/    see `kjax.runs.checkpoint`
    metrics.jsonl   see `kjax.train.metrics_log`
    tensorboard/
    results.json    the final evaluation
    weights.npz     the final weights; with several seeds, weights_<seed>.npz
    .lock           empty; locked while a run uses the folder

Only the first process writes. Files are replaced as a whole, so a kill leaves the old or the new.
"""

import contextlib
import dataclasses
import importlib.metadata
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
from kjax.runs import CONFIG_FILE
from kjax.runs.config import flat_fields, validate_as
from kjax.runs.processes import failing_together
from kjax.version import __version__

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
        "train.parallel",
        "train.log_every",
        "train.steps_per_dispatch",
    }
)
"""Fields that may change when a run is resumed: they do not affect what is learned."""
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_WRITTEN_BY_RUNS = (":(exclude)results", ":(exclude)docs")


@contextlib.contextmanager
def claim_workdir(
    workdir: Path, config: Any, *, notes: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Prepare the folder for a new or resumed run, and lock it until the block ends.

    The folder is absent, empty, or of a run with this config. `notes` are recorded beside the
    versions. With several processes, the first one does this, and all of them stop if it cannot.

    Raises:
        InputError: the folder cannot be written, belongs to something else, or is in use by another
            run. It is left as it was.
    """
    with contextlib.ExitStack() as held:
        with failing_together():
            if jax.process_index() == 0:
                check_workdir(workdir, config)  # before a foreign folder gets a lock file
                with workdir_errors(workdir):
                    workdir.mkdir(parents=True, exist_ok=True)
                    held.enter_context(_lock(workdir))
                    # Written even if unchanged, to notice a full disk now.
                    write_json(workdir / CONFIG_FILE, dataclasses.asdict(config))
                    path = workdir / VERSIONS_FILE
                    entries = _read_json(path, list, "remove it") if path.exists() else []
                    current = {**versions(), **(notes or {})}
                    if entries[-1:] != [current]:
                        write_json(path, [*entries, current])
        yield


def check_workdir(workdir: Path, config: Any) -> None:
    """Raise, as `claim_workdir` does, if the folder is neither empty nor of this config's run."""
    if workdir.exists() and not workdir.is_dir():
        raise InputError(f"the workdir {workdir} is a file: choose another")
    path = workdir / CONFIG_FILE
    if not path.exists():
        # A kill before the first file has its name leaves a partial one, and the lock.
        found = {path.name for path in workdir.iterdir()} if workdir.exists() else set()
        foreign = [
            name
            for name in sorted(found - {LOCK_FILE})
            if not name.startswith(partial_prefix(path))
        ]
        if foreign:
            raise InputError(
                f"the workdir {workdir} has files but no {CONFIG_FILE} ({foreign[0]}, …): choose "
                "an empty or absent folder"
            )
        return
    values = stored_config(workdir)
    try:
        stored = validate_as(type(config), values)
    except InputError as error:
        raise InputError(
            f"cannot resume the run in {workdir}: {error}. Choose another workdir"
        ) from error
    before, now = (flat_fields(dataclasses.asdict(one)) for one in (stored, config))
    changed = [
        f"{name} was {before[name]!r} and is {value!r}"
        for name, value in now.items()
        if name not in HARMLESS_FIELDS and value != before[name]
    ]
    if changed:
        raise InputError(
            f"the run in the workdir {workdir} has another config: {'; '.join(changed)}: "
            "choose another workdir, or use that config"
        )


@contextlib.contextmanager
def _lock(workdir: Path) -> Iterator[None]:
    """Hold the folder's lock, which the operating system releases when the process ends."""
    file = os.open(workdir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"another run is using the workdir {workdir}: wait for it, stop it, or choose "
                "another workdir"
            ) from error
        except (ImportError, OSError):  # Windows, and some network file systems
            print(
                f"{workdir} is on a file system without locks: make sure no other run uses it",
                file=sys.stderr,
            )
        yield
    finally:
        os.close(file)  # which stays: else two runs could lock two files of the same name


def stored_config(workdir: Path) -> dict[str, Any]:
    """Return the config of the run in a folder, as plain nested dictionaries.

    Raises:
        InputError: there is none.
    """
    if not (workdir / CONFIG_FILE).is_file():
        raise InputError(f"{workdir} is not the folder of a run: it has no {CONFIG_FILE}")
    return _read_json(workdir / CONFIG_FILE, dict, "restore it")


def _read_json(path: Path, kind: type, advice: str) -> Any:
    try:
        content = parse_json(path.read_bytes())
    except ValueError as error:
        content = error
    if not isinstance(content, kind):
        raise InputError(f"{path} is damaged: {advice}, or choose another workdir")
    return content


def weights_files(workdir: Path, seeds: Sequence[int]) -> list[Path]:
    """Return the paths of each seed's final weights."""
    if len(seeds) == 1:
        return [workdir / "weights.npz"]
    return [workdir / f"weights_{seed}.npz" for seed in seeds]


def workdir_errors(workdir: Path) -> contextlib.AbstractContextManager[None]:
    """Turn a failed read or write into one line."""
    return explain_write_errors(
        f"to the workdir {workdir}",
        "free some space or repair the folder and run the same command again, or choose another",
    )


def versions() -> dict[str, Any]:
    """Return the versions of software, device and source in this process."""
    device = jax.devices()[0]
    packages: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return {
        "kjax": __version__,
        "source": source_version(Path(kjax.__file__).parents[1]),
        "python": platform.python_version(),
        **packages,
        "backend": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
    }


def plain_versions() -> dict[str, str]:
    """Return `versions` as text, with the source as its commit and without unknown values."""
    found = versions()
    source = found.pop("source")
    commit = f"{source['commit'][:12]}{' + changes' if source['dirty'] else ''}" if source else None
    named = {**found, "commit": commit}
    return {name: str(value) for name, value in named.items() if value is not None}


def source_version(tree: Path) -> dict[str, Any] | None:
    """Return a source tree's commit and whether its code differs; None without git."""

    def git(*arguments: str) -> str | None:
        try:
            command = ["git", "-C", str(tree), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            return done.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

    commit = git("rev-parse", "HEAD")
    # kjax may be installed in an environment inside another project's checkout.
    top = git("rev-parse", "--show-toplevel")
    if not commit or not top or Path(top) != tree.resolve():
        return None
    changed = git("status", "--porcelain", "-uno", "--", ".", *_WRITTEN_BY_RUNS)
    added = git("ls-files", "--others", "--exclude-standard", "--", "*.py")
    return {"commit": commit, "dirty": bool(changed or added)}
