"""From a folder of photographs to COLMAP's database, and to a reconstruction.

DIR/database.db      cameras, keypoints, matches, verified geometries
DIR/sparse/0         the largest model that COLMAP maps from it; others follow, if there are
DIR/work             what has been done: features/, pairs.db, log.txt
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from kjax.errors import InputError
from kjax.files.atomic import write_text, write_whole
from kjax.images.collection import pairs as choose
from kjax.images.collection.describing import FeatureFiles, describe_missing
from kjax.images.collection.engine import HERE, Engine
from kjax.images.collection.keys import key_of
from kjax.images.collection.mapping import map_photographs
from kjax.images.collection.matching import by_matcher, by_neighbours, match_keys, match_missing
from kjax.images.collection.pair_store import PairStore
from kjax.images.collection.pairs import Places
from kjax.images.collection.photographs import Photograph, read_collection
from kjax.images.collection.retrieval import aggregate
from kjax.images.collection.summary import Stopwatch
from kjax.images.collection.verification import geometry_keys, verify_missing
from kjax.images.describer import Describer
from kjax.images.exchange.colmap_database import Pair, add_geometries, write_database
from kjax.images.exchange.reconstructors import Reconstructor
from kjax.images.learned_matching import Matcher

DATABASE, SPARSE, WORK = "database.db", "sparse", "work"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a collection is matched and mapped.

    Attributes:
        max_keypoints: of a photograph.
        pairs: a word of `kjax.images.collection.pairs`.
        neighbours: that each photograph is matched with, unless it is with all.
        ratio: the largest of a match.
        single_camera: one camera took all photographs of one size.
        mapping: go on behind the database.
    """

    max_keypoints: int = 4000
    pairs: choose.PairsWord = "auto"
    neighbours: int = 20
    ratio: float = 0.9
    single_camera: bool = False
    mapping: bool = True


@dataclasses.dataclass(frozen=True)
class Built:
    """What a run leaves behind.

    Attributes:
        database: the file.
        models: folders, the largest model first; none if nothing was mapped.
        left_out: why photographs are not in the database.
        seconds: of this run, by stage.
    """

    database: Path
    models: list[Path]
    left_out: list[str]
    seconds: dict[str, float]


def build(
    photos: Path,
    out: Path,
    describer: Describer,
    reconstructor: Reconstructor,
    settings: Settings,
    *,
    matcher: Matcher | None = None,
    engine: Engine = HERE,
) -> Built:
    """Does what has not been done yet.

    Args:
        photos: a folder of photographs.
        out: a new folder, or that of an earlier run; what was made there with other settings
            stays for the next time, only the database and the models are replaced.
        describer: of keypoints.
        reconstructor: who verifies and maps.
        settings: the rest.
        matcher: a learned one, in the place of nearest neighbours.
        engine: what describes and matches; COLMAP always runs here.

    Raises:
        InputError: there are no two photographs, or `out` is something else's.
    """
    work, log = prepare(out), out / WORK / "log.txt"
    watch = Stopwatch()
    files = FeatureFiles(work / "features", describer.feature_settings(settings.max_keypoints))
    with watch("describe"):
        found, left_out = read_collection(photos, single_camera=settings.single_camera)
        left_out += describe_missing(found, describer, files, engine)
        photographs = [one for one in found if files.path(one).exists()]
    if len(photographs) < 2:
        raise InputError(f"{photos} holds fewer than two photographs that can be read: give more")
    with PairStore(work / "pairs.db") as store:
        with watch("pairs"):
            pairs = _choose_pairs(photographs, files, settings, engine)
        with watch("match"):
            way = by_neighbours(settings.ratio) if matcher is None else by_matcher(matcher)
            matched = match_keys(photographs, pairs, files, way)
            match_missing(photographs, matched, files, store, way, engine=engine)
        with watch("verify"):
            keys = geometry_keys(photographs, matched, reconstructor)
            verify_missing(
                photographs, matched, keys, files, store, reconstructor=reconstructor, log=log
            )
            write_whole(
                out / DATABASE,
                lambda path: _write_database(path, photographs, files, store, matched, keys),
            )
    models: list[Path] = []
    if settings.mapping:
        cameras = [(one.name, one.camera) for one in photographs]
        key = key_of(reconstructor.name, cameras, sorted(keys.values()))
        with watch("map"):
            models = _map_once(photos, out, key, len(photographs), reconstructor)
    return Built(out / DATABASE, models, left_out, watch.seconds)


def prepare(out: Path) -> Path:
    """The folder of the work in `out`, which must be new, or an earlier run's.

    Raises:
        InputError: it is something else's.
    """
    work = out / WORK
    if out.is_dir() and not work.is_dir() and any(out.iterdir()):
        raise InputError(f"--out {out} is not empty, and not of kjax colmap: give another folder")
    work.mkdir(parents=True, exist_ok=True)
    return work


def _choose_pairs(
    photographs: Sequence[Photograph],
    files: FeatureFiles,
    settings: Settings,
    engine: Engine,
) -> list[Places]:
    count, neighbours = len(photographs), settings.neighbours
    match choose.resolved(settings.pairs, count, neighbours):
        case "exhaustive":
            return choose.exhaustive(count)
        case "sequential":
            return choose.sequential(count, neighbours)
        case "spatial":
            return choose.spatial([one.position for one in photographs], neighbours)
        case _:
            return choose.most_similar(aggregate(photographs, files, engine), neighbours)


def _write_database(
    path: Path,
    photographs: Sequence[Photograph],
    files: FeatureFiles,
    store: PairStore,
    matched: Mapping[Places, str],
    keys: Mapping[Places, str],
) -> None:
    names = [one.name for one in photographs]
    named = {pair: (names[pair[0]], names[pair[1]]) for pair in matched}
    write_database(
        path,
        {one.name: files.read_keypoints(one) for one in photographs},
        {named[pair]: Pair(store.matches(key)) for pair, key in matched.items()},
        cameras={one.name: one.camera for one in photographs},
    )
    add_geometries(path, {named[pair]: store.geometry(key) for pair, key in keys.items()})


def _map_once(
    photos: Path, out: Path, key: str, count: int, reconstructor: Reconstructor
) -> list[Path]:
    """Maps, unless the models are those of this very work."""
    done, sparse, log = out / WORK / "mapped.txt", out / SPARSE, out / WORK / "log.txt"
    if done.exists() and done.read_text() == key and sparse.is_dir():
        return sorted(sparse.iterdir(), key=lambda folder: int(folder.name))
    done.unlink(missing_ok=True)
    models = map_photographs(
        out / DATABASE, photos, sparse, count=count, reconstructor=reconstructor, log=log
    )
    write_text(done, key)
    return models
