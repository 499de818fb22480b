"""Every function of kjax that reads files, with a valid sample for each format that it knows."""

import contextlib
import functools
import http.client
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import colmap_files
import jax
import jax.numpy as jnp
import numpy as np
import torch7_files as t7
from evaluation_data import write_hpatches, write_tasks
from ledger_files import seal
from models import make_model
from PIL import Image
from sample_evaluation import phototour_scores

from kjax.baselines import deepcompare, deepdesc, l2net, load_baseline, tfeat
from kjax.baselines.torch7 import TorchObject, read_torch7
from kjax.data import colmap, download, phototour, reconstruction
from kjax.data.cutting.photographs import read_grey, read_photograph
from kjax.data.hpatches import read_hpatches
from kjax.data.sets import read_test_sets
from kjax.errors import InputError
from kjax.eval import results
from kjax.eval.entries import cached
from kjax.eval.hpatches import descriptors, tasks
from kjax.eval.similarity_maps import read_patch
from kjax.export.files import read_facts
from kjax.export.model import export_model, load_exported
from kjax.files.npz import read_npy
from kjax.images.exchange import colmap_database, hloc, npz
from kjax.images.exchange.outputs import Output, check_same_settings
from kjax.images.features import Features, Matches
from kjax.matcher import weights as matchers
from kjax.matcher.network import MatcherConfig, init_params
from kjax.runs import config, workdir
from kjax.runs.checkpoint import Checkpoints
from kjax.train.metrics_log import MetricsLog, read_metrics
from kjax.train.step import TrainState
from kjax.weights import shipped
from kjax.weights.files import save_variables
from kjax.weights.info import ModelInfo, Provenance, fields_of
from kjax.weights.source import facts, load_sources
from kjax.weights.torch_names import to_arrays, to_torch
from tests.fuzz import edits


class Reader(NamedTuple):
    """One reader and one format."""

    name: str
    make: Callable[[Path], Any]
    """Writes a valid sample into a folder."""
    read: Callable[[Path], Any]
    edits: tuple[Callable[[Path, Random], None], ...] = ()
    """Damage that knows the format, in addition to `mutations`."""
    spared: str = "no/such/file"
    """Pattern of files that are never damaged."""
    blind: bool = False
    """Whether checksums in archives stay wrong, as after an accident."""


def at(name: str, function: Callable[..., Any], *arguments: Any) -> Callable[[Path], Any]:
    """Return a function that calls this one with the path of a file in a folder."""
    return lambda folder: function(folder / name, *arguments)


def constant(*shape: int) -> np.ndarray:
    return np.full(shape, 0.01, np.float32)


# Images

TEXTURE = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
SQUARE = Image.fromarray(TEXTURE[:32, :32])
PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "a.jpg": ("RGB", {"quality": 80}),
    "progressive.jpg": ("L", {"progressive": True}),
    "palette.png": ("P", {}),
    "deep.png": ("I;16", {}),
    "lzw.tif": ("L", {"compression": "tiff_lzw"}),
    "jpeg.tiff": ("RGB", {"compression": "jpeg"}),
    "lossless.webp": ("RGB", {"lossless": True}),
    **{f"a.{suffix}": ("RGB", {}) for suffix in ("png", "tif", "bmp", "ppm", "webp", "jp2")},
    **{"a.pgm": ("L", {}), "a.gif": ("P", {})},
}


def save_picture(path: Path) -> None:
    mode, options = PICTURES[path.name]
    if mode == "I;16":
        image = Image.fromarray(TEXTURE[..., 0].astype(np.uint16) * 200)
    else:
        image = Image.fromarray(TEXTURE).convert(mode)
    image.save(path, **options)


# Patch sets and HPatches


def make_phototour(folder: Path) -> None:
    patches, ids = np.zeros((6, 64, 64), np.uint8), np.array([1, 1, 2, 2, 3, 3])
    matching = np.array([True, True, False])
    pairs = phototour.TestPairs(np.array([0, 2, 1]), np.array([1, 3, 4]), matching)
    interest = np.tile(np.array([0, 10.5, 20.5, 0.1, 1.2]), (6, 1))
    phototour.write_phototour(folder / "set", patches, ids, pairs=pairs, interest=interest)
    listed = [phototour.SetPhotograph(0, "a, b.jpg", "ab" * 32)]
    phototour.write_set_photographs(folder / "set", listed)


