"""Reads Torch7's binary `.t7` files as plain data: nothing in them is ever run.

Numbers, strings, booleans and tables become Python's own; tensors become NumPy arrays; any other
object becomes a `TorchObject`, which is its class's name and its fields. Stored functions are
skipped over as bytes.
"""

import dataclasses
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from kjax.errors import InputError

_NIL, _NUMBER, _STRING, _TABLE, _OBJECT, _BOOLEAN, _FUNCTION = range(7)
MOST_MODULES = 10_000
_RECURSIVE_FUNCTIONS = (7, 8)
_ELEMENTS = {
    "Float": "<f4",
    "Double": "<f8",
    "Half": "<f2",
    "Cuda": "<f4",
    "CudaDouble": "<f8",
    "CudaHalf": "<f2",
    "Long": "<i8",
    "CudaLong": "<i8",
    "Int": "<i4",
    "Short": "<i2",
    "Char": "<i1",
    "Byte": "<u1",
}


@dataclasses.dataclass(frozen=True)
class TorchObject:
    """An object of a class, e.g. "nn.Sequential", and its fields."""

    kind: str
    fields: dict[Any, Any]


class _CorruptError(Exception):
    """Bytes that are not what the format says."""


def read_torch7(path: Path) -> Any:
    """The value that a `.t7` file holds."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        return _Reader(path.read_bytes()).value()
    except (_CorruptError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a binary Torch7 file ({error})") from None


def modules_of(module: TorchObject) -> list[TorchObject]:
    """The modules that a container holds, in their order."""
    table = module.fields.get("modules", {})
    if not isinstance(table, dict):
        return []
    found = [table[key] for key in sorted(key for key in table if isinstance(key, int))]
    return [child for child in found if isinstance(child, TorchObject)]


def flatten_modules(module: TorchObject, path: Path) -> list[TorchObject]:
    """A module and all modules in it, depth first; one that is in several is there as often.

    Raises:
        InputError: they are more than any network has, as where a module is within itself.
    """
    children: dict[int, list[TorchObject]] = {}
    found, left = [], [module]
    while left:
        found.append(left.pop())
        own = children.setdefault(id(found[-1]), modules_of(found[-1]))
        left.extend(reversed(own))
        if len(found) + len(left) > MOST_MODULES:
            raise InputError(f"{path}: a network of more than {MOST_MODULES:,} modules is none")
    return found


def convolutions_of(module: TorchObject, path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Weights and biases of all convolutions in a module, in their order; `path` is for errors."""
    return [
        (tensor_field(inner, "weight", path), tensor_field(inner, "bias", path))
        for inner in flatten_modules(module, path)
        if "SpatialConvolution" in inner.kind
    ]


def tensor_field(module: TorchObject, name: str, path: Path) -> np.ndarray:
    """A field that is a tensor; `path` is for errors."""
    value = module.fields.get(name)
    if not isinstance(value, np.ndarray):
        raise InputError(f"{path}: {name} of a {module.kind} is no tensor")
    return value


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0
        # Objects are written once and referred to by number afterwards.
        self._seen: dict[int, Any] = {}

    def value(self) -> Any:
        kind = self._int()
        if kind == _NIL:
            return None
        if kind == _NUMBER:
            return self._unpack("<d")
        if kind == _STRING:
            return self._text()
        if kind == _BOOLEAN:
            return bool(self._int())
        if kind == _FUNCTION:
            return self._skip_function()
        if kind in (_TABLE, _OBJECT, *_RECURSIVE_FUNCTIONS):
            return self._referable(kind)
        raise _CorruptError(f"type {kind} at byte {self._at - 4}")

    def _referable(self, kind: int) -> Any:
        index = self._int()
        if index in self._seen:
            return self._seen[index]
        if kind == _TABLE:
            return self._table(index)
        if kind == _OBJECT:
            return self._object(index)
        self._seen[index] = None
        return self._skip_function()

    def _table(self, index: int) -> dict[Any, Any]:
        table: dict[Any, Any] = {}
        self._seen[index] = table
        for _ in range(self._int()):
            key, value = self.value(), self.value()
            if isinstance(key, float) and key.is_integer():
                key = int(key)
            # Lua allows tables as keys; no weights file needs them.
            if isinstance(key, str | int | float):
                table[key] = value
        return table

    def _object(self, index: int) -> Any:
        version = self._text()
        name = self._text() if version.startswith("V ") else version
        family, _, kind = name.partition(".")
        if family == "torch" and (element := _ELEMENTS.get(kind.removesuffix("Tensor"))):
            value: Any = self._tensor()
        elif family == "torch" and (element := _ELEMENTS.get(kind.removesuffix("Storage"))):
            value = self._array(np.dtype(element), self._long())
        else:
            fields: dict[Any, Any] = {}
            value = TorchObject(name, fields)
            self._seen[index] = value
            content = self.value()
            fields.update(content if isinstance(content, dict) else {})
        self._seen[index] = value
        return value

    def _tensor(self) -> np.ndarray:
        axes = self._int()
        if not 0 <= axes <= 16:
            raise _CorruptError(f"a tensor of {axes} axes")
        shape = [self._long() for _ in range(axes)]
        strides = [self._long() for _ in range(axes)]
        offset = self._long() - 1
        storage = self.value()
        if storage is None or not axes:
            return np.zeros(0, np.float32)
        if not isinstance(storage, np.ndarray) or storage.ndim != 1:
            raise _CorruptError("a tensor without a storage")
        extent = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        if min(shape) < 0 or min(strides) < 0 or offset < 0:
            raise _CorruptError("a tensor of negative extent")
        if not min(shape):
            return storage[:0]
        # Strides may overlap: then a tensor has more numbers than its storage.
        if max(extent, math.prod(shape)) > storage.size:
            raise _CorruptError("a tensor larger than its storage")
        # The stride of an axis with one place is never taken, and may be any number.
        steps = [
            step * storage.itemsize if side > 1 else 0
            for side, step in zip(shape, strides, strict=True)
        ]
        # A view: thousands of tensors may share a storage.
        return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)

    def _skip_function(self) -> None:
        self._take(self._int())
        self.value()  # its captured variables

    def _array(self, dtype: np.dtype, length: int) -> np.ndarray:
        return np.frombuffer(self._take(length * dtype.itemsize), dtype)

    def _text(self) -> str:
        return self._take(self._int()).decode("utf-8", errors="replace")

    def _int(self) -> int:
        return self._unpack("<i")

    def _long(self) -> int:
        return self._unpack("<q")

    def _unpack(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._content) - self._at:
            raise _CorruptError(f"{length} bytes wanted at byte {self._at} of {len(self._content)}")
        self._at += length
        return self._content[self._at - length : self._at]
