"""Image files: formats that are opened, and files that are refused."""

import io
import struct
import zlib
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image
from refusals import assert_refused

from kjax.data.cutting.photographs import read_grey_or_none, read_photograph
from kjax.data.hpatches import read_column
from kjax.data.phototour import decode_mosaic
from kjax.eval.similarity_maps import read_patch
from kjax.files.images import FORMATS

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
READERS = (read_photograph, decode_mosaic, read_column, lambda path: read_patch(path, 32))


def png_of(width, height, padding=0):
    """The beginning of a PNG file that announces a size, and as many bytes of nothing."""
    content = b"\x89PNG\r\n\x1a\n"
    for chunk in (
        b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0),
        b"IDAT" + zlib.compress(bytes(1000)) + bytes(padding),
        b"IEND",
    ):
        content += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return content


HEADERS = (b"P6\n9999999999999999999999 1\n255\n", b"P6 3 3 99999\n", b"P5\nx 3\n255\n", b"P1 2 2")
CASES = [
    *((read, "photo.jpg", EPS, r"photo\.jpg \(not one of") for read in READERS),
    *((read, "photo.png", png_of(30_000, 30_000, 900_000), r"photo\.png") for read in READERS),
    *((read_photograph, "photo.ppm", header, r"photo\.ppm") for header in HEADERS),
]
"""PostScript by another name, huge images, and headers of text that make no sense."""


@pytest.mark.parametrize(("read", "name", "content", "message"), CASES)
def test_refused_without_decoding(tmp_path, monkeypatch, read, name, content, message):
    start = Mock(side_effect=AssertionError("Ghostscript was started, or pixels were decoded"))
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", start)
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", start)
    path = tmp_path / name
    path.write_bytes(content)
    assert_refused(message, read, path)
    assert read_grey_or_none(path) is None
    start.assert_not_called()


@pytest.mark.parametrize("kind", FORMATS)
def test_damage_is_one_line_whatever_the_format(tmp_path, kind, rng):
    """Cut at many places: each decoder has exceptions of its own."""
    encoded = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(encoded, kind)
    path = tmp_path / "photo"
    for length in (*range(0, 60, 3), len(encoded.getvalue()) // 2):
        path.write_bytes(encoded.getvalue()[:length])
        assert str(path) in assert_refused("", read_photograph, path)


def test_whatever_a_decoder_raises_is_one_line(tmp_path, monkeypatch, rng):
    path = tmp_path / "photo.png"
    Image.fromarray(rng.integers(0, 256, (20, 30), np.uint8)).save(path)
    for problem in (KeyError(3), IndexError(), MemoryError(), zlib.error("x\ny")):
        fail = Mock(side_effect=problem)
        monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail)
        assert_refused(r"cannot decode .*photo\.png", read_photograph, path)