def read_phototour_set(folder: Path) -> None:
    (test,) = read_test_sets([str(folder / "set")], progress=False)
    phototour.read_interest(folder / "set", patch_count=len(test.patches))
    phototour.read_set_photographs(folder / "set")


def read_cached_set(folder: Path) -> None:
    found = phototour.read_phototour(folder / "set", cache_dir=folder / "cache", progress=False)
    if found.patches.any() or found.point_ids.tolist() != [1, 1, 2, 2, 3, 3]:
        raise AssertionError("a damaged cache was taken for a whole one")


COUNTS = {"i_one": 3, "v_two": 4}


def make_tasks(folder: Path) -> None:
    generated = tasks.generate_tasks(COUNTS, pairs=20, queries=2, distractors=3, progress=False)
    write_tasks(generated, folder, "x")


def make_csv(folder: Path) -> None:
    rows = np.linspace(0, 1, 16 * 3 * 4, dtype=np.float32).reshape(-1, 4)
    found = descriptors.SetDescriptors({"v_two": 3}, rows)
    descriptors.write_descriptors(found, folder)


def use_descriptor_cache(folder: Path) -> None:
    patches = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    expected = patches.reshape(3, -1).astype(np.float32)
    found = cached(lambda _: expected, "identity", cache_dir=folder)(patches)
    if not np.array_equal(found, expected):
        raise AssertionError("a damaged cache was taken for a whole one")


# COLMAP and features

NAMES = ("a.jpg", "b/c.jpg")
INDICES = np.array([[0, 1], [2, 2]], np.int32)
SETTINGS: dict[str, Any] = {
    **{"weights": "best", "sha256": "ab" * 32, "model": "xy s=1", "patch_size": 32},
    **{"dtype": "float32", "extent": 12.0, "detector": "SIFT", "max_keypoints": 100, "max_side": 9},
    **{"photograph": "cd" * 32, "kjax": "0", "stored": "float32", "version": 2, "upright": False},
}


def make_model_files(folder: Path) -> None:
    scene = colmap_files.PlaneScene(count=6)
    colmap_files.write_binary(folder, *scene.model(scene.tables()))


def cut(folder: Path) -> Any:
    paths = (folder / name for name in ("sparse", "database.db", "photos"))
    options = {"filters": reconstruction.TrackFilters(), "max_patches": 100, "seed": 0}
    return reconstruction.cut_reconstruction(*paths, **options, progress=False)


def features() -> Features:
    rng = np.random.default_rng(0)
    scales, angles, scores = (rng.uniform(1, 30, 5).astype(np.float32) for _ in range(3))
    xy, rows = (rng.uniform(0, 1, (5, n)).astype(np.float32) for n in (2, 8))
    return Features(90 * xy, rows, (100, 90), scales=scales, angles=angles, scores=scores)


def make_database(path: Path) -> None:
    colmap_database.write_database(path, {name: features() for name in NAMES}, {NAMES: INDICES})
    blobs = (np.eye(3).tobytes(), None, np.eye(3).tobytes(), None, None)
    verified = colmap_database.Geometry(2, 2, INDICES.astype("<u4").tobytes(), 6, *blobs)
    colmap_database.add_geometries(path, {NAMES: verified})


def make_output(path: Path, form: str) -> None:
    with Output(path, list(NAMES), form=form, overwrite=False) as output:
        for name in NAMES:
            output.add(name, features(), SETTINGS)


def read_output(path: Path, form: str) -> None:
    output = Output(path, list(NAMES), form=form, overwrite=False)
    check_same_settings(output, path, SETTINGS)


def write_features(path: Path, *names: str) -> None:
    with hloc.FeatureWriter(path) as writer:
        for name in names:
            writer.add(name, features())


def write_hloc_matches(path: Path) -> None:
    with hloc.MatchWriter(path) as writer:
        writer.add(*NAMES, Matches(INDICES, *np.full((2, 2), 0.1, np.float32)), 5, 5)


def read_hloc(path: Path) -> None:
    hloc.group_names(path)
    hloc.read_features(path, NAMES[1])


# Weights


def read_weights(path: Path) -> Any:
    return facts(load_sources(str(path)))


def save_weights(path: Path, head: str = "sum", **info: Any) -> None:
    model, variables = make_model(head)
    known = ModelInfo(fields_of(model), **info) if info else None
    save_variables(path, variables, info=known)


