"""Image files: formats that are opened, and files that are refused."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from kjax.data.cutting.photographs import read_grey_or_none, read_photograph
from kjax.data.hpatches import read_column
from kjax.data.phototour import decode_mosaic
from kjax.errors import InputError
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


@pytest.mark.parametrize("read", READERS)
def test_postscript_by_another_name_starts_no_program(tmp_path, monkeypatch, read):
    def start(*_, **__):
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", start)
    path = tmp_path / "photo.jpg"
    path.write_bytes(EPS)
    with pytest.raises(InputError, match=r"photo\.jpg \(not one of"):
        read(path)
    assert read_grey_or_none(path) is None


@pytest.mark.parametrize("read", READERS)
def test_huge_images_are_not_decoded(tmp_path, monkeypatch, read):
    path = tmp_path / "photo.png"
    path.write_bytes(png_of(30_000, 30_000, padding=900_000))

    def decode(self):
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", decode)
    with pytest.raises(InputError, match=r"photo\.png") as error:
        read(path)
    assert "\n" not in str(error.value)
    assert read_grey_or_none(path) is None


@pytest.mark.parametrize("kind", FORMATS)
def test_damage_is_one_line_whatever_the_format(tmp_path, kind, rng):
    """Cut at many places: each decoder has exceptions of its own."""
    encoded = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(encoded, kind)
    path = tmp_path / "photo"
    for length in (*range(0, 60, 3), len(encoded.getvalue()) // 2):
        path.write_bytes(encoded.getvalue()[:length])
        with pytest.raises(InputError) as error:
            read_photograph(path)
        assert "\n" not in str(error.value)
        assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "content",
    [b"P6\n9999999999999999999999 1\n255\n", b"P6 3 3 99999\n", b"P5\nx 3\n255\n", b"P1 2 2"],
)
def test_headers_of_text_that_make_no_sense(tmp_path, content):
    path = tmp_path / "photo.ppm"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"photo\.ppm"):
        read_photograph(path)
    assert read_grey_or_none(path) is None


def test_whatever_a_decoder_raises_is_one_line(tmp_path, monkeypatch, rng):
    path = tmp_path / "photo.png"
    Image.fromarray(rng.integers(0, 256, (20, 30), np.uint8)).save(path)
    for problem in (KeyError(3), IndexError(), MemoryError(), zlib.error("x\ny")):

        def fail(self, problem=problem):
            raise problem

        monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail)
        with pytest.raises(InputError, match=r"cannot decode .*photo\.png") as error:
            read_photograph(path)
        assert "\n" not in str(error.value)
