"""MurmurHash3 (x86, 32 bits, seed 0) of many byte strings at once, after Austin Appleby's reference, in the public domain.

All strings are hashed block by block of four bytes: the first blocks of all that have one, then the second ones, and so on.

Own code, since packages either hash one string a call or bring all of Iceberg
(docs/adr/0010-own-code-where-a-library-exists.md).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint32]


def murmur3(data: Bytes, starts: Places, lengths: Places) -> Hashes:
    """The hash of each string: ``data[start : start + length]``."""
    hashes = np.zeros(len(starts), dtype=np.uint32)
    active = np.arange(len(starts))
    block = 0
    while len(active := active[lengths[active] >= 4 * (block + 1)]):
        at = starts[active] + 4 * block
        word = np.zeros(len(active), dtype=np.uint32)
        for byte in range(4):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        mixed = _rotated(hashes[active] ^ _mixed(word), 13)
        hashes[active] = mixed * np.uint32(5) + np.uint32(0xE6546B64)
        block += 1
    rest = lengths % 4
    tail = np.zeros_like(hashes)
    for byte in range(3):
        has = np.flatnonzero(rest > byte)
        tail[has] |= data[starts[has] + lengths[has] - rest[has] + byte].astype(np.uint32) << np.uint32(8 * byte)
    hashes ^= _mixed(tail)  # of no bytes it is 0
    hashes ^= lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes ^= hashes >> np.uint32(shift)
        hashes *= np.uint32(factor)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _mixed(word: Hashes) -> Hashes:
    mixed: Hashes = _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return mixed


def _rotated(word: Hashes, bits: int) -> Hashes:
    rotated: Hashes = (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))
    return rotated
