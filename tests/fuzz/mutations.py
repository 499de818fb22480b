"""Damage to files: blind, or with an eye for numbers, JSON, archives and headers of arrays."""

import contextlib
import io
import json
import re
import struct
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

NUMBERS = (0, 1, -1, 2, 127, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 10**6)
LARGE = (2**40, 10**12, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
TEXT_NUMBERS = (
    *(b"0", b"-1", b"1", b"1.5", b"-0.0", b"1e999", b"-1e999", b"1e308", b"1e-320", b"nan", b"inf"),
    *(b"2147483648", b"4294967296", b"9223372036854775808", b"1" + b"0" * 40, b"9" * 5000),
    *(b"", b"x", b"0x10", b"1_000", b"None", b"true", "٣".encode(), b"+5", b"1,5", b"65"),
)
RUBBISH = (b"\xff", b"\xc3", b"\x00", b"\n", b"\r", b"\t", b" ", b'"', b",", b"\xe2\x82", b"#")
DEEP = 100_000
TEXT = (".txt", ".csv", ".json", ".jsonl", ".xml", "")


def mutate(content: bytes, name: str, rng: Random, *, blind: bool = False) -> bytes:
    """A damaged copy of a file: once to three times, by its name and content unless `blind`."""
    suffix = name[name.rfind(".") :] if "." in name.rpartition("/")[2] else ""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        changes = BLIND
        if not blind:
            changes += TEXTUAL if suffix in TEXT else ()
            changes += (edit_json,) * 4 if suffix in (".json", ".jsonl") else ()
            changes += (edit_archive,) * 8 if content[:4] == b"PK\x03\x04" else ()
            changes += (edit_array_header,) * 6 if content[:6] == b"\x93NUMPY" else ()
        content = rng.choice(changes)(content, rng)
    return content


# Bytes


def flip_bits(content: bytes, rng: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if changed:
            changed[_place(changed, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def set_number(content: bytes, rng: Random) -> bytes:
    layout = rng.choice(("<B", "<H", ">H", "<I", ">I", "<Q", ">Q", "<f", "<d"))
    value = rng.choice((*NUMBERS, *LARGE))
    size = struct.calcsize(layout)
    if layout[1] in "fd":
        raw = struct.pack(layout, rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e30)))
    else:
        raw = (value % 256**size).to_bytes(size, "little" if layout[0] == "<" else "big")
    at = _place(content, rng)
    return content[:at] + raw + content[at + size :]


def change_slice(content: bytes, rng: Random) -> bytes:
    """Everything from a place cut off, or some bytes removed, copied, inserted or blanked."""
    start, source = _place(content, rng), _place(content, rng)
    length = rng.choice((1, 2, 4, 8, 16, 64, 1000))
    old, filler = content[start : start + length], rng.choice((b"\0", b"\xff"))
    changes = (
        (b"", len(content)),
        (b"", len(old)),
        (content[source : source + length], length),
        (rng.randbytes(min(length, 100)), 0),
        (filler * len(old), len(old)),
    )
    new, removed = rng.choice(changes)
    return content[:start] + new + content[start + removed :]


def replace_all(content: bytes, rng: Random) -> bytes:
    return rng.choice((b"", b"\n", b"hello", bytes(1000), b"%!PS-Adobe-3.0\n", b"PK\x05\x06"))


def _place(content: bytes | bytearray, rng: Random) -> int:
    """Anywhere, but half the time near the beginning or the end, where formats keep their sizes."""
    if not content:
        return 0
    if rng.random() < 0.5:
        near = rng.randrange(min(len(content), 400))
        return near if rng.random() < 0.7 else len(content) - 1 - near
    return rng.randrange(len(content))


BLIND: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(flip_bits, flip_bits, set_number, set_number, set_number, replace_all),
    *(change_slice,) * 5,
)


# Text


def edit_number(content: bytes, rng: Random) -> bytes:
    found = list(re.finditer(rb"-?\d+(\.\d+)?(e[-+]?\d+)?", content[:200_000]))
    if not found:
        return content
    match = rng.choice(found)
    return content[: match.start()] + rng.choice(TEXT_NUMBERS) + content[match.end() :]


def edit_lines(content: bytes, rng: Random) -> bytes:
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    line, other = lines[at], rng.choice(lines)
    odd = rng.choice((b"", b"#", b",,,,", b"1", b"[" * DEEP, b'{"a":' * DEEP))
    lines[at : at + 1] = rng.choice(
        ([], [line, other], [line[: len(line) // 2]], [line + b" " + other], [odd], [other])
    )
    return b"\n".join(lines)


def insert_sign(content: bytes, rng: Random) -> bytes:
    at = _place(content, rng)
    return content[:at] + rng.choice(RUBBISH) + content[at + rng.randrange(2) :]


TEXTUAL = (edit_number, edit_number, edit_number, edit_lines, edit_lines, insert_sign)


def edit_json(content: bytes, rng: Random) -> bytes:
    """One value of one line replaced, removed or added."""
    lines = content.split(b"\n") if b"\n{" in content.strip() else [content]
    at = rng.randrange(len(lines))
    with contextlib.suppress(ValueError, RecursionError):
        value = _edited(json.loads(lines[at]), rng)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
        lines[at] = text.encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


NESTED = [json.loads("[" * depth + "]" * depth) for depth in (50, 900)]


def _edited(value: Any, rng: Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        if rng.random() < 0.1:
            return {key: item for key, item in value.items() if key != name}
        other = rng.choice((1, value[rng.choice(list(value))]))
        if rng.random() < 0.2:
            return value | {rng.choice((name, "odd")): other}
        return value | {name: _edited(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], _edited(value[at], rng), *value[at + 1 :]]
    return rng.choice(
        (
            *(None, True, False, 0, -1, 1, 1.5, 1e308, 10**30, 10**400, float("nan"), float("inf")),
            *("", "x", "é\ud800", "\0", "../../etc/passwd", [], {}, [[]], {"a": {}}, [value]),
            *({"": 1}, [1, 2], ["x"], 10**6, 10**12, *NESTED),
        )
    )


# Archives and arrays


def edit_archive(content: bytes, rng: Random) -> bytes:
    """A zip archive with one member changed and its checksums right again, or with lies in it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
    except Exception:
        return content
    if not members:
        return content
    name = rng.choice(list(members))
    odd = rng.choice(("odd.npy", "../out", "/abs", "a\\..\\b", "x" * 300, name + "/"))
    damaged = mutate(members[name], name, rng)
    changes = ({odd: b"x"}, {name: bytes(3_000_000)}, *4 * [{name: damaged}])
    members |= rng.choice(changes)
    if rng.random() < 0.1:
        del members[name]
    packed = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(packed, "w", method) as archive:
        for key, member in members.items():
            archive.writestr(key, member)
    return packed.getvalue()


def edit_array_header(content: bytes, rng: Random) -> bytes:
    """An .npy header with another shape, type or order, of the same length if that can be."""
    length = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + length].decode("latin-1")
    kinds = ("|O", "<f8", "<f2", "<U7", "|V0", "|S0", "<M8[s]", "|b1", "<c16", ">f4", "<i4")
    shapes = ("()", "(0,)", "(10**9,)", "(1000000000000,)", "(-1,)", "(-4, -4)")
    changes = (
        (r"'descr': [^,]*", f"'descr': '{rng.choice(kinds)}'"),
        (r"\([^)]*\)", rng.choice(shapes)),
        ("False", rng.choice(("True", "None", "7", "[" * 3000))),
    )
    if rng.random() < 0.25:
        header = edit_number(header.encode("latin-1"), rng).decode("latin-1")
    else:
        header = re.sub(*rng.choice(changes), header)
    header = header.rstrip().ljust(length - 1)[:60_000] + "\n"
    raw = header.encode("latin-1", "replace")
    return content[:8] + len(raw).to_bytes(2, "little") + raw + content[10 + length :]
