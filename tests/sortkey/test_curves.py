"""Space-filling curves and hashes against their definitions."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from lakebed.sortkey.order_values import hilbert, murmur3, z_order

GRIDS = [(2, 1), (2, 5), (3, 3), (4, 2), (8, 1)]


def grid(dimensions: int, bits: int) -> list[np.ndarray]:
    points = itertools.product(range(1 << bits), repeat=dimensions)
    return [np.array(axis, dtype=np.int64) for axis in zip(*points, strict=True)]


@pytest.mark.parametrize(("dimensions", "bits"), GRIDS)
def test_points_that_follow_each_other_on_a_hilbert_curve_are_neighbours(dimensions: int, bits: int) -> None:
    axes = grid(dimensions, bits)
    numbers = hilbert(axes, bits)
    assert sorted(numbers.tolist()) == list(range(1 << (dimensions * bits))), "every point once"
    order = np.argsort(numbers)
    steps = sum(np.abs(np.diff(axis[order])) for axis in axes)
    assert (steps == 1).all()


@pytest.mark.parametrize(("dimensions", "bits"), GRIDS)
def test_bits_take_turns_on_a_z_order_curve_the_highest_first(dimensions: int, bits: int) -> None:
    axes = grid(dimensions, bits)
    expected = [
        int("".join(f"{int(value):0{bits}b}"[bit] for bit in range(bits) for value in point), 2)
        for point in zip(*axes, strict=True)
    ]
    assert z_order(axes, bits).tolist() == expected


@pytest.mark.parametrize(("dimensions", "bits"), [(2, 31), (3, 21), (5, 12), (8, 7)])
def test_curves_use_all_their_bits(dimensions: int, bits: int) -> None:
    top = (1 << bits) - 1
    corner = [np.array([0, top])] * dimensions
    assert z_order(corner, bits).tolist() == [0, (1 << (bits * dimensions)) - 1]
    rng = np.random.default_rng(1)
    points = np.unique(rng.integers(0, top, (1000, dimensions)), axis=0)
    for curve in (z_order, hilbert):
        numbers = curve(list(points.T), bits)
        assert len(np.unique(numbers)) == len(points) and numbers.min() >= 0


def reference_murmur3(text: bytes) -> int:
    def rotated(word: int, bits: int) -> int:
        return ((word << bits) | (word >> (32 - bits))) & 0xFFFFFFFF

    value, whole = 0, len(text) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(text[at : at + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        value = (rotated(value ^ (rotated(word, 15) * 0x1B873593 & 0xFFFFFFFF), 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    tail = int.from_bytes(text[whole:], "little") * 0xCC9E2D51 & 0xFFFFFFFF
    value ^= rotated(tail, 15) * 0x1B873593 & 0xFFFFFFFF
    value ^= len(text)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value = (value ^ (value >> shift)) * factor & 0xFFFFFFFF
    return value ^ (value >> 16)


def test_many_hashes_at_once_are_those_of_each_text_alone() -> None:
    rng = random.Random(1)
    texts = [rng.randbytes(length) for length in range(40) for _ in range(3)]
    starts = np.cumsum([0, *map(len, texts)])[:-1].astype(np.int64)
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    found = murmur3(np.frombuffer(b"".join(texts), np.uint8), starts, lengths)
    assert found.tolist() == [reference_murmur3(text) for text in texts]