def save_old_torch(path: Path) -> None:
    import torch

    state = to_torch(make_model("sum")[1])
    torch.save(state, path, _use_new_zipfile_serialization=False)


def save_packed(path: Path) -> None:
    arrays = to_arrays(make_model("xy")[1])
    np.savez_compressed(path, **{name: np.zeros_like(array) for name, array in arrays.items()})


def make_card(folder: Path) -> None:
    for name in ("hardnet.json", "photographs.csv"):
        shutil.copy(shipped.FOLDER / name, folder)


def read_card(folder: Path) -> None:
    with mock.patch.object(shipped, "FOLDER", folder):
        seal()  # else no damage would come further
        shipped.photographs()
        shipped.card("hardnet").facts()


def save_matcher(path: Path) -> None:
    own = MatcherConfig(layers=1, width=32, heads=2, dimension=8)
    params = init_params(own, jax.random.key(0))
    weights = matchers.MatcherWeights(own, Provenance("toy", "ab" * 32, 8), {"seed": "0"}, params)
    matchers.save_matcher(path, weights)


# Baselines


def layers(shapes: dict[str, tuple[int, ...]]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(constant(*shape), constant(shape[0])) for shape in shapes.values()]


def constants(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: constant(*shape) for name, shape in shapes.items()}


def baseline_arrays() -> dict[str, dict[str, np.ndarray]]:
    named = dict(zip(tfeat.SHAPES, layers(tfeat.SHAPES), strict=True))
    pca = {"mean": (238,), "eigvecs": (238, 238), "eigvals": (238,)}
    return {
        "tfeat": t7.state_dict(named),
        "l2net": constants(l2net.array_shapes()),
        "mkd-pcaws": constants({f"liberty/pca/{name}": shape for name, shape in pca.items()}),
    }


def make_baseline(path: Path) -> None:
    siam = layers(deepcompare.LAYERS["siam"])
    if path.suffix == ".npz":
        np.savez_compressed(path, **baseline_arrays()[path.stem])
    elif path.suffix == ".mat":
        found = t7.l2net_layers(baseline_arrays()["l2net"])
        t7.write_matconvnet(path, found, pixMean=constant(32, 32))
    elif path.suffix == ".bin":
        t7.write_deepcompare(path, "siam", siam)
    elif path.stem == "deepcompare":
        path.write_bytes(t7.dumps(t7.deepcompare_network("siam", siam)))
    else:
        network = t7.deepdesc_network(layers(deepdesc.LAYERS), [constant(5, 5)] * 2)
        image = constant(1, 64, 64)
        path.write_bytes(t7.dumps({"desc": network, "mean": image, "std": image}))


def read_baseline(path: Path) -> Any:
    return load_baseline(path.stem, path)


def make_small_t7(path: Path) -> None:
    convolution = t7.convolution(constant(2, 1, 3, 3), constant(2))
    shared = t7.sequential(convolution, t7.Module("nn.Tanh", {}))
    numbers, function = np.arange(6.0).reshape(2, 3), t7.Function(b"code")
    value = {"a": numbers, "net": t7.sequential(shared, shared), "f": function, 3: "text"}
    path.write_bytes(t7.dumps(value))


def read_small_t7(path: Path) -> None:
    content = read_torch7(path)
    network = content.get("net") if isinstance(content, dict) else None
    if isinstance(network, TorchObject):
        for weight, _ in network.convolutions():
            weight.sum()


# Exported functions, runs, evaluations


@functools.cache
def run_config() -> dict[str, Any]:
    smoke = config.load_config(str(Path(__file__).parents[2] / "configs" / "smoke.py"))
    with smoke.unlocked():
        smoke.model.head, smoke.model.patch_size = "sum", 32
    return smoke.to_dict()


def make_run(folder: Path) -> None:
    save_weights(folder / "weights.npz")
    rates = {"fpr95/stereo": 0.02, "fpr95/stereo_std": 0.1}
    contents = {"config": run_config(), "versions": [{"kjax": "0"}], "results": rates}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2))


