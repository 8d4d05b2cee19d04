"""The order in which rows are visited: arithmetic on (n, seed, epoch, position), without I/O.

Three orders of the ``n`` rows of an index, each an exact bijection of positions and rows in every epoch::

    "blocks"   rows      0 ... 255 | 256 ... 511 | ... | n - 1         blocks of 256 neighbouring rows, the last may be short
               blocks    dealt out in random order, 64 of them to a window
               window    its 64 x 256 = 16,384 rows in random order
    "rows"     any row at any position
    None       as stored

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

import math
import operator
import struct
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from lakehouse.errors import ConfigError

Shuffle = Literal["blocks", "rows"] | None
Ints = npt.NDArray[np.int64]

_MAX_ROWS = 2**48  # keeps the halves of the keyed permutation so narrow that 32 bits choose evenly among their values
_MAX_WINDOW_ROWS = 2**22
_TABLE_ITEMS = 65_536  # permutations of so few are listed: 512 KiB for an epoch
_CHUNK_ROWS = 1024  # "rows" computes so many at once: numpy's cost per call is spread, the first step stays fast
_CACHED_WINDOWS = 4  # a step may straddle two, and padding goes back to the first
_CACHED_EPOCHS = 2  # one may still be read to its end while the next one starts
_ROUNDS = 8  # 4 make a pseudo-random permutation (Luby and Rackoff 1988) of ideal round functions; the rest is margin

# What bits are for. Part of their seed, so that no two uses of one (seed, epoch) share a stream.
_FOR_BLOCKS, _FOR_WINDOW, _FOR_ROWS, _FOR_ROW_RNG = range(1, 5)


@dataclass(frozen=True)
class Order:
    """Which index row stands at which position of an epoch.

    A value: equal fields mean equal orders, in any process. The last 4 windows (512 KiB by default) are kept per instance,
    shared by its threads, and no part of equality or pickles.

    Args:
        n: rows of the index, at most 2**48.
        seed: 0 to 2**64 - 1.
        shuffle: "blocks" (neighbouring rows stay close to each other), "rows" (any row anywhere) or None (as stored).
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
        if self.shuffle not in ("blocks", "rows", None):
            raise ConfigError(f'shuffle is "blocks", "rows" or None, got {self.shuffle!r}')
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

    def _window_at(self, epoch: int, position: int) -> tuple[int, Ints]:
        """The window that holds a position: its first position, and its rows in order, not to be written to."""
        if self.shuffle == "rows":
            size = self.n if self.n <= _TABLE_ITEMS else _CHUNK_ROWS
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
        return rows[_shuffled(len(rows), _bits(_FOR_WINDOW, self.seed, epoch, number))]

    def _rows_of(self, epoch: int) -> _Permutation:
        return self._permutations.get(epoch, lambda: _permutation(self.n, _bits(_FOR_ROWS, self.seed, epoch)))

    def _blocks_of(self, epoch: int) -> _Blocks:
        return self._blocks.get(epoch, lambda: _Blocks.of(self, epoch))

    # No fields: not compared, hashed, printed or replaced. A cached property is set past the frozen `__setattr__`.
    @cached_property
    def _windows(self) -> _Recent[Ints]:
        return _Recent(_CACHED_WINDOWS)

    @cached_property
    def _blocks(self) -> _Recent[_Blocks]:
        return _Recent(_CACHED_EPOCHS)

    @cached_property
    def _permutations(self) -> _Recent[_Permutation]:
        return _Recent(_CACHED_EPOCHS)

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
    """The order of an index: its own, where it has a method ``order(seed, shuffle)``; else each of its rows once."""
    own = getattr(index, "order", None)
    return Order(len(index), seed, shuffle) if own is None else own(seed, shuffle)


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
    return np.random.Generator(_bits(_FOR_ROW_RNG, seed, _whole("epoch", epoch, 0, None), position))


