"""What a tuning was asked to do, and that a folder is of the same one."""

import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kjax.data.cutting.photographs import list_photos
from kjax.data.sampler import check_seed
from kjax.data.sets import EMBEDDED, TFDS_PREFIX
from kjax.errors import InputError, unknown_name
from kjax.files.atomic import write_json
from kjax.files.json import parse_json
from kjax.weights import shipped
from kjax.weights.source import is_workdir

SETTINGS_FILE = "tune.json"
LAYERS = ("all", "last")
GENERAL_SHARE = 0.5
OF_TRAINING = frozenset({"start", "general", "share", "layers", "steps", "pairs", "learning_rate"})
"""Settings that patches do not depend on: they may change until the training has begun."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Arguments of a tuning.

    Attributes:
        photos: folder of photographs, or a set of patches.
        start: the weights to start from.
        colmap: folder of a COLMAP model of the photographs, if there is one.
        database: that the model was made from.
        general: sets that keep the weights from forgetting, by name or folder.
        share: of general patches in every batch.
        layers: what is trained, of `LAYERS`; by default what suits the device.
        steps: of the training; likewise.
        pairs: in a batch; likewise.
        learning_rate: that the training begins with; likewise.
        seed: of everything random.
        compare_maps: whether COLMAP maps the held-out photographs before and after.
    """

    photos: Path
    start: str
    colmap: Path | None = None
    database: Path | None = None
    general: tuple[str, ...] = (EMBEDDED,)
    share: float = GENERAL_SHARE
    layers: str | None = None
    steps: int | None = None
    pairs: int | None = None
    learning_rate: float | None = None
    seed: int = 0
    compare_maps: bool = False

    def __post_init__(self) -> None:
        """Refuses what would be noticed after minutes only."""
        check_seed(self.seed)
        if self.layers not in (None, *LAYERS):
            raise unknown_name("layers", self.layers, LAYERS)
        if not 0 <= self.share < 1:
            raise InputError(f"--share {self.share:g}: give at least 0 and less than 1")
        for name in self.general:
            if name != EMBEDDED and not name.startswith(TFDS_PREFIX) and not _is_set(Path(name)):
                raise InputError(f"--general {name}: no such set: give a folder, or {EMBEDDED}")

    @property
    def is_set(self) -> bool:
        """Whether the photographs have become patches already."""
        return _is_set(self.photos)

    def absolute(self) -> "Settings":
        """The same in words that mean the same in every folder."""
        own = shipped.find(self.start) is None or is_workdir(self.start)
        return dataclasses.replace(
            self,
            start=str(Path(self.start).resolve()) if own else self.start,
            general=tuple(
                str(Path(name).resolve()) if _is_set(Path(name)) else name for name in self.general
            ),
        )

    def sources(self) -> list[Path]:
        """The files that patches are made from."""
        if self.is_set:
            return sorted(path for path in self.photos.iterdir() if path.is_file())
        model = sorted(self.colmap.iterdir()) if self.colmap else []
        database = [self.database] if self.database else []
        return [*list_photos(self.photos), *model, *database]


def _is_set(folder: Path) -> bool:
    return (folder / "info.txt").is_file()


def claim(folder: Path, settings: Settings, *, training_begun: bool = False) -> None:
    """Writes down what the folder is for; refuses one that was for something else.

    Raises:
        InputError: what differs from the tuning that was begun in the folder.
    """
    now = _as_json(settings)
    path = folder / SETTINGS_FILE
    before = _read(path) if path.exists() else None
    if before is None and folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} holds something else: choose another --out")
    fixed = now.keys() - {"compare_maps"} - (set() if training_begun else OF_TRAINING)
    changed = [
        f"{name} was {before.get(name)} and is {now[name]}"
        for name in sorted(fixed)
        if before is not None and before.get(name) != now[name]
    ]
    if changed:
        raise InputError(
            f"{folder} is of another tuning: {'; '.join(changed)}: choose another --out, or what "
            "was used there"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, now)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: choose another --out")
    return content


def _as_json(settings: Settings) -> dict[str, Any]:
    plain = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in dataclasses.asdict(settings).items()
    }
    return plain | {
        "general": list(settings.general),
        "photographs": _digest(settings.sources()),
    }


def _digest(paths: Iterable[Path]) -> str:
    """What changes if a file comes, goes or is written to."""
    lines = []
    for path in paths:
        status = path.stat()
        lines.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
