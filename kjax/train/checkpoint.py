"""Checkpoints of a training run: the one file that knows orbax.

A checkpoint is one .npz file of host arrays, one per leaf of the state and named by its path. So it
knows nothing of devices, anything that reads NumPy's files can read it, and every array has the
checksum that zip files give it. Orbax does the rest: saving in the background, giving a checkpoint
its name only when it is whole, several processes, and removing old ones.
"""

import contextlib
import dataclasses
import json
import logging
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Shaped
from orbax.checkpoint import checkpoint_managers as policies

from kjax.array_files import read_npz
from kjax.errors import InputError
from kjax.json_lines import is_number, parse_line
from kjax.train.processes import failing_together
from kjax.train.step import TrainState
from kjax.whole_files import sync_folder, sync_tree

FORMAT = 2
"""Raised whenever older checkpoints could no longer be read."""
ABOUT = "about"
"""Entry of the file that says, as JSON, its format and what type each array had."""
MOST_ERRORS_OF_A_SAVE = 8
"""More than the files orbax writes for a checkpoint; each can fail."""
NAMED_DIFFERENCES = 3
"""How many leaves an error message names."""

HostArrays = dict[str, Shaped[np.ndarray, "..."]]


class ArraysHandler(ocp.AsyncCheckpointHandler):
    """Tells orbax how to write and read a table of arrays: as an .npz file, by the first process.

    Orbax's own format is made for arrays that are spread over machines. Ours are whole on each, a
    few megabytes in all; and when its writes or reads fail, the rest of them fill the terminal.
    """

    FILE = "arrays.npz"

    async def async_save(self, directory: Any, args: "SaveArrays") -> list[Any]:
        """Begins to write, and returns what orbax waits for before it names the checkpoint."""

        async def write() -> None:
            self._write(Path(directory) / self.FILE, args.arrays)

        return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="arrays")]

    def save(self, directory: Any, args: "SaveArrays") -> None:
        """Part of orbax's interface; `Checkpoints` always saves in the background."""
        self._write(Path(directory) / self.FILE, args.arrays)

    def restore(self, directory: Any, args: "RestoreArrays") -> HostArrays:
        """Reads all arrays, and so their checksums."""
        del args
        try:
            saved = read_npz(Path(directory) / self.FILE)
        except InputError as error:
            raise ValueError(str(error)) from None  # the caller knows which checkpoint it is
        return _typed(saved, Path(directory).parent)

    def _write(self, path: Path, arrays: HostArrays) -> None:
        if jax.process_index() == 0:
            named: dict[str, Any] = {**arrays, ABOUT: json.dumps(_describe(arrays))}
            np.savez(path, allow_pickle=False, **named)


@ocp.args.register_with_handler(ArraysHandler, for_save=True)
@dataclasses.dataclass
class SaveArrays(ocp.args.CheckpointArgs):
    """Asks orbax to save a table of arrays."""

    arrays: HostArrays


@ocp.args.register_with_handler(ArraysHandler, for_restore=True)
@dataclasses.dataclass
class RestoreArrays(ocp.args.CheckpointArgs):
    """Asks orbax for the saved table of arrays."""


