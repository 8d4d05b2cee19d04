"""Rows that can't be fetched or decoded: policies, reports, budgets, on any topology and across resume."""

from __future__ import annotations

import gc
import json
import weakref
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lakehouse.dataset import Dataset
from lakehouse.dataset.blob_step import BlobStep
from lakehouse.decode import Image
from lakehouse.errors import BadRowLimitError, DecodeError, FetchError, LakehouseError
from lakehouse.fetch import BlobRefs, Fetched
from lakehouse.index import RowIndex
from lakehouse.loader import Loader
from lakehouse.testing import FaultyFetcher, assert_elastic, assert_resumable
from tests.stores import place
from tests.stores.place import on_stores
from tests.training import Maker, ids, image_index, jpeg, make_index, payload, raw_index, same, write_blobs

pytestmark = on_stores

BAD = {7: "truncated", 18: "empty", 31: "text", 44: "missing"}


@pytest.fixture
def index(tmp_path: Path) -> RowIndex:
    return image_index(tmp_path, 50)


def faulty(index: RowIndex, faults: Any = BAD, column: str = "image", **options: Any) -> FaultyFetcher:
    refs = index.blobs(column)
    return FaultyFetcher(index.fetcher(), {refs[i]: fault for i, fault in faults.items()}, **options)  # type: ignore[misc]


def make(index: RowIndex, **options: Any) -> Maker:
    defaults: dict[str, Any] = {"batch_size": 10, "decode": {"image": Image()}, "fetcher": faulty(index), "on_error": "skip"}
    return Maker(index, "fork", **{**defaults, **options})


# ---- policies


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.s3
def test_skip_leaves_46_samples_and_4_reports(index: RowIndex, workers: int) -> None:
    loader = make(index)(workers=workers)
    batches = list(loader)
    assert len(batches) == 5
    assert sorted(i for batch in batches for i in batch["id"].tolist()) == [i for i in range(50) if i not in BAD]
    for batch in batches:
        assert len(batch["id"]) == len(batch["image"]) == 10 - len(batch["_bad"])
        for i, image in zip(batch["id"].tolist(), batch["image"], strict=True):
            assert np.array_equal(image.numpy(), Image()(jpeg(i)))
    reports = {report["row"] - 1000: report for batch in batches for report in batch["_bad"]}
    assert set(reports) == set(BAD)
    for i, report in reports.items():
        ref = index.blobs("image")[i]
        assert ref is not None
        assert list(report) == ["row", "column", "uri", "offset", "length", "cause"]
        assert (report["column"], report["uri"], report["offset"], report["length"]) == ("image", *_parts(ref))
        assert report["cause"].startswith("FetchError: " if BAD[i] == "missing" else "DecodeError: ")
    json.dumps(list(reports.values()))
    assert (loader.stats.rows, loader.stats.rows_skipped, loader.stats.rows_nulled) == (46, 4, 0)
    assert loader.stats.reasons == {"DecodeError": 3, "FetchError": 1}


def _parts(ref: Any) -> tuple[str, int, int]:
    return ref.uri, ref.offset, ref.length


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.s3
def test_null_gives_zeros_and_a_flag(index: RowIndex, workers: int) -> None:
    loader = make(index, on_error="null", shuffle=None)(workers=workers)
    batches = list(loader)
    assert list(batches[0]) == ["id", "image", "image_ok", "_bad"]
    assert ids(batches) == [list(range(i, i + 10)) for i in range(0, 50, 10)]
    ok = torch.cat([batch["image_ok"] for batch in batches])
    images = torch.cat([batch["image"] for batch in batches])
    assert ok.dtype == torch.bool
    for i in range(50):
        assert bool(ok[i]) == (i not in BAD)
        assert np.array_equal(images[i].numpy(), np.zeros((24, 32, 3), np.uint8) if i in BAD else Image()(jpeg(i)))
    assert sum(len(batch["_bad"]) for batch in batches) == 4
    assert (loader.stats.rows, loader.stats.rows_skipped, loader.stats.rows_nulled) == (50, 0, 4)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("row", "kind"), [(18, DecodeError), (44, FetchError)])
