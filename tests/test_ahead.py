"""Reading a window ahead of its steps: the same values, fewer requests, within the bound, and nothing left behind."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lakehouse as lh
from lakehouse.errors import FetchError
from lakehouse.fetch import BlobRefs, Fetched, LocalFetcher, RangeFetcher
from lakehouse.testing import FaultyFetcher
from tests.training import make_index


class Remote:
    """A store in local files that counts requests, and the bytes that were read and not handed to a step yet."""

    def __init__(self, latency_s: float = 0.0) -> None:
        self.latency_s = latency_s
        self.calls: list[tuple[int, int]] = []

    def __call__(self, uri: str, offset: int, length: int) -> bytes:
        self.calls.append((offset, length))
        if self.latency_s:
            time.sleep(self.latency_s)
        with open(uri, "rb") as file:
            file.seek(offset)
            return file.read(length)


def blob(i: int, size: int = 2000) -> bytes:
    return i.to_bytes(4, "little") * (size // 4 + i % 7)


@pytest.fixture
def index(tmp_path: Path) -> lh.RowIndex:
    return make_index(tmp_path, {"id": list(range(1000))}, {"data": [None if i % 97 == 5 else blob(i) for i in range(1000)]})


def epoch(index: Any, fetcher: Any, **options: Any) -> tuple[list[list[int]], dict[int, Any], Any]:
    loader = lh.Loader(lh.Dataset(index, **{"batch_size": 16, "seed": 4, "fetcher": fetcher, **options}))
    order: list[list[int]] = []
    values: dict[int, Any] = {}
    for batch in loader:
        order.append(batch["id"].tolist())
        values.update(zip(order[-1], batch["data"], strict=True))
    return order, values, loader.stats


@pytest.mark.parametrize("shuffle", ["blocks", "rows", None])
@pytest.mark.parametrize("prefetch_bytes", [1, 200_000, 256 << 20])
def test_order_and_values_are_those_of_local_files(index: lh.RowIndex, shuffle: Any, prefetch_bytes: int) -> None:
    options = {"shuffle": shuffle, "prefetch_bytes": prefetch_bytes, "tail": "pad"}
    order, values, _ = epoch(index, LocalFetcher(), **options)
    again, remote, stats = epoch(index, RangeFetcher(Remote()), **options)
    assert again == order
    assert remote == values
    assert remote == {i: None if i % 97 == 5 else blob(i) for i in range(1000)}
    assert stats.bytes_fetched <= 1.05 * stats.bytes_referenced


def test_a_window_costs_few_requests_and_the_first_batch_waits_for_no_other(index: lh.RowIndex) -> None:
    store = Remote()
    _, _, stats = epoch(index, RangeFetcher(store))
    assert stats.requests == len(store.calls)
    assert stats.requests < 16 + 25  # a request a row for the first step, then spans of 1 MiB with holes for it
    assert stats.bytes_fetched == sum(length for _, length in store.calls)


def test_only_a_first_batch_that_is_waited_for_costs_a_request_a_row(index: lh.RowIndex) -> None:
    """An epoch that follows a whole one reads its first step with its window; one that follows a loop that was left doesn't."""
    store = Remote()
    loader = lh.Loader(lh.Dataset(index, batch_size=16, seed=4, fetcher=RangeFetcher(store)))
    requests: list[int] = []
    for taken in (None, None, 1, None):
        store.calls.clear()
        for number, _ in enumerate(loader, 1):
            if number == taken:
                break
        else:
            requests.append(len(store.calls))
    first, second, last = requests
    assert second < 8 < 16 < first < 16 + 25
    assert last > 16


def test_little_memory_costs_requests_and_not_bytes(index: lh.RowIndex) -> None:
    _, _, stats = epoch(index, RangeFetcher(Remote()), prefetch_bytes=100_000)
    assert 100 < stats.requests <= 1000
    assert stats.bytes_fetched <= 1.05 * stats.bytes_referenced


