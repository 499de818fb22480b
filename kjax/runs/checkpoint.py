"""Checkpoints of a training run: the one file that knows orbax.

A checkpoint is a standard orbax PyTree, which plain `orbax.checkpoint` reads: nested dicts of
arrays, "params" and so on. Beside it lie checksums: orbax does not notice that a bit has flipped.
"""

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from kjax.errors import InputError
from kjax.files.atomic import sync_folder, sync_tree
from kjax.runs import checkpoint_damage as damage
from kjax.runs import checkpoint_format_2
from kjax.runs.checkpoint_tree import check_same, to_restore, to_save
from kjax.runs.processes import failing_together
from kjax.train.step import TrainState

ITEM = "default"  # the folder of what is saved under no name
_CHECK_FOLDER = "check that it is a folder you may write to, or choose another workdir"
_CHECK_SPACE = (
    "earlier ones are intact; free some space or mend the folder, and run the same command again"
)


class Checkpoints:
    """The checkpoints in a folder: the last few, and the best.

    Saving copies the state to the host and returns; the rest happens in the background, in a
    temporary folder that gets its name only when it is whole. With several processes, all of them
    make the same calls.

    Args:
        folder: made if it is not there. What earlier runs left unfinished in it is removed.
        keep: how many of the last checkpoints to keep.
        best_metric: whose lowest value marks the best checkpoint, which is kept too; or None.
    """

    def __init__(self, folder: Path, *, keep: int, best_metric: str | None) -> None:
        if keep < 1:
            raise InputError(f"at least one checkpoint must be kept, not {keep}")
        self.folder = Path(folder).absolute()
        self._best_metric, self._failed = best_metric, False
        what = f"cannot use the checkpoint folder {self.folder}"
        with failing_together(), damage.mendable(what, _CHECK_FOLDER):
            self.folder.mkdir(parents=True, exist_ok=True)
            if jax.process_index() == 0:  # orbax's own removal trips over folders in each other
                for unfinished in self._unfinished():
                    shutil.rmtree(unfinished)
            damage.check_metrics(self.folder)
        best = policies.BestN(
            get_metric_fn=self._score, reverse=True, n=1, keep_checkpoints_without_metrics=False
        )
        kept = [policies.LatestN(keep), *([best] if best_metric else [])]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(kept),
            best_fn=self._score if best_metric else None,
            best_mode="min",
            async_options=ocp.AsyncOptions(
                # Else a folder that cannot be made leaves threads that wait for it for minutes.
                create_directories_asynchronously=False,
                # Orbax calls it when all is written and only the name is to be given.
                post_finalization_callback=self._seal,
            ),
        )
        with damage.mendable(what, _CHECK_FOLDER):
            self._manager = ocp.CheckpointManager(self.folder, options=options)

    def save(
        self, step: int, state: TrainState, *, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Saves the state after `step` steps; returns before the files are written.

        Args:
            step: higher than any saved before; saving the last one again does nothing.
            state: may be overwritten or donated as soon as this returns.
            metrics: what the best checkpoint is chosen by, of this very step; of several seeds, the
                mean counts. Without the metric, or if it is not finite, it is no candidate.

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
        args = ocp.args.StandardSave(to_save(state))
        with self._failing_saves_told():
            self._manager.save(step, args=args, metrics=candidate)

    def restore_latest(self, like: TrainState) -> TrainState | None:
        """The state of the last whole checkpoint, or None if there is none; see `restore`."""
        step = self.latest_step()
        return None if step is None else self.restore(step, like)

    def restore(self, step: int, like: TrainState) -> TrainState:
        """The state after `step` steps, on the devices of `like`: a state of the run, or shapes.

        Raises:
            InputError: the checkpoint is not there, damaged, or of another model or optimiser.
        """
        self.wait()
        if step not in self._manager.all_steps():
            steps = ", ".join(map(str, sorted(self._manager.all_steps()))) or "none"
            raise InputError(f"{self.folder} has no checkpoint of step {step}, only: {steps}")
        return _read(self.folder / str(step), like)

    def latest_step(self) -> int | None:
        """The step of the last checkpoint, which may still be on its way to the disk."""
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The step of the checkpoint with the lowest metric."""
        step = self._manager.best_step() if self._best_metric else None
        return None if step is None or self._manager.metrics(step) is None else step

    def wait(self) -> None:
        """Returns when the last save is on the disk.

        Raises:
            InputError: it could not be written; the checkpoints before it are as they were.
        """
        with self._failing_saves_told():
            self._manager.wait_until_finished()
            sync_folder(self.folder)

    def close(self) -> None:
        """Waits, and ends the background threads. Raises what `wait` does, unless it was raised."""
        if not self._failed:
            self.wait()
            self._manager.close()

    def _unfinished(self) -> Iterator[Path]:
        return self.folder.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*")

    def _seal(self) -> None:
        """Adds checksums to what waits for its name; sees it, and earlier names, to the disk."""
        if jax.process_index() == 0:
            for unfinished in self._unfinished():
                damage.write_checksums(unfinished, ITEM)
                sync_tree(unfinished)
            sync_folder(self.folder)

    @contextlib.contextmanager
    def _failing_saves_told(self) -> Iterator[None]:
        """One line for a save that fails, now or in the background."""
        try:
            with damage.mendable(f"cannot save a checkpoint in {self.folder}", _CHECK_SPACE):
                yield
        except InputError:
            self._failed = True
            damage.close_failed(self._manager.close)
            raise

    def _score(self, metrics: Mapping[str, float]) -> float:
        return metrics.get(str(self._best_metric), math.inf)


def saved_steps(folder: Path) -> list[int]:
    """The steps of the whole checkpoints in a folder, which may be absent."""
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]


def read_latest(folder: Path, like: Any) -> Any | None:
    """Parts of the state in the last whole checkpoint of a folder, or None if there is none.

    They are those of `like`, `{"params": shapes, …}`. The run may be going on: nothing is written.

    Raises:
        InputError: the checkpoint is damaged, or of another model.
    """
    steps = saved_steps(folder)
    return _read(folder.absolute() / str(max(steps)), like) if steps else None


def _read(folder: Path, like: Any) -> Any:
    advice = f"remove {folder} to go on from an earlier one, or start anew"
    with damage.mendable(f"the checkpoint {folder} is damaged", advice):
        of_format_2 = (folder / checkpoint_format_2.FILE).exists()
        read_tree = checkpoint_format_2.read_tree if of_format_2 else _read_pytree
        return flax.serialization.from_state_dict(like, read_tree(folder, to_restore(like)))


def _read_pytree(folder: Path, wanted: dict[str, Any]) -> Any:
    damage.check_checksums(folder, ITEM)
    handler = ocp.PyTreeCheckpointHandler()
    check_same(handler.metadata(folder / ITEM).tree, wanted, folder)
    how = ocp.checkpoint_utils.construct_restore_args(wanted)
    args = ocp.args.PyTreeRestore(wanted, restore_args=how, partial_restore=True)
    return handler.restore(folder / ITEM, args=args)
