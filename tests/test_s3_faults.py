"""A store that is slow, throttles, breaks off, stalls, lies or refuses: what training delivers all the same, and says."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.errors import FetchError
from lakehouse.fetch import BlobRef, BlobRefs, RangeFetcher
from lakehouse.stores import S3Settings, Store
from lakehouse.stores.readers import BotocoreReader
from lakehouse.stores.s3 import S3Access
from tests.stores.fixtures import lake_on
from tests.stores.proxy import Fault, Proxy, Request
from tests.stores.server import SECRET_KEY, S3Server

ROWS = 400
SCHEMA = pa.schema([("id", pa.int64()), ("frame", pa.large_binary())])
WAITS: dict[str, Any] = {"timeout_s": 1.0, "backoff_s": 0.01, "gap_bytes": 0}


def frame(i: int) -> bytes:
    return i.to_bytes(4, "little") * (500 + i % 50)


@pytest.fixture(scope="module")
def options(s3_server: S3Server) -> dict[str, str]:
    """A warehouse with 400 rows in five files."""
    lake = lake_on(s3_server)
    table = lake.connect().create_table("default.frames", SCHEMA)
    for first in range(0, ROWS, 80):
        table.append([{"id": i, "frame": frame(i)} for i in range(first, first + 80)])
    return lake.options


@pytest.fixture
def index(options: dict[str, str], s3_proxy: Proxy) -> lh.RowIndex:
    """An index whose bytes come through the proxy."""
    catalog = lh.connect({**options, **s3_proxy.server.options()})
    index = catalog.table("default.frames").latest().query().index()
    s3_proxy.reset()
    return index


def refs_of(index: lh.RowIndex, *rows: int) -> BlobRefs:
    return index.blobs("frame").take(list(rows))


def fetcher_of(options: dict[str, str], proxy: Proxy, **policy: Any) -> RangeFetcher:
    """With waits that suit a test."""
    return RangeFetcher(Store({**options, **proxy.server.options()}).read_range, **{**WAITS, **policy})


def in_forked_processes(options: dict[str, str], proxy: Proxy) -> RangeFetcher:
    """Reads as processes do that were forked from one that had read before."""
    reader = BotocoreReader(S3Access(S3Settings.of({**options, **proxy.server.options()})))
    reader._client_of()  # takes a second to make on a busy machine, the time that a try has here
    return RangeFetcher(reader, **WAITS)


def once(fault: Fault) -> Callable[[Request], Fault | None]:
    """The first request for each range meets the fault; those that repeat it do not."""
    return lambda request: None if request.again else fault


@pytest.mark.parametrize("make", [fetcher_of, in_forked_processes])
@pytest.mark.parametrize("fault", ["500", "503", "429", "reset", "truncated", "stall", "stall-inside", "wrong-range", "whole"])
def test_a_fault_that_passes_costs_another_request_and_nothing_else(
    fault: Fault, make: Callable[..., RangeFetcher], options: dict[str, str], index: lh.RowIndex, s3_proxy: Proxy
) -> None:
    s3_proxy.rule = once(fault)
    rows = [3, 90, 399, 200]
    fetched = make(options, s3_proxy).fetch(refs_of(index, *rows))
    assert fetched.values == [frame(i) for i in rows]
    assert s3_proxy.faults[fault] == len(rows)
    assert fetched.stats.retries == len(rows)
    assert fetched.stats.throttles == (len(rows) if fault in ("503", "429") else 0)
    assert fetched.stats.seconds_backoff > 0
    assert fetched.stats.bytes_fetched < 2.1 * fetched.stats.bytes_referenced


@pytest.mark.parametrize("fault", ["stall", "stall-inside"])
def test_a_stall_ends_by_the_time_limit(fault: Fault, options: dict[str, str], index: lh.RowIndex, s3_proxy: Proxy) -> None:
    s3_proxy.rule = lambda request: fault
    began = time.monotonic()
    fetched = fetcher_of(options, s3_proxy, timeout_s=0.3, retries=1).fetch(refs_of(index, 1))
    assert time.monotonic() - began < 5
    (value,) = fetched.values
    assert isinstance(value, FetchError)
    assert "no answer within 0.3 s" in str(value)
    assert "tried 2 times" in str(value)


@pytest.mark.parametrize("make", [fetcher_of, in_forked_processes])
@pytest.mark.parametrize(("fault", "words"), [("403", "AccessDenied"), ("404", "NoSuchKey"), ("expired", "ExpiredToken")])
def test_what_another_try_does_not_change_is_not_tried_again(
    fault: Fault,
    words: str,
    make: Callable[..., RangeFetcher],
    options: dict[str, str],
    index: lh.RowIndex,
    s3_proxy: Proxy,
) -> None:
    s3_proxy.rule = lambda request: fault
    fetched = make(options, s3_proxy).fetch(refs_of(index, 5))
    (value,) = fetched.values
    assert isinstance(value, FetchError)
    ref = refs_of(index, 5)[0]
    assert ref is not None
    assert ref.uri in str(value)
    assert words in str(value)
    assert SECRET_KEY not in str(value)
    assert len(s3_proxy.requests) == 1
    assert fetched.stats.retries == 0


def test_one_missing_object_is_its_own_rows_fault(options: dict[str, str], index: lh.RowIndex, s3_proxy: Proxy) -> None:
    gone = refs_of(index, 100)[0]
    assert gone is not None
    name = gone.uri.rpartition("/")[2]
    s3_proxy.rule = lambda request: "404" if name in request.path else None
    values = fetcher_of(options, s3_proxy).fetch(refs_of(index, *range(0, 400, 10))).values
    bad = [10 * i for i, value in enumerate(values) if isinstance(value, FetchError)]
    assert bad == list(range(80, 160, 10))
    assert all(values[i // 10] == frame(i) for i in range(0, 400, 10) if i not in bad)


def test_an_epoch_with_a_tenth_of_requests_failing_is_exact(
    options: dict[str, str], index: lh.RowIndex, s3_proxy: Proxy
) -> None:
    generator = random.Random(5)
    faults: list[Fault] = ["500", "503", "429", "reset", "truncated", "wrong-range"]

    def rule(request: Request) -> Fault | None:
        return generator.choice(faults) if request.method == "GET" and generator.random() < 0.1 else None

    s3_proxy.rule = rule
    clean = [batch["id"].tolist() for batch in lh.Loader(lh.Dataset(index, batch_size=8, seed=1, columns=["id"]))]
    # Small spans, so that there are many requests.
    fetcher = fetcher_of(options, s3_proxy, span_bytes=4096, waste=0.0)
    loader = lh.Loader(lh.Dataset(index, batch_size=8, seed=1, verify=True, fetcher=fetcher))
    seen: list[int] = []
    for batch in loader:
        for i, data in zip(batch["id"].tolist(), batch["frame"], strict=True):
            assert data == frame(i)
            seen.append(i)
    assert sorted(seen) == list(range(ROWS))
    assert len(clean) == len(loader)
    stats = loader.stats
    assert s3_proxy.faults.total() > 10
    assert stats.retries == s3_proxy.faults.total()
    assert stats.throttles == s3_proxy.faults["503"] + s3_proxy.faults["429"]
    assert stats.seconds_backoff > 0
    assert stats.requests == len(s3_proxy.requests)
    assert stats.rows_skipped == 0


@pytest.mark.parametrize("seed", range(3))
def test_all_else_goes_on_too_with_a_tenth_of_requests_failing(s3_proxy: Proxy, seed: int) -> None:
    """Making, appending, tagging, changing, opening and indexing a table."""
    generator = random.Random(seed)
    faults: list[Fault] = ["500", "503", "reset"]

    def rule(request: Request) -> Fault | None:
        # pyarrow, by which pypaimon reads, gives up where a refusal is longer than what was asked for: tests/upstream.
        low, high = request.range or (0, 1 << 20)
        return generator.choice(faults) if generator.random() < 0.1 and high - low >= 1024 else None

    s3_proxy.rule = rule
    lake = lake_on(s3_proxy.server)
    table = lake.connect().create_table("default.frames", SCHEMA)
    for first in range(0, 60, 20):
        table.append([{"id": i, "frame": frame(i)} for i in range(first, first + 20)])
        table.tag(f"v{first}")
    table.delete("id = 3")
    table.update("id = 5", {"frame": b"new"})
    for _ in range(5):
        opened = lake.connect().table("default.frames")
        assert opened.at(tag="v20").count_rows() == 40
    loader = lh.Loader(lh.Dataset(opened.latest().query().index(), batch_size=59))
    seen = [pair for batch in loader for pair in zip(batch["id"].tolist(), batch["frame"], strict=True)]
    assert sorted(seen) == [(i, b"new" if i == 5 else frame(i)) for i in range(60) if i != 3]
    assert s3_proxy.faults.total() > 20


def test_the_order_does_not_depend_on_faults(index: lh.RowIndex, s3_proxy: Proxy) -> None:
    def epoch() -> list[list[int]]:
        return [batch["id"].tolist() for batch in lh.Loader(lh.Dataset(index, batch_size=8, seed=1))]

    expected = epoch()
    s3_proxy.rule = lambda request: "503" if request.number % 3 == 0 and not request.again else None
    assert epoch() == expected


def test_rows_whose_object_is_refused_are_bad_rows(index: lh.RowIndex, s3_proxy: Proxy) -> None:
    denied = refs_of(index, 0)[0]
    assert denied is not None
    s3_proxy.rule = lambda request: "403" if denied.uri.rpartition("/")[2] in request.path else None
    loader = lh.Loader(lh.Dataset(index, batch_size=10, on_error="skip"))
    reports = [report for batch in loader for report in batch["_bad"]]
    assert sorted(report["row"] for report in reports) == list(range(80))
    assert {report["uri"] for report in reports} == {denied.uri}
    assert all("AccessDenied" in report["cause"] for report in reports)
    with pytest.raises(lh.FetchError, match=r"default\.frames@5 row \d+ column frame .*AccessDenied"):
        list(lh.Loader(lh.Dataset(index, batch_size=10)))


def test_a_throttled_store_is_asked_less(options: dict[str, str], index: lh.RowIndex, s3_proxy: Proxy) -> None:
    fetcher = fetcher_of(options, s3_proxy, concurrency=32)
    s3_proxy.rule = once("503")
    fetcher.fetch(refs_of(index, *range(0, 400, 8)))
    assert fetcher._pace.limit < 32
    s3_proxy.rule = None
    for _ in range(20):
        fetcher.fetch(refs_of(index, *range(0, 400, 8)))
    assert fetcher._pace.limit == 32


def test_reading_through_a_reference(options: dict[str, str], index: lh.RowIndex, s3_proxy: Proxy) -> None:
    table = lh.connect({**options, **s3_proxy.server.options()}).table("default.frames")
    s3_proxy.rule = lambda request: "503" if "/bucket-0/" in request.path and not request.again else None
    ref = index.row(7)["frame"]
    assert isinstance(ref, BlobRef)
    assert ref.read(table) == frame(7)
