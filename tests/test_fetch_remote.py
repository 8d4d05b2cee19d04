"""Ranges through a function: planned, concurrent, repeated where that helps, and never waited for beyond the time limit."""

from __future__ import annotations

import asyncio
import errno
import http.client
import http.server
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import ConfigError, FetchError
from lakehouse.fetch import BlobRef, BlobRefs, Fetched, RangeFetcher

URI = "mem://bucket/object"
DATA = np.random.default_rng(0).bytes(100_000)

Fault = Callable[[str, int, int, int], BaseException | bytes | None]  # (uri, offset, length, call number) -> instead


class Store:
    """A ``read_range`` over bytes in memory that counts, and can be made to fail."""

    def __init__(self, data: bytes = DATA, fault: Fault | None = None, latency_s: float = 0.0) -> None:
        self.data = data
        self.fault = fault
        self.latency_s = latency_s
        self.calls: list[tuple[str, int, int]] = []
        self.at_once = 0
        self.most_at_once = 0
        self._lock = threading.Lock()

    def __call__(self, uri: str, offset: int, length: int) -> bytes:
        with self._lock:
            self.calls.append((uri, offset, length))
            number = len(self.calls)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.latency_s:
                time.sleep(self.latency_s)
            instead = None if self.fault is None else self.fault(uri, offset, length, number)
            if isinstance(instead, BaseException):
                raise instead
            if instead is not None:
                return instead
            return self.data[offset:] if length == -1 else self.data[offset : offset + length]
        finally:
            with self._lock:
                self.at_once -= 1


def fetcher_over(store: Callable[[str, int, int], bytes], **options: Any) -> RangeFetcher:
    return RangeFetcher(store, **{"backoff_s": 0.001, "concurrency": 8, **options})


def refs_of(*ranges: tuple[int, int]) -> BlobRefs:
    return BlobRefs.of([BlobRef(URI, offset, length) for offset, length in ranges])


def error_of(fetched: Fetched, row: int) -> str:
    value = fetched.values[row]
    assert isinstance(value, FetchError)
    return str(value)


def status_error(status: int) -> Exception:
    error = Exception(f"status {status}")
    error.status = status  # type: ignore[attr-defined]
    return error


# ---- values


@given(
    st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 900), st.integers(-1, 100)), max_size=25),
    st.integers(0, 50),
    st.integers(1, 120),
)
def test_every_value_comes_back_in_the_order_asked(ranges: list[tuple[int, int, int]], gap_bytes: int, span_bytes: int) -> None:
    columns = np.array(ranges, np.int64).reshape(-1, 3)
    refs = BlobRefs((URI, f"{URI}2", f"{URI}3"), columns[:, 0], columns[:, 1], columns[:, 2])
    store = Store(DATA[:1_000])
    fetched = fetcher_over(store, gap_bytes=gap_bytes, span_bytes=span_bytes).fetch(refs)
    expected = [
        None if uri < 0 else DATA[offset:1_000] if length < 0 else DATA[offset : offset + length]
        for uri, offset, length in ranges
    ]
    assert fetched.values == expected
    assert all(value is None or isinstance(value, bytes) for value in fetched.values)
    assert fetched.stats.requests == len(store.calls)
    assert fetched.stats.retries == 0
    assert fetched.stats.bytes_referenced == sum(len(value) for value in expected if value)
    assert fetched.stats.bytes_fetched == sum(len(store.data[o:]) if n < 0 else n for _, o, n in store.calls)
    assert all(length <= span_bytes for _, _, length in store.calls)


def test_gap_0_fetches_exactly_what_is_referenced() -> None:
    refs = refs_of((0, 10), (10, 5), (40, 10), (45, 20), (40, 10), (90_000, 1))
    store = Store()
    fetched = fetcher_over(store, gap_bytes=0).fetch(refs)
    assert fetched.stats.bytes_fetched == 15 + 25 + 1
    assert sorted(store.calls) == [(URI, 0, 15), (URI, 40, 25), (URI, 90_000, 1)]
    merged = fetcher_over(store, gap_bytes=25).fetch(refs)
    assert merged.stats.bytes_fetched == 65 + 1
    assert merged.stats.requests == 2


def test_a_range_longer_than_a_span_is_read_in_parts_at_once() -> None:
    store = Store(latency_s=0.02)
    fetched = fetcher_over(store, span_bytes=1_000).fetch(refs_of((500, 9_500), (10_000, 10), (500, 9_500)))
    assert fetched.values == [DATA[500:10_000], DATA[10_000:10_010], DATA[500:10_000]]
    assert fetched.stats.bytes_fetched == 9_510
    assert store.most_at_once > 1


