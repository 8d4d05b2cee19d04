"""Which spans to read for a set of ranges. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lakehouse.fetch.refs import IntArray

_FREE_HOLE_BYTES = 1024


@dataclass(frozen=True, eq=False)
class SpanPlan:
    """Spans, in order of uri and offset, none meeting another; and where in them each range lies.

    A range lies in one span, or, when it is longer than a span may be (or overlaps such a one), in neighbouring spans
    ``first .. last`` without a gap between them.

    Attributes:
        uri_ids: int64[s], of each span.
        offsets: int64[s], where each span starts.
        lengths: int64[s], bytes of each span, from 1 to the span limit.
        first: int64[n], first span of each range; -1: it has no bytes to read.
        last: int64[n], last span of each range; -1 as above.
    """

    uri_ids: IntArray
    offsets: IntArray
    lengths: IntArray
    first: IntArray
    last: IntArray

    @property
    def bytes_fetched(self) -> int:
        """Bytes of all spans."""
        return sum(self.lengths.tolist())  # not in int64, which wrong lengths overflow

    def pieces(self, offset: int, length: int, row: int) -> list[tuple[int, int, int]]:
        """Where a range is: ``(span, start, stop)`` with positions inside the span, in order.

        Args:
            offset: of the range, as it was planned.
            length: of the range, as it was planned.
            row: its position among the planned ranges.
        """
        found: list[tuple[int, int, int]] = []
        for span in range(int(self.first[row]), int(self.last[row]) + 1) if self.first[row] >= 0 else ():
            at = int(self.offsets[span])
            start = max(offset - at, 0)
            stop = min(offset + length - at, int(self.lengths[span]))
            found.append((span, start, stop))
        return found


def plan_spans(
    uri_ids: npt.ArrayLike,
    offsets: npt.ArrayLike,
    lengths: npt.ArrayLike,
    *,
    gap_bytes: int,
    span_bytes: int,
    waste: float | None = None,
) -> SpanPlan:
    """Merge neighbouring ranges into spans.

    Two ranges of one uri share a span when at most ``gap_bytes`` lie between them, as long as the span stays within
    ``span_bytes``. Ranges are cut apart at their own borders where possible; only one that is longer than a span is split.
    With ``gap_bytes=0`` exactly the union of all ranges is read.

    Args:
        uri_ids: int[n]; negative: null, nothing to read.
        offsets: int[n], not negative where there is something to read.
        lengths: int[n]; 0 or negative: nothing to read here.
        gap_bytes: largest hole to read through.
        span_bytes: largest span.
        waste: read through holes, the smallest first, only as long as they add at most this share to the bytes wanted; those
            up to 1 KiB always, since a request's own headers are as long. None: through all that the gap allows.

    Raises:
        ValueError: a negative gap or waste, a span of no bytes, or a negative offset.
    """
    if gap_bytes < 0 or span_bytes < 1 or (waste is not None and waste < 0):
        raise ValueError(
            f"gap_bytes must be 0 or more, span_bytes 1 or more, waste 0 or more or None; got {gap_bytes=}, {span_bytes=}, "
            f"{waste=}"
        )
    all_ids, all_offsets, all_lengths = (np.asarray(a, np.int64) for a in (uri_ids, offsets, lengths))
    rows = np.flatnonzero((all_ids >= 0) & (all_lengths > 0))
    order = rows[np.lexsort((all_offsets[rows], all_ids[rows]))]  # [m] ranges by (uri, offset)
    uri, start = all_ids[order], all_offsets[order]
    end = start + all_lengths[order]
    if len(order) and (int(start.min()) < 0 or np.any(end < start)):
        raise ValueError("plan_spans takes offsets from 0 up, with ends below 2**63")
    reach = _running_end(uri, end)

    begins = np.ones(len(order), np.bool_)  # [m] a hole wider than the gap lies before this range
    hole = start[1:] - reach[:-1]
    begins[1:] = (uri[1:] != uri[:-1]) | (hole > gap_bytes)
    if waste is not None and len(order):
        wanted = int((end[1:] - np.maximum(start[1:], np.where(uri[1:] == uri[:-1], reach[:-1], 0))).clip(0).sum())
        wanted += int(end[0] - start[0])
        inside = np.flatnonzero(~begins[1:] & (hole > 0))  # [h] holes that the gap allows
        smallest_first = inside[np.argsort(hole[inside], kind="stable")]
        too_much = (np.cumsum(hole[smallest_first]) > waste * wanted) & (hole[smallest_first] > _FREE_HOLE_BYTES)
        begins[1 + smallest_first[too_much]] = True
    run_first = np.flatnonzero(begins)  # [r]
    run_stop = np.append(run_first[1:], len(order))  # [r]
    run_end = reach[run_stop - 1] if len(order) else reach
    cuts: list[tuple[IntArray, IntArray]] = []  # of the runs that are too long: span starts, span stops
    spans_of_run = np.ones(len(run_first), np.int64)
    too_long = np.flatnonzero(run_end - start[run_first] > span_bytes)
    for run in too_long.tolist():
        rows_of_run = slice(int(run_first[run]), int(run_stop[run]))
        cuts.append(_cut(start[rows_of_run], reach[rows_of_run], span_bytes))
        spans_of_run[run] = len(cuts[-1][0])

    span_base = np.cumsum(spans_of_run) - spans_of_run  # [r] number of each run's first span
    span_uri = np.repeat(uri[run_first], spans_of_run)  # [s]
    span_start = np.repeat(start[run_first], spans_of_run)
    span_stop = np.repeat(run_end, spans_of_run)
    first_sorted = np.repeat(span_base, run_stop - run_first)  # [m]
    last_sorted = first_sorted.copy()
    for run, (starts, stops) in zip(too_long.tolist(), cuts, strict=True):
        base = int(span_base[run])
        span_start[base : base + len(starts)] = starts
        span_stop[base : base + len(starts)] = stops
        rows_of_run = slice(int(run_first[run]), int(run_stop[run]))
        first_sorted[rows_of_run] = base + np.searchsorted(starts, start[rows_of_run], "right") - 1
        last_sorted[rows_of_run] = base + np.searchsorted(starts, end[rows_of_run] - 1, "right") - 1

    first = np.full(len(all_ids), -1, np.int64)
    last = np.full(len(all_ids), -1, np.int64)
    first[order] = first_sorted
    last[order] = last_sorted
    return SpanPlan(span_uri, span_start, span_stop - span_start, first, last)


def _running_end(uri: IntArray, end: IntArray) -> IntArray:
    """The largest end so far, of each uri by itself: int64[m]."""
    same = uri[1:] == uri[:-1]
    if not np.any(same & (end[1:] < end[:-1])):
        return end  # no range lies within another one: the common case
    # Ends as ranks, so that adding "uri number * m" can't overflow.
    values, rank = np.unique(end, return_inverse=True)
    group = np.concatenate([[0], np.cumsum(~same)]) * len(end)
    reach: IntArray = values[np.maximum.accumulate(rank.reshape(-1) + group) - group]
    return reach


def _cut(start: IntArray, reach: IntArray, span_bytes: int) -> tuple[IntArray, IntArray]:
    """Span starts and stops of one run (sorted ranges, their running end) that is longer than a span."""
    starts: list[Any] = []
    stops: list[Any] = []
    at, end = int(start[0]), int(reach[-1])
    while end - at > span_bytes:
        fits = int(np.searchsorted(reach, at + span_bytes, "right"))  # ranges that end within a span from here
        whole = int(reach[fits - 1]) if fits else at
        if whole > at:
            starts.append(at)
            stops.append(whole)
            at = max(whole, int(start[fits]))
        else:  # the next range is longer than a span: as many whole spans of it as there are
            full = (int(reach[fits]) - at - 1) // span_bytes
            cut = at + np.arange(full, dtype=np.int64) * span_bytes
            starts.extend(cut.tolist())
            stops.extend((cut + span_bytes).tolist())
            at += full * span_bytes
    return np.array([*starts, at], np.int64), np.array([*stops, end], np.int64)
