"""Ranges of objects that are slow to ask and quick to send: neighbours merged, many asked for at a time."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from lakehouse.errors import FetchError
from lakehouse.fetch.plan import SpanPlan, plan_spans
from lakehouse.fetch.pool import Pool
from lakehouse.fetch.process import PerProcess
from lakehouse.fetch.reads import Answer, Failure, Pace, Policy, ReadRange, Request, Tally, run_requests
from lakehouse.fetch.refs import TO_END, BlobRef, BlobRefs, Fetched, FetchStats, IntArray, Value, unread
from lakehouse.fetch.retry import ADVICE

GAP_BYTES = 64 * 1024
SPAN_BYTES = 8 * 1024 * 1024
LEAST_SPAN_BYTES = 4 * 1024 * 1024
CONCURRENCY = 64
WASTE = 0.05

# What was read of one range: all its bytes, its parts in order, or why it was not read.
_Read: TypeAlias = "bytes | list[memoryview] | Failure"


class RangeFetcher:
    """Reads ranges through one function, `plan_spans` deciding what is asked for.

    Thread safe. Throttling (429, 503, SlowDown), resets, time-outs, 500s and short answers are tried again after a wait
    that grows exponentially, with full jitter; a missing object or right (404, 403) never. A range that fails does not
    take its neighbours along. Values are copies: a small one never keeps an 8 MiB span alive.

    A range longer than a span is read in parts, its end first: a wrong length costs one request, not memory of that size.

    Args:
        read_range: ``(uri, offset, length) -> bytes``; length -1: to the end. Is called in several threads at a time, and
            pickled with the fetcher. Fewer bytes than asked mean that the object ends there.
        gap_bytes: ranges of one object at most so far apart are read in one request. 64 KiB was never slower than 0 and up
            to 2.5 times faster on block order; 1 MiB read 20 times the bytes wanted.
        waste: holes between merged ranges add at most this share to the bytes of one call; the smallest are read first.
            0.05: on block order nearly all rows of a call are neighbours; in random order reading holes costs more than
            requests do.
        span_bytes: longest request. Shorter ones, down to 1 MiB, are made where that puts more of them in flight.
        concurrency: requests in flight, per fetcher and process, all calling threads together; fewer after a store has asked
            for that, until it answers again. 64: at 20 ms a request, 3,200 requests a second.
        timeout_s: per try. A try that takes longer is left behind in its thread, whether or not it ever returns.
        retries: tries after the first one. 8: with a fifth of all requests throttled, one in 2 million still fails. A short
            answer is asked for again twice only.
        backoff_s: upper end of the wait before the first retry; it doubles with each, up to 20 s.
    """

    whole_steps = True

    def __init__(
        self,
        read_range: ReadRange,
        *,
        gap_bytes: int = GAP_BYTES,
        waste: float = WASTE,
        span_bytes: int = SPAN_BYTES,
        concurrency: int = CONCURRENCY,
        timeout_s: float = 30.0,
        retries: int = 8,
        backoff_s: float = 0.1,
    ) -> None:
        if not callable(read_range):
            raise TypeError(f"read_range is a function (uri, offset, length) -> bytes, got {type(read_range).__name__}")
        if min(gap_bytes, waste, retries, backoff_s) < 0 or min(span_bytes, concurrency) < 1 or timeout_s <= 0:
            raise ValueError(
                "RangeFetcher takes gap_bytes, waste, retries, backoff_s >= 0, span_bytes, concurrency >= 1, timeout_s > 0; "
                f"got {gap_bytes=}, {waste=}, {retries=}, {backoff_s=}, {span_bytes=}, {concurrency=}, {timeout_s=}"
            )
        self._read_range = read_range
        self._gap_bytes = gap_bytes
        self._waste = waste
        self._span_bytes = span_bytes
        self._concurrency = concurrency
        self._policy = Policy(timeout_s, retries, backoff_s)
        self._pools = PerProcess(partial(_open_pool, weakref.ref(self), concurrency))
        self._pace = Pace(concurrency)

    def identity(self, uri: str) -> str | None:
        """The version of an object, where ``read_range`` knows it (a method ``identity``); None: it can't be told."""
        ask = getattr(self._read_range, "identity", None)
        return ask(uri) if callable(ask) else None

    def fetch(self, refs: BlobRefs) -> Fetched:
        """Read every range; a range that can't be read is a FetchError among the values.

        Raises:
            Exception: what ``read_range`` raised, where it tells of a mistake in a program, not of one read.
        """
        began_s = time.perf_counter()
        tally = Tally()
        held = refs.uri_ids >= 0
        bad = refs.impossible
        values: list[Value] = [None] * len(refs)
        for row in np.flatnonzero(held & bad).tolist():
            ref = _ref(refs, row)
            why = f"an offset of {ref.offset} and a length of {ref.length}, which no range can have"
            values[row] = unread(ref, why, "correct the reference")
        held &= ~bad
        reads = self._sized(refs, np.flatnonzero(held & (refs.lengths >= 0)), tally)
        reads.update(self._to_end(refs, np.flatnonzero(held & (refs.lengths == TO_END)), tally))
        for row, read in reads.items():
            values[row] = _failed(_ref(refs, row), read) if isinstance(read, Failure) else _joined(read)
        referenced = sum(len(value) for value in values if isinstance(value, bytes))
        stats = FetchStats(
            requests=tally.requests,
            bytes_referenced=referenced,
            bytes_fetched=tally.bytes_fetched,
            seconds=time.perf_counter() - began_s,
            retries=tally.retries,
            throttles=tally.throttles,
            seconds_backoff=tally.seconds_backoff,
        )
        return Fetched(values, stats)

    def _sized(self, refs: BlobRefs, rows: IntArray, tally: Tally) -> dict[int, _Read]:
        """Read ranges of known length; those longer than a span in two goes, the last span's worth first."""
        lengths = refs.lengths[rows]
        is_long = lengths > self._span_bytes
        long, end_bytes = rows[is_long], self._span_bytes
        end_offsets = refs.offsets[long] + refs.lengths[long] - end_bytes
        ends = self._ranges(refs, long, end_offsets, np.full(len(long), end_bytes, np.int64), tally, self._span_bytes)
        reads: dict[int, _Read] = dict(zip(long.tolist(), ends, strict=True))

        failed = np.array([row for row, end in reads.items() if isinstance(end, Failure)], np.int64)
        go_on = ~np.isin(rows, failed)
        rows, lengths = rows[go_on], np.where(is_long, lengths - end_bytes, lengths)[go_on]
        span_bytes = min(self._span_bytes, max(LEAST_SPAN_BYTES, int(lengths.sum()) // self._concurrency))
        starts = self._ranges(refs, rows, refs.offsets[rows], lengths, tally, span_bytes)
        for row, start in zip(rows.tolist(), starts, strict=True):
            end = reads.get(row)
            if end is None or isinstance(end, Failure) or isinstance(start, Failure):
                reads[row] = start
            else:
                reads[row] = [*_parts(start), *_parts(end)]
        return reads

    def _ranges(
        self, refs: BlobRefs, rows: IntArray, offsets: IntArray, lengths: IntArray, tally: Tally, span_bytes: int
    ) -> list[_Read]:
        """Read ``offsets[i] + lengths[i]`` of the object of each of ``rows``, int64[m] all of them."""
        uri_ids = refs.uri_ids[rows]
        plan = plan_spans(uri_ids, offsets, lengths, gap_bytes=self._gap_bytes, span_bytes=span_bytes, waste=self._waste)
        spans = zip(plan.uri_ids.tolist(), plan.offsets.tolist(), plan.lengths.tolist(), strict=True)
        asked = [Request(refs.uris[uri_id], offset, length) for uri_id, offset, length in spans]
        answers = self._run(asked, tally)
        reads = _cut(answers, plan, offsets, lengths)

        # Where a merged request failed for a reason that may be one range's alone, ask for each range by itself. Not for
        # a range of several spans: it may be longer than a request may be.
        merged = [
            i
            for i, read in enumerate(reads)
            if isinstance(read, Failure) and read.verdict == "range" and plan.first[i] == plan.last[i]
        ]
        singly = set(asked)
        ranges = {i: Request(refs.uris[uri_ids[i]], int(offsets[i]), int(lengths[i])) for i in merged}
        alone = [i for i in merged if ranges[i] not in singly]
        single = list(dict.fromkeys(ranges[i] for i in alone))
        by_range = dict(zip(single, self._run(single, tally), strict=True))
        for i in alone:
            reads[i] = _whole(by_range[ranges[i]])
        return reads

    def _to_end(self, refs: BlobRefs, rows: IntArray, tally: Tally) -> dict[int, _Read]:
        """Read ranges of unknown length, each object's once per offset."""
        wanted = {row: Request(refs.uris[refs.uri_ids[row]], int(refs.offsets[row]), TO_END) for row in rows.tolist()}
        once = list(dict.fromkeys(wanted.values()))
        answers = dict(zip(once, self._run(once, tally), strict=True))
        return {row: _whole(answers[request]) for row, request in wanted.items()}

    def _run(self, requests: Sequence[Request], tally: Tally) -> list[Answer]:
        return run_requests(requests, self._read_range, self._pools.get(), self._policy, tally, self._pace)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "read_range": self._read_range,
            "gap_bytes": self._gap_bytes,
            "waste": self._waste,
            "span_bytes": self._span_bytes,
            "concurrency": self._concurrency,
            "timeout_s": self._policy.timeout_s,
            "retries": self._policy.retries,
            "backoff_s": self._policy.backoff_s,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # threads are not pickled

    def __repr__(self) -> str:
        return (
            f"RangeFetcher({self._read_range!r}, gap_bytes={self._gap_bytes}, span_bytes={self._span_bytes}, "
            f"concurrency={self._concurrency})"
        )


def _open_pool(owner: weakref.ref[RangeFetcher], threads: int) -> Pool:
    pool = Pool(threads, "lakehouse-fetch")
    fetcher = owner()
    if fetcher is not None:  # its threads end with it
        weakref.finalize(fetcher, pool.close).atexit = False
    return pool


def _cut(answers: Sequence[Answer], plan: SpanPlan, offsets: IntArray, lengths: IntArray) -> list[_Read]:
    """Each range's part of the spans; few lines for each, since there are as many as rows."""
    in_one = (plan.first >= 0) & (plan.first == plan.last)
    starts = offsets - np.append(plan.offsets, 0)[plan.first]  # [n] in the span; -1, where nothing is read, finds the 0
    stops = starts + lengths
    reads: list[_Read] = []
    places = zip(np.where(in_one, plan.first, -1).tolist(), starts.tolist(), stops.tolist(), strict=True)
    for i, (span, start, stop) in enumerate(places):
        answer = answers[span] if span >= 0 else None
        if type(answer) is bytes:
            reads.append(answer[start:stop])
        elif type(answer) is memoryview:
            reads.append(bytes(answer[start:stop]))
        else:
            reads.append(_pieces(answers, plan.pieces(int(offsets[i]), int(lengths[i]), i)))
    return reads


def _pieces(answers: Sequence[Answer], pieces: Iterable[tuple[int, int, int]]) -> _Read:
    """One range's parts of several spans; of a short answer what it holds."""
    parts: list[memoryview] = []
    for span, start, stop in pieces:
        answer = answers[span]
        data = answer.prefix if isinstance(answer, Failure) else answer
        if isinstance(answer, Failure) and stop > len(data):
            return answer
        parts.append(memoryview(data)[start:stop])
    return parts


def _whole(answer: Answer) -> _Read:
    return bytes(answer) if isinstance(answer, memoryview) else answer


def _parts(read: bytes | list[memoryview]) -> list[memoryview]:
    return [memoryview(read)] if isinstance(read, bytes) else read


def _joined(read: bytes | list[memoryview]) -> bytes:
    return read if isinstance(read, bytes) else b"".join(read)


def _ref(refs: BlobRefs, row: int) -> BlobRef:
    return BlobRef(refs.uris[refs.uri_ids[row]], int(refs.offsets[row]), int(refs.lengths[row]))


def _failed(ref: BlobRef, failure: Failure) -> FetchError:
    return unread(ref, failure.why, ADVICE[failure.verdict], failure.error)
