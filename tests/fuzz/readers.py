"""Every function of kjax that reads files, with a valid sample for each format that it knows."""

import dataclasses
import functools
import io
import json
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

TESTS = Path(__file__).parents[1]
for _folder in ("", "data", "baselines", "eval", "experiments"):
    sys.path.append(str(TESTS / _folder))

from tests.fuzz import edits  # noqa: E402

Make = Callable[[Path], object]


@dataclasses.dataclass(frozen=True)
class Reader:
    """One reader and one format.

    Attributes:
        name: for people, "what.format".
        make: writes a valid sample into a folder.
        read: reads it; gives anything, or raises.
        edits: damage that knows the format, besides what `mutations` does to bytes.
        spared: pattern of files that are never damaged.
        blind: whether damage is an accident: checksums are not made right again.
    """

    name: str
    make: Make
    read: Callable[[Path], Any]
    edits: tuple[Callable[[Path, Random], None], ...] = ()
    spared: str = "no/such/file"
    blind: bool = False


READERS: dict[str, Reader] = {}


def add(name: str, make: Make, read: Callable[[Path], Any], **options: Any) -> None:
    READERS[name] = Reader(name, make, read, **options)


# Images


@functools.cache
def texture(height: int = 40, width: int = 60) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (height, width, 3)).astype(np.uint8)


def picture(name: str, mode: str = "RGB", **options: Any) -> Make:
    def make(folder: Path) -> None:
        from PIL import Image

        image = Image.fromarray(texture())
        if mode == "I;16":
            image = Image.fromarray(texture()[..., 0].astype(np.uint16) * 200)
        else:
            image = image.convert(mode)
        image.save(folder / name, **options)

    return make