def test_one_large_step_does_not_make_all_that_follow_wait(tmp_path: Path) -> None:
    """As long as it is in flight it leaves no room for reads side by side; thirty-odd steps later there is room again."""
    lock = threading.Lock()
    under_way: list[int] = [0]
    side_by_side: list[int] = []

    class Counting(Remote):
        def __call__(self, uri: str, offset: int, length: int) -> bytes:
            with lock:
                under_way[0] += 1
                side_by_side.append(under_way[0])
            try:
                return super().__call__(uri, offset, length)
            finally:
                with lock:
                    under_way[0] -= 1

    rows = 1600
    index = make_index(tmp_path, {"id": list(range(rows))}, {"data": [bytes(600_000), *(blob(i) for i in range(1, rows))]})
    _, values, _ = epoch(index, RangeFetcher(Counting(0.002)), prefetch_bytes=1 << 20, shuffle=None)
    assert len(values) == rows
    assert max(side_by_side[len(side_by_side) // 2 :]) > 4


@pytest.mark.parametrize("wrong_bytes", [2**41, 2**50, 2**62, 2**63 - 5000])
def test_wrong_lengths_cost_their_own_rows_and_no_others(tmp_path: Path, wrong_bytes: int) -> None:
    """Lengths that no object has are neither planned as billions of requests, nor added up to beyond 64 bits."""
    whole = make_index(tmp_path, {"id": list(range(400))}, {"data": [blob(i) for i in range(400)]})
    refs = whole.blobs("data")
    wrong = np.arange(400) % 50 == 7
    refs = BlobRefs(refs.uris, refs.uri_ids, refs.offsets, np.where(wrong, wrong_bytes, refs.lengths))
    index = lh.RowIndex(whole.source, whole.schema, whole.row_ids, {"id": whole.column("id")}, {"data": refs})
    _, values, stats = epoch(index, RangeFetcher(Remote()), on_error="null", shuffle="blocks")
    assert values == {i: None if wrong[i] else blob(i) for i in range(400)}
    assert stats.bytes_referenced == sum(len(blob(i)) for i in np.flatnonzero(~wrong).tolist())


def test_bytes_referenced_are_those_that_arrived(index: lh.RowIndex) -> None:
    def missing(ref: lh.BlobRef) -> Any:
        return "missing" if ref.length % 3 == 0 else None

    _, values, stats = epoch(index, FaultyFetcher(RangeFetcher(Remote()), missing), on_error="null", batch_size=8)
    arrived = [len(value) for value in values.values() if value is not None]
    assert 500 < len(arrived) < 900
    assert stats.bytes_referenced == sum(arrived)


def test_values_held_stay_within_the_bound(index: lh.RowIndex) -> None:
    held: list[int] = []

    class Counting(RangeFetcher):
        def fetch(self, refs: BlobRefs) -> Fetched:
            held.append(refs.total_bytes)
            return super().fetch(refs)

    loader = lh.Loader(lh.Dataset(index, batch_size=16, seed=4, fetcher=Counting(Remote()), prefetch_bytes=1 << 20))
    taken = 0
    for batch in loader:
        taken += sum(len(data) for data in batch["data"] if data is not None)
        time.sleep(0.002)
        assert sum(held) - taken < (1 << 20) + 40_000


def test_threads_end_with_the_iteration(index: lh.RowIndex) -> None:
    def reading() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "lakehouse-ahead"]

    loader = lh.Loader(lh.Dataset(index, batch_size=16, seed=4, fetcher=RangeFetcher(Remote(0.01))))
    for _ in range(5):
        for _ in loader:
            break
    until = time.monotonic() + 10
    while reading() and time.monotonic() < until:
        time.sleep(0.05)
    assert not reading()


def test_a_call_that_fails_as_a_whole_is_taken_apart(index: lh.RowIndex) -> None:
    bad = index.blobs("data")[500]
    assert bad is not None
    bad_offset = bad.offset

    class Strict:
        whole_steps = True

        def fetch(self, refs: BlobRefs) -> Fetched:
            if np.any(refs.offsets == bad_offset):
                raise FetchError("one of these is bad")
            return LocalFetcher().fetch(refs)

    order, values, stats = epoch(index, Strict(), on_error="skip")
    assert stats.rows_skipped == 1
    assert sorted(values) == [i for i in sorted(i for batch in order for i in batch) if i != 500]
    assert 500 not in values


def test_a_mistake_in_a_fetcher_stops_the_run(index: lh.RowIndex) -> None:
    class Broken:
        whole_steps = True

        def fetch(self, refs: BlobRefs) -> Fetched:
            raise TypeError("a mistake")

    with pytest.raises(lh.LakehouseError, match=r"a mistake, raised by Broken"):
        epoch(index, Broken())


def test_a_mistake_is_told_by_the_step_that_it_is_in(index: lh.RowIndex) -> None:
    """A window is read at once, but the batches before the row at fault arrive, and the error names that row's own step."""
    order, _, _ = epoch(index, RangeFetcher(Remote()))
    number = 40
    fault = next(i for i in order[number] if i % 97 != 5)
    ref = index.blobs("data")[fault]
    assert ref is not None
    offset = ref.offset

    class Broken(RangeFetcher):
        def fetch(self, refs: BlobRefs) -> Fetched:
            if np.any(refs.offsets == offset):
                raise TypeError("a mistake")
            return super().fetch(refs)

    batches = iter(lh.Loader(lh.Dataset(index, batch_size=16, seed=4, fetcher=Broken(Remote()))))
    assert [next(batches)["id"].tolist() for _ in range(number)] == order[:number]
    with pytest.raises(
        lh.LakehouseError, match=rf"one of 16 rows, the first of them .* row {1000 + order[number][0]} .*a mistake"
    ):
        next(batches)


def test_a_mistake_that_does_not_show_again_is_not_lost(index: lh.RowIndex) -> None:
    class Once(RangeFetcher):
        calls = 0

        def fetch(self, refs: BlobRefs) -> Fetched:
            self.calls += 1
            if self.calls == 2:
                raise AssertionError("a mistake")
            return super().fetch(refs)

    with pytest.raises(lh.LakehouseError, match="AssertionError: a mistake, raised by Once"):
        epoch(index, Once(Remote()))


made: Any = Fetched  # of what it should not be made of


@pytest.mark.parametrize("whole_steps", [True, False])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda fetched: made(fetched.values, None), "values and stats of type list and NoneType"),  # hung
        (lambda fetched: fetched.values, "Odd.fetch returned list; it must return a Fetched"),
        (lambda fetched: made(iter(fetched.values), fetched.stats), "type list_iterator and FetchStats"),
        (lambda fetched: made(dict(enumerate(fetched.values)), fetched.stats), "type dict and FetchStats"),
        (lambda fetched: made([7] * len(fetched.values), fetched.stats), "row 1439 .*a value of type int"),  # 7 zero bytes
        (lambda fetched: made(["x"] * len(fetched.values), fetched.stats), "row 1439 .*a value of type str"),
        (lambda fetched: made([OSError("x")] * len(fetched.values), fetched.stats), "row 1439 .*a value of type OSError"),
        (lambda fetched: made([None] * len(fetched.values), fetched.stats), "row 1439 .*a value of type NoneType"),
    ],
)
@pytest.mark.parametrize("decode", [{}, {"data": lambda data, rng: len(data)}])
def test_an_answer_that_is_none_stops_the_run(
    index: lh.RowIndex, answer: Any, expected: str, decode: Any, whole_steps: bool
) -> None:
    class Odd:
        def fetch(self, refs: BlobRefs) -> Any:
            return answer(LocalFetcher().fetch(refs))

    fetcher = Odd()
    fetcher.whole_steps = whole_steps  # type: ignore[attr-defined]
    with pytest.raises(lh.LakehouseError, match=expected):
        epoch(index, fetcher, decode=decode, on_error="skip")


