"""Descriptors as bytes and as bits: fixed rules, distances that follow those of the numbers."""

import math

import numpy as np
import pytest
from refusals import assert_refused

import kjax
from kjax.model.quantization import rotation


@pytest.fixture
def rows(rng):
    numbers = rng.normal(size=(300, 128)).astype(np.float32)
    return numbers / np.linalg.norm(numbers, axis=1, keepdims=True)


def hamming(a, b):
    return np.unpackbits(a ^ b, axis=-1).sum(axis=-1)


def test_bytes_of_known_numbers():
    one = np.eye(3, dtype=np.float32)[:1]
    for length in (1, 1.005):
        np.testing.assert_array_equal(kjax.quantize(length * one, "uint8"), [[255, 128, 128]])
    np.testing.assert_array_equal(kjax.quantize(-one, "uint8"), [[1, 128, 128]])
    assert kjax.quantize(one[:0], "uint8").shape == (0, 3)


def test_distances_of_bytes_are_those_of_numbers(rows):
    stored = kjax.quantize(rows, "uint8").astype(np.float64)
    apart = np.linalg.norm(rows[1:] - rows[:-1], axis=1)
    # Each entry of a difference is off by two roundings of at most 1/2 each.
    limit = math.sqrt(rows.shape[1]) / 127 + 1e-6
    assert np.abs(np.linalg.norm(stored[1:] - stored[:-1], axis=1) / 127 - apart).max() < limit


def test_the_rotation_is_one_and_stays_the_same():
    for size in (8, 128):
        turn = rotation(size)
        np.testing.assert_allclose(turn @ turn.T, np.eye(size), atol=1e-6)
    # Files hold bits of it: these must never change.
    bits = kjax.quantize(np.eye(128, dtype=np.float32)[5:6], "binary").tobytes().hex()
    assert bits == "ef644e4ff7ffbda71d7c7b3c6f3def93eb640e4db4cf88a4056023144934ee92"


@pytest.mark.parametrize(("dimension", "bits"), [(128, 128), (128, 256), (64, 256), (100, 384)])
def test_bits_are_levels_and_follow_distances(rows, dimension, bits):
    numbers = rows[:, :dimension] / np.linalg.norm(rows[:, :dimension], axis=1, keepdims=True)
    stored = kjax.quantize(numbers, "binary", bits=bits)
    assert stored.shape == (300, bits // 8)
    assert kjax.quantize(numbers[:0], "binary", bits=bits).shape == (0, bits // 8)
    # A thermometer: who passes a threshold passes all lower ones.
    size = 128 if dimension > 64 else 64
    passed = np.unpackbits(stored, axis=1).reshape(300, -1, size).astype(int)
    assert (np.diff(passed, axis=1) <= 0).all()
    # All levels are equally likely: each bit's share is that of its quantile, within 6 σ.
    each = bits // size
    shares = passed.mean(axis=(0, 2))
    assert np.abs(shares - 1 + (np.arange(each) + 1) / (each + 1)).max() < 3 / math.sqrt(300 * size)
    assert hamming(stored, stored[::-1]).min() > bits // 5
    near = numbers + 0.1 * rows[::-1, :dimension]
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    assert hamming(stored, kjax.quantize(near, "binary", bits=bits)).max() < bits // 5
    found = kjax.match(stored, kjax.quantize(near, "binary", bits=bits), distance="Hamming")
    np.testing.assert_array_equal(found.indices, np.repeat(np.arange(300)[:, None], 2, axis=1))


def test_refusals(rows):
    with_nan = np.where(np.arange(300)[:, None] == 7, np.nan, rows)
    for given, form, bits, message in (
        (rows, "int4", 256, "unknown form"),
        (with_nan, "uint8", 256, "1 of 300 descriptors are not unit vectors, row 7 first"),
        (2 * rows, "binary", 256, "not unit vectors"),
        (rows, "binary", 192, "128 numbers do not make 192 bits: use bits=128"),
        (rows[0], "uint8", 256, "cannot quantize"),
        (rows[:, :0], "uint8", 256, "cannot quantize"),
        (np.zeros((2, 3), np.uint8), "uint8", 256, "cannot quantize"),
    ):
        assert_refused(message, kjax.quantize, given, form, bits=bits)
