"""References as values: checked when made, frozen, taken without a Python object per row."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lakehouse.errors import FetchError
from lakehouse.fetch import BlobRef, BlobRefs, Fetcher, FetchStats, LocalFetcher, TableFetcher, fetch_blob

REFS = [BlobRef("/a.blob", 4, 10), None, BlobRef("/b.blob", 0, -1), BlobRef("/a.blob", 30, 0), BlobRef("/c")]


class Table:
    """The least that `fetch_blob` asks of a table."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def fetcher(self) -> Fetcher:
        return self._fetcher


def same(a: BlobRefs, b: BlobRefs) -> bool:
    return list(a) == list(b) and a.uris == b.uris


def test_a_ref_is_a_value_and_orders_as_written() -> None:
    assert BlobRef("/a") == BlobRef("/a", 0, -1)
    assert sorted([BlobRef("/b"), BlobRef("/a", 9, 1), BlobRef("/a", 9, 0), BlobRef("/a", 1, 5)]) == [
        BlobRef("/a", 1, 5),
        BlobRef("/a", 9, 0),
        BlobRef("/a", 9, 1),
        BlobRef("/b"),
    ]
    assert len({BlobRef("/a", 1, 2), BlobRef("/a", 1, 2)}) == 1
    with pytest.raises(FrozenInstanceError):
        BlobRef("/a").offset = 3  # type: ignore[misc]


def test_refs_give_back_what_they_were_made_of() -> None:
    refs = BlobRefs.of(REFS)
    assert list(refs) == REFS
    assert len(refs) == 5
    assert refs.uris == ("/a.blob", "/b.blob", "/c")
    assert refs[-1] == BlobRef("/c")
    assert refs.total_bytes == 10  # neither null nor a range of unknown length counts
    with pytest.raises(IndexError):
        refs[5]
    assert isinstance(refs[0].offset if refs[0] else None, int)  # not a numpy number, which JSON refuses


def test_bytes_of_wrong_lengths_are_added_up_exactly() -> None:
    """Their sum decides an order, which is one on all platforms: it may not wrap around."""
    for lengths in ([2**62] * 7, [2**62] * 4, [2**63 - 1] * 3, [2**31, 2**32 - 1, 5], [0]):
        refs = BlobRefs.of([BlobRef("/a", 0, length) for length in [*lengths, -1]])
        assert refs.total_bytes == sum(lengths)
    narrow = BlobRefs(("/a",), np.zeros(4, np.int16), np.zeros(4, np.int64), np.full(4, 2**31 - 1, np.int32))
    assert narrow.total_bytes == 4 * (2**31 - 1)


def test_take() -> None:
    refs = BlobRefs.of(REFS)
    assert list(refs.take([3, 0, 3])) == [REFS[3], REFS[0], REFS[3]]
    assert list(refs.take(np.array([True, True, False, False, False]))) == REFS[:2]
    assert refs.take([0]).uris is refs.uris
    assert list(refs.take([])) == []
    with pytest.raises(IndexError):
        refs.take([5])


def test_arrays_are_frozen_and_the_callers_own_are_not() -> None:
    own = np.array([4, 14], np.int64)
    refs = BlobRefs(("/a",), np.zeros(2, np.int32), own, np.array([10, 10]))
    for array in (refs.uri_ids, refs.offsets, refs.lengths, refs.take([1]).offsets, pickle.loads(pickle.dumps(refs)).offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    own[0] = 5
    assert refs.offsets.base is own  # a view: nothing of size n is copied
    assert refs.uri_ids.dtype == np.int32
    with pytest.raises(FrozenInstanceError):
        refs.offsets = own  # type: ignore[misc]


@pytest.mark.parametrize(
    "change",
    [
        {"offsets": np.zeros(3, np.int64)},
        {"uri_ids": np.zeros(1, np.int32)},
        {"lengths": np.zeros((2, 1), np.int64)},
        {"lengths": np.array([1.5, 2.0])},
        {"offsets": np.array(["4", "5"])},
        {"uri_ids": np.array([True, False])},
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(change: dict[str, Any]) -> None:
    fits: dict[str, Any] = {
        "uris": ("/a",),
        "uri_ids": np.zeros(2, np.int32),
        "offsets": np.zeros(2, np.int64),
        "lengths": np.zeros(2, np.int64),
    }
    BlobRefs(**fits)
    with pytest.raises(ValueError, match="BlobRefs"):
        BlobRefs(**{**fits, **change})


def test_making_refs_does_not_read_the_arrays(tmp_path: Path) -> None:
    """They may be mapped from a file of 100 M rows."""
    (tmp_path / "ids").write_bytes(b"")
    with open(tmp_path / "ids", "r+b") as file:
        file.truncate(8 * 200_000_000)  # sparse: 1.6 GB that would take seconds to read
    mapped = np.memmap(tmp_path / "ids", np.int64, mode="r")
    refs = BlobRefs(("/a",), mapped, mapped, mapped)
    resident_pages = _resident_kib()
    assert len(refs) == 200_000_000
    assert repr(refs)
    assert list(refs.take([1, 199_999_999])) == [BlobRef("/a", 0, 0)] * 2
    assert _resident_kib() - resident_pages < 50_000


def _resident_kib() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS"))


def test_repr_is_short_and_says_where() -> None:
    text = repr(BlobRefs.of(REFS))
    assert text == "BlobRefs(5 in 3 uris: [/a.blob 4+10, null, /b.blob 0+end, ...])"
    assert repr(BlobRefs.of([])) == "BlobRefs(0 in 0 uris: [])"


def test_pickle() -> None:
    refs = BlobRefs.of(REFS)
    assert same(pickle.loads(pickle.dumps(refs)), refs)


def test_stats_add_up() -> None:
    assert FetchStats(1, 2, 3, 0.5, 4) + FetchStats(10, 20, 30, 1.0, 40) == FetchStats(11, 22, 33, 1.5, 44)
    assert FetchStats() == FetchStats(0, 0, 0, 0.0, 0)


# ---- fetch_blob


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(100)))
    return path


@pytest.mark.parametrize("read", [fetch_blob, BlobRef.read])
def test_one_blob(file: Path, read: Callable[[BlobRef, Table], bytes]) -> None:
    table = Table(LocalFetcher())
    assert read(BlobRef(str(file), 10, 3), table) == bytes([10, 11, 12])
    assert read(BlobRef(str(file)), table) == bytes(range(100))
    with pytest.raises(FetchError, match=r"bytes 90\+20: got 10 bytes, expected 20"):
        read(BlobRef(str(file), 90, 20), table)


def test_a_daft_file_is_read_by_the_table_and_not_by_daft(file: Path) -> None:
    daft = pytest.importorskip("daft")
    table = Table(TableFetcher(str(file.parent)))
    assert fetch_blob(daft.File(str(file)), table) == bytes(range(100))
    assert fetch_blob(daft.File(f"file://{file}", position=10, size=3), table) == bytes([10, 11, 12])
    with pytest.raises(FetchError, match="blob_roots"):
        fetch_blob(daft.File(str(file), position=10, size=3), Table(TableFetcher(str(file.parent / "other"))))
    # Daft's own size() gives 10 here: what a file that lost its end still holds
    with pytest.raises(FetchError, match=r"90\+20: got 10 bytes, expected 20"):
        fetch_blob(daft.File(str(file), position=90, size=20), table)


def test_other_things_are_refused(file: Path) -> None:
    for value in (None, "/a", b"bytes", file):
        with pytest.raises(TypeError, match="BlobRef or a daft"):
            fetch_blob(value, Table(LocalFetcher()))
