"""Checkpoints of a training run. This is the only file that imports orbax.

A checkpoint is a standard orbax PyTree that plain `orbax.checkpoint` can read: nested dicts of
arrays. Checksums lie beside it, because orbax does not notice a flipped bit.

This is orbax's v0 interface. A `Checkpointer` of v1 (0.12.8) does not find the state of a run that
v0 wrote, so runs of earlier versions would not resume, and offers nothing else that we use.
"""

import contextlib
import errno
import functools
import json
import logging
import math
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import flax.serialization
import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from kjax.errors import InputError, one_line
from kjax.files.atomic import CHECKSUMS, checksum_lines, sync_folder, sync_tree
from kjax.files.json import is_number
from kjax.runs.processes import failing_together

State = TypeVar("State")
ITEM = "default"
"""Folder of the state within a checkpoint."""
REMOVALS = 30
"""Attempts to remove an unfinished checkpoint, a tenth of a second apart."""


class Checkpoints:
    """The checkpoints in a folder: the last few, and the best.

    Saving copies the state to the host and returns. The rest happens in the background, in a
    temporary folder that gets its final name when it is complete. With several processes, all of
    them make the same calls.

    Args:
        folder: created if absent. Unfinished checkpoints of earlier runs are removed.
        keep: number of recent checkpoints to keep.
        best_metric: the checkpoint with the lowest value of this metric is kept, too.
    """

    def __init__(self, folder: Path, *, keep: int, best_metric: str | None) -> None:
        self.folder = Path(folder).absolute()
        self._best_metric, self._failed = best_metric, False
        problem = f"cannot use the checkpoint folder {self.folder}"
        advice = "make it a writable folder, or choose another workdir"
        with failing_together(), _orbax_errors(problem, advice):
            self.folder.mkdir(parents=True, exist_ok=True)
            if jax.process_index() == 0:  # orbax's own clean-up fails on nested folders
                for unfinished in self._unfinished():
                    _remove(unfinished)
            _check_metrics(self.folder)
        best = policies.BestN(
            get_metric_fn=self._score, reverse=True, n=1, keep_checkpoints_without_metrics=False
        )
        kept = [policies.LatestN(keep), *([best] if best_metric else [])]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(kept),
            best_fn=self._score if best_metric else None,
            best_mode="min",
            async_options=ocp.AsyncOptions(
                # Otherwise, after a folder cannot be created, threads wait for it for minutes.
                create_directories_asynchronously=False,
                # Called when everything is written, before the final name is given.
                post_finalization_callback=self._seal,
            ),
        )
        with _orbax_errors(problem, advice):
            self._manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, step: int, state: Any, *, metrics: Mapping[str, Any] | None = None) -> None:
        """Save the state after `step` steps; return before the files are written.

        Saving the last step again does nothing. The state may be donated as soon as this returns.
        `metrics` choose the best checkpoint: several seeds count by their mean, and without a
        finite value the checkpoint cannot become the best.

        Raises:
            InputError: this save or the one before it cannot be written.
        """
        latest = self.latest_step()
        if latest == step:
            return
        if latest is not None and latest > step:
            raise InputError(
                f"{self.folder} has a checkpoint of step {latest}, after step {step}: "
                "choose another workdir, or remove the later checkpoints"
            )
        means = {name: float(np.mean(value)) for name, value in (metrics or {}).items()}
        candidate = means if math.isfinite(self._score(means)) else None
        # Copied, not viewed: the next step may reuse the memory while this is being written.
        copied = jax.tree.map(np.array, flax.serialization.to_state_dict(state))
        with self._saving():
            self._manager.save(step, args=ocp.args.StandardSave(copied), metrics=candidate)

    def restore_latest(self, like: State) -> State | None:
        """Return the state of the last checkpoint, on the devices of `like`; None without any.

        Raises:
            InputError: the checkpoint is damaged, or of another model or optimiser.
        """
        self.wait()
        return read_latest(self.folder, like)

    def latest_step(self) -> int | None:
        """Return the step of the last checkpoint, which may not be on the disk yet."""
        return self._manager.latest_step()

    def wait(self) -> None:
        """Return when the last save is on the disk.

        Raises:
            InputError: it could not be written; earlier checkpoints are intact.
        """
        with self._saving():
            self._manager.wait_until_finished()
            sync_folder(self.folder)

    def close(self) -> None:
        """Wait, and end the background threads; raise as `wait` does, unless it already did."""
        if not self._failed:
            self.wait()
            self._manager.close()

    def _unfinished(self) -> Iterator[Path]:
        return self.folder.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*")

    def _seal(self) -> None:
        """Add checksums to complete checkpoints without a name, and sync them to the disk."""
        if jax.process_index() == 0:
            for unfinished in self._unfinished():
                (unfinished / CHECKSUMS).write_text("".join(_checksums(unfinished)))
                sync_tree(unfinished)
            sync_folder(self.folder)

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Turn the error of a save, now or in the background, into one line."""
        advice = "earlier checkpoints are intact; free some space and run the same command again"
        try:
            with _orbax_errors(f"cannot save a checkpoint in {self.folder}", advice):
                yield
        except InputError:
            self._failed = True
            # Closing stops at the next error it meets and forgets it: there are at most eight.
            for _ in range(8):
                with contextlib.suppress(Exception):
                    self._manager.close()
                    break
            raise

    def _score(self, metrics: Mapping[str, float]) -> float:
        return metrics.get(str(self._best_metric), math.inf)


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a folder, which may be absent."""
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]


