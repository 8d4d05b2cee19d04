"""Ranges of several steps that are read together, in stored order, and taken apart again step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lakehouse.fetch import BlobRefs, FetchStats

# What counts of a range: wrong references may claim so much that sums would leave 64 bits. No blob of 64 GiB is read whole.
_MOST_BYTES = 2**36

Name = tuple[Any, bytes, bytes]  # what tells the ranges of one step from those of others


class Group:
    """Ranges that are read together. Used with `lakehouse.dataset.ahead.Ahead`'s lock held."""

    def __init__(self, refs: BlobRefs, names: Sequence[Name], rows: Sequence[int], chunk_bytes: int, *, is_first: bool) -> None:
        self.refs = refs
        self.reading = 0  # chunks under way
        self.is_first = is_first
        self.chunks: deque[tuple[Any, int]] = deque()
        self.error: BaseException | None = None
        self.left = len(names)  # slices, of one step and column each, that were not taken
        self._slices: dict[Name, list[int]] = {}
        for number, name in enumerate(names):
            self._slices.setdefault(name, []).append(number)
        self._starts = np.cumsum([0, *rows]).tolist()
        self._slice_of = np.repeat(np.arange(len(rows)), rows)  # [n] of each row
        self._sizes = sizes_of(refs)  # [n]
        self._missing = np.bincount(self._slice_of[refs.uri_ids >= 0], minlength=len(rows))  # of each slice, rows not there
        self._values: list[Any] = [None] * len(refs)
        self._stats = FetchStats()
        self._bytes = max(1, int(self._sizes.sum()))
        self._taken_bytes = 0
        self._shared = FetchStats()
        order = np.lexsort((refs.offsets, refs.uri_ids))
        order = order[refs.uri_ids[order] >= 0]
        sizes = self._sizes[order]
        chunk_of = (np.cumsum(sizes) - 1) // chunk_bytes  # [m]
        starts = np.flatnonzero(np.diff(chunk_of, prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=False):
            self.chunks.append((order[start:stop], int(sizes[start:stop].sum())))

    @property
    def is_urgent(self) -> bool:
        """Whether the first batch waits for it."""
        return self.is_first and self.error is None and bool(self.chunks or self.reading)

    def holds(self, name: Name) -> bool:
        """Whether a step's ranges are this group's, and not taken."""
        return bool(self._slices.get(name))

    def has(self, name: Name) -> bool:
        """Whether their values are there."""
        return not self._missing[self._slices[name][0]]

    def add(self, rows: Any, values: Sequence[Any], stats: FetchStats, seconds: float) -> None:
        """A chunk's values, and what they cost."""
        self._stats += FetchStats(
            requests=stats.requests,
            bytes_fetched=stats.bytes_fetched,
            seconds=seconds,
            retries=stats.retries,
            throttles=stats.throttles,
            seconds_backoff=stats.seconds_backoff,
        )
        for row, value in zip(rows.tolist(), values, strict=True):
            self._values[row] = value
        self._missing -= np.bincount(self._slice_of[rows], minlength=len(self._missing))

    def take(self, name: Name) -> tuple[list[Any], int]:
        """Hand a step's values out, and the bytes that are no longer held here."""
        number = self._slices[name].pop(0)
        self.left -= 1
        start, stop = self._starts[number], self._starts[number + 1]
        values = self._values[start:stop]
        self._values[start:stop] = [None] * len(values)
        sizes = self._sizes[start:stop]
        if self._missing[number]:
            sizes = sizes[[value is not None for value in values]]
        return values, int(sizes.sum())

    def share(self, values: Sequence[Any], taken_bytes: int) -> FetchStats:
        """Bytes of a step's values, and its part of what the group has cost so far; the last step's makes the sum exact."""
        self._taken_bytes += taken_bytes
        share = 1.0 if not self.left else min(1.0, self._taken_bytes / self._bytes)
        due, done = self._stats, self._shared
        part = FetchStats(
            requests=int(due.requests * share) - done.requests,
            bytes_referenced=sum(len(value) for value in values if isinstance(value, (bytes, bytearray, memoryview))),
            bytes_fetched=int(due.bytes_fetched * share) - done.bytes_fetched,
            seconds=due.seconds * share - done.seconds,
            retries=int(due.retries * share) - done.retries,
            throttles=int(due.throttles * share) - done.throttles,
            seconds_backoff=due.seconds_backoff * share - done.seconds_backoff,
        )
        self._shared = done + part
        return part


def sizes_of(refs: BlobRefs) -> npt.NDArray[np.int64]:
    """Bytes that each range takes once it is read, int64[n]; 0: nothing is read."""
    return np.where(refs.uri_ids >= 0, np.where(refs.impossible, 1, np.clip(refs.lengths, 1, _MOST_BYTES)), 0)


def joined(parts: Sequence[BlobRefs], *, same_uris: bool) -> BlobRefs:
    """References of several columns behind each other, with the uris that they use, or with those that they share."""
    if same_uris and parts:
        ids, offsets, lengths = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("uri_ids", "offsets", "lengths")
        )
        return BlobRefs(parts[0].uris, ids, offsets, lengths)
    return _relisted(parts)


def _relisted(parts: Sequence[BlobRefs]) -> BlobRefs:
    uris: dict[str, int] = {}
    ids = []
    for part in parts:
        used, inverse = np.unique(part.uri_ids, return_inverse=True)
        new = [-1 if uri_id < 0 else uris.setdefault(part.uris[uri_id], len(uris)) for uri_id in used.tolist()]
        ids.append(np.array(new, np.int64)[inverse.reshape(-1)] if len(used) else np.empty(0, np.int64))
    none = [np.empty(0, np.int64)]
    offsets, lengths = (np.concatenate([getattr(part, name) for part in parts] or none) for name in ("offsets", "lengths"))
    return BlobRefs(tuple(uris), np.concatenate(ids or none), offsets, lengths)