@pytest.mark.parametrize(("offset", "length"), [(2**63 - 50, 100), (2**63 - 1, 2**63 - 1), (-5, 10), (0, -7), (0, 2**62)])
@pytest.mark.parametrize("prefetch_bytes", [100_000, 256 << 20])
def test_a_range_that_no_object_can_have_is_one_bad_row(
    index: lh.RowIndex, offset: int, length: int, prefetch_bytes: int
) -> None:
    refs = index.blobs("data")
    offsets, lengths = refs.offsets.copy(), refs.lengths.copy()
    offsets[300], lengths[300] = offset, length
    index._blobs["data"] = BlobRefs(refs.uris, refs.uri_ids, offsets, lengths)
    options = {"tail": "pad", "on_error": "skip", "prefetch_bytes": prefetch_bytes}
    _, values, stats = epoch(index, RangeFetcher(Remote(), backoff_s=0), **options)
    assert dict(stats.reasons) == {"FetchError": 1}
    assert values == {i: None if i % 97 == 5 else blob(i) for i in range(1000) if i != 300}


def test_more_ranks_than_rows_are_padded(tmp_path: Path) -> None:
    few = make_index(tmp_path, {"id": [0, 1, 2]}, {"data": [blob(i) for i in range(3)]})
    for shuffle in ("blocks", "blocks:2x1", "rows", None):
        seen = []
        for rank in range(4):
            ds = lh.Dataset(few, batch_size=2, shuffle=shuffle, rank=rank, world=4, tail="pad", fetcher=RangeFetcher(Remote()))
            for batch in lh.Loader(ds):
                assert batch["data"] == [blob(i) for i in batch["id"].tolist()]
                seen += batch["id"][batch["valid"]].tolist()
        assert sorted(seen) == [0, 1, 2]