def read_latest(folder: Path, like: State) -> State | None:
    """Read the state in the last complete checkpoint of a folder, or parts of it; None if absent.

    `like` is a state or its shapes, or a dict with some of its parts. Nothing is written, so the
    run may still be going on.

    Raises:
        InputError: the checkpoint is damaged, or of another model.
    """
    steps = saved_steps(folder)
    if not steps:
        return None
    folder = folder.absolute() / str(max(steps))
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def described(leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None) or first
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    wanted = jax.tree.map(described, flax.serialization.to_state_dict(like))
    advice = f"remove {folder} to resume from an earlier one, or start again"
    with _orbax_errors(f"the checkpoint {folder} is damaged", advice):
        if (folder / CHECKSUMS).exists():  # other programs do not write it
            listed = (folder / CHECKSUMS).read_text().splitlines(keepends=True)
            if changed := {*listed} ^ {*_checksums(folder)}:
                name = min(changed).partition("  ")[2].strip()
                raise ValueError(f"{name or CHECKSUMS} does not match its checksum")
        handler = ocp.PyTreeCheckpointHandler()
        _check_same(handler.metadata(folder / ITEM).tree, wanted, folder)
        restore_args = ocp.checkpoint_utils.construct_restore_args(wanted)
        args = ocp.args.PyTreeRestore(wanted, restore_args=restore_args, partial_restore=True)
        return flax.serialization.from_state_dict(like, handler.restore(folder / ITEM, args=args))


def _check_same(saved: Any, wanted: dict[str, Any], where: Path) -> None:
    """Raise if names, shapes or types differ in those parts of the state that are wanted."""

    def kinds(tree: Any) -> dict[str, str]:
        leaves = {
            jax.tree_util.keystr(path, simple=True, separator="."): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        return {
            name: f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
            if hasattr(leaf, "dtype")
            else type(leaf).__name__
            for name, leaf in leaves.items()
            if name.partition(".")[0] in wanted
        }

    there, here = kinds(saved), kinds(wanted)
    # Parameters first: if they differ, so does the state of the optimiser.
    names = sorted(here | there, key=lambda name: not name.startswith("params"))
    differences = [
        f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} here"
        for name in names
        if there.get(name) != here.get(name)
    ]
    if differences:
        rest = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise InputError(
            f"the checkpoint {where} is of another model or optimiser: "
            f"{'; '.join(differences[:3])}{rest}: "
            "use the config it was saved with, or choose another workdir"
        )


def _checksums(folder: Path) -> Iterator[str]:
    return checksum_lines(folder, sorted(p for p in (folder / ITEM).rglob("*") if p.is_file()))


def _check_metrics(folder: Path) -> None:
    """Raise on a damaged file of metrics, which orbax would read at any later time."""
    for path in sorted(folder.glob("*/metrics/metrics")):
        try:
            content = json.loads(path.read_bytes())
            valid = content is None or all(map(is_number, content.values()))
        except (ValueError, AttributeError, RecursionError):
            valid = False
        if not valid:
            raise InputError(
                f"{path} is damaged: remove the folder {path.parent}. The checkpoint stays usable "
                "but cannot count as the best"
            )


def _remove(folder: Path) -> None:
    """Remove a folder, also while a failed save of this process still ends in the background."""
    for patience in reversed(range(REMOVALS)):
        try:
            shutil.rmtree(folder)
            break
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not patience:
                raise
        time.sleep(0.1)


@contextlib.contextmanager
def _orbax_errors(problem: str, advice: str) -> Iterator[None]:
    """Turn whatever orbax raises into one line: its errors have no common class."""
    _silence_orbax()
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else None
        reason = reason or one_line(error)
        shortened = f"{reason[:200]}…" if len(reason) > 200 else reason
        raise InputError(f"{problem} ({shortened}): {advice}") from error


@functools.cache
def _silence_orbax() -> None:
    """Keep orbax's log and the errors of its threads off the terminal: we raise them ourselves."""

    def comes_from_orbax(record: logging.LogRecord) -> bool:
        frames = traceback.extract_tb(record.exc_info[2] if record.exc_info else None)
        return ".orbax-checkpoint-tmp" in record.getMessage() or any(
            "orbax" in Path(frame.filename).parts for frame in frames
        )

    logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)
    logging.getLogger("asyncio").addFilter(lambda record: not comes_from_orbax(record))
    usual = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            usual(unraisable)

    sys.unraisablehook = hook