def test_a_value_does_not_keep_its_span_alive() -> None:
    """One blob of 10 bytes kept from each merged request of 50 kB."""
    store = Store(DATA, latency_s=0.0)
    refs = refs_of((0, 10), (50_000, 49_999))
    kept = [fetcher_over(store, gap_bytes=60_000).fetch(refs).values[0] for _ in range(3)]
    assert all(isinstance(value, bytes) and len(value) == 10 for value in kept)  # bytes own their memory


def test_other_buffers_are_taken() -> None:
    kinds: list[Callable[[bytes], bytearray | memoryview]] = [bytearray, memoryview]
    for kind in kinds:

        def read_range(uri: str, offset: int, length: int) -> bytearray | memoryview:
            return kind(DATA[offset : offset + length])  # noqa: B023 - called before the next turn

        fetched = RangeFetcher(read_range).fetch(refs_of((5, 3)))
        assert fetched.values == [DATA[5:8]]


def test_nothing_to_read_asks_nothing() -> None:
    store = Store()
    fetched = fetcher_over(store).fetch(BlobRefs.of([None, BlobRef(URI, 7, 0), None]))
    assert fetched.values == [None, b"", None]
    assert fetcher_over(store).fetch(BlobRefs.of([])).values == []
    assert store.calls == []


@pytest.mark.parametrize(("offset", "length"), [(-1, 4), (-1, -1), (4, -2), (2**63 - 3, 2**62)])
def test_ranges_that_can_not_be_are_refused_without_asking(offset: int, length: int) -> None:
    store = Store()
    fetched = fetcher_over(store).fetch(refs_of((offset, length), (0, 4)))
    assert re.search(rf"{offset}\+.*which no range can have; correct the reference", error_of(fetched, 0))
    assert fetched.values[1] == DATA[:4]
    assert store.calls == [(URI, 0, 4)]


@pytest.mark.timeout(20)
def test_an_absurd_length_costs_one_request_and_no_memory() -> None:
    store = Store()
    fetched = fetcher_over(store, retries=0).fetch(refs_of((10, 2**60), (0, 4), (10, 90_000)))
    assert "got 0 bytes, expected 8388608" in error_of(fetched, 0)
    assert fetched.values[1:] == [DATA[:4], DATA[10:90_010]]
    assert fetched.stats.bytes_fetched == 90_010
    assert len(store.calls) == 2


# ---- concurrency


def test_requests_are_in_flight_together_and_no_more_than_allowed() -> None:
    store = Store(latency_s=0.01)
    fetcher = fetcher_over(store, gap_bytes=0, concurrency=5)
    refs = [refs_of(*((at, 10) for at in range(k, 90_000, 5_000))) for k in range(0, 4_000, 500)]
    with ThreadPoolExecutor(8) as threads:  # all callers together
        fetched = list(threads.map(fetcher.fetch, refs))
    assert store.most_at_once == 5
    for asked, answer in zip(refs, fetched, strict=True):
        assert answer.values == [DATA[at : at + 10] for at in asked.offsets.tolist()]


def test_threads_are_made_when_needed_and_end_with_the_fetcher() -> None:
    before = set(threading.enumerate())  # other tests leave some behind on purpose

    def count() -> int:
        return sum(thread.name == "lakehouse-fetch" for thread in set(threading.enumerate()) - before)

    fetcher = fetcher_over(Store(latency_s=0.01), gap_bytes=0, concurrency=4)
    assert count() == 0
    for _ in range(3):
        fetcher.fetch(refs_of((0, 1)))
    assert count() == 1  # one request at a time needs one thread
    fetcher.fetch(refs_of(*((at, 1) for at in range(0, 900, 10))))
    assert count() == 4
    del fetcher
    _wait_until(lambda: count() == 0)


def _wait_until(true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.005)


# ---- faults


@pytest.mark.parametrize(
    "fault",
    [
        status_error(429),
        status_error(503),
        status_error(500),
        OSError(errno.EBUSY, "Please reduce your request rate."),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        TimeoutError("read timed out"),
        asyncio.TimeoutError(),
        http.client.IncompleteRead(b"12", 5),
        OSError("When reading 'a': AWS Error SLOW_DOWN during GetObject operation"),
        b"short",
        b"",
        DATA,  # a server that ignores ranges
    ],
    ids=repr,
)
def test_what_may_pass_is_tried_again(fault: BaseException | bytes) -> None:
    times = 2 if isinstance(fault, bytes) else 5
    store = Store(fault=lambda uri, offset, length, number: fault if number <= times else None)
    fetched = fetcher_over(store).fetch(refs_of((100, 50)))
    assert fetched.values == [DATA[100:150]]
    assert (fetched.stats.requests, fetched.stats.retries, len(store.calls)) == (times + 1, times, times + 1)


