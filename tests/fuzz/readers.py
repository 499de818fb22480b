"""Every function of kjax that reads files, with a valid sample for each format that it knows."""

import functools
import http.client
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

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


READERS: dict[str, Reader] = {}


def add(name: str, make: Callable[[Path], Any], read: Callable[[Path], Any], **options: Any):
    READERS[name] = Reader(name, make, read, **options)


def constant(*shape: int) -> np.ndarray:
    return np.full(shape, 0.01, np.float32)


# Images

TEXTURE = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)
PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
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
    "a.gif": ("P", {}),
    "a.jp2": ("RGB", {}),
}


def save_picture(folder: Path, name: str) -> None:
    mode, options = PICTURES[name]
    if mode == "I;16":
        image = Image.fromarray(TEXTURE[..., 0].astype(np.uint16) * 200)
    else:
        image = Image.fromarray(TEXTURE).convert(mode)
    image.save(folder / name, **options)


for _name in PICTURES:
    for _read in (read_photograph, read_grey):
        add(
            f"{_read.__name__}.{_name}",
            lambda folder, name=_name: save_picture(folder, name),
            lambda folder, name=_name, read=_read: read(folder / name),
        )
add(
    "read_patch.png",
    lambda folder: Image.fromarray(TEXTURE[:32, :32]).save(folder / "patch.png"),
    lambda folder: read_patch(folder / "patch.png", 32),
)


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


add("phototour.all", make_phototour, read_phototour_set)
add("phototour.texts", make_phototour, read_phototour_set, spared="*.bmp")
add(
    "phototour.cache",
    lambda folder: (make_phototour(folder), read_cached_set(folder)),
    read_cached_set,
    spared="set/*",
    blind=True,
)
add(
    "hpatches.png",
    lambda folder: write_hpatches(folder / "sequences", ("v_two",), patches=2),
    lambda folder: list(read_hpatches(folder / "sequences", progress=False)),
)
COUNTS = {"i_one": 3, "v_two": 4}
add(
    "hpatches.tasks",
    lambda folder: write_tasks(
        tasks.generate_tasks(COUNTS, pairs=20, queries=2, distractors=3, progress=False),
        folder,
        "x",
    ),
    lambda folder: tasks.read_tasks(folder, "x", COUNTS),
)


def make_csv(folder: Path) -> None:
    rows = np.linspace(0, 1, 16 * 3 * 4, dtype=np.float32).reshape(-1, 4)
    descriptors.write_descriptors(
        descriptors.SetDescriptors({"v_two": 3}, rows), folder, progress=False
    )


add("hpatches.csv", make_csv, lambda folder: descriptors.read_descriptors(folder, progress=False))
add("hpatches.benchmark", make_csv, lambda folder: tasks.open_benchmark(folder, progress=False))


def use_descriptor_cache(folder: Path) -> None:
    patches = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    expected = patches.reshape(3, -1).astype(np.float32)
    found = cached(lambda _: expected, "identity", cache_dir=folder)(patches)
    if not np.array_equal(found, expected):
        raise AssertionError("a damaged cache was taken for a whole one")


add("descriptor_cache.npz", use_descriptor_cache, use_descriptor_cache, blind=True)


# COLMAP and features


def make_model_files(folder: Path) -> None:
    scene = colmap_files.PlaneScene(count=6)
    colmap_files.write_binary(folder, *scene.model(scene.tables()))


def cut(folder: Path) -> Any:
    return reconstruction.cut_reconstruction(
        folder / "sparse",
        folder / "database.db",
        folder / "photos",
        filters=reconstruction.TrackFilters(),
        max_patches=100,
        seed=0,
        progress=False,
    )


def features() -> Features:
    rng = np.random.default_rng(0)
    scales, angles, scores = (rng.uniform(1, 30, 5).astype(np.float32) for _ in range(3))
    xy, rows = (rng.uniform(0, 1, (5, n)).astype(np.float32) for n in (2, 8))
    return Features(90 * xy, rows, (100, 90), scales=scales, angles=angles, scores=scores)


NAMES = ("a.jpg", "b/c.jpg")


def make_database(folder: Path) -> None:
    indices = np.array([[0, 1], [2, 2]], np.int32)
    photos = {name: features() for name in NAMES}
    colmap_database.write_database(folder / "database.db", photos, {NAMES: indices})
    blobs = (np.eye(3).tobytes(), None, np.eye(3).tobytes(), None, None)
    verified = colmap_database.Geometry(2, 2, indices.astype("<u4").tobytes(), 6, *blobs)
    colmap_database.add_geometries(folder / "database.db", {NAMES: verified})