@pytest.mark.s3
def test_raise_names_the_row(index: RowIndex, workers: int, row: int, kind: type[Exception]) -> None:
    loader = make(index, on_error="raise", shuffle=None, fetcher=faulty(index, {row: BAD[row]}))(workers=workers)
    ref = index.blobs("image")[row]
    batches = iter(loader)
    for _ in range(row // 10):
        assert "_bad" not in next(batches)
    with pytest.raises(kind, match=rf"default.frames@3 row {1000 + row} column image .*image.blob {ref.offset}\+") as caught:  # type: ignore[union-attr]
        next(batches)
    if not workers:
        assert isinstance(caught.value.__cause__, kind)
    assert loader.state_dict()["position"] == row // 10 * 10


def test_of_several_bad_rows_the_first_is_raised_on_any_number_of_threads(index: RowIndex) -> None:
    for threads in (0, 1, 4):
        one = Dataset(
            index, batch_size=50, rank=0, world=1, shuffle=None, threads=threads,
            decode={"image": Image()}, fetcher=faulty(index),
        )  # fmt: skip
        with pytest.raises(DecodeError, match="row 1007"):
            next(iter(one))


def test_a_null_blob_is_none_under_raw_and_bad_under_image(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"id": [0, 1, 2]}, {"image": [jpeg(0), None, jpeg(2)]})
    options: dict[str, Any] = {"batch_size": 3, "rank": 0, "world": 1, "shuffle": None, "on_error": "null"}
    (batch,) = Dataset(index, **options)
    assert batch["image"] == [jpeg(0), None, jpeg(2)]
    assert (batch["image_ok"].tolist(), batch["_bad"]) == ([True] * 3, [])
    (batch,) = Dataset(index, **options, decode={"image": Image()})
    assert batch["image_ok"].tolist() == [True, False, True]
    assert batch["_bad"] == [
        {"row": 1001, "column": "image", "uri": None, "offset": None, "length": None, "cause": "DecodeError: the BLOB is null"}
    ]
    with pytest.raises(DecodeError, match="row 1001 column image: the BLOB is null"):
        list(Dataset(index, **options | {"on_error": "raise"}, decode={"image": Image()}))


def test_raw_bytes_that_are_missing(tmp_path: Path) -> None:
    index = raw_index(tmp_path, 6)
    options: dict[str, Any] = {"batch_size": 3, "rank": 0, "world": 1, "shuffle": None}
    fetcher = faulty(index, {1: "missing"}, "data")
    batches = list(Dataset(index, **options, fetcher=fetcher, on_error="null"))
    assert batches[0]["data"] == [payload(0), None, payload(2)]
    assert batches[0]["data_ok"].tolist() == [True, False, True]
    batches = list(Dataset(index, **options, fetcher=fetcher, on_error="skip"))
    assert batches[0]["data"] == [payload(0), payload(2)]
    assert "data_ok" not in batches[0]


def test_files_that_are_missing_or_cut_short(tmp_path: Path) -> None:
    index = raw_index(tmp_path, 20)
    refs = index.blobs("data")
    path = place.path(refs.uris[0])
    path.write_bytes(path.read_bytes()[: int(refs.offsets[12])])
    batches = list(Dataset(index, batch_size=20, rank=0, world=1, shuffle=None, on_error="skip"))
    # A value of no bytes has none to miss.
    assert batches[0]["id"].tolist() == [i for i in range(20) if i < 12]
    path.unlink()
    with pytest.raises(FetchError, match=r"row 1000 column data .*data.blob"):
        list(Dataset(index, batch_size=20, rank=0, world=1, shuffle=None))


@pytest.mark.s3
def test_a_flipped_byte_is_found_by_verify(tmp_path: Path) -> None:
    index = raw_index(tmp_path, 40)
    refs = index.blobs("data")
    path = place.path(refs.uris[0])
    data = bytearray(path.read_bytes())
    data[int(refs.offsets[9]) + 1] ^= 1
    path.write_bytes(data)
    options: dict[str, Any] = {"batch_size": 40, "rank": 0, "world": 1, "shuffle": None, "on_error": "skip"}
    (batch,) = Dataset(index, **options)
    assert batch["data"][9] != payload(9)
    loader = Loader(Dataset(index, **options, verify=True))
    (batch,) = loader
    assert batch["id"].tolist() == [i for i in range(40) if i != 9]
    assert "crc32" in batch["_bad"][0]["cause"]
    assert loader.stats.bytes_fetched > loader.stats.bytes_referenced


