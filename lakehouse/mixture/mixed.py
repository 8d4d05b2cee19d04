"""The order of a mixture: which part stands at a position, and which of its rows. Pure.

::

    position    0 ............ 1023 | 1024 ......... 2047 | ...         windows; the last one takes what is left, too
    quota       a: 716    b: 308    | a: 717    b: 307    | ...         whole draws of each part, by cumulative floors
    labels      b a a b a ...       | a a b a ...         | ...         permuted within the window
    draws       a: 0 1 2 ... 715    | a: 716 ...          | ...         each part goes through its own order, pass after pass

Up to position p, a part of share s has had s * p draws, rounded by less than one, wherever p is a window's beginning. For that
the windows must be so long that each part is due at least once in one; then no quota is ever negative.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lakehouse.errors import ConfigError
from lakehouse.order import Order, RowOrder, Shuffle

Ints = npt.NDArray[np.int64]

MAX_WINDOW = 2**20  # positions; a window is held in memory
_MIN_WINDOW = 1024
_EPOCHS_APART = 2**64  # numbers of windows are below


def subseed(seed: int, use: str) -> int:
    """A seed of its own for each use of a seed, so that parts of equal length don't go through their rows in step."""
    return int.from_bytes(hashlib.blake2b(f"lakehouse-mixture-1\0{seed}\0{use}".encode(), digest_size=8).digest(), "little")


def checked_positions(n: int, positions: npt.ArrayLike) -> Ints:
    """Positions as int64, of any shape.

    Raises:
        IndexError: no integers, or outside ``[0, n)``.
    """
    given = np.asarray(positions)
    if not given.size:
        return np.empty(given.shape, np.int64)
    if given.dtype.kind not in "iu":
        raise IndexError(f"positions are integers, got {given.dtype}")
    low, high = int(given.min()), int(given.max())
    if low < 0 or high >= n:
        raise IndexError(f"positions {low} to {high} of an order of {n}")
    return given.astype(np.int64)


def checked_range(n: int, start: int, stop: int) -> Ints:
    """The positions ``[start, stop)``.

    Raises:
        IndexError: not ``0 <= start <= stop <= n``.
    """
    start, stop = operator.index(start), operator.index(stop)
    if not 0 <= start <= stop <= n:
        raise IndexError(f"positions {start} to {stop} of an order of {n}")
    return np.arange(start, stop, dtype=np.int64)


def window_of(weights: Sequence[int]) -> int:
    """Positions in a window: a power of two that gives every part at least one of them.

    Args:
        weights: of the parts, 0 or more, one of them more.
    """
    least = min(weight for weight in weights if weight)
    return max(_MIN_WINDOW, 1 << (-(-sum(weights) // least) - 1).bit_length())


@dataclass(frozen=True)
class MixedOrder:
    """Which row of which part stands at a position.

    Each part's draws go on from epoch to epoch: none of its rows comes a second time before all of them came once, whatever
    its share. Pass p over a part is epoch p of the part's own order.

    Args:
        n: draws in an epoch.
        seed: with the epoch, decides everything.
        shuffle: None: parts take turns evenly; otherwise they are shuffled within windows.
        parts: each part's own order; seeds of their own are the caller's business.
        starts: what to add to each part's rows.
        weights: shares as integers; 0: never drawn.
    """

    n: int
    seed: int
    shuffle: Shuffle
    parts: tuple[RowOrder, ...]
    starts: tuple[int, ...]
    weights: tuple[int, ...]
    _last: list[tuple[tuple[int, int], Ints]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def spec(self) -> str:
        """``mixture-1(blocks-1:256x64)``: its own version, and those of its parts' orders."""
        return f"mixture-1({', '.join(dict.fromkeys(part.spec for part in self.parts))})"

    @functools.cached_property
    def window(self) -> int:
        """Positions in a window."""
        return window_of(self.weights)

    def rows(self, epoch: int, start: int, stop: int) -> Ints:
        """The rows at positions ``[start, stop)``; costs the windows that they touch.

        Raises:
            IndexError: not ``0 <= start <= stop <= n``.
            ConfigError: the epoch is negative.
        """
        return self.at(epoch, checked_range(self.n, start, stop))

    def at(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows at any positions, of the same shape; costs the windows that they touch.

        Raises:
            IndexError: positions that are no integers, or outside the order.
            ConfigError: the epoch is negative.
        """
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ConfigError(f"epoch is 0 or more, got {epoch}")
        wanted = checked_positions(self.n, positions)
        numbers = np.minimum(wanted // self.window, self._last_window)  # window of each
        found = np.empty_like(wanted)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            found[here] = self._window_rows(epoch, number)[wanted[here] - number * self.window]
        return found

    @property
    def _last_window(self) -> int:
        return max(self.n // self.window - 1, 0)

    def _window_rows(self, epoch: int, number: int) -> Ints:
        """The rows of one window, not to be written to. The last window made is kept: steps go forward."""
        for key, rows in self._last:  # at most one; replaced as a whole, so that threads need no lock
            if key == (epoch, number):
                return rows
        rows = self._made(epoch, number)
        self._last[:] = [((epoch, number), rows)]
        return rows

    def _made(self, epoch: int, number: int) -> Ints:
        first = number * self.window
        stop = self.n if number == self._last_window else first + self.window
        before, after, whole = self._quotas(first), self._quotas(stop), self._quotas(self.n)
        counts = [end - begin for begin, end in zip(before, after, strict=True)]
        drawn = [
            start + _draws(part, epoch * total + begin, count)
            for part, start, total, begin, count in zip(self.parts, self.starts, whole, before, counts, strict=True)
        ]
        labels = np.repeat(np.arange(len(counts)), counts)  # [window]
        labels = labels[self._mixing(epoch, number, counts)]
        rows = np.empty(len(labels), np.int64)  # [window]
        rows[np.argsort(labels, kind="stable")] = np.concatenate(drawn)  # the draws of a part keep their order
        return rows

    def _mixing(self, epoch: int, number: int, counts: Sequence[int]) -> Ints:
        """How to arrange the labels of a window [window]."""
        if self.shuffle is None:
            due = np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count] or [np.empty(0)])
            return np.argsort(due, kind="stable")
        order = Order(sum(counts), subseed(self.seed, "labels"), "rows")
        return order.rows(epoch * _EPOCHS_APART + number, 0, order.n)

    def _quotas(self, position: int) -> list[int]:
        """Draws of each part before a position: differences of cumulative shares, each rounded down."""
        bounds = list(itertools.accumulate(self.weights, initial=0))
        floors = [bound * position // bounds[-1] for bound in bounds]
        return [high - low for low, high in itertools.pairwise(floors)]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_last": []}


def _draws(order: RowOrder, first: int, count: int) -> Ints:
    """Draws ``[first, first + count)`` of an order that is gone through again and again."""
    found = [np.empty(0, np.int64)]
    while count:
        number, start = divmod(first, order.n)
        stop = min(start + count, order.n)
        found.append(order.rows(number, start, stop))
        first += stop - start
        count -= stop - start
    return np.concatenate(found)
