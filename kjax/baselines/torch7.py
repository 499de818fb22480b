"""Reader of Torch7's binary `.t7` files as plain data: nothing in them is ever run.

Numbers, strings, booleans and tables become Python's own; tensors become NumPy arrays; any other
object becomes a `TorchObject` with its class name and fields. Stored functions are skipped.
"""

import dataclasses
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from kjax.errors import InputError

NIL, NUMBER, STRING, TABLE, OBJECT, BOOLEAN, FUNCTION = range(7)
RECURSIVE_FUNCTIONS = (7, 8)
ELEMENTS = {
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
MAX_MODULES = 10_000
"""Maximum number of modules in a network; a module within itself has more."""


@dataclasses.dataclass(frozen=True)
class TorchObject:
    """An object of a class, e.g. "nn.Sequential", and its fields."""

    kind: str
    fields: dict[Any, Any]

    def modules(self) -> list["TorchObject"]:
        """Modules in a container, in order."""
        table = self.fields.get("modules", {})
        if not isinstance(table, dict):
            return []
        children = [table[key] for key in sorted(key for key in table if isinstance(key, int))]
        return [child for child in children if isinstance(child, TorchObject)]

    def flat_modules(self) -> list["TorchObject"]:
        """This module and all modules in it, depth first; a shared one is listed repeatedly."""
        found, left = [], [self]
        while left:
            found.append(left.pop())
            left.extend(reversed(found[-1].modules()))
            if len(found) + len(left) > MAX_MODULES:
                raise InputError(f"the network has more than {MAX_MODULES:,} modules")
        return found

    def convolutions(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Weights and biases of all convolutions in this module, in order."""
        return [
            (module.tensor("weight"), module.tensor("bias"))
            for module in self.flat_modules()
            if "SpatialConvolution" in module.kind
        ]

    def tensor(self, name: str) -> np.ndarray:
        """Return a field that must be a tensor."""
        value = self.fields.get(name)
        if not isinstance(value, np.ndarray):
            raise InputError(f"{name} of a {self.kind} is not a tensor")
        return value


def read_torch7(path: Path) -> Any:
    """Read the value in a `.t7` file. Error messages do not name the file."""
    if not path.is_file():
        raise InputError("no such file")
    try:
        return _Reader(path.read_bytes()).value()
    except (ValueError, RecursionError, struct.error, OverflowError) as error:
        raise InputError(f"not a binary Torch7 file ({error})") from None


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0
        # Objects are written once and referred to by number afterwards.
        self._seen: dict[int, Any] = {}

    def value(self) -> Any:
        kind = self._int()
        if kind == NUMBER:
            return self._unpack("<d")
        if kind == STRING:
            return self._text()
        if kind == BOOLEAN:
            return bool(self._int())
        if kind == FUNCTION:
            return self._skip_function()
        if kind in (TABLE, OBJECT, *RECURSIVE_FUNCTIONS):
            index = self._int()
            if index not in self._seen:
                self._seen[index] = None
                if kind == TABLE:
                    self._read_table(index)
                elif kind == OBJECT:
                    self._read_object(index)
                else:
                    self._skip_function()
            return self._seen[index]
        if kind != NIL:
            raise ValueError(f"type {kind} at byte {self._at - 4}")
        return None

    def _read_table(self, index: int) -> None:
        table: dict[Any, Any] = {}
        self._seen[index] = table
        for _ in range(self._int()):
            key, value = self.value(), self.value()
            if isinstance(key, float) and key.is_integer():
                key = int(key)
            # Lua allows tables as keys; no weights file needs them.
            if isinstance(key, str | int | float):
                table[key] = value

    def _read_object(self, index: int) -> None:
        version = self._text()
        name = self._text() if version.startswith("V ") else version
        family, _, kind = name.partition(".")
        if family == "torch" and kind.removesuffix("Tensor") in ELEMENTS:
            self._seen[index] = self._tensor()
        elif family == "torch" and kind.removesuffix("Storage") in ELEMENTS:
            dtype, length = np.dtype(ELEMENTS[kind.removesuffix("Storage")]), self._unpack("<q")
            self._seen[index] = np.frombuffer(self._take(length * dtype.itemsize), dtype)
        else:
            fields: dict[Any, Any] = {}
            self._seen[index] = TorchObject(name, fields)
            content = self.value()
            fields.update(content if isinstance(content, dict) else {})

    def _tensor(self) -> np.ndarray:
        axes = self._int()
        if not 0 <= axes <= 16:
            raise ValueError(f"a tensor of {axes} axes")
        shape = [self._unpack("<q") for _ in range(axes)]
        strides = [self._unpack("<q") for _ in range(axes)]
        offset = self._unpack("<q") - 1
        storage = self.value()
        if storage is None or not axes:
            return np.zeros(0, np.float32)
        if not isinstance(storage, np.ndarray) or storage.ndim != 1:
            raise ValueError("a tensor without a storage")
        if min(*shape, *strides, offset) < 0:
            raise ValueError("a tensor of negative extent")
        if not min(shape):
            return storage[:0]
        # The stride of an axis of length 1 is never used and may be any number.
        strides = [step if side > 1 else 0 for side, step in zip(shape, strides, strict=True)]
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        # Strides may overlap: then a tensor has more numbers than its storage.
        if max(last + 1, math.prod(shape)) > storage.size:
            raise ValueError("a tensor larger than its storage")
        steps = [step * storage.itemsize for step in strides]
        # A view: thousands of tensors may share a storage.
        return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)

    def _skip_function(self) -> None:
        self._take(self._int())
        self.value()  # its captured variables

    def _text(self) -> str:
        return self._take(self._int()).decode("utf-8", errors="replace")

    def _int(self) -> int:
        return self._unpack("<i")

    def _unpack(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._content) - self._at:
            raise ValueError(f"{length} bytes wanted at byte {self._at} of {len(self._content)}")
        self._at += length
        return self._content[self._at - length : self._at]