@pytest.mark.parametrize("wrong", [lambda values: values[:-1], lambda values: [*values, b"more"], lambda values: None])
def test_another_number_of_values_than_was_asked_for_stops_the_run(index: lh.RowIndex, wrong: Any) -> None:
    class Wrong(RangeFetcher):
        def fetch(self, refs: BlobRefs) -> Fetched:
            fetched = super().fetch(refs)
            return Fetched(wrong(fetched.values), fetched.stats)

    with pytest.raises(lh.LakehouseError, match=r"Wrong\.fetch returned (\d+ values for 16|.* of type NoneType)"):
        epoch(index, Wrong(Remote()))


def test_unknown_lengths_are_read_by_their_own_steps(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"id": [0, 1]}, {"data": [b"one", b"two"]})
    refs = index.blobs("data")
    whole = BlobRefs(refs.uris, refs.uri_ids, refs.offsets, np.array([3, -1]))
    index._blobs["data"] = whole
    _, values, _ = epoch(index, RangeFetcher(Remote()), batch_size=1)
    assert values[0] == b"one"
    assert values[1].startswith(b"two")


def test_several_columns_and_mixtures_are_read_by_their_own_tables(tmp_path: Path) -> None:
    blobs = {"data": [blob(i) for i in range(200)], "more": [blob(i, 300) for i in range(200)]}
    two = make_index(tmp_path / "two", {"id": list(range(200))}, blobs)
    loader = lh.Loader(lh.Dataset(two, batch_size=16, seed=1, tail="pad", fetcher=RangeFetcher(Remote())))
    for batch in loader:
        for i, data, more in zip(batch["id"].tolist(), batch["data"], batch["more"], strict=True):
            assert (data, more) == (blob(i), blob(i, 300))

    # Both refer to the same file, and each is read by its own fetcher.
    one = make_index(tmp_path / "one", {"id": list(range(200))}, {"data": blobs["data"]})
    asked: list[str] = []

    class Named:
        whole_steps = True

        def __init__(self, name: str) -> None:
            self.name = name

        def fetch(self, refs: BlobRefs) -> Fetched:
            asked.append(self.name)
            fetched = LocalFetcher().fetch(refs)
            return Fetched([bytes(v) + self.name.encode() for v in fetched.values], fetched.stats)  # type: ignore[arg-type]

    parts = {name: one.take(np.arange(200)) for name in "ab"}
    for name, part in parts.items():
        part.fetcher = lambda name=name: Named(name)  # type: ignore[method-assign, misc]
    mixture = lh.Mixture({name: (part, 0.5) for name, part in parts.items()})
    seen = set()
    for batch in lh.Loader(lh.Dataset(mixture, batch_size=16, seed=1)):
        for i, data in zip(batch["id"].tolist(), batch["data"], strict=True):
            assert data[:-1] == blob(i)
            seen.add(data[-1:])
    assert seen == {b"a", b"b"}
    assert set(asked) == {"a", "b"}