add("colmap.model", make_model_files, colmap.read_model)
DATABASE: dict[str, Any] = {"edits": (edits.edit_database,), "spared": "photos/*"}
add(
    "colmap.reconstruction",
    lambda folder: colmap_files.PlaneScene(count=6).write(folder),
    cut,
    **DATABASE,
)
for _name, _read in {
    "features": colmap_database.read_features,
    "matches": colmap_database.read_matches,
    "geometries": colmap_database.read_geometries,
}.items():
    add(
        f"colmap.{_name}",
        make_database,
        lambda folder, read=_read: read(folder / "database.db"),
        **DATABASE,
    )
add(
    "features.npz",
    lambda folder: npz.write_npz(folder / "features.npz", features()),
    lambda folder: npz.read_npz(folder / "features.npz"),
)
SETTINGS: dict[str, Any] = {
    **{"weights": "best", "sha256": "ab" * 32, "model": "xy s=1", "patch_size": 32},
    **{"dtype": "float32", "extent": 12.0, "detector": "SIFT", "max_keypoints": 100},
    **{"photograph": "cd" * 32, "kjax": "0", "stored": "float32"},
}


def make_output(folder: Path, form: str, where: str) -> None:
    with Output(folder / where, list(NAMES), form=form, overwrite=False) as output:
        for name in NAMES:
            output.add(name, features(), SETTINGS)


def read_output(folder: Path, form: str, where: str) -> None:
    output = Output(folder / where, list(NAMES), form=form, overwrite=False)
    check_same_settings(output, folder / where, SETTINGS)


HDF5: dict[str, Any] = {"edits": (edits.edit_hdf5,)}
for _name, _arguments, _options in (
    ("npz", ("npz", ""), {}),
    ("colmap", ("colmap", ""), {"spared": "*.txt"}),
    ("h5", ("npz", "features.h5"), HDF5),
):
    add(
        f"outputs.{_name}",
        lambda folder, arguments=_arguments: make_output(folder, *arguments),
        lambda folder, arguments=_arguments: read_output(folder, *arguments),
        **_options,
    )


def make_hloc(folder: Path) -> None:
    with hloc.FeatureWriter(folder / "features.h5") as writer:
        for name in NAMES:
            writer.add(name, features())
    matches = Matches(np.array([[0, 1], [2, 2]], np.int32), *np.full((2, 2), 0.1, np.float32))
    with hloc.MatchWriter(folder / "matches.h5") as writer:
        writer.add(*NAMES, matches, 5, 5)


def resume_hloc(folder: Path) -> None:
    with hloc.FeatureWriter(folder / "features.h5") as writer:
        writer.add("new.jpg", features())


def read_hloc(folder: Path) -> None:
    hloc.group_names(folder / "features.h5")
    hloc.read_features(folder / "features.h5", NAMES[1])


add("hloc.features", make_hloc, read_hloc, **HDF5, spared="matches.h5")
add("hloc.resume", make_hloc, resume_hloc, **HDF5, spared="matches.h5")
add(
    "hloc.matches",
    make_hloc,
    lambda folder: hloc.read_matches(folder / "matches.h5", *NAMES),
    **HDF5,
    spared="features.h5",
)


# Weights


def read_weights(name: str) -> Callable[[Path], Any]:
    return lambda folder: facts(load_sources(str(folder / name)))


def save_weights(folder: Path, name: str, info: ModelInfo | None = None) -> None:
    save_variables(folder / name, make_model("sum")[1], info=info)


def save_old_torch(folder: Path) -> None:
    import torch

    state = to_torch(make_model("sum")[1])
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)


def save_packed(folder: Path) -> None:
    arrays = to_arrays(make_model("xy")[1])
    zeros = {name: np.zeros_like(array) for name, array in arrays.items()}
    np.savez_compressed(folder / "packed.npz", **zeros)


for _name in ("weights.npz", "weights.safetensors", "weights.pth"):
    add(f"weights.{_name}", lambda folder, n=_name: save_weights(folder, n), read_weights(_name))
add(
    "weights.metadata",
    lambda folder: save_weights(
        folder,
        "a.safetensors",
        ModelInfo(fields_of(make_model("sum")[0]), extent=9.5, remarks={"licence": "MIT"}),
    ),
    read_weights("a.safetensors"),
)
add("weights.old.pt", save_old_torch, read_weights("old.pt"))
add("weights.packed.npz", save_packed, read_weights("packed.npz"))
add(
    "read_npy.npy",
    lambda folder: np.save(folder / "a.npy", np.ones((3, 4), np.float32)),
    lambda folder: read_npy(folder / "a.npy"),
)


def make_card(folder: Path) -> None:
    for name in ("hardnet.json", "photographs.csv"):
        shutil.copy(shipped.FOLDER / name, folder)


def read_card(folder: Path) -> None:
    usual, shipped.FOLDER = shipped.FOLDER, folder
    try:
        seal()  # else no damage would come further
        shipped.photographs()
        shipped.card("hardnet").facts()
    finally:
        shipped.FOLDER = usual


