"""Write Torch7's and DeepCompare's binary formats, for tests, from the formats' rules."""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Module(NamedTuple):
    """An object to write: a class's name and its fields."""

    kind: str
    fields: dict[Any, Any]


class Function(NamedTuple):
    """A dumped Lua function: of Torch7's first kind, or of those that can be referred to."""

    code: bytes
    kind: int = 6


def dumps(value: Any) -> bytes:
    parts: list[bytes] = []
    numbers: dict[int, int] = {}
    kept: list[Any] = []  # so that no identity is given twice

    def integer(number: int) -> None:
        parts.append(struct.pack("<i", number))

    def text(string: str | bytes) -> None:
        raw = string.encode() if isinstance(string, str) else string
        integer(len(raw))
        parts.append(raw)

    def refer(kind: int, target: Any) -> bool:
        integer(kind)
        known = id(target) in numbers
        integer(numbers.setdefault(id(target), len(numbers) + 1))
        kept.append(target)
        return known

    def tensor(array: np.ndarray) -> None:
        name = {"float32": "Float", "float64": "Double"}[array.dtype.name]
        if refer(4, array):
            return
        text("V 1")
        text(f"torch.{name}Tensor")
        integer(array.ndim)
        strides = [step // array.itemsize for step in array.strides]
        parts.append(struct.pack(f"<{2 * array.ndim + 1}q", *array.shape, *strides, 1))
        storage = array.ravel(order="K").copy()  # as it lies in memory, which has no gaps
        refer(4, storage)
        text("V 1")
        text(f"torch.{name}Storage")
        parts.append(struct.pack("<q", storage.size) + storage.tobytes())

    def write(item: Any) -> None:
        if item is None:
            integer(0)
        elif isinstance(item, bool):
            parts.append(struct.pack("<2i", 5, item))
        elif isinstance(item, int | float):
            parts.append(struct.pack("<id", 1, item))
        elif isinstance(item, str):
            integer(2)
            text(item)
        elif isinstance(item, Function):
            if item.kind == 6:
                integer(6)
            else:
                refer(item.kind, item)
            text(item.code)
            write({1: {"name": "captured", "value": 3.0}})
        elif isinstance(item, np.ndarray):
            tensor(item)
        elif isinstance(item, Module):
            if not refer(4, item):
                text("V 1")
                text(item.kind)
                write(item.fields)
        elif not refer(3, item):
            integer(len(item))
            for key, entry in item.items():
                write(key)
                write(entry)

    write(value)
    return b"".join(parts)


def sequential(*modules: Module, kind: str = "nn.Sequential") -> Module:
    return Module(kind, {"modules": dict(enumerate(modules, 1)), "train": False})


def convolution(weight: np.ndarray, bias: np.ndarray, kind="nn.SpatialConvolution") -> Module:
    if kind.endswith("MM"):
        weight = weight.reshape(len(weight), -1)
    return Module(kind, {"weight": weight, "bias": bias, "kW": weight.shape[-1]})


def state_dict(layers: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    return {
        f"{name}.{kind}": array
        for name, pair in layers.items()
        for kind, array in zip(("weight", "bias"), pair, strict=True)
    }


def write_deepcompare(path: Path, network: str, layers: Iterable[Any]) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<i", len(network)) + network.encode())
        for index, (weight, bias) in enumerate(layers):
            file.write(struct.pack("<3i", index, weight.size, bias.size))
            file.write(weight.tobytes() + bias.tobytes())


def write_matconvnet(path: Path, layers: Iterable[dict[str, Any]], **arrays: np.ndarray) -> None:
    """Write layers; a tuple in a layer is a cell array."""
    from scipy import io

    def cells(items: Any) -> np.ndarray:
        array = np.empty((1, len(items)), object)
        for i, item in enumerate(items):
            array[0, i] = item
        return array

    converted = [
        {name: cells(value) if isinstance(value, tuple) else value for name, value in layer.items()}
        for layer in layers
    ]
    io.savemat(path, {"net": {"layers": cells(converted)}, **arrays}, do_compression=True)


def l2net_layers(arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """MatConvNet's layers for a port's arrays, as `write_matconvnet` takes them."""
    layers: list[dict[str, Any]] = []
    for i in range(0, 21, 3):
        kernel = arrays[f"features.{i}.weight"].transpose(2, 3, 1, 0)
        mean, var = (arrays[f"features.{i + 1}.running_{kind}"] for kind in ("mean", "var"))
        moments = np.stack([mean, np.sqrt(var + 1e-10)], axis=1)
        ones, zeros = np.ones((len(mean), 1)), np.zeros((len(mean), 1))
        weights = kernel, arrays[f"features.{i}.bias"]
        layers.append({"type": "conv", "weights": weights, "pad": 1.0})
        layers.append({"type": "bnormPair", "weights": (ones, zeros, moments)})
        layers.append({"type": "relu"})
    layers[-1] = {"type": "normalize", "param": np.array([256, 0, 1, 0.5])}
    return layers


def deepcompare_network(name: str, layers: Iterable[Any]) -> Module:
    modules = [convolution(*pair, kind="nn.SpatialConvolutionMM") for pair in layers]
    if name == "siam":
        branch = sequential(Module("nn.Reshape", {}), *modules, Module("nn.ReLU", {}))
    else:
        branch = sequential(sequential(*modules[:4]), sequential(*modules[4:]), kind="nn.Concat")
    decision = Module("nn.Linear", {"weight": np.zeros((1, 2)), "bias": np.zeros(1)})
    return sequential(sequential(branch, branch, kind="nn.Parallel"), decision)


def deepdesc_network(layers: Iterable[Any], kernels: Iterable[np.ndarray]) -> Module:
    norms = (Module("nn.SpatialSubtractiveNormalization", {"kernel": k}) for k in kernels)
    first, second, third = (convolution(*pair) for pair in layers)
    tanh = Module("nn.Tanh", {})
    return sequential(first, tanh, sequential(), next(norms), second, next(norms), third, tanh)