def photograph(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        from kjax.data.cutting.photographs import read_photograph

        return read_photograph(folder / name)

    return read


def grey(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        from kjax.data.cutting.photographs import read_grey

        return read_grey(folder / name)

    return read


_PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "a.jpg": ("RGB", {"quality": 80}),
    "progressive.jpg": ("L", {"progressive": True}),
    "a.png": ("RGB", {}),
    "palette.png": ("P", {}),
    "deep.png": ("I;16", {}),
    "plain.tif": ("RGB", {}),
    "lzw.tif": ("L", {"compression": "tiff_lzw"}),
    "jpeg.tiff": ("RGB", {"compression": "jpeg"}),
    "a.bmp": ("RGB", {}),
    "a.ppm": ("RGB", {}),
    "a.pgm": ("L", {}),
    "a.webp": ("RGB", {}),
    "lossless.webp": ("RGB", {"lossless": True}),
}
for _name, (_mode, _options) in _PICTURES.items():
    add(f"read_photograph.{_name}", picture(_name, _mode, **_options), photograph(_name))
    add(f"read_grey_or_none.{_name}", picture(_name, _mode, **_options), grey(_name))
for _name, _mode in {"a.gif": "P", "a.jp2": "RGB"}.items():
    add(f"read_photograph.{_name}", picture(_name, _mode), photograph(_name))


def _similarity_patch(folder: Path) -> Any:
    from kjax.eval.similarity_maps import read_patch

    return read_patch(folder / "patch.png", 32)


def _square(folder: Path) -> None:
    from PIL import Image

    Image.fromarray(texture(32, 32)).save(folder / "patch.png")


add("similarity_maps.patch", _square, _similarity_patch)


# Patch sets


def _phototour(folder: Path) -> None:
    from kjax.data.phototour import TestPairs, write_phototour

    patches = np.zeros((6, 64, 64), np.uint8)
    ids = np.array([1, 1, 2, 2, 3, 3])
    pairs = TestPairs(np.array([0, 2, 1]), np.array([1, 3, 4]), np.array([True, True, False]))
    interest = np.tile(np.array([0, 10.5, 20.5, 0.1, 1.2]), (6, 1))
    write_phototour(folder / "set", patches, ids, pairs=pairs, interest=interest)


def _read_test_set(folder: Path) -> Any:
    from kjax.data.phototour import read_interest
    from kjax.data.sets import read_test_sets

    (test,) = read_test_sets([str(folder / "set")], progress=False)
    read_interest(folder / "set", patch_count=len(test.patches))
    return int(test.patches.sum())


add("read_test_sets.folder", _phototour, _read_test_set)
add("read_test_sets.texts", _phototour, _read_test_set, spared="*.bmp")


def _match_file(folder: Path) -> Any:
    from kjax.data.phototour import read_pairs

    return read_pairs(folder / "set", patch_count=6)


add("read_match_file.txt", _phototour, _match_file, spared="*.bmp")


def _cached_set(folder: Path) -> None:
    _phototour(folder)
    _read_cached_set(folder)


def _read_cached_set(folder: Path) -> Any:
    from kjax.data.phototour import read_phototour

    patches = read_phototour(folder / "set", cache_dir=folder / "cache", progress=False)
    if patches.patches.any() or patches.point_ids.tolist() != [1, 1, 2, 2, 3, 3]:
        raise AssertionError("a damaged cache was taken for a whole one")


def _set_photographs(folder: Path) -> None:
    from kjax.data.phototour import SetPhotograph, write_set_photographs

    _phototour(folder)
    write_set_photographs(folder / "set", [SetPhotograph(0, "a, b.jpg", "ab" * 32)])


def _read_set_photographs(folder: Path) -> Any:
    from kjax.data.phototour import read_set_photographs

    return read_set_photographs(folder / "set")


add("read_set_photographs.csv", _set_photographs, _read_set_photographs, spared="*.bmp")
add("read_phototour.cache", _cached_set, _read_cached_set, spared="set/*", blind=True)


def _hpatches(folder: Path) -> None:
    from evaluation_data import write_hpatches

    write_hpatches(folder / "sequences", ("v_two",), patches=2)


def _read_hpatches(folder: Path) -> Any:
    from kjax.data.hpatches import read_hpatches

    return list(read_hpatches(folder / "sequences", progress=False))


add("read_hpatches.png", _hpatches, _read_hpatches)


# Tasks and descriptors of HPatches

_COUNTS = {"i_one": 3, "v_two": 4}


def _tasks(folder: Path) -> None:
    from evaluation_data import write_tasks

    from kjax.eval.hpatches.tasks import generate_tasks

    tasks = generate_tasks(_COUNTS, pairs=20, queries=2, distractors=3, progress=False)
    write_tasks(tasks, folder, "x")


def _read_tasks(folder: Path) -> Any:
    from kjax.eval.hpatches.tasks import read_tasks

    return read_tasks(folder, "x", _COUNTS)


add("read_tasks.csv", _tasks, _read_tasks)


def _csv(folder: Path) -> None:
    from kjax.eval.hpatches.descriptors import SetDescriptors, write_descriptors

    rows = np.linspace(0, 1, 16 * 3 * 4, dtype=np.float32).reshape(-1, 4)
    write_descriptors(SetDescriptors({"v_two": 3}, rows), folder, progress=False)


def _read_csv(folder: Path) -> Any:
    from kjax.eval.hpatches.descriptors import read_descriptors

    return read_descriptors(folder, progress=False)


add("read_descriptors.csv", _csv, _read_csv)


def _open_benchmark(folder: Path) -> Any:
    from kjax.eval.hpatches.tasks import open_benchmark

    return open_benchmark(folder, progress=False)


add("open_benchmark.csv", _csv, _open_benchmark)


def _descriptor_cache(folder: Path) -> None:
    _read_descriptor_cache(folder)


def _read_descriptor_cache(folder: Path) -> Any:
    from kjax.eval.entries import cached

    patches = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    expected = patches.reshape(3, -1).astype(np.float32)
    found = cached(lambda _: expected, "identity", cache_dir=folder)(patches)
    if not np.array_equal(found, expected):
        raise AssertionError("a damaged cache was taken for a whole one")


add("descriptor_cache.npz", _descriptor_cache, _read_descriptor_cache, blind=True)


# COLMAP


def _model(folder: Path) -> None:
    import colmap_files

    scene = colmap_files.PlaneScene(count=6)
    colmap_files.write_binary(folder, *scene.model(scene.tables()))


def _read_model(folder: Path) -> Any:
    from kjax.data.colmap import read_model

    return read_model(folder)


add("read_model.bin", _model, _read_model)


def _reconstruction(folder: Path) -> None:
    import colmap_files

    colmap_files.PlaneScene(count=6).write(folder)


def _cut_reconstruction(folder: Path) -> Any:
    from kjax.data.reconstruction import TrackFilters, cut_reconstruction

    return cut_reconstruction(
        folder / "sparse",
        folder / "database.db",
        folder / "photos",
        filters=TrackFilters(),
        max_patches=100,
        seed=0,
        progress=False,
    )


add(
    "cut_reconstruction.all",
    _reconstruction,
    _cut_reconstruction,
    edits=(edits.edit_database,),
    spared="photos/*",
)


def _features(count: int = 5) -> Any:
    from kjax.images.features import Features

    rng = np.random.default_rng(0)
    single = [rng.uniform(1, 30, count).astype(np.float32) for _ in range(3)]
    return Features(
        xy=rng.uniform(0, 90, (count, 2)).astype(np.float32),
        descriptors=rng.uniform(0, 1, (count, 8)).astype(np.float32),
        image_size=(100, 90),
        scales=single[0],
        angles=single[1],
        scores=single[2],
    )


def _database(folder: Path) -> None:
    from kjax.images.exchange.colmap_database import Geometry, add_geometries, write_database

    indices = np.array([[0, 1], [2, 2]], np.int32)
    photos = {"a.jpg": _features(), "b/c.jpg": _features()}
    pair = ("a.jpg", "b/c.jpg")
    write_database(folder / "database.db", photos, {pair: indices})
    blobs = (np.eye(3).tobytes(), None, np.eye(3).tobytes(), None, None)
    verified = Geometry(2, 2, indices.astype("<u4").tobytes(), 6, *blobs)
    add_geometries(folder / "database.db", {pair: verified})


def _database_features(folder: Path) -> Any:
    from kjax.images.exchange.colmap_database import read_features

    return read_features(folder / "database.db")


def _database_matches(folder: Path) -> Any:
    from kjax.images.exchange.colmap_database import read_matches

    return read_matches(folder / "database.db"), read_matches(folder / "database.db", verified=True)


def _database_sift(folder: Path) -> Any:
    from kjax.images.exchange.colmap_program import read_sift

    return read_sift(folder / "database.db")


for _name, _read in {
    "colmap_database.features": _database_features,
    "colmap_database.matches": _database_matches,
    "colmap_program.sift": _database_sift,
}.items():
    add(_name, _database, _read, edits=(edits.edit_database,))


# Features


_SETTINGS: dict[str, Any] = {
    "weights": "best",
    "sha256": "ab" * 32,
    "model": "xy s=1",
    "patch_size": 32,
    "dtype": "float32",
    "extent": 12.0,
    "detector": "SIFT",
    "max_keypoints": 100,
    "photograph": "cd" * 32,
    "kjax": "0",
    "stored": "float32",
}


def _output(form: str, where: str) -> tuple[Make, Callable[[Path], Any]]:
    """An output of `kjax describe`, and what `kjax describe` reads in it before it goes on."""
    names = ["a.jpg", "b/c.jpg"]

    def make(folder: Path) -> None:
        from kjax.images.exchange.outputs import Output

        with Output(folder / where, names, form=form, overwrite=False) as output:
            for name in names:
                output.add(name, _features(), _SETTINGS)

    def read(folder: Path) -> Any:
        from kjax.images.exchange.outputs import Output, check_same_settings

        output = Output(folder / where, names, form=form, overwrite=False)
        check_same_settings(output, folder / where, _SETTINGS)

    return make, read


add("outputs.npz", *_output("npz", ""))
add("outputs.colmap", *_output("colmap", ""), spared="*.txt")


def _npz_features(folder: Path) -> None:
    from kjax.images.exchange.npz import write_npz

    write_npz(folder / "features.npz", _features())


def _read_npz_features(folder: Path) -> Any:
    from kjax.images.exchange.npz import read_npz

    return read_npz(folder / "features.npz")


add("exchange.npz", _npz_features, _read_npz_features)


def _hloc(folder: Path) -> None:
    from kjax.images.exchange.hloc import FeatureWriter, MatchWriter
    from kjax.images.features import Matches

    with FeatureWriter(folder / "features.h5") as writer:
        for name in ("a.jpg", "b/c.jpg"):
            writer.add(name, _features())
    matches = Matches(np.array([[0, 1], [2, 2]], np.int32), *np.full((2, 2), 0.1, np.float32))
    with MatchWriter(folder / "matches.h5") as writer:
        writer.add("a.jpg", "b/c.jpg", matches, 5, 5)


def _hloc_features(folder: Path) -> Any:
    from kjax.images.exchange.hloc import group_names, read_features

    path = folder / "features.h5"
    return group_names(path), read_features(path, "b/c.jpg")


def _hloc_matches(folder: Path) -> Any:
    from kjax.images.exchange.hloc import read_matches

    return read_matches(folder / "matches.h5", "a.jpg", "b/c.jpg")


def _hloc_go_on(folder: Path) -> Any:
    from kjax.images.exchange.hloc import FeatureWriter

    with FeatureWriter(folder / "features.h5") as writer:
        writer.add("new.jpg", _features())


_H5 = (edits.edit_hdf5,)
add("hloc.features", _hloc, _hloc_features, edits=_H5, spared="matches.h5")
add("hloc.matches", _hloc, _hloc_matches, edits=_H5, spared="features.h5")
add("outputs.h5", *_output("npz", "features.h5"), edits=_H5)
add("hloc.go_on", _hloc, _hloc_go_on, edits=_H5, spared="matches.h5")


def _homographies(kind: str) -> Make:
    def make(folder: Path) -> None:
        from PIL import Image

        numbers = "1.0 0.01 3.5\n-0.02 0.99 2\n1e-5 0 1\n"
        text = numbers
        if kind == ".xml":
            data = f'<H type_id="opencv-matrix"><rows>3</rows><data>{numbers}</data></H>'
            text = f'<?xml version="1.0"?><opencv_storage>{data}</opencv_storage>'
        for number in range(1, 7):
            Image.fromarray(texture(8, 8)).save(folder / f"img{number}.png")
            (folder / f"H1to{number}p{kind}").write_text(text)

    return make


def _read_homographies(folder: Path) -> Any:
    from homography_sequences import find_sequences

    return find_sequences([folder])


add("homographies.txt", _homographies(""), _read_homographies, spared="*.png")
add("homographies.xml", _homographies(".xml"), _read_homographies, spared="*.png")


# Weights


def _weights(name: str) -> Make:
    def make(folder: Path) -> None:
        from models import make_model

        from kjax.weights.files import save_variables

        save_variables(folder / name, make_model("sum")[1])

    return make


def _described_weights(folder: Path) -> None:
    from models import make_model

    from kjax.weights.files import save_variables
    from kjax.weights.info import ModelInfo, fields_of

    model, variables = make_model("sum")
    info = ModelInfo(model=fields_of(model), extent=9.5, remarks={"licence": "Apache-2.0"})
    save_variables(folder / "told.safetensors", variables, info=info)


def _read_weights(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        from kjax.weights.source import facts, load_sources

        return facts(load_sources(str(folder / name)))

    return read


for _name in ("weights.npz", "weights.safetensors", "weights.pth"):
    add(f"load_sources.{_name}", _weights(_name), _read_weights(_name))


add("load_sources.told", _described_weights, _read_weights("told.safetensors"))


def _old_torch(folder: Path) -> None:
    import torch
    from models import make_model

    from kjax.weights.torch_names import to_torch

    state = to_torch(make_model("sum")[1])
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)


add("load_sources.old.pt", _old_torch, _read_weights("old.pt"))


def _small_npz(folder: Path) -> None:
    from models import make_model

    from kjax.weights.torch_names import to_arrays

    arrays = {name: np.zeros_like(array) for name, array in to_arrays(make_model("xy")[1]).items()}
    np.savez_compressed(folder / "packed.npz", **arrays)


add("load_sources.packed.npz", _small_npz, _read_weights("packed.npz"))


def _npy(folder: Path) -> None:
    np.save(folder / "a.npy", np.ones((3, 4), np.float32))


def _read_npy(folder: Path) -> Any:
    from kjax.files.npz import read_npy

    return read_npy(folder / "a.npy")


add("read_npy.npy", _npy, _read_npy)


def _random(shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, 0.01, np.float32)


def _tfeat(folder: Path) -> None:
    from kjax.baselines.tfeat import _SHAPES

    arrays = {f"{layer}.weight": _random(shape) for layer, shape in _SHAPES.items()}
    arrays |= {f"{layer}.bias": _random(shape[:1]) for layer, shape in _SHAPES.items()}
    np.savez_compressed(folder / "tfeat.npz", **arrays)


def _read_tfeat(folder: Path) -> Any:
    from kjax.baselines.tfeat import load_params

    return load_params(folder / "tfeat.npz")


add("tfeat.npz", _tfeat, _read_tfeat)


def _l2net_arrays() -> dict[str, np.ndarray]:
    from kjax.baselines.l2net import _shapes

    arrays = {name: _random(shape) for name, shape in _shapes().items()}
    return {**arrays, "pixMean": _random((32, 32))}


def _l2net(folder: Path) -> None:
    np.savez_compressed(folder / "l2net.npz", **_l2net_arrays())


def _l2net_mat(folder: Path) -> None:
    from scipy import io as scipy_io

    arrays = _l2net_arrays()
    layers = []
    for index in range(0, 21, 3):
        kernel = arrays[f"features.{index}.weight"].transpose(2, 3, 1, 0)
        bias = arrays[f"features.{index}.bias"]
        moments = np.ones((len(bias), 2), np.float32)
        layers.append({"type": "conv", "weights": _cells([kernel, bias])})
        layers.append({"type": "bnormPair", "weights": _cells([bias, bias, moments])})
    content = {"net": {"layers": _cells(layers)}, "pixMean": arrays["pixMean"]}
    scipy_io.savemat(folder / "l2net.mat", content, do_compression=True)


def _cells(items: list[Any]) -> np.ndarray:
    cells = np.empty(len(items), object)
    for place, item in enumerate(items):
        cells[place] = item
    return cells


def _read_l2net(suffix: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        from kjax.baselines.l2net import load_params

        return load_params(folder / f"l2net{suffix}")

    return read


add("l2net.npz", _l2net, _read_l2net(".npz"))
add("l2net.mat", _l2net_mat, _read_l2net(".mat"))


def _siam_layers() -> list[tuple[np.ndarray, np.ndarray]]:
    from kjax.baselines.deepcompare import _SIAM_SHAPES

    return [(_random(shape), _random(shape[:1])) for shape in _SIAM_SHAPES]


def _deepcompare_bin(folder: Path) -> None:
    name = b"siam"
    content = len(name).to_bytes(4, "little") + name
    for index, (weight, bias) in enumerate(_siam_layers()):
        content += np.array([index, weight.size, bias.size], "<i4").tobytes()
        content += weight.tobytes() + bias.tobytes()
    (folder / "siam.bin").write_bytes(content)


def _deepcompare_t7(folder: Path) -> None:
    from torch7_files import convolution, dumps, sequential

    branch = sequential(*(convolution(*layer) for layer in _siam_layers()))
    network = sequential(sequential(branch, branch, kind="nn.Parallel"))
    (folder / "siam.t7").write_bytes(dumps(network))


def _read_deepcompare(suffix: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        from kjax.baselines.deepcompare import load_params

        return load_params(folder / f"siam{suffix}")

    return read


add("deepcompare.bin", _deepcompare_bin, _read_deepcompare(".bin"))
add("deepcompare.t7", _deepcompare_t7, _read_deepcompare(".t7"))


def _ddesc_t7(folder: Path) -> None:
    from torch7_files import Module, convolution, dumps, sequential

    from kjax.baselines.deepdesc import _LAYERS

    norm = Module("nn.SpatialSubtractiveNormalization", {"kernel": _random((5, 5))})
    layers = [convolution(_random(shape), _random(shape[:1])) for shape in _LAYERS.values()]
    content = {"desc": sequential(*layers, norm, norm), "mean": 120.0, "std": 50.0}
    (folder / "desc.t7").write_bytes(dumps(content))


def _read_ddesc(folder: Path) -> Any:
    from kjax.baselines.deepdesc import load_variables

    return load_variables(folder / "desc.t7")


add("ddesc.t7", _ddesc_t7, _read_ddesc)


def _small_t7(folder: Path) -> None:
    from torch7_files import Function, Module, convolution, dumps, sequential

    tensors = np.arange(6.0).reshape(2, 3)
    shared = sequential(convolution(_random((2, 1, 3, 3)), _random((2,))), Module("nn.Tanh", {}))
    value = {"a": tensors, "net": sequential(shared, shared), "f": Function(b"code"), 3: "text"}
    (folder / "small.t7").write_bytes(dumps(value))


def _read_small_t7(folder: Path) -> Any:
    from kjax.baselines.torch7 import TorchObject, convolutions_of, read_torch7

    path = folder / "small.t7"
    content = read_torch7(path)
    network = content.get("net") if isinstance(content, dict) else None
    if isinstance(network, TorchObject):
        return [weight.sum() for weight, _ in convolutions_of(network, path)]
    return None


add("torch7.t7", _small_t7, _read_small_t7)


def _mkd(folder: Path) -> None:
    from kjax.baselines.mkd import fit_pca, save_whitening

    rows = np.random.default_rng(0).normal(size=(300, 238)).astype(np.float32)
    save_whitening(folder / "mkd.npz", fit_pca(rows, fitted_on="liberty"))


def _read_mkd(folder: Path) -> Any:
    from kjax.baselines.mkd import load_whitening, projection

    return [
        projection(load_whitening(folder / "mkd.npz", mode), mode) for mode in ("pcawt", "pcaws")
    ]


add("mkd.npz", _mkd, _read_mkd)


# Exported functions


def _exported(name: str) -> Make:
    def make(folder: Path) -> None:
        from models import make_model

        from kjax.export.model import export_model

        export_model(folder / name, *make_model("sum", patch_size=8))

    return make


def _read_exported(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        from kjax.export.model import load_exported, read_about

        return read_about(folder / name), load_exported(folder / name)

    return read


for _name in ("function.stablehlo", "function.onnx"):
    add(f"exported.{_name}", _exported(_name), _read_exported(_name))


# Runs


@functools.cache
def _config() -> dict[str, Any]:
    from kjax.runs.config import load_config

    config = load_config(str(TESTS.parent / "configs" / "smoke.py"))
    with config.unlocked():
        config.model.head, config.model.patch_size = "sum", 32
    return config.to_dict()


def _run(folder: Path) -> None:
    _weights("weights.npz")(folder)
    (folder / "config.json").write_text(json.dumps(_config(), indent=2))
    (folder / "versions.json").write_text(json.dumps([{"kjax": "0"}]))
    rates = {"fpr95/stereo": 0.02, "fpr95/stereo_std": 0.1}
    (folder / "results.json").write_text(json.dumps(rates))
    lines = [{"step": step, "loss": 0.5, "fpr95/stereo": [0.1, None]} for step in range(5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _load_run(folder: Path) -> Any:
    from kjax.weights.source import facts, load_sources

    return facts(load_sources(str(folder)))


add("load_run.workdir", _run, _load_run, spared="weights.npz")


def _go_on(folder: Path) -> Any:
    from kjax.runs.config import validate
    from kjax.runs.workdir import claim_workdir

    with claim_workdir(folder, validate(_config())):
        return folder


add("claim_workdir.json", _run, _go_on, spared="weights.npz")


def _metrics(folder: Path) -> Any:
    from kjax.train.metrics_log import MetricsLog, read_metrics

    read_metrics(folder)
    log = MetricsLog(folder, False, resume_step=2)
    log.write(3, {"loss": 1.0})
    log.close()


def _metrics_only(folder: Path) -> None:
    _run(folder)
    for name in ("weights.npz", "results.json", "config.json", "versions.json"):
        (folder / name).unlink()


add("metrics_log.jsonl", _metrics_only, _metrics)


def _checkpoint(folder: Path) -> None:
    import jax
    import jax.numpy as jnp
    from models import make_model

    from kjax.runs.checkpoint import Checkpoints
    from kjax.train.step import TrainState

    zeros = jax.tree.map(jnp.zeros_like, make_model("sum")[1])
    checkpoints = Checkpoints(folder / "checkpoints", keep=1, best_metric="fpr95")
    state = TrainState(jnp.asarray(7), zeros["params"], zeros["batch_stats"], {})
    checkpoints.save(7, state, metrics={"fpr95": 0.5})
    checkpoints.close()
    (folder / "config.json").write_text(json.dumps(_config()))


def _foreign_checkpoint(folder: Path) -> None:
    """As another program writes it: nothing stands before orbax's own reader."""
    _checkpoint(folder)
    (folder / "checkpoints" / "7" / "SHA256SUMS").unlink()


def _resume(folder: Path) -> Any:
    import jax
    from models import make_model

    from kjax.runs.checkpoint import Checkpoints
    from kjax.train.step import TrainState

    shapes = jax.eval_shape(lambda: make_model("sum")[1])
    step = jax.ShapeDtypeStruct((), np.int32)
    like = TrainState(step, shapes["params"], shapes["batch_stats"], {})
    checkpoints = Checkpoints(folder / "checkpoints", keep=1, best_metric="fpr95")
    try:
        return checkpoints.restore_latest(like)
    finally:
        checkpoints.close()


add("checkpoints.resume", _checkpoint, _resume)
add("checkpoints.resume_foreign", _foreign_checkpoint, _resume)


def _records(folder: Path) -> None:
    from experiments.records import append_record
    from record_files import rival, trained

    append_record(folder / "heads.jsonl", trained("xy", "castle", 0, {"fpr95/x": 0.1}))
    append_record(folder / "heads.jsonl", rival("SIFT", {"fpr95/x": 0.3}))


def _read_records(folder: Path) -> Any:
    from experiments.records import append_record, read_records
    from record_files import rival

    found = read_records(folder / "heads.jsonl")
    append_record(folder / "heads.jsonl", rival("ORB", {"fpr95/x": 0.4}))
    return found


add("records.jsonl", _records, _read_records)


def _evaluation(folder: Path) -> None:
    from sample_evaluation import phototour_scores

    from kjax.eval.results import Evaluation, Result

    scores = [phototour_scores(0.1)]
    row = Result("a", True, "here", 128, None, "L2", None, [], scores, [])
    evaluation = Evaluation("title", "command", "now", {"jax": "1"}, [row])
    (folder / "results.json").write_text(evaluation.to_json())


def _read_evaluation(folder: Path) -> Any:
    from kjax.errors import InputError
    from kjax.eval.results import Evaluation

    try:
        text = (folder / "results.json").read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError("not UTF-8, which whoever reads the text has to tell") from None
    return Evaluation.from_json(text).to_json()


add("evaluation.json", _evaluation, _read_evaluation)


def _card(folder: Path) -> None:
    from kjax.weights import shipped

    for path in (Path(shipped.__file__).parent).glob("*.[cj]s*"):
        shutil.copy(path, folder)
    name = next(path for path in folder.glob("*.json") if "sha256" in path.read_text())
    for path in folder.glob("*.json"):
        if path != name:
            path.unlink()
    (folder / "other.json").write_text(json.dumps({"same_as": name.stem}))


def _read_card(folder: Path) -> Any:
    from kjax.weights import shipped

    usual, shipped.FOLDER = shipped.FOLDER, folder
    try:
        shipped.seal()  # else no damage would come further
        for name in shipped.list_weights():
            card = shipped.card(name)
            card.build()
            card.facts()
    finally:
        shipped.FOLDER = usual


add("shipped.card", _card, _read_card)


# Downloads


def _zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "set.archive", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/info.txt", "1 0\n" * 50)
        archive.writestr("set/patches0000.bmp", bytes(5000))


def _tar(mode: str) -> Make:
    def make(folder: Path) -> None:
        with tarfile.open(folder / "set.archive", mode) as archive:  # type: ignore[call-overload]
            for name in ("set/info.txt", "set/" + "long" * 40 + ".bmp"):
                info = tarfile.TarInfo(name)
                info.size = 700
                archive.addfile(info, io.BytesIO(bytes(700)))

    return make


def _unpack(folder: Path) -> Any:
    from kjax.data.download import unpack

    unpack(folder / "set.archive", folder / "unpacked", progress=False)


add("unpack.zip", _zip, _unpack, edits=(edits.hostile_zip,))
add("unpack.tar", _tar("w"), _unpack, edits=(edits.hostile_tar,))
add("unpack.tar.gz", _tar("w:gz"), _unpack, edits=(edits.hostile_tar,))


def _part(folder: Path) -> None:
    (folder / "set.part").write_bytes(b"half")
    state = {"address": "http://x/set.zip", "validator": '"tag"'}
    (folder / "set.part.json").write_text(json.dumps(state))
    (folder / "set.sha256").write_text("0" * 64 + "\n")


def _read_part(folder: Path) -> Any:
    import http.client
    import urllib.request

    from kjax.data.download import compare_or_record, resume_headers

    _, headers = resume_headers("http://x/set.zip", folder / "set.part")
    urllib.request.Request("http://x/set.zip", headers=headers)
    connection = http.client.HTTPConnection("x")
    connection.putrequest("GET", "/")
    for name, value in headers.items():
        connection.putheader(name, value)
    compare_or_record(folder / "set.sha256", "0" * 64)


add("download.part", _part, _read_part)