def make_log(folder: Path) -> None:
    lines = [{"step": step, "loss": 0.5, "fpr95/stereo": [0.1, None]} for step in range(5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def resume_run(folder: Path) -> None:
    with workdir.claim_workdir(folder, config.validate(run_config())):
        pass


def resume_log(folder: Path) -> None:
    read_metrics(folder)
    log = MetricsLog(folder, False, resume_step=2)
    log.write(3, {"loss": 1.0})
    log.close()


def make_checkpoint(folder: Path, foreign: bool = False) -> None:
    """Perhaps another program's: without checksums, damage reaches orbax's own reader."""
    zeros = jax.tree.map(jnp.zeros_like, make_model("sum")[1])
    checkpoints = Checkpoints(folder / "checkpoints", keep=1, best_metric="fpr95")
    state = TrainState(jnp.asarray(7), zeros["params"], zeros["batch_stats"], {})
    checkpoints.save(7, state, metrics={"fpr95": 0.5})
    checkpoints.close()
    (folder / "config.json").write_text(json.dumps(run_config()))
    if foreign:
        (folder / "checkpoints" / "7" / "SHA256SUMS").unlink()


def resume_checkpoint(folder: Path) -> None:
    shapes = jax.eval_shape(lambda: make_model("sum")[1])
    step = jax.ShapeDtypeStruct((), np.int32)
    like = TrainState(step, shapes["params"], shapes["batch_stats"], {})
    checkpoints = Checkpoints(folder / "checkpoints", keep=1, best_metric="fpr95")
    with contextlib.closing(checkpoints):
        checkpoints.restore_latest(like)


def make_evaluation(path: Path) -> None:
    scores = [phototour_scores(0.1)]
    row = results.Result("a", True, "here", 128, None, "L2", None, [], scores, [])
    path.write_text(results.Evaluation("title", "command", "now", {"jax": "1"}, [row]).to_json())


def read_evaluation(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError("not UTF-8: for the caller to report") from None
    return results.Evaluation.from_json(text).to_json()


# Downloads

ARCHIVE = "set.archive"


def make_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/info.txt", "1 0\n" * 50)
        archive.writestr("set/patches0000.bmp", bytes(5000))


def make_tar(path: Path, mode: Any) -> None:
    with tarfile.open(path, mode) as archive:
        for name in ("set/info.txt", "set/" + "long" * 40 + ".bmp"):
            info = tarfile.TarInfo(name)
            info.size = 700
            archive.addfile(info, io.BytesIO(bytes(700)))


def unpack(path: Path) -> None:
    download.unpack(path, path.parent / "unpacked", progress=False)


def make_part(folder: Path) -> None:
    (folder / "set.part").write_bytes(b"half")
    state = {"address": "http://x/set.zip", "validator": '"tag"'}
    (folder / "set.part.json").write_text(json.dumps(state))
    (folder / "set.sha256").write_text("0" * 64 + "\n")


def read_part(folder: Path) -> None:
    _, headers = download.resume_headers("http://x/set.zip", folder / "set.part")
    connection = http.client.HTTPConnection("x")
    connection.putrequest("GET", "/")
    for name, value in headers.items():
        connection.putheader(name, value)
    download.compare_or_record(folder / "set.sha256", "0" * 64)


DATABASE: dict[str, Any] = {"edits": (edits.edit_database,), "spared": "photos/*"}
HDF5: dict[str, Any] = {"edits": (edits.edit_hdf5,)}
TAR: dict[str, Any] = {"edits": (edits.hostile_tar,)}
BASELINES = (
    *("tfeat.npz", "l2net.npz", "l2net.mat", "deepcompare.bin", "deepcompare.t7", "ddesc.t7"),
    "mkd-pcaws.npz",
)
FORMATS: list[tuple[Any, ...]] = [
    *(
        (f"{read.__name__}.{name}", at(name, save_picture), at(name, read))
        for name in PICTURES
        for read in (read_photograph, read_grey)
    ),
    ("read_patch.png", at("a.png", SQUARE.save), at("a.png", read_patch, 32)),
    ("phototour.all", make_phototour, read_phototour_set),
    ("phototour.texts", make_phototour, read_phototour_set, {"spared": "*.bmp"}),
    (
        "phototour.cache",
        lambda folder: (make_phototour(folder), read_cached_set(folder)),
        read_cached_set,
        {"spared": "set/*", "blind": True},
    ),
    (
        "hpatches.png",
        lambda folder: write_hpatches(folder / "sequences", ("v_two",), patches=2),
        lambda folder: list(read_hpatches(folder / "sequences", progress=False)),
    ),
    ("hpatches.tasks", make_tasks, lambda folder: tasks.read_tasks(folder, "x", COUNTS)),
    ("hpatches.csv", make_csv, lambda f: descriptors.read_descriptors(f, progress=False)),
    ("hpatches.benchmark", make_csv, lambda f: tasks.open_benchmark(f, progress=False)),
    ("descriptor_cache.npz", use_descriptor_cache, use_descriptor_cache, {"blind": True}),
    ("colmap.model", make_model_files, colmap.read_model),
    ("colmap.reconstruction", lambda f: colmap_files.PlaneScene(count=6).write(f), cut, DATABASE),
    *(
        (f"colmap.{name}", at("database.db", make_database), at("database.db", read), DATABASE)
        for name, read in (
            ("features", colmap_database.read_features),
            ("matches", colmap_database.read_matches),
            ("geometries", colmap_database.read_geometries),
        )
    ),
    ("features.npz", at("a.npz", npz.write_npz, features()), at("a.npz", npz.read_npz)),
    *(
        (f"outputs.{name}", at(file, make_output, form), at(file, read_output, form), options)
        for name, file, form, options in (
            ("npz", "", "npz", {}),
            ("colmap", "", "colmap", {"spared": "*.txt"}),
            ("h5", "a.h5", "npz", HDF5),
        )
    ),
    ("hloc.features", at("a.h5", write_features, *NAMES), at("a.h5", read_hloc), HDF5),
    ("hloc.resume", at("a.h5", write_features, *NAMES), at("a.h5", write_features, "c.jpg"), HDF5),
    ("hloc.matches", at("a.h5", write_hloc_matches), at("a.h5", hloc.read_matches, *NAMES), HDF5),
    *(
        (f"weights.{name}", at(name, save_weights), at(name, read_weights))
        for name in ("weights.npz", "weights.safetensors", "weights.pth")
    ),
    *(
        (
            f"metadata.{name}",
            lambda f, name=name: save_weights(f / name, extent=9.5, remarks={"licence": "MIT"}),
            at(name, read_weights),
        )
        for name in ("a.npz", "a.safetensors", "a.pth")
    ),
    ("weights.old.pt", at("old.pt", save_old_torch), at("old.pt", read_weights)),
    ("weights.packed.npz", at("packed.npz", save_packed), at("packed.npz", read_weights)),
    ("read_npy.npy", at("a.npy", np.save, np.ones((3, 4), np.float32)), at("a.npy", read_npy)),
    ("shipped.card", make_card, read_card),
    ("matcher.npz", at("matcher.npz", save_matcher), at("matcher.npz", matchers.read_matcher)),
    *((f"baseline.{file}", at(file, make_baseline), at(file, read_baseline)) for file in BASELINES),
    ("torch7.t7", at("a.t7", make_small_t7), at("a.t7", read_small_t7)),
    *(
        (
            f"exported.{name}",
            at(name, lambda path: export_model(path, *make_model("sum", patch_size=8))),
            at(name, lambda path: (read_facts(path), load_exported(path))),
        )
        for name in ("function.stablehlo", "function.onnx")
    ),
    ("run.workdir", make_run, read_weights, {"spared": "weights.npz"}),
    ("run.resume", make_run, resume_run, {"spared": "weights.npz"}),
    ("run.metrics_log", make_log, resume_log),
    *(
        (f"checkpoint.{task}{kind}", at("", make_checkpoint, kind == "foreign"), read)
        for kind in ("own", "foreign")
        for task, read in (("", read_weights), ("resume_", resume_checkpoint))
    ),
    ("evaluation.json", at("a.json", make_evaluation), at("a.json", read_evaluation)),
    ("unpack.zip", at(ARCHIVE, make_zip), at(ARCHIVE, unpack), {"edits": (edits.hostile_zip,)}),
    ("unpack.tar", at(ARCHIVE, make_tar, "w"), at(ARCHIVE, unpack), TAR),
    ("unpack.tar.gz", at(ARCHIVE, make_tar, "w:gz"), at(ARCHIVE, unpack), TAR),
    ("download.part", make_part, read_part),
]
"""Name, writer of a valid sample, reader, and options of `Reader`."""
READERS = {row[0]: Reader(*row[:3], **(row[3] if len(row) > 3 else {})) for row in FORMATS}