@dataclass(frozen=True, eq=False)
class _Blocks:
    """One epoch's order of blocks, and its windows.

    ::

        slot      0  1  2  ...  63 | 64 ... 127 | ... | last but one  |  last        slot: place of a block in the order
        window           0         |     1      | ... | these two share what is left

    The full blocks are permuted; the short one, if any, is put in at a random slot, which needs no inverse permutation to find.
    """

    block_rows: int
    window_blocks: int
    full: int  # blocks of block_rows rows
    missing: int  # rows that the short block lacks; 0: there is none
    short_slot: int  # where the short block stands; past the end: there is none
    last: int  # number of the last window
    last_slot: int  # where that begins
    permute: _Permutation  # full blocks

    @staticmethod
    def of(order: Order, epoch: int) -> _Blocks:
        full, short = divmod(order.n, order.block_rows)
        slots = full + (short > 0)
        bits = _bits(_FOR_BLOCKS, order.seed, epoch)
        # 64 bits modulo the slots: uneven by less than slots / 2**64.
        short_slot = int(bits.random_raw()) % slots if short else slots
        last = max(-(-slots // order.window_blocks) - 1, 0)
        shared = max(last - 1, 0) * order.window_blocks  # slots before the last two windows
        return _Blocks(
            block_rows=order.block_rows,
            window_blocks=order.window_blocks,
            full=full,
            missing=order.block_rows - short if short else 0,
            short_slot=short_slot,
            last=last,
            last_slot=shared + (slots - shared + 1) // 2 if last else 0,
            permute=_permutation(full, bits),
        )

    @property
    def slots(self) -> int:
        return self.full + (self.missing > 0)

    def window_at(self, position: int) -> tuple[int, int]:
        """The number of the window that holds a position, and its first position."""
        # Until the short block, slots are block_rows long; from there on everything is early by the rows it lacks.
        early = self.missing if position >= self.short_slot * self.block_rows else 0
        slot = (position + early) // self.block_rows
        number = self.last if slot >= self.last_slot else min(slot // self.window_blocks, self.last - 1)
        first_slot = self._first_slot(number)
        return number, first_slot * self.block_rows - (self.missing if first_slot > self.short_slot else 0)

    def blocks(self, number: int) -> Ints:
        """The numbers of a window's blocks."""
        end = self.slots if number == self.last else self._first_slot(number + 1)
        slots = np.arange(self._first_slot(number), end, dtype=np.int64)  # [blocks]
        is_full = slots != self.short_slot  # [blocks]
        numbers = np.full(len(slots), self.full, np.int64)  # [blocks] the short block comes after the full ones
        numbers[is_full] = self.permute(slots[is_full] - (slots[is_full] > self.short_slot))
        return numbers

    def _first_slot(self, number: int) -> int:
        return self.last_slot if number == self.last else number * self.window_blocks


_Permutation = Callable[[Ints], Ints]


def _permutation(n: int, bits: np.random.PCG64) -> _Permutation:
    """A permutation of ``range(n)``, as a function of any items of it [k] -> [k]: listed when that is short, else computed."""
    if n <= _TABLE_ITEMS:
        table = _shuffled(n, bits)
        return lambda items: table[items]
    keys = bits.random_raw(_ROUNDS)
    return lambda items: _keyed(items, n, keys)


def _shuffled(n: int, bits: np.random.PCG64) -> Ints:
    """``range(n)`` in random order [n]: sorted by 64 random bits, the lowest of which make way for the number itself."""
    # At least 40 random bits are left for the largest window; in the rare tie the smaller number comes first.
    width = np.uint64(max(n - 1, 0).bit_length())
    keyed = np.asarray(bits.random_raw(n), np.uint64) >> width << width | np.arange(n, dtype=np.uint64)  # [n]
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


def _bits(purpose: int, seed: int, epoch: int, number: int = 0) -> np.random.PCG64:
    """Random bits of their own for every combination of arguments.

    Seed and number have a fixed width and the epoch's is written first, so that no two combinations spell the same words.
    """
    epoch_words = max(2, -(-epoch.bit_length() // 32))
    spelt = struct.pack("<HHQQ", purpose, epoch_words, seed, number) + epoch.to_bytes(4 * epoch_words, "little")
    return np.random.PCG64(np.random.SeedSequence(np.frombuffer(spelt, "<u4")))


_Value = TypeVar("_Value")


class _Recent(Generic[_Value]):
    """The last few values made, newest first.

    The tuple is replaced as a whole and never locked: threads may at worst make a value twice, and a fork never inherits a lock
    that nobody is left to release.
    """

    __slots__ = ("_entries", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: tuple[tuple[Hashable, _Value], ...] = ()

    def get(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        for known, value in self._entries:
            if known == key:
                return value
        value = make()
        self._entries = ((key, value), *self._entries[: self._limit - 1])
        return value


def _whole(name: str, value: object, low: int, high: int | None) -> int:
    """An integer within bounds, as `int`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ConfigError(f"{name} is an integer, got {value!r}")
    number = operator.index(value)
    if number < low or (high is not None and number > high):
        raise ConfigError(f"{name} is {low} or more{'' if high is None else f' and at most {high}'}, got {number}")
    return number