class Checkpoints:
    """The checkpoints in a folder: the last few, and the best.

    Saving copies the state to the host and returns; the rest happens in the background, in a
    temporary folder that gets its name only when it is whole. With several processes, all of them
    make the same calls.

    Args:
        folder: made if it is not there. What earlier runs left unfinished in it is removed.
        keep: how many of the last checkpoints to keep.
        best_metric: name of the metric whose lowest value marks the best checkpoint, which is kept
            too; None for no best.
    """

    def __init__(self, folder: Path, *, keep: int, best_metric: str | None) -> None:
        if keep < 1:
            raise InputError(f"at least one checkpoint must be kept, not {keep}")
        self.folder = Path(folder).absolute()
        self._best_metric = best_metric
        self._failed = False
        logging.getLogger("absl").addFilter(_not_from_orbax)
        what = f"cannot use the checkpoint folder {self.folder}"
        with failing_together(), _mendable(what, _CHECK_FOLDER):
            self.folder.mkdir(parents=True, exist_ok=True)
            _remove_unfinished(self.folder)
            _check_metrics(self.folder)
        with _mendable(what, _CHECK_FOLDER):
            self._manager = ocp.CheckpointManager(
                self.folder,
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=self._preservation_policy(keep),
                    best_fn=self._score if best_metric else None,
                    best_mode="min",
                    # Made in the background, a folder that cannot be made would leave threads
                    # that wait for it for minutes, and the process with them.
                    async_options=ocp.AsyncOptions(
                        create_directories_asynchronously=False,
                        # Orbax calls it when all is written and only the name is to be given.
                        post_finalization_callback=self._sync,
                    ),
                ),
            )

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
        args = ocp.args.Composite(state=SaveArrays(_host_arrays(state)))
        with self._failing_saves_told():
            self._manager.save(step, args=args, metrics=self._candidate(metrics))

    def restore_latest(self, like: TrainState) -> TrainState | None:
        """The state of the last whole checkpoint, or None if there is none.

        Args:
            like: a state of the same run, or its shapes. Its arrays are neither read nor changed;
                the result lies on the devices where they lie.

        Raises:
            InputError: the checkpoint is damaged, or of another model or optimiser.
        """
        step = self.latest_step()
        return None if step is None else self.restore(step, like)

    def restore_best(self, like: TrainState) -> TrainState | None:
        """The state with the lowest metric, or None if no checkpoint has one."""
        step = self.best_step()
        return None if step is None else self.restore(step, like)

    def restore(self, step: int, like: TrainState) -> TrainState:
        """The state after `step` steps; see `restore_latest`."""
        self.wait()
        if step not in self._manager.all_steps():
            steps = ", ".join(map(str, sorted(self._manager.all_steps()))) or "none"
            raise InputError(f"{self.folder} has no checkpoint of step {step}, only: {steps}")
        advice = f"remove {self.folder / str(step)} to go on from an earlier one, or start anew"
        with _mendable(f"the checkpoint {self.folder / str(step)} is damaged", advice):
            arrays = self._read(step)
            _check_same(arrays, like, self.folder / str(step))
        leaves, treedef = jax.tree.flatten(like)
        named = zip(_names(like), leaves, strict=True)
        return jax.tree.unflatten(treedef, [_place(arrays[name], leaf) for name, leaf in named])

    def latest_step(self) -> int | None:
        """The step of the last checkpoint, which may still be on its way to the disk."""
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The step of the checkpoint with the lowest metric."""
        if self._best_metric is None:
            return None
        step = self._manager.best_step()
        return None if step is None or self._manager.metrics(step) is None else step

    def wait(self) -> None:
        """Returns when the last save is on the disk.

        Raises:
            InputError: it could not be written; the checkpoints before it are as they were.
        """
        with self._failing_saves_told():
            self._manager.wait_until_finished()
            self._sync()

    def close(self) -> None:
        """Waits, and ends the background threads. Raises what `wait` does, unless it was raised."""
        if not self._failed:
            with self._failing_saves_told():
                self._manager.close()
                self._sync()

    def _sync(self) -> None:
        """Sees to the disk what waits for its name, and the names given before."""
        if jax.process_index() == 0:
            for unfinished in _unfinished(self.folder):
                sync_tree(unfinished)
            sync_folder(self.folder)

    @contextlib.contextmanager
    def _failing_saves_told(self) -> Iterator[None]:
        """One line for a save that fails, now or in the background."""
        try:
            with _mendable(f"cannot save a checkpoint in {self.folder}", _CHECK_SPACE):
                yield
        except InputError:
            self._end_failed_save()
            raise

    def _end_failed_save(self) -> None:
        """Waits until nothing is written any more: orbax tells of the first thing that failed.

        What else fails meanwhile has the same cause, and is not told again. Closing ends at the
        next error it meets and forgets it, so it is called until it comes through.
        """
        self._failed = True
        for _ in range(MOST_ERRORS_OF_A_SAVE):
            with contextlib.suppress(Exception):
                self._manager.close()
                return

    def _preservation_policy(self, keep: int) -> policies.AnyPreservationPolicy:
        kept: list[Any] = [policies.LatestN(keep)]
        if self._best_metric is not None:
            best = policies.BestN(
                get_metric_fn=self._score, reverse=True, n=1, keep_checkpoints_without_metrics=False
            )
            kept.append(best)
        return policies.AnyPreservationPolicy(kept)

    def _score(self, metrics: Mapping[str, float]) -> float:
        return metrics.get(str(self._best_metric), math.inf)

    def _candidate(self, metrics: Mapping[str, Any] | None) -> dict[str, float] | None:
        """The metrics to store: none at all where the best could not be told from them."""
        numbers = {name: float(np.mean(value)) for name, value in (metrics or {}).items()}
        return numbers if math.isfinite(self._score(numbers)) else None

    def _read(self, step: int) -> HostArrays:
        args = ocp.args.Composite(state=RestoreArrays())
        return self._manager.restore(step, args=args).state


def read_latest(folder: Path, like: Any) -> Any | None:
    """Part of the last whole checkpoint as host arrays, from a folder that is only read.

    Unlike `Checkpoints`, this may look into the folder of a run that is going on.

    Args:
        folder: of the checkpoints.
        like: a tree of shapes with some of the leaves of the state, under the same names: e.g.
            `{"params": …, "batch_stats": …}`.

    Returns:
        The tree, or None if there is no checkpoint.

    Raises:
        InputError: the checkpoint is damaged, or of another model.
    """
    steps = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
    if not steps:
        return None
    latest = folder / str(max(steps))
    with _mendable(f"the checkpoint {latest} is damaged", f"remove {latest} to use an earlier one"):
        arrays = ArraysHandler().restore(latest / "state", RestoreArrays())
        wanted = _names(like)
        groups = {name.partition(".")[0] for name in wanted}
        part = {name: a for name, a in arrays.items() if name.partition(".")[0] in groups}
        _check_same(part, like, latest)
    return jax.tree.unflatten(jax.tree.structure(like), [part[name] for name in wanted])


def _typed(saved: HostArrays, where: Path) -> HostArrays:
    """Arrays as they were saved. NumPy's files know no bfloat16: they bring its bytes."""
    # Before format 2, the description was a file of its own.
    about: dict[str, Any] = json.loads(str(saved.pop(ABOUT))) if ABOUT in saved else {"format": 1}
    if about["format"] != FORMAT:
        raise InputError(
            f"{where} has format {about['format']}, and this kjax reads {FORMAT}: use the version "
            "that wrote it, or choose another workdir"
        )
    return {name: array.view(about["dtypes"][name]) for name, array in saved.items()}


