"""Settings of a tuning run, and the check that a folder has the same ones."""

import dataclasses
import hashlib
from pathlib import Path

from kjax.data.cutting.photographs import list_photos
from kjax.data.sampler import check_seed
from kjax.data.sets import EMBEDDED, TFDS_PREFIX
from kjax.errors import InputError
from kjax.files.atomic import write_json
from kjax.files.json import parse_json
from kjax.weights import shipped
from kjax.weights.source import is_workdir

SETTINGS_FILE = "tune.json"
TRAINING_SETTINGS = frozenset(
    {"start", "general", "share", "layers", "steps", "pairs", "learning_rate"}
)
"""Settings that patches do not depend on. They may change until training has started."""


@dataclasses.dataclass(frozen=True)
class TuneSettings:
    """Settings of a tuning run. None stands for a default that depends on the device.

    Attributes:
        photos: folder of images, or a set of patches.
        start: initial weights.
        colmap: folder of a COLMAP model of the images.
        database: database of that model.
        general: sets that prevent forgetting, by name or folder.
        share: fraction of general patches in every batch.
        layers: "all" or "last".
        steps: number of training steps.
        pairs: pairs per batch.
        learning_rate: initial learning rate.
        seed: random seed.
        compare_maps: let COLMAP map the held-out images before and after.
    """

    photos: Path
    start: str
    colmap: Path | None = None
    database: Path | None = None
    general: tuple[str, ...] = (EMBEDDED,)
    share: float = 0.5
    layers: str | None = None
    steps: int | None = None
    pairs: int | None = None
    learning_rate: float | None = None
    seed: int = 0
    compare_maps: bool = False

    def __post_init__(self) -> None:
        """Validate what would otherwise fail after minutes."""
        check_seed(self.seed)
        if not 0 <= self.share < 1:
            raise InputError(f"--share {self.share:g}: choose at least 0 and less than 1")
        for name in self.general:
            if name != EMBEDDED and not name.startswith(TFDS_PREFIX) and not _is_set(Path(name)):
                raise InputError(f"--general {name}: no such set: use a folder, or {EMBEDDED}")

    @property
    def is_set(self) -> bool:
        """Whether `photos` is a set of patches."""
        return _is_set(self.photos)

    def absolute(self) -> "TuneSettings":
        """Return the settings with absolute paths."""
        own = shipped.find(self.start) is None or is_workdir(self.start)
        return dataclasses.replace(
            self,
            start=str(Path(self.start).resolve()) if own else self.start,
            general=tuple(
                str(Path(name).resolve()) if _is_set(Path(name)) else name for name in self.general
            ),
        )


def _is_set(folder: Path) -> bool:
    return (folder / "info.txt").is_file()


def claim(folder: Path, settings: TuneSettings, *, training_started: bool = False) -> None:
    """Record the settings in a folder, which must be new or have the same ones."""
    if settings.is_set:
        inputs = sorted(path for path in settings.photos.iterdir() if path.is_file())
    else:
        model = sorted(settings.colmap.iterdir()) if settings.colmap else []
        inputs = [*list_photos(settings.photos), *model, *filter(None, [settings.database])]
    lines = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in inputs]
    now = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in dataclasses.asdict(settings).items()
    } | {
        "general": list(settings.general),
        "photographs": hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16],
    }
    path = folder / SETTINGS_FILE
    if path.exists():
        try:
            before = dict(parse_json(path.read_bytes()))
        except (ValueError, TypeError):
            raise InputError(f"{path} is damaged: choose another --out") from None
        fixed = now.keys() - {"compare_maps"} - (set() if training_started else TRAINING_SETTINGS)
        changed = [
            f"{name} was {before.get(name)} and is {now[name]}"
            for name in sorted(fixed)
            if before.get(name) != now[name]
        ]
        if changed:
            raise InputError(
                f"{folder} has other settings: {'; '.join(changed)}: choose another --out, or the "
                "earlier settings"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty and not from kjax tune: choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, now)
