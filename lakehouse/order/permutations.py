"""Random bits for every purpose, and permutations made of them: listed while that is short, computed above."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Permutation: TypeAlias = Callable[[Ints], Ints]

TABLE_ITEMS = 65_536  # permutations of so few are listed: 512 KiB for an epoch
_ROUNDS = 8  # 4 make a pseudo-random permutation (Luby and Rackoff 1988) of ideal round functions; the rest is margin

# What bits are for. Part of their seed, so that no two uses of one (seed, epoch) share a stream.
FOR_BLOCKS, FOR_WINDOW, FOR_ROWS, FOR_ROW_RNG = range(1, 5)


def permutation(n: int, source: np.random.PCG64) -> Permutation:
    """A permutation of ``range(n)``, as a function of any items of it [k] -> [k]: listed when that is short, else computed."""
    if n <= TABLE_ITEMS:
        table = shuffled(n, source)
        return lambda items: table[items]
    keys = source.random_raw(_ROUNDS)
    return lambda items: _keyed(items, n, keys)


def shuffled(n: int, source: np.random.PCG64) -> Ints:
    """``range(n)`` in random order [n]: sorted by 64 random bits, the lowest of which make way for the number itself."""
    # At least 40 random bits are left for the largest window; in the rare tie the smaller number comes first.
    width = np.uint64(max(n - 1, 0).bit_length())
    keyed = np.asarray(source.random_raw(n), np.uint64) >> width << width | np.arange(n, dtype=np.uint64)  # [n]
    keyed.sort()
    return (keyed & ((np.uint64(1) << width) - np.uint64(1))).astype(np.int64)


def _keyed(items: Ints, n: int, keys: npt.NDArray[np.uint64]) -> Ints:
    """Where a keyed pseudo-random permutation of ``range(n)`` takes these items [k] -> [k].

    A generalised Feistel network over a rectangle of about sqrt(n) x sqrt(n) cells, with cycle walking: a cell past n is sent
    through again until it lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, methods 2 and
    3). The rectangle holds fewer than sqrt(n) cells too many, so hardly any item walks.
    """
    height = math.isqrt(n - 1) + 1  # the square root, rounded up
    width = -(-n // height)
    cells = _rounds(items.astype(np.uint64), height, width, keys)  # [k]
    outside = np.flatnonzero(cells >= n)  # [walking]
    while outside.size:
        walked = _rounds(cells[outside], height, width, keys)  # [walking]
        cells[outside] = walked
        outside = outside[walked >= n]
    return cells.astype(np.int64)


def _rounds(cells: npt.NDArray[np.uint64], height: int, width: int, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A permutation of ``range(height * width)`` [k] -> [k]: each round moves one coordinate by a function of the other."""
    sizes = (np.uint64(height), np.uint64(width))
    moved = cells // sizes[1]  # [k] row of the rectangle
    fixed = cells - moved * sizes[1]  # [k] column
    for i, key in enumerate(keys):
        size = sizes[i % 2]  # of the coordinate that moves
        shift = (_mixed(fixed ^ key) >> np.uint64(32)) * size >> np.uint64(32)  # [k] in [0, size)
        shift += moved  # [k] in [0, 2 * size)
        # Modulo size: below it, the subtraction wraps around to something larger.
        moved, fixed = fixed, np.minimum(shift, shift - size)
    return moved * sizes[1] + fixed  # an even number of rounds: each is where it was


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Every bit of the result depends on every bit of the word [k] -> [k], in place; wraps around 2**64.

    The finaliser of splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
    """
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def bits(purpose: int, seed: int, epoch: int, number: int = 0) -> np.random.PCG64:
    """Random bits of their own for every combination of arguments.

    Seed and number have a fixed width and the epoch's is written first, so that no two combinations spell the same words.
    """
    epoch_words = max(2, -(-epoch.bit_length() // 32))
    spelt = struct.pack("<HHQQ", purpose, epoch_words, seed, number) + epoch.to_bytes(4 * epoch_words, "little")
    return np.random.PCG64(np.random.SeedSequence(np.frombuffer(spelt, "<u4")))