_CHECK_FOLDER = "check that it is a folder you may write to, or choose another workdir"
_CHECK_SPACE = (
    "earlier ones are intact; free some space or mend the folder, and run the same command again"
)


def _not_from_orbax(record: logging.LogRecord) -> bool:
    """Keeps orbax's log off the terminal: what goes wrong is raised as well, and told once."""
    return "orbax" not in record.pathname


def _remove_unfinished(folder: Path) -> None:
    """Removes what killed runs left. Orbax's own removal trips over folders inside each other."""
    if jax.process_index() == 0:
        for unfinished in _unfinished(folder):
            shutil.rmtree(unfinished)


def _check_metrics(folder: Path) -> None:
    """Refuses a damaged file of metrics, over which orbax would stumble in many ways."""

    def checked(content: Any) -> None:
        # Null where a checkpoint is no candidate for the best.
        if content is not None and not all(map(is_number, content.values())):
            raise ValueError("a value is not a number")

    for path in sorted(folder.glob("*/metrics/metrics")):
        try:
            parse_line(path.read_bytes(), checked)
        except ValueError as error:
            raise InputError(
                f"{path} is damaged ({error}): remove the folder {path.parent}; all that is lost "
                "is whether this checkpoint was the best"
            ) from error


def _unfinished(folder: Path) -> Iterator[Path]:
    return folder.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*")


@contextlib.contextmanager
def _mendable(what: str, advice: str) -> Iterator[None]:
    """Turns whatever orbax raises into one line.

    Its errors have no common class, and what a damaged file makes it stumble over is not
    documented, so all ordinary exceptions are caught.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = " ".join(reason.split())
        shortened = f"{reason[:200]}…" if len(reason) > 200 else reason
        raise InputError(f"{what} ({shortened or type(error).__name__}): {advice}") from error


def _names(state: Any) -> list[str]:
    """Paths of the leaves, such as `params.trunk.conv1.kernel`, in the order of the leaves."""
    paths = jax.tree_util.tree_leaves_with_path(state)
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]


def _host_arrays(state: Any) -> HostArrays:
    # Copied, not viewed: the next step may reuse the memory while this is being written.
    return {
        name: np.array(leaf, copy=True)
        for name, leaf in zip(_names(state), jax.tree.leaves(state), strict=True)
    }


def _describe(arrays: HostArrays) -> dict[str, Any]:
    return {"format": FORMAT, "dtypes": {name: str(a.dtype) for name, a in arrays.items()}}


def _check_same(saved: HostArrays, like: Any, where: Path) -> None:
    """Refuses a checkpoint whose leaves are not those of `like`, by name."""
    wanted = dict(zip(_names(like), jax.tree.leaves(like), strict=True))
    differences = []
    for name in [*wanted, *(saved.keys() - wanted.keys())]:
        there, here = _kind(saved.get(name)), _kind(wanted.get(name))
        if there != here:
            differences.append(f"{name} is {there} there and {here} here")
    if differences:
        more = len(differences) - NAMED_DIFFERENCES
        rest = f"; and {more} more" if more > 0 else ""
        raise InputError(
            f"the checkpoint {where} is of another model or optimiser: "
            f"{'; '.join(differences[:NAMED_DIFFERENCES])}{rest}: "
            "use the config it was saved with, or choose another workdir"
        )


def _kind(leaf: Any) -> str:
    return "absent" if leaf is None else f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _place(value: Shaped[np.ndarray, "..."], like: Any) -> jax.Array:
    """The array on the devices of `like`, however many; on JAX's first if it has none."""
    sharding = getattr(like, "sharding", None)
    if sharding is None:
        return jax.numpy.asarray(value)
    # Works for devices of other processes too, each filling its own from its copy of the file.
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