@pytest.mark.parametrize(
    "fault",
    [
        FileNotFoundError(2, "No such file"),
        PermissionError("Access Denied"),
        status_error(404),
        status_error(403),
        OSError("When reading 'a': AWS Error ACCESS_DENIED during GetObject operation"),
        OSError("AWS Error NO_SUCH_KEY during GetObject operation"),
        ValueError("no idea"),
        OSError(errno.EIO, "Input/output error"),
        KeyError("object"),
    ],
    ids=repr,
)
def test_what_stays_is_not_tried_again(fault: BaseException) -> None:
    store = Store(fault=lambda *_: fault)
    fetched = fetcher_over(store).fetch(refs_of((100, 50)))
    assert len(store.calls) == 1
    assert fetched.stats.retries == 0
    value = fetched.values[0]
    assert isinstance(value, FetchError)
    assert value.__cause__ is fault
    assert str(value).startswith(f"can't read {URI} 100+50: {type(fault).__name__}: ")


def test_one_missing_object_does_not_take_the_others_along() -> None:
    def fault(uri: str, offset: int, length: int, number: int) -> BaseException | None:
        return FileNotFoundError(uri) if uri.endswith("/3") else PermissionError(uri) if uri.endswith("/7") else None

    store = Store(fault=fault)
    fetched = fetcher_over(store).fetch(BlobRefs.of([BlobRef(f"mem://b/{i % 10}", i, 5) for i in range(20)]))
    bad = [i for i, value in enumerate(fetched.values) if isinstance(value, FetchError)]
    assert bad == [3, 7, 13, 17]
    assert all(fetched.values[i] == DATA[i : i + 5] for i in range(20) if i not in bad)
    assert error_of(fetched, 13).endswith("its table was made again since, open the table again")
    assert error_of(fetched, 17).endswith("; give these credentials the right to read it")
    assert Counter(uri for uri, _, _ in store.calls) == {f"mem://b/{i}": 1 for i in range(10)}  # all else merged, too


def test_one_range_beyond_the_end_leaves_those_merged_with_it() -> None:
    store = Store(DATA[:1_000])
    fetched = fetcher_over(store).fetch(refs_of((900, 50), (960, 60), (950, 10), (990, -1)))
    assert fetched.values[0] == DATA[900:950]
    assert fetched.values[2:] == [DATA[950:960], DATA[990:1_000]]
    assert error_of(fetched, 1) == (
        f"can't read {URI} 960+60: got 100 bytes, expected 120 (asked for 900+120) (tried 3 times); "
        "restore the object, or read a snapshot that does not need it"
    )


def test_one_bad_range_leaves_those_merged_with_it() -> None:
    def bad_sector(uri: str, offset: int, length: int, number: int) -> BaseException | None:
        return OSError(errno.EIO, "Input/output error") if offset <= 130 < offset + length else None

    store = Store(fault=bad_sector)
    fetched = fetcher_over(store).fetch(refs_of((100, 20), (120, 20), (140, 20), (120, 20), (140, 20)))
    assert [isinstance(value, FetchError) for value in fetched.values] == [False, True, False, True, False]
    assert fetched.values[0] == DATA[100:120]
    assert fetched.values[2] == fetched.values[4] == DATA[140:160]
    assert sorted(store.calls) == [(URI, 100, 20), (URI, 100, 60), (URI, 120, 20), (URI, 140, 20)]


def test_retries_end() -> None:
    store = Store(fault=lambda *_: status_error(503))
    fetched = fetcher_over(store, retries=2).fetch(refs_of((0, 4), (50, 4)))
    assert len(store.calls) == 3
    assert error_of(fetched, 1) == (
        f"can't read {URI} 50+4: Exception: status 503 (tried 3 times); lower `concurrency`, or raise `retries`"
    )


def test_a_fifth_of_all_requests_throttled() -> None:
    throttled = np.random.default_rng(5).random(10_000) < 0.2
    store = Store(fault=lambda uri, offset, length, number: status_error(503) if throttled[number] else None)
    refs = refs_of(*((at, 20) for at in range(0, 90_000, 250)))
    fetched = fetcher_over(store, gap_bytes=0).fetch(refs)
    assert fetched.values == [DATA[at : at + 20] for at in range(0, 90_000, 250)]
    assert fetched.stats.retries == len(store.calls) - 360 > 30