add("shipped.card", make_card, read_card)
MATCHER = MatcherConfig(layers=1, width=32, heads=2, dimension=8)
add(
    "matcher.npz",
    lambda folder: matchers.save_matcher(
        folder / "matcher.npz",
        matchers.MatcherWeights(
            MATCHER,
            Provenance("toy", "ab" * 32, 8),
            {"seed": "0"},
            init_params(MATCHER, jax.random.key(0)),
        ),
    ),
    lambda folder: matchers.read_matcher(folder / "matcher.npz"),
)


# Baselines


def layers(shapes: dict[str, tuple[int, ...]]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(constant(*shape), constant(shape[0])) for shape in shapes.values()]


def state_dict(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    pairs = zip(shapes, layers(shapes), strict=True)
    return {f"{n}.{k}": a for n, p in pairs for k, a in zip(("weight", "bias"), p, strict=True)}


def cells(items: list[Any]) -> np.ndarray:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def make_l2net_mat(folder: Path) -> None:
    from scipy import io as scipy_io

    found = []
    for name, shape in l2net.array_shapes().items():
        if name.endswith("weight"):
            bias, weights = constant(shape[0]), cells([None, None])
            weights[0], weights[1] = constant(*shape[2:], shape[1], shape[0]), bias
            norms = cells([bias, bias, None])
            norms[2] = np.ones((shape[0], 2), np.float32)
            found += [{"type": "conv", "weights": weights}, {"type": "bnormPair", "weights": norms}]
    content = {"net": {"layers": cells(found)}, "pixMean": constant(32, 32)}
    scipy_io.savemat(folder / "a.mat", content, do_compression=True)


def make_deepcompare_bin(folder: Path) -> None:
    content = (4).to_bytes(4, "little") + b"siam"
    for index, (weight, bias) in enumerate(layers(deepcompare.LAYERS["siam"])):
        content += np.array([index, weight.size, bias.size], "<i4").tobytes()
        content += weight.tobytes() + bias.tobytes()
    (folder / "a.bin").write_bytes(content)


def make_deepcompare_t7(folder: Path) -> None:
    pairs = layers(deepcompare.LAYERS["siam"])
    branch = t7.sequential(*(t7.convolution(*pair) for pair in pairs))
    network = t7.sequential(t7.sequential(branch, branch, kind="nn.Parallel"))
    (folder / "a.t7").write_bytes(t7.dumps(network))


def make_deepdesc_t7(folder: Path) -> None:
    norm = t7.Module("nn.SpatialSubtractiveNormalization", {"kernel": constant(5, 5)})
    convolutions = [t7.convolution(*pair) for pair in layers(deepdesc.LAYERS)]
    content = {"desc": t7.sequential(*convolutions, norm, norm), "mean": 120.0, "std": 50.0}
    (folder / "a.t7").write_bytes(t7.dumps(content))


def make_mkd(folder: Path) -> None:
    parts = {"mean": constant(238), "eigvecs": constant(238, 238), "eigvals": constant(238)}
    np.savez(folder / "a.npz", **{f"liberty/pca/{name}": part for name, part in parts.items()})


for _name, _file, _make in (
    ("tfeat", "a.npz", lambda f: np.savez_compressed(f / "a.npz", **state_dict(tfeat.SHAPES))),
    (
        "l2net",
        "a.npz",
        lambda f: np.savez_compressed(
            f / "a.npz", **{n: constant(*shape) for n, shape in l2net.array_shapes().items()}
        ),
    ),
    ("l2net", "a.mat", make_l2net_mat),
    ("deepcompare", "a.bin", make_deepcompare_bin),
    ("deepcompare", "a.t7", make_deepcompare_t7),
    ("ddesc", "a.t7", make_deepdesc_t7),
    ("mkd-pcaws", "a.npz", make_mkd),
):
    add(
        f"baseline.{_name}{_file[1:]}",
        _make,
        lambda folder, name=_name, file=_file: load_baseline(name, folder / file),
    )


def make_small_t7(folder: Path) -> None:
    convolution = t7.convolution(constant(2, 1, 3, 3), constant(2))
    shared = t7.sequential(convolution, t7.Module("nn.Tanh", {}))
    value = {
        "a": np.arange(6.0).reshape(2, 3),
        "net": t7.sequential(shared, shared),
        "f": t7.Function(b"code"),
        3: "text",
    }
    (folder / "a.t7").write_bytes(t7.dumps(value))


def read_small_t7(folder: Path) -> None:
    content = read_torch7(folder / "a.t7")
    network = content.get("net") if isinstance(content, dict) else None
    if isinstance(network, TorchObject):
        for weight, _ in network.convolutions():
            weight.sum()


add("torch7.t7", make_small_t7, read_small_t7)


# Exported functions, runs, evaluations

for _name in ("function.stablehlo", "function.onnx"):
    add(
        f"exported.{_name}",
        lambda folder, n=_name: export_model(folder / n, *make_model("sum", patch_size=8)),
        lambda folder, n=_name: (read_facts(folder / n), load_exported(folder / n)),
    )


@functools.cache
def run_config() -> dict[str, Any]:
    smoke = config.load_config(str(Path(__file__).parents[2] / "configs" / "smoke.py"))
    with smoke.unlocked():
        smoke.model.head, smoke.model.patch_size = "sum", 32
    return smoke.to_dict()


def make_run(folder: Path) -> None:
    save_weights(folder, "weights.npz")
    (folder / "config.json").write_text(json.dumps(run_config(), indent=2))
    (folder / "versions.json").write_text(json.dumps([{"kjax": "0"}]))
    rates = {"fpr95/stereo": 0.02, "fpr95/stereo_std": 0.1}
    (folder / "results.json").write_text(json.dumps(rates))


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


def make_checkpoint(folder: Path) -> None:
    zeros = jax.tree.map(jnp.zeros_like, make_model("sum")[1])
    checkpoints = Checkpoints(folder / "checkpoints", keep=1, best_metric="fpr95")
    state = TrainState(jnp.asarray(7), zeros["params"], zeros["batch_stats"], {})
    checkpoints.save(7, state, metrics={"fpr95": 0.5})
    checkpoints.close()
    (folder / "config.json").write_text(json.dumps(run_config()))


def make_foreign_checkpoint(folder: Path) -> None:
    """Another program's: without checksums, damage reaches orbax's own reader."""
    make_checkpoint(folder)
    (folder / "checkpoints" / "7" / "SHA256SUMS").unlink()


def resume_checkpoint(folder: Path) -> None:
    shapes = jax.eval_shape(lambda: make_model("sum")[1])
    step = jax.ShapeDtypeStruct((), np.int32)
    like = TrainState(step, shapes["params"], shapes["batch_stats"], {})
    checkpoints = Checkpoints(folder / "checkpoints", keep=1, best_metric="fpr95")
    try:
        checkpoints.restore_latest(like)
    finally:
        checkpoints.close()


add("run.workdir", make_run, read_weights(""), spared="weights.npz")
add("run.resume", make_run, resume_run, spared="weights.npz")
add("run.metrics_log", make_log, resume_log)
for _name, _make in {"own": make_checkpoint, "foreign": make_foreign_checkpoint}.items():
    add(f"checkpoint.{_name}", _make, read_weights(""))
    add(f"checkpoint.resume_{_name}", _make, resume_checkpoint)


def make_evaluation(folder: Path) -> None:
    scores = [phototour_scores(0.1)]
    row = results.Result("a", True, "here", 128, None, "L2", None, [], scores, [])
    evaluation = results.Evaluation("title", "command", "now", {"jax": "1"}, [row])
    (folder / "results.json").write_text(evaluation.to_json())


def read_evaluation(folder: Path) -> Any:
    try:
        text = (folder / "results.json").read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError("not UTF-8: for the caller to report") from None
    return results.Evaluation.from_json(text).to_json()


add("evaluation.json", make_evaluation, read_evaluation)


# Downloads


def make_zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "set.archive", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/info.txt", "1 0\n" * 50)
        archive.writestr("set/patches0000.bmp", bytes(5000))


def make_tar(folder: Path, mode: str) -> None:
    with tarfile.open(folder / "set.archive", mode) as archive:  # type: ignore[call-overload]
        for name in ("set/info.txt", "set/" + "long" * 40 + ".bmp"):
            info = tarfile.TarInfo(name)
            info.size = 700
            archive.addfile(info, io.BytesIO(bytes(700)))


def unpack(folder: Path) -> None:
    download.unpack(folder / "set.archive", folder / "unpacked", progress=False)


add("unpack.zip", make_zip, unpack, edits=(edits.hostile_zip,))
for _mode in ("w", "w:gz"):
    add(
        f"unpack.tar{_mode[1:].replace(':', '.')}",
        lambda folder, mode=_mode: make_tar(folder, mode),
        unpack,
        edits=(edits.hostile_tar,),
    )


def make_part(folder: Path) -> None:
    (folder / "set.part").write_bytes(b"half")
    (folder / "set.state").write_text('http://x/set.zip\n"tag"')
    (folder / "set.sha256").write_text("0" * 64 + "\n")


def read_part(folder: Path) -> None:
    _, headers = download.resume_headers("http://x/set.zip", folder / "set.part")
    connection = http.client.HTTPConnection("x")
    connection.putrequest("GET", "/")
    for name, value in headers.items():
        connection.putheader(name, value)
    download.compare_or_record(folder / "set.sha256", "0" * 64)


add("download.part", make_part, read_part)
