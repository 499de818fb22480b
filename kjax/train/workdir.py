"""The folder of a training run: what it was told to do, with which software, and whether to go on.

    config.json     the resolved config
    versions.json   software, device and source of each start, as a list
    checkpoints/    see `kjax.train.checkpoint`
    metrics.jsonl   see `kjax.train.metrics_log`
    tensorboard/

Only the first process writes. Files are replaced whole, so a kill leaves the old or the new.
"""

import contextlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

import kjax
from kjax.errors import InputError
from kjax.whole_files import partial_prefix, write_json

CONFIG_FILE = "config.json"
VERSIONS_FILE = "versions.json"
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


def prepare_workdir(workdir: Path, config: Mapping[str, Any]) -> bool:
    """Makes the folder ready for a new run, or for going on with the run that is in it.

    Args:
        workdir: absent, empty, or the folder of a run with this config.
        config: the resolved config as plain nested dictionaries (`ConfigDict.to_dict()`).

    Returns:
        Whether a run has been started here before.

    Raises:
        InputError: the folder cannot be written, or holds something else. It is left as it was.
    """
    if jax.process_index() != 0:
        return (workdir / CONFIG_FILE).exists()
    with _mendable_errors(workdir):
        stored = _read_stored(workdir)
        plain = _as_json(config)
        if stored is not None:
            _check_same_training(workdir, stored, plain)
        workdir.mkdir(parents=True, exist_ok=True)
        # Written even if unchanged: that a full disk is noticed now, not at the first checkpoint.
        write_json(workdir / CONFIG_FILE, plain)
        _record_versions(workdir / VERSIONS_FILE)
    return stored is not None


def versions() -> dict[str, Any]:
    """Software, device and source of this process."""
    device = jax.devices()[0]
    return {
        "kjax": kjax.__version__,
        "source": source_version(Path(kjax.__file__).parents[1]),
        "python": platform.python_version(),
        **{name: _package_version(name) for name in PACKAGES},
        "backend": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
    }


def source_version(tree: Path) -> dict[str, Any] | None:
    """Commit of a source tree and whether files differ from it; None if it is no git checkout."""
    commit = _git(tree, "rev-parse", "HEAD")
    # kjax may be installed in an environment that lies inside somebody else's checkout.
    top = _git(tree, "rev-parse", "--show-toplevel")
    if not commit or not top or Path(top) != tree.resolve():
        return None
    return {"commit": commit, "dirty": bool(_git(tree, "status", "--porcelain"))}


def _git(tree: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(tree), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


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
        prefix = partial_prefix(path)
        others = [p.name for p in _listed(workdir) if not p.name.startswith(prefix)]
        if others:
            raise InputError(
                f"the workdir {workdir} has files but no {CONFIG_FILE}, so they are not of a run "
                f"({sorted(others)[0]}, …): choose an empty or absent folder"
            )
        return None
    return _read_json(path, dict)


def _listed(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.exists() else iter(())


def _read_json(path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        content = error
    if not isinstance(content, kind):
        raise InputError(f"{path} is damaged: restore it, or choose another workdir")
    return content


def _as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as it comes back from a file: tuples become lists."""
    return json.loads(json.dumps(config))


def _check_same_training(workdir: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    before, now = _flat(old), _flat(new)
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


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields by dotted path."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            fields |= _flat(value, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = value
    return fields


def _record_versions(path: Path) -> None:
    """Adds an entry, unless the last start was with the same."""
    entries = _read_json(path, list) if path.exists() else []
    current = versions()
    if not entries or entries[-1] != current:
        write_json(path, [*entries, current])


@contextlib.contextmanager
def _mendable_errors(workdir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write to the workdir {workdir} ({error.strerror or error}): "
            "choose a folder that you may write to, on a disk with room"
        ) from error