@pytest.mark.timeout(20)
def test_a_read_that_never_returns_is_left_behind() -> None:
    before = set(threading.enumerate())
    release = threading.Event()

    def fault(uri: str, offset: int, length: int, number: int) -> bytes | None:
        if offset == 500 and number <= 2:
            release.wait()
            return b"x" * length  # too late: must never be taken for another try's answer
        return None

    store = Store(fault=fault)
    fetcher = fetcher_over(store, gap_bytes=0, timeout_s=0.15, concurrency=1)
    began_s = time.monotonic()
    try:
        fetched = fetcher.fetch(refs_of((500, 10), (0, 10), (900, 10)))
        assert fetched.values == [DATA[500:510], DATA[:10], DATA[900:910]]
        assert 0.15 <= time.monotonic() - began_s < 5
        assert fetched.stats.retries >= 1
        assert fetcher.fetch(refs_of((40, 10))).values == [DATA[40:50]]
    finally:
        release.set()
    assert fetcher.fetch(refs_of((500, 10))).values == [DATA[500:510]]
    _wait_until(lambda: len(set(threading.enumerate()) - before) <= 1)


@pytest.mark.timeout(20)
def test_a_store_that_never_answers_costs_a_bounded_number_of_threads() -> None:
    release = threading.Event()
    store = Store(fault=lambda *_: (release.wait(), b"")[1])
    fetcher = fetcher_over(store, gap_bytes=0, timeout_s=0.02, concurrency=2, retries=1)
    try:
        fetched = fetcher.fetch(refs_of(*((at, 10) for at in range(0, 4_000, 100))))
        assert 8 <= len(store.calls) <= 9  # 4 * concurrency, and what was taken before that many hung
        assert "no answer within 0.02 s (tried 2 times)" in error_of(fetched, 0)
        assert re.search("[89] earlier reads of this process never returned", error_of(fetched, 39))
    finally:
        release.set()
    store.fault = None
    _wait_until(lambda: fetcher.fetch(refs_of((5, 3))).values == [DATA[5:8]])  # it recovers when they return


@pytest.mark.timeout(20)
def test_waiting_for_a_thread_is_not_the_stores_fault() -> None:
    """16 requests of 50 ms over one thread, with a limit of 400 ms each: no time-out, though the last waits 750 ms."""
    store = Store(latency_s=0.05)
    fetcher = fetcher_over(store, concurrency=1, timeout_s=0.4, retries=0)
    with ThreadPoolExecutor(16) as threads:
        fetched = list(threads.map(lambda at: fetcher.fetch(refs_of((at, 1))), range(16)))
    assert [answer.values for answer in fetched] == [[DATA[at : at + 1]] for at in range(16)]


@pytest.mark.timeout(20)
def test_who_waits_behind_a_read_that_never_returns_is_served_when_that_is_left_behind() -> None:
    release, begun = threading.Event(), threading.Event()

    def fault(uri: str, offset: int, length: int, number: int) -> None:
        if offset == 500:
            begun.set()
            release.wait()

    fetcher = fetcher_over(Store(fault=fault), concurrency=1, timeout_s=0.2, retries=0)
    with ThreadPoolExecutor(2) as threads:
        stuck = threads.submit(fetcher.fetch, refs_of((500, 10)))
        begun.wait()
        behind = threads.submit(fetcher.fetch, refs_of((40, 10)))
        try:
            assert behind.result(timeout=10).values == [DATA[40:50]]
            assert "no answer within 0.2 s" in error_of(stuck.result(timeout=10), 0)
        finally:
            release.set()


@pytest.mark.parametrize("mistake", [TypeError("bug"), AttributeError("bug"), ConfigError("bug"), ImportError("Install s3fs")])
def test_a_mistake_in_the_program_is_raised(mistake: Exception) -> None:
    store = Store(fault=lambda uri, offset, length, number: mistake if offset == 500 else None)
    with pytest.raises(type(mistake)) as caught:
        fetcher_over(store, gap_bytes=0).fetch(refs_of((0, 4), (500, 4)))
    assert caught.value is mistake
    assert any(entry.name == "__call__" for entry in caught.traceback)  # where it happened, in the thread
    with pytest.raises(TypeError, match="NoneType"):
        RangeFetcher(lambda *_: None).fetch(refs_of((0, 4)))  # type: ignore[arg-type]


def test_the_programs_own_randomness_is_left_alone() -> None:
    random.seed(7)
    before = random.getstate()
    store = Store(fault=lambda uri, offset, length, number: status_error(503) if number <= 3 else None)
    assert fetcher_over(store).fetch(refs_of((0, 4))).stats.retries == 3
    assert random.getstate() == before


def test_arguments_are_checked() -> None:
    for wrong in (
        {"gap_bytes": -1},
        {"span_bytes": 0},
        {"concurrency": 0},
        {"timeout_s": 0},
        {"retries": -1},
        {"backoff_s": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            RangeFetcher(Store(), **wrong)
    with pytest.raises(TypeError, match="read_range"):
        RangeFetcher("s3://bucket")  # type: ignore[arg-type]
