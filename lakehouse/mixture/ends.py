"""Weights of rows, added up, and the order that draws by them: systematic sampling in integers. Pure but for `Ends`' file.

::

    weights     |--- row 0 ---|-- row 1 --|row 2|------- row 3 -------| ...       end to end: 0 ... total
    draws            ^             ^             ^             ^                  n of them, equally far apart, shifted by epoch
    order       the n draws as `Order` shuffles them

So each row is drawn as often as its weight says, rounded down or up, in every epoch; the shift moves from epoch to epoch by
the golden ratio, which evens out over epochs what one of them rounds. Neighbouring draws fall on neighbouring rows, so
"blocks" stays as kind to storage as without weights.

A pattern in the table, such as six cameras taking turns, could beat with the distance of the draws, and a camera be drawn
always or never. So rows stand end to end in another order within each 256 of them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lakehouse.mixture.mixed import Ints, checked_positions, checked_range, subseed
from lakehouse.order import Order, Shuffle

Words = npt.NDArray[np.uint64]

MAX_DRAWS = 2**32  # in an epoch: products of two draws stay below 2**64
MOST_TOTAL = 2**62
_BLOCK_ROWS = 256
_PATTERNS = 64
_PIECE_ROWS = 1 << 20  # a multiple of all patterns together
_MAPPED_BYTES = 1 << 20  # from here on it is worth a file
_GOLDEN = 0x9E3779B97F4A7C15  # the golden ratio's fraction, in units of 2**-64


class Ends:
    """Where each row's weight ends, all of them laid end to end: uint64[n], mapped from a file where it is long.

    Args:
        n: rows.
        weights: ``[first, stop)`` to the integer weights of those rows, which add up to at most 2**62.
    """

    def __init__(self, n: int, weights: Callable[[int, int], Ints]) -> None:
        self._path = _temporary_file(self) if 8 * n >= _MAPPED_BYTES else None
        ends: Words = np.empty(n, np.uint64) if self._path is None else np.memmap(self._path, np.uint64, "w+", shape=(n,))
        digest = hashlib.sha256()
        total = 0
        places = np.empty(0, np.int64)
        for first in range(0, n, _PIECE_ROWS):
            stop = min(first + _PIECE_ROWS, n)
            if len(places) != stop - first:  # else as in the piece before: it holds each pattern equally often
                places = rows_of(np.arange(stop - first), stop - first)
            ends[first:stop] = total + np.cumsum(weights(first, stop)[places], dtype=np.uint64)
            total = int(ends[stop - 1])
            digest.update(ends[first:stop].astype("<u8").data)
        self._ends = ends if self._path is None else _mapped(self._path)
        self.total = total
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._ends)

    def rows(self, points: Words) -> Ints:
        """The row that each point of ``[0, total)`` falls on."""
        return rows_of(np.searchsorted(self._ends, points, side="right").astype(np.int64), len(self))

    def __getstate__(self) -> dict[str, Any]:
        # Other processes map the same pages.
        return {**self.__dict__, "_ends": self._ends if self._path is None else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._path is not None:
            self._ends = _mapped(self._path)


def rows_of(slots: Ints, n: int) -> Ints:
    """The rows that stand at these places of the line; a permutation within each 256 rows but the last few."""
    blocks, inside = np.divmod(slots, _BLOCK_ROWS)
    mixed = blocks * _BLOCK_ROWS + _patterns()[blocks % _PATTERNS, inside]
    return np.where(blocks < n // _BLOCK_ROWS, mixed, slots)


@functools.cache
def _patterns() -> Ints:
    """Permutations of a block [patterns, block]."""
    return np.stack([Order(_BLOCK_ROWS, i, "rows").rows(0, 0, _BLOCK_ROWS) for i in range(_PATTERNS)])


@dataclass(frozen=True)
class WeightedOrder:
    """Which row stands at a position.

    Args:
        n: draws in an epoch, at most 2**32.
        seed: with the epoch, decides everything.
        shuffle: of the draws, as of rows.
        ends: the weights.
    """

    n: int
    seed: int
    shuffle: Shuffle
    ends: Ends

    @functools.cached_property
    def _order(self) -> Order:
        return Order(self.n, self.seed, self.shuffle)

    @property
    def spec(self) -> str:
        """``weighted-1(blocks-1:256x64)``: its own version, and that of the order of its draws."""
        return f"weighted-1({self._order.spec})"

    def rows(self, epoch: int, start: int, stop: int) -> Ints:
        """The rows at positions ``[start, stop)``.

        Raises:
            IndexError: not ``0 <= start <= stop <= n``.
            ConfigError: the epoch is no integer of 0 or more.
        """
        checked_range(self.n, start, stop)
        return self._drawn(epoch, self._order.rows(epoch, start, stop))

    def at(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows at any positions, of the same shape.

        Raises:
            IndexError: positions that are no integers, or outside the order.
            ConfigError: the epoch is no integer of 0 or more.
        """
        return self._drawn(epoch, self._order.at(epoch, checked_positions(self.n, positions)))

    def _drawn(self, epoch: int, draws: Ints) -> Ints:
        """The rows of draws: floor((draw * total + shift) / n) is a draw's point, computed without ever leaving 64 bits."""
        if not draws.size:
            return draws
        total = self.ends.total
        shift = (subseed(self.seed, "shift") + epoch * (total * _GOLDEN >> 64)) % total
        (whole, rest), (ahead, begun) = divmod(total, self.n), divmod(shift, self.n)
        q = draws.astype(np.uint64)
        points = q * np.uint64(whole) + np.uint64(ahead) + (q * np.uint64(rest) + np.uint64(begun)) // np.uint64(self.n)
        return self.ends.rows(points)


def scale_of(total: float) -> int:
    """The power of two that makes weights of this sum integers of up to 62 bits in all.

    The sum is rough, and added up in another order elsewhere: so it is not compared with a power of two, which sums often are.
    """
    return MOST_TOTAL.bit_length() - 1 - math.frexp(total * 1.1)[1]


def _temporary_file(owner: object) -> Path:
    """An empty file that goes when its owner does."""
    handle, name = tempfile.mkstemp(prefix="lakehouse-", suffix=".ends")
    os.close(handle)
    weakref.finalize(owner, _remove, Path(name), os.getpid())
    return Path(name)


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child must not delete its parent's file
        with contextlib.suppress(OSError):
            path.unlink()


def _mapped(path: Path) -> Words:
    return np.asarray(np.memmap(path, np.uint64, "r"))
