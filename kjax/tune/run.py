"""A whole tuning, stage by stage; what is done already is not done again."""

import functools
import shutil
from pathlib import Path

import jax

from kjax.files.atomic import write_json, write_whole
from kjax.files.json import parse_json
from kjax.model.folding import check_remap
from kjax.tune.last_layer import can_refit, refit
from kjax.tune.mapping import map_photographs
from kjax.tune.report import table, warning, write_report
from kjax.tune.scores import Scores, score
from kjax.tune.sets import COLMAP_FOLDER, OwnSets, make_sets
from kjax.tune.settings import Settings, claim
from kjax.tune.trained import RUN_FOLDER
from kjax.tune.training import has_begun, train
from kjax.weights.source import METADATA_FILE, WEIGHTS_FILE, LoadedModel, load_source

SCORES_FILE = "scores.json"


def tune(settings: Settings, out: Path, *, progress: bool = True) -> str:
    """Tunes, or goes on with what was begun in a folder.

    Leaves `weights.npz`, with `config.json` where a network was trained, so that the folder can be
    loaded, and `report.html`; below it `sets`, `run`, and perhaps `colmap`.

    Returns:
        The figures before and after, as lines.

    Raises:
        InputError: anything is wrong with the input, or the folder is of another tuning.
        kjax.interrupts.Stopped: after Ctrl-C in the training; the same call goes on.
    """
    settings = settings.absolute()
    source = load_source(settings.start)
    begun = _begun(out)
    layers = settings.layers or begun or _suited(source)
    if layers == "last":
        check_remap(source.variables)
    claim(out, settings, training_begun=begun is not None)
    sets = make_sets(settings, out, progress=progress)
    learn = train if layers == "all" else refit
    trained = learn(settings, source, sets, out, progress=progress)
    for path in trained.files:
        write_whole(out / path.name, functools.partial(shutil.copyfile, path))
    before, after = _scores(settings, source, sets, out, progress=progress)
    write_report(out, settings, sets, trained, before, after)
    worse = warning(settings.start, trained, before, after)
    return "\n".join(filter(None, (table(before, after), worse)))


def _begun(out: Path) -> str | None:
    """Which layers the training below a folder is of, wherever it was begun; None if it was not."""
    if not has_begun(out) and not (out / RUN_FOLDER / WEIGHTS_FILE).is_file():
        return None
    return "last" if (out / RUN_FOLDER / METADATA_FILE).is_file() else "all"


def _suited(source: LoadedModel) -> str:
    """The layers to train on this device."""
    return "last" if jax.default_backend() == "cpu" and can_refit(source) else "all"


def _scores(
    settings: Settings, source: LoadedModel, sets: OwnSets, out: Path, *, progress: bool
) -> tuple[Scores, Scores]:
    path = out / SCORES_FILE
    found = parse_json(path.read_bytes()) if path.is_file() else {}
    if not found or (settings.compare_maps and "points" not in found["after"]):
        for name, one in (("before", source), ("after", load_source(str(out)))):
            found[name] = score(one, sets, settings.photos, seed=settings.seed, progress=progress)
            if settings.compare_maps:
                found[name] |= map_photographs(
                    one,
                    settings.photos,
                    sets.held_out_photos,
                    settings.database or out / COLMAP_FOLDER / "database.db",
                    progress=progress,
                )
        write_json(path, found)
    return found["before"], found["after"]
