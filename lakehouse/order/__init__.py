"""The order in which rows are visited: arithmetic on (n, seed, epoch, position), without I/O.

Three orders of the ``n`` rows of an index, each an exact bijection of positions and rows in every epoch::

    "blocks"   rows      0 ... 255 | 256 ... 511 | ... | n - 1         blocks of 256 neighbouring rows, the last may be short
               blocks    dealt out in random order, 64 of them to a window
               window    its 64 x 256 = 16,384 rows in random order
    "rows"     any row at any position
    None       as stored

Of large rows `order_of` takes smaller blocks, of 5 MiB at most on average: 32 rows of 150 KB, a window of 2,048.

"blocks" is for storage: a window reads 64 runs of neighbouring rows instead of 16,384 single ones, and what is written together
is not trained on together. Where one window holds all rows (``n <= 16,384`` by default) it is a full shuffle. In longer orders
each window mixes the rows of 64 blocks drawn from the whole index; the last two windows share what is left, so that they hold
32 blocks or more, never a lonely one whose neighbouring rows would fill the last batches. A short block may land anywhere.

What random means here. A choice depends on nothing but (seed, epoch, which window), and the bits behind it are PCG64's, seeded
by a `SeedSequence` over fixed-width words: ``SeedSequence([seed, epoch])`` itself takes (2**32, 5) and (0, 1 + 5 * 2**32) for
the same entropy, ours gives no two pairs the same. Two pairs share an order only where there are too few orders to tell them
apart, or when 128 bits of hash collide. Windows, and all permutations of at most 65,536 items, are put in the order of random
keys: every permutation is possible and equally likely. Above that, a keyed permutation takes over: it looks random to
statistics (serial, positional, across epochs and seeds; see the tests), reaches a small part of all n! orders, as any seeded
shuffle does, and is no cipher to hide something with.

Nothing larger than a window or 65,536 numbers is ever in memory. Bits are drawn raw and sorted here, not by
`Generator.permutation`, whose stream NumPy may change from release to release: a saved run resumes in the same order elsewhere.
The order is public API, pinned by ``tests/data/order_golden.json``; `Order.spec` holds its version.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from lakehouse.errors import ConfigError
from lakehouse.order.blocks import Blocks
from lakehouse.order.permutations import (
    FOR_ROW_RNG,
    FOR_ROWS,
    FOR_WINDOW,
    TABLE_ITEMS,
    Ints,
    Permutation,
    bits,
    permutation,
    shuffled,
)
from lakehouse.order.recent import Recent

Shuffle: TypeAlias = str | None  # "blocks", "blocks:64x32", "rows", None

_MAX_ROWS = 2**48  # keeps the halves of the keyed permutation so narrow that 32 bits choose evenly among their values
_MAX_WINDOW_ROWS = 2**22
_CHUNK_ROWS = 1024  # "rows" computes so many at once: numpy's cost per call is spread, the first step stays fast
_CACHED_WINDOWS = 4  # a step may straddle two, and padding goes back to the first
_CACHED_EPOCHS = 2  # one may still be read to its end while the next one starts
# 64 of them, a window, are 320 MiB: what a data set reads ahead from a store by default, beside the requests under way.
_BLOCK_BYTES = 5 * 2**20
_SIZED = re.compile(r"blocks:(\d{1,7})x(\d{1,7})", re.ASCII)


@dataclass(frozen=True)
class Order:
    """Which index row stands at which position of an epoch.

    A value: equal fields mean equal orders, in any process. The last 4 windows (512 KiB by default) are kept per instance,
    shared by its threads, and no part of equality or pickles.

    Args:
        n: rows of the index, at most 2**48.
        seed: 0 to 2**64 - 1.
        shuffle: "blocks" (neighbouring rows stay close to each other), "rows" (any row anywhere) or None (as stored).
            "blocks:64x32" is "blocks" with 64 rows a block and 32 blocks a window, whatever the next two say.
        block_rows: neighbouring rows that stay in one window; used by "blocks" only.
        window_blocks: blocks that are mixed with each other; used by "blocks" only. More mix better and read more at random.

    Raises:
        ConfigError: a value outside its range, another `shuffle` than "blocks", "rows" or None, or windows above 2**22 rows.
    """

    n: int
    seed: int
    shuffle: Shuffle = "blocks"
    block_rows: int = 256
    window_blocks: int = 64

    def __post_init__(self) -> None:
        sized = _SIZED.fullmatch(self.shuffle) if isinstance(self.shuffle, str) else None
        if sized is not None:
            for name, value in (("shuffle", "blocks"), ("block_rows", int(sized[1])), ("window_blocks", int(sized[2]))):
                object.__setattr__(self, name, value)
        if self.shuffle not in ("blocks", "rows", None):
            raise ConfigError(
                f'shuffle is "blocks", "rows" or None, got {self.shuffle!r}; "blocks:64x32" is "blocks" with 64 rows a block '
                "and 32 blocks a window"
            )
        limits = {"n": (0, _MAX_ROWS), "seed": (0, 2**64 - 1)}
        limits |= dict.fromkeys(("block_rows", "window_blocks"), (1, _MAX_WINDOW_ROWS))
        for name, (low, high) in limits.items():
            object.__setattr__(self, name, _whole(name, getattr(self, name), low, high))  # numpy's integers become int
        if self.block_rows * self.window_blocks > _MAX_WINDOW_ROWS:
            raise ConfigError(
                f"block_rows * window_blocks is {self.block_rows * self.window_blocks} rows, more than {_MAX_WINDOW_ROWS}: a"
                ' window is held in memory; take smaller ones, or shuffle="rows" for any row anywhere'
            )

    @property
    def spec(self) -> str:
        """The order's name and version in saved states: ``blocks-1:256x64``, ``rows-1`` or ``stored-1``."""
        if self.shuffle == "blocks":
            return f"blocks-1:{self.block_rows}x{self.window_blocks}"
        return "rows-1" if self.shuffle == "rows" else "stored-1"

    def rows(self, epoch: int, start: int, stop: int) -> Ints:
        """The index rows at positions ``[start, stop)``.

        Any slice alone equals the same slice of the whole, and costs its own length plus a window.

        Args:
            epoch: 0 or more.
            start: first position.
            stop: position after the last one.

        Returns:
            int64 of shape ``[stop - start]``, the caller's own.

        Raises:
            IndexError: not ``0 <= start <= stop <= n``.
            ConfigError: the epoch is no integer of 0 or more.
        """
        epoch = _whole("epoch", epoch, 0, None)
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start <= stop <= self.n:
            raise IndexError(f"positions {start} to {stop} of an order of {self.n} rows")
        if self.shuffle is None:
            return np.arange(start, stop, dtype=np.int64)
        parts = []
        while start < stop:
            first, window = self._window_at(epoch, start)
            parts.append(window[start - first : stop - first])
            start += len(parts[-1])
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def at(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The index rows at any positions, repeated ones too; scattered ones cost each window that they touch once.

        Args:
            epoch: 0 or more.
            positions: integers in ``[0, n)``, of any shape.

        Returns:
            int64 of the same shape.

        Raises:
            IndexError: positions that are no integers, or outside the order.
            ConfigError: the epoch is no integer of 0 or more.
        """
        epoch = _whole("epoch", epoch, 0, None)
        given = np.asarray(positions)
        if given.size == 0:
            return np.empty(given.shape, np.int64)
        if given.dtype.kind not in "iu":
            raise IndexError(f"positions are integers, got {given.dtype}")
        low, high = int(given.min()), int(given.max())
        if low < 0 or high >= self.n:
            raise IndexError(f"positions {low} to {high} of an order of {self.n} rows")
        wanted = given.astype(np.int64)
        if self.shuffle is None:
            return wanted
        if high - low < _CHUNK_ROWS:  # a step's: through the cached windows
            return self.rows(epoch, low, high + 1)[wanted - low]
        if self.shuffle == "rows":
            return self._rows_of(epoch)(wanted.ravel()).reshape(given.shape)
        return self._gather(epoch, wanted.ravel()).reshape(given.shape)

    def _gather(self, epoch: int, wanted: Ints) -> Ints:
        """Scattered positions [k], window by window."""
        places = np.argsort(wanted, kind="stable")  # [k] where in `wanted` the ascending positions stand
        ascending = wanted[places]  # [k]
        found = np.empty_like(wanted)  # [k]
        done = 0
        while done < len(ascending):
            first, window = self._window_at(epoch, int(ascending[done]))
            end = int(np.searchsorted(ascending, first + len(window)))
            found[places[done:end]] = window[ascending[done:end] - first]
            done = end
        return found

    def window_end(self, epoch: int, position: int) -> int:
        """One past the last position of the window that holds this one: rows up to there are best read together."""
        if self.shuffle is None:
            return self.n
        first, window = self._window_at(epoch, position)
        return first + len(window)

    def _window_at(self, epoch: int, position: int) -> tuple[int, Ints]:
        """The window that holds a position: its first position, and its rows in order, not to be written to."""
        if self.shuffle == "rows":
            size = self.n if self.n <= TABLE_ITEMS else _CHUNK_ROWS
            first = position - position % size
            return first, self._windows.get((epoch, first), lambda: self._chunk(epoch, first, min(first + size, self.n)))
        number, first = self._blocks_of(epoch).window_at(position)
        return first, self._windows.get((epoch, first), lambda: self._shuffled_window(epoch, number))

    def _chunk(self, epoch: int, first: int, end: int) -> Ints:
        return self._rows_of(epoch)(np.arange(first, end, dtype=np.int64))

    def _shuffled_window(self, epoch: int, number: int) -> Ints:
        starts = self._blocks_of(epoch).blocks(number) * self.block_rows  # [blocks] first row of each
        rows = (starts[:, None] + np.arange(min(self.block_rows, self.n))).ravel()  # [blocks * block_rows]
        rows = rows[rows < self.n]  # [window rows] a short block ends where the index ends
        return rows[shuffled(len(rows), bits(FOR_WINDOW, self.seed, epoch, number))]

    def _rows_of(self, epoch: int) -> Permutation:
        return self._permutations.get(epoch, lambda: permutation(self.n, bits(FOR_ROWS, self.seed, epoch)))

    def _blocks_of(self, epoch: int) -> Blocks:
        return self._blocks.get(epoch, lambda: Blocks.of(self.n, self.seed, epoch, self.block_rows, self.window_blocks))

    # No fields: not compared, hashed, printed or replaced. A cached property is set past the frozen `__setattr__`.
    @cached_property
    def _windows(self) -> Recent[Ints]:
        return Recent(_CACHED_WINDOWS)

    @cached_property
    def _blocks(self) -> Recent[Blocks]:
        return Recent(_CACHED_EPOCHS)

    @cached_property
    def _permutations(self) -> Recent[Permutation]:
        return Recent(_CACHED_EPOCHS)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


class RowOrder(Protocol):
    """What a data set asks of an order: of an `Order`, or of one that an index brings itself, such as a mixture's.

    Attributes:
        n: positions in an epoch.
        seed: decides the order, with the epoch.
        spec: name and version, for saved states.
    """

    @property
    def n(self) -> int: ...  # noqa: D102 - see above

    @property
    def seed(self) -> int: ...  # noqa: D102

    @property
    def spec(self) -> str: ...  # noqa: D102

    def rows(self, epoch: int, start: int, stop: int) -> Ints:
        """The rows at positions ``[start, stop)``."""
        ...

    def at(self, epoch: int, positions: npt.ArrayLike) -> Ints:
        """The rows at any positions."""
        ...


def order_of(index: Any, seed: int, shuffle: Shuffle) -> RowOrder:
    """The order of an index: its own, where it has a method ``order(seed, shuffle)``; else each of its rows once.

    "blocks" has blocks that fit the index: see `fitting_block_rows`.
    """
    own = getattr(index, "order", None)
    if own is None:
        n = len(index)
        if shuffle == "blocks":
            return Order(n, seed, shuffle, fitting_block_rows(getattr(index, "blob_bytes", 0), n))
        return Order(n, seed, shuffle)
    Order(0, seed, shuffle)  # refuses here what the index's own order would refuse at its first step
    order: RowOrder = own(seed, shuffle)
    return order


def fitting_block_rows(blob_bytes: int, n: int) -> int:
    """Rows of a block, so that a window is read in few long requests and held in memory, however large its rows are.

    256, or the highest power of two of which ``n`` rows of ``blob_bytes`` together have at most 5 MiB on average, and at least
    1. Blocks of few large rows cost no more requests a byte than those of many small ones, and a window still mixes 64.

    Example:
        >>> [fitting_block_rows(1_000 * kilobytes * 1_000, 1_000) for kilobytes in (14, 20, 150, 1_000, 8_000)]
        [256, 256, 32, 4, 1]
    """
    rows = Order.block_rows
    while rows > 1 and rows * blob_bytes > n * _BLOCK_BYTES:
        rows //= 2
    return rows


def row_rng(seed: int, epoch: int, position: int) -> np.random.Generator:
    """The generator that decoders and transforms use for one row: the same on any rank, in any worker.

    Independent of the order itself: drawing from it says nothing about which row comes next.

    Args:
        seed: of the run, 0 to 2**64 - 1.
        epoch: 0 or more.
        position: of the row in the epoch's order, 0 to 2**64 - 1.

    Raises:
        ConfigError: a value outside its range.
    """
    seed = _whole("seed", seed, 0, 2**64 - 1)
    position = _whole("position", position, 0, 2**64 - 1)
    return np.random.Generator(bits(FOR_ROW_RNG, seed, _whole("epoch", epoch, 0, None), position))


def _whole(name: str, value: object, low: int, high: int | None) -> int:
    """An integer within bounds, as `int`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ConfigError(f"{name} is an integer, got {value!r}")
    number = operator.index(value)
    if number < low or (high is not None and number > high):
        raise ConfigError(f"{name} is {low} or more{'' if high is None else f' and at most {high}'}, got {number}")
    return number
