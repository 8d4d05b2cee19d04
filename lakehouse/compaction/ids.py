"""Row ids as ranges: the rows of a file are numbered without gaps, so a few ranges stand for millions of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

Range = tuple[int, int]  # first id, one past the last


class Ids:
    """Ascending row ids, kept as ranges that do not touch.

    Args:
        ranges: ascending and apart from each other, or touching; empty ones are left out.

    Example:
        >>> Ids([(0, 3), (3, 4), (8, 9)]).ranges
        ((0, 4), (8, 9))
    """

    def __init__(self, ranges: Iterable[Range]) -> None:
        joined: list[Range] = []
        for first, stop in ranges:
            if joined and first < joined[-1][1]:
                raise ValueError(f"row ids {first}..{stop} come before {joined[-1][1]}")
            if first >= stop:
                continue
            if joined and joined[-1][1] == first:
                joined[-1] = (joined[-1][0], stop)
            else:
                joined.append((first, stop))
        self.ranges = tuple(joined)

    @classmethod
    def of(cls, numbers: npt.NDArray[np.int64]) -> Ids:
        """Of ascending distinct numbers."""
        if not len(numbers):
            return cls(())
        ends = np.flatnonzero(np.diff(numbers) != 1)
        firsts = numbers[np.concatenate([[0], ends + 1])]
        stops = numbers[np.concatenate([ends, [len(numbers) - 1]])] + 1
        return cls(zip(firsts.tolist(), stops.tolist(), strict=True))

    def __len__(self) -> int:
        return int(self._counts[-1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"Ids({list(self.ranges)})"

    @cached_property
    def _firsts(self) -> npt.NDArray[np.int64]:
        return np.array([first for first, _ in self.ranges], np.int64)

    @cached_property
    def _stops(self) -> npt.NDArray[np.int64]:
        return np.array([stop for _, stop in self.ranges], np.int64)

    @cached_property
    def _counts(self) -> npt.NDArray[np.int64]:
        """Rows before each range, and of all: int64[ranges + 1]."""
        return np.concatenate([[0], np.cumsum(self._stops - self._firsts)]).astype(np.int64)

    def take(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The ids at positions ``start`` to ``stop``; fewer at the end."""
        at = np.arange(start, min(stop, len(self)), dtype=np.int64)
        owner = np.searchsorted(self._counts, at, side="right") - 1
        return self._firsts[owner] + at - self._counts[owner]

    def chunks(self, rows: int) -> Iterator[npt.NDArray[np.int64]]:
        """All ids, some at a time."""
        for start in range(0, len(self), rows):
            yield self.take(start, start + rows)

    def holds(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of ``ids`` are among these: bool[n]."""
        if not self.ranges:
            return np.zeros(len(ids), np.bool_)
        owner = np.searchsorted(self._firsts, ids, side="right") - 1
        return np.asarray((owner >= 0) & (ids < self._stops[np.maximum(owner, 0)]))

    def without(self, other: Ids) -> Ids:
        """These ids and not those."""
        left: list[Range] = []
        taken = iter((*other.ranges, (2**63 - 1, 2**63 - 1)))
        low, high = next(taken)
        for first, stop in self.ranges:
            while high <= first:
                low, high = next(taken)
            start = first
            while low < stop:
                if low > start:
                    left.append((start, low))
                start = max(start, high)
                if high >= stop:
                    break
                low, high = next(taken)
            if start < stop:
                left.append((start, stop))
        return Ids(left)