def test_all_rows_of_a_batch_bad(tmp_path: Path) -> None:
    index = make_index(
        tmp_path, {"id": list(range(4)), "name": list("abcd")}, {"image": [b"x", b"y", jpeg(2), jpeg(3)], "data": [b"1"] * 4}
    )
    options: dict[str, Any] = {"batch_size": 2, "rank": 0, "world": 1, "shuffle": None}
    for decoder, shape in (
        (Image(), (0, 0, 3)),
        (Image(layout="CHW", mode="L"), (1, 0, 0)),
        (Image(size=(5, 6)), (5, 6, 3)),
        (Image(size=(5, 6), layout="CHW"), (3, 5, 6)),
    ):
        first, second = Dataset(index, **options, decode={"image": decoder}, on_error="skip")
        assert first["image"].shape == (0, *shape)
        assert (first["id"].tolist(), first["id"].dtype, first["name"], first["data"]) == ([], torch.int64, [], [])
        assert (len(first["_bad"]), second["id"].tolist()) == (2, [2, 3])
        first, second = Dataset(index, **options, decode={"image": decoder}, on_error="null")
        assert first["image"].shape == (2, *shape)
        assert not first["image"].any()
        assert first["image_ok"].tolist() == [False, False]
    first, _ = Dataset(index, **options, decode={"image": Image()}, on_error="null", ragged=True)
    assert [tuple(image.shape) for image in first["image"]] == [(0, 0, 3)] * 2


def test_broken_rows_alone_have_no_shape_whichever_comes_first(tmp_path: Path) -> None:
    """Their headers are whole and promise different sizes."""
    images = [jpeg(i, 60 + i % 7, 80 + i % 5)[:-300] for i in range(16)]
    index = make_index(tmp_path, {"id": list(range(16))}, {"image": images})
    options: dict[str, Any] = {"batch_size": 16, "rank": 0, "world": 1, "decode": {"image": Image()}, "threads": 4}
    for _ in range(5):
        (batch,) = Dataset(index, **options, on_error="skip")
        assert batch["image"].shape == (0, 0, 0, 3)
        (batch,) = Dataset(index, **options, on_error="null")
        assert batch["image"].shape == (16, 0, 0, 3)


def test_bad_rows_leave_no_cycles_behind(index: RowIndex) -> None:
    """A cycle would keep its batch until the garbage collector comes by."""
    batches = iter(
        Dataset(index, batch_size=50, rank=0, world=1, decode={"image": Image()}, fetcher=faulty(index), on_error="null")
    )
    gc.collect()
    gc.disable()
    try:
        alive = weakref.ref(next(batches)["image"])
        assert alive() is None
        batches.close()
        del batches
        assert not [item for item in gc.get_objects() if type(item) is BlobStep]
    finally:
        gc.enable()


def test_two_bad_columns_of_a_row_count_as_one_row(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"id": [0, 1]}, {"a": [b"x", jpeg(1)], "b": [b"y", jpeg(1)]})
    loader = Loader(
        Dataset(index, batch_size=2, rank=0, world=1, decode={"a": Image(), "b": Image()}, on_error="skip", max_bad=1)
    )
    (batch,) = loader
    assert [report["column"] for report in batch["_bad"]] == ["a", "b"]
    assert loader.stats.rows_skipped == 1
    with pytest.raises(DecodeError, match="column a"):
        list(Dataset(index, batch_size=2, rank=0, world=1, shuffle=None, decode={"a": Image(), "b": Image()}))


def picky(data: bytes, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    if data in (payload(2), payload(5)):
        raise DecodeError("not for me")
    return np.array([len(data), 1])


def test_a_custom_decoders_bad_rows(tmp_path: Path) -> None:
    index = raw_index(tmp_path, 8)
    options: dict[str, Any] = {"batch_size": 8, "rank": 0, "world": 1, "shuffle": None}
    (batch,) = Dataset(index, **options, decode={"data": picky}, on_error="null")
    assert batch["data"].tolist() == [[0, 0] if i in (2, 5) else [len(payload(i)), 1] for i in range(8)]
    (batch,) = Dataset(index, **options, decode={"data": picky}, on_error="skip")
    assert batch["data"].shape == (6, 2)
    (batch,) = Dataset(index, **options, decode={"data": lambda data, rng: None}, on_error="null")
    assert (batch["data"], batch["data_ok"].all().item()) == ([None] * 8, True)
    (batch,) = Dataset(index.take([2, 5]), **options | {"batch_size": 2}, decode={"data": picky}, on_error="null")
    assert batch["data"] == [None, None]


class RaisesForTheCall:
    """A fetcher of a user's own, which raises instead of returning the error of one range."""

    def __init__(self, inner: Any, missing: Any) -> None:
        self.inner = inner
        self.missing = missing

    def fetch(self, refs: BlobRefs) -> Fetched:
        if any(refs[i] == self.missing for i in range(len(refs))):
            raise FetchError("404")
        return self.inner.fetch(refs)  # type: ignore[no-any-return]


def test_one_failed_range_is_one_failed_row(index: RowIndex) -> None:
    fetcher = RaisesForTheCall(index.fetcher(), index.blobs("image")[13])
    batches = list(make(index, fetcher=fetcher, shuffle=None)())
    assert [report["row"] for batch in batches for report in batch["_bad"]] == [1013]
    assert sum(len(batch["id"]) for batch in batches) == 49


# ---- the same on any topology


@pytest.mark.parametrize("on_error", ["skip", "null"])
@pytest.mark.s3
def test_rows_are_the_same_on_any_topology_and_after_any_resume(index: RowIndex, on_error: str) -> None:
    maker = make(index, on_error=on_error, batch_size=12)
    assert_elastic(maker, worlds=(1, 2, 3, 4), workers=(0,), epochs=1)
    assert_elastic(maker, worlds=(1, 2), workers=(1, 3), epochs=1)
    assert_resumable(maker, topologies=[(1, 0), (2, 0), (1, 2)], epochs=2)


def test_reports_are_the_same_on_any_topology_and_after_any_resume(index: RowIndex) -> None:
    def reports(loaders: list[Loader]) -> list[list[Any]]:
        steps = zip(*([batch["_bad"] for batch in loader] for loader in loaders), strict=True)
        return [[report for part in step for report in part] for step in steps]

    maker = make(index, batch_size=12)
    expected = reports([maker()])
    assert sum(map(len, expected)) >= 3
    for world in (2, 3, 4):
        for workers in (0, 2):
            ranks = [maker(rank=rank, world=world, batch_size=12 // world, workers=workers) for rank in range(world)]
            assert reports(ranks) == expected
    first = maker()
    list(islice(first, 2))
    second = maker(workers=1)
    second.load_state_dict(first.state_dict())
    assert reports([second]) == expected[2:]


def test_padding_repeats_no_report(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"id": list(range(5))}, {"image": [b"bad", *(jpeg(i) for i in range(1, 5))]})
    maker = Maker(index, batch_size=4, tail="pad", shuffle=None, on_error="skip", decode={"image": Image()}, max_bad=1)
    loader = maker()
    first, second = loader
    assert (first["id"].tolist(), second["id"].tolist(), second["valid"].tolist()) == (
        [1, 2, 3],
        [4, 1, 2],
        [True, False, False],
    )
    assert (len(first["_bad"]), len(second["_bad"]), loader.stats.rows_skipped) == (1, 0, 1)


# ---- budgets


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("max_bad", "stops_at"),
    [(None, None), (4, None), (3, 44), (1, 18), (0, 7), (0.08, None), (0.079, 44), (0.0, 7), (1.0, None)],
)
def test_max_bad_is_a_count_or_a_share_of_an_epoch(
    index: RowIndex, workers: int, max_bad: float | None, stops_at: int | None
) -> None:
    """4 of 50 rows are bad: 8 %."""
    loader = make(index, shuffle=None, max_bad=max_bad)(workers=workers)
    if stops_at is None:
        for _ in range(2):  # each epoch has its own
            assert sum(len(batch["id"]) for batch in loader) == 46
        return
    batches = iter(loader)
    for _ in range(stops_at // 10):
        next(batches)
    with pytest.raises(BadRowLimitError, match=rf"max_bad allows .*row {1000 + stops_at} column image .*image.blob"):
        next(batches)
    assert list(batches) == []
    assert loader.state_dict()["position"] == stops_at // 10 * 10


def test_max_bad_counts_for_each_rank(index: RowIndex) -> None:
    """Rank 0 meets 7, 31 and 44; rank 1 meets 18."""
    options: dict[str, Any] = {"shuffle": None, "world": 2, "batch_size": 5}
    of_rank = [[i for batch in make(index, **options)(rank=rank) for i in [r["row"] for r in batch["_bad"]]] for rank in (0, 1)]
    assert sum(map(len, of_rank)) == 4
    for rank in (0, 1):
        allowed = len(of_rank[rank])
        assert len(list(make(index, **options, max_bad=allowed)(rank=rank))) == 5
        with pytest.raises(BadRowLimitError, match=f"{allowed} bad rows in this epoch, max_bad allows {allowed - 1}"):
            list(make(index, **options, max_bad=allowed - 1)(rank=rank))


def test_a_data_set_alone_keeps_the_budget(index: RowIndex) -> None:
    ds = make(index, max_bad=3)().dataset
    for _ in range(2):
        with pytest.raises(BadRowLimitError):
            list(ds)


# ---- what is no bad row


def test_a_mistake_always_stops(index: RowIndex) -> None:
    for on_error in ("raise", "skip", "null"):
        fetcher = faulty(index, {25: RuntimeError("the client is broken")})
        with pytest.raises(LakehouseError, match="RuntimeError: the client is broken"):
            list(make(index, on_error=on_error, fetcher=fetcher)())


def raised_from_itself(data: Any, rng: Any) -> Any:
    try:
        raise ValueError("what the user's own code says")
    except ValueError as error:
        raise error from error


def test_an_error_that_is_its_own_cause_is_told_like_any(index: RowIndex) -> None:
    with pytest.raises(LakehouseError, match="ValueError: what the user's own code says, raised by"):
        list(make(index, decode={"image": raised_from_itself})())


def bad_transform(batch: Any, rngs: Any) -> Any:
    raise DecodeError("the transform's own")


def test_an_error_in_a_transform_stops_even_if_it_is_a_decode_error(index: RowIndex) -> None:
    with pytest.raises(LakehouseError, match="transform stopped by DecodeError: the transform's own"):
        list(make(index, transform=bad_transform)())


def keep_rows(batch: Any, rngs: Any) -> Any:
    assert len(rngs) == len(batch["id"])
    return {"id": batch["id"], "draw": torch.tensor([rng.random() for rng in rngs]), "_bad": batch["_bad"]}


def test_a_transform_sees_the_rows_that_are_left_with_their_own_generators(index: RowIndex) -> None:
    skipped = list(make(index, transform=keep_rows)())
    nulled = list(make(index, transform=keep_rows, on_error="null")())
    draws = {int(i): float(draw) for batch in nulled for i, draw in zip(batch["id"], batch["draw"], strict=True)}
    assert len(draws) == 50
    for batch in skipped:
        for i, draw in zip(batch["id"], batch["draw"], strict=True):
            assert draws[int(i)] == float(draw)


# ---- the tools


@pytest.mark.local("of a fetcher of local files")
def test_a_faulty_fetcher_spoils_what_it_is_told(tmp_path: Path) -> None:
    refs = write_blobs(tmp_path / "x.blob", [b"0123456789", b"b", None])
    from lakehouse.fetch import LocalFetcher

    ref = refs[0]
    assert ref is not None
    for fault, expected in (("truncated", b"01234"), ("empty", b""), ("flipped", b"01234\xca6789"), (None, b"0123456789")):
        fetcher = FaultyFetcher(LocalFetcher(), {ref: fault} if fault else None)  # type: ignore[dict-item]
        assert fetcher.fetch(refs).values == [expected, b"b", None]
        assert fetcher.calls == [3]
        assert fetcher.whole_steps is False
    values = FaultyFetcher(LocalFetcher(), lambda ref: "missing").fetch(refs).values
    assert [type(value) for value in values] == [FetchError, FetchError, type(None)]
    with pytest.raises(ValueError, match="a fault is one of missing"):
        FaultyFetcher(LocalFetcher(), {ref: "lost"}).fetch(refs)  # type: ignore[dict-item]
    assert same(FaultyFetcher(LocalFetcher(), {ref: FetchError("mine")}).fetch(refs).values[1:], [b"b", None])
