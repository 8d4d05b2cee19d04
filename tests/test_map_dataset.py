"""MapDataset: rows by number, one planned read for a batch, under torch's samplers, collate and worker processes."""

from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

from lakehouse.dataset import Dataset, MapDataset
from lakehouse.decode import Image
from lakehouse.errors import ConfigError, DecodeError, FetchError, LakehouseError, NotFoundError, SchemaError
from lakehouse.fetch import BlobRefs, Fetched, Fetcher
from lakehouse.index import RowIndex
from lakehouse.mixture import Mixture
from lakehouse.testing import FaultyFetcher
from tests.stores import place
from tests.stores.place import on_stores
from tests.training import image_index, jpeg, make_index, payload, raw_index, same

pytestmark = on_stores


@pytest.fixture(scope="module")
def index(store: str, tmp_path_factory: pytest.TempPathFactory) -> RowIndex:
    return raw_index(tmp_path_factory.mktemp("map"), 103)


@pytest.fixture(scope="module")
def images(store: str, tmp_path_factory: pytest.TempPathFactory) -> RowIndex:
    return image_index(tmp_path_factory.mktemp("images"), 60)


# ---- samples


def test_samples_are_rows(index: RowIndex) -> None:
    ds = MapDataset(index)
    assert len(ds) == 103
    assert ds.index is index
    for i in (0, 57, 102, -1, -103, np.int32(5), torch.tensor(6)):
        sample = ds[i]  # type: ignore[index]
        at = int(i) % 103
        assert list(sample) == ["id", "data"]
        assert (sample["id"].item(), sample["id"].dtype, sample["data"]) == (at, torch.int64, payload(at))
    for outside in (103, -104):
        with pytest.raises(IndexError, match=f"row {outside} of an index of 103 rows"):
            ds[outside]
    with pytest.raises(IndexError, match="row 103 of"):
        ds.__getitems__([0, 103])
    with pytest.raises(TypeError):
        ds["id"]  # type: ignore[index]
    assert ds.__getitems__([]) == []
    assert repr(ds) == f"MapDataset({index!r})"


@pytest.mark.s3
def test_a_batch_is_the_samples_in_the_order_asked(images: RowIndex) -> None:
    ds = MapDataset(images, decode={"image": Image()}, threads=3)
    rows = np.random.default_rng(0).integers(0, 60, 150).tolist()  # repeated ones too
    batch = ds.__getitems__(rows)
    assert [sample["id"].item() for sample in batch] == rows
    assert all(same(sample, ds[row]) for sample, row in zip(batch, rows, strict=True))
    (stored,) = list(Dataset(images, batch_size=60, shuffle=None, decode={"image": Image()}, rank=0, world=1))
    assert all(torch.equal(sample["image"], stored["image"][row]) for sample, row in zip(batch, rows, strict=True))


def test_every_type_of_column(tmp_path: Path) -> None:
    columns = {
        "x": pa.array([1, None, 3], pa.uint16()),
        "ok": pa.array([True, False, True]),
        "text": pa.array(["a", None, "c"]),
        "pair": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
        "many": pa.array([[1], [], [1, 2]], pa.list_(pa.int64())),
    }
    ds = MapDataset(make_index(tmp_path, columns), fill={"x": 9})
    first, second, third = ds.__getitems__([0, 1, 2])
    assert (first["x"].item(), second["x"].item(), third["x"].item(), first["x"].dtype) == (1, 9, 3, torch.int32)
    assert (second["ok"].item(), second["text"], first["pair"].tolist(), third["many"].tolist()) == (
        False,
        None,
        [1.0, 2.0],
        [1, 2],
    )
    assert list(MapDataset(make_index(tmp_path, columns), columns=["text", "ok"])[0]) == ["text", "ok"]
    with pytest.raises(SchemaError, match=r"row 1001 column x is null"):
        MapDataset(make_index(tmp_path, columns))[1]


def test_images_of_many_sizes_keep_them_and_size_makes_them_one(tmp_path: Path) -> None:
    index = image_index(tmp_path, 9, lambda i: (8 + i, 10))
    shapes = [tuple(sample["image"].shape) for sample in MapDataset(index, decode={"image": Image()}).__getitems__([0, 4, 8])]
    assert shapes == [(8, 10, 3), (12, 10, 3), (16, 10, 3)]
    batches = list(DataLoader(MapDataset(index, decode={"image": Image(size=(6, 7))}), batch_size=4))
    assert [tuple(batch["image"].shape) for batch in batches] == [(4, 6, 7, 3), (4, 6, 7, 3), (1, 6, 7, 3)]


# ---- reading


class Counting:
    """Counts the calls and their threads."""

    def __init__(self, inner: Fetcher) -> None:
        self.calls: list[int] = []
        self._inner = inner

    def fetch(self, refs: BlobRefs) -> Fetched:
        self.calls.append(len(refs))
        return self._inner.fetch(refs)


@pytest.mark.parametrize("threads", [0, 4])
@pytest.mark.s3
def test_one_planned_read_a_batch_and_column(tmp_path: Path, threads: int) -> None:
    n = 120
    index = make_index(
        tmp_path, {"id": list(range(n))}, {"a": [b"a%d" % i for i in range(n)], "b": [b"b%d" % i for i in range(n)]}
    )
    counting = Counting(index.fetcher())
    ds = MapDataset(index, fetcher=counting, threads=threads, decode={"a": lambda data, rng: int(bytes(data)[1:])})
    batch = ds.__getitems__(list(range(100)))
    assert [(sample["a"], sample["b"]) for sample in batch] == [(i, b"b%d" % i) for i in range(100)]
    assert counting.calls == [100, 100]
    counting.calls.clear()
    assert len(list(DataLoader(ds, batch_size=40))) == 3
    assert counting.calls == [40] * 6
    counting.calls.clear()
    MapDataset(index, fetcher=counting, columns=["id"]).__getitems__([1, 2])
    assert counting.calls == []


def test_decoding_is_spread_over_threads(images: RowIndex) -> None:
    seen: set[str] = set()
    together = threading.Barrier(2, timeout=20)

    def decode(data: Any, rng: np.random.Generator) -> int:
        if threading.current_thread().name not in seen and len(seen) < 2:
            seen.add(threading.current_thread().name)
            together.wait()
        return len(data)

    MapDataset(images, decode={"image": decode}, threads=2).__getitems__(list(range(60)))
    assert len(seen) == 2
    assert all(name.startswith("lakehouse-map") for name in seen)


def test_threads_end_with_the_data_set(images: RowIndex) -> None:
    ds = MapDataset(images, decode={"image": Image()}, threads=2)
    ds.__getitems__(list(range(60)))
    del ds
    until = time.monotonic() + 10
    while any(thread.name.startswith("lakehouse-map") for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.local("changes a byte in a file")
def test_stored_checksums_are_compared(tmp_path: Path) -> None:
    index = raw_index(tmp_path, 5)
    ref = index.blobs("data")[3]
    assert ref is not None
    with place.path(ref.uri).open("r+b") as file:
        file.seek(ref.offset)
        file.write(b"\xff")
    assert MapDataset(index)[3]["data"] != payload(3)
    with pytest.raises(FetchError, match="row 1003 column data.*crc32"):
        MapDataset(index, verify=True)[3]


# ---- bad rows


@pytest.mark.s3
def test_bad_rows_raise_or_are_null(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"id": list(range(4))}, {"image": [jpeg(0), b"no image", None, jpeg(3)]})
    ds = MapDataset(index, decode={"image": Image(size=(5, 5))})
    assert ds[0]["image"].shape == (5, 5, 3)
    for rows, text in (([0, 1], "row 1001 column image"), ([3, 2], "row 1002 column image.*null")):
        with pytest.raises(DecodeError, match=text):
            ds.__getitems__(rows)
    nulled = MapDataset(index, decode={"image": Image(size=(5, 5))}, on_error="null")
    (batch,) = list(DataLoader(nulled, batch_size=4))
    assert list(batch) == ["id", "image", "image_ok"]
    assert batch["image_ok"].tolist() == [True, False, False, True]
    assert not batch["image"][1:3].any()
    assert batch["image"][3].any()


def test_a_fetcher_that_fails_names_the_row(index: RowIndex) -> None:
    refs = index.blobs("data")
    ref = refs[7]
    assert ref is not None
    with pytest.raises(FetchError, match="row 1007 column data.*made to be missing"):
        MapDataset(index, fetcher=FaultyFetcher(index.fetcher(), {ref: "missing"})).__getitems__(list(range(20)))


def test_mistakes_stop_whatever_on_error_says(index: RowIndex) -> None:
    def broken(data: Any, rng: Any) -> Any:
        raise ZeroDivisionError("mine")

    for threads in (0, 2):
        with pytest.raises(LakehouseError, match="decoding stopped by ZeroDivisionError: mine"):
            MapDataset(index, decode={"data": broken}, on_error="null", threads=threads).__getitems__(list(range(40)))
    with pytest.raises(LakehouseError, match=r"transform stopped by ZeroDivisionError: mine at default\.frames@3 row 1004"):
        MapDataset(index, transform=broken)[4]
    with pytest.raises(LakehouseError, match=r"transform .*lambda.* returned None: it has to return the sample"):
        MapDataset(index, transform=lambda sample, rng: None)[4]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"on_error": "skip"}, ConfigError, "on_error must be one of 'raise', 'null'"),
        ({"transform": 3}, ConfigError, "transform must be a function"),
        ({"threads": -1}, ConfigError, "threads"),
        ({"columns": ["nope"]}, NotFoundError, "columns names 'nope'"),
        ({"decode": {"id": Image()}}, SchemaError, "only BLOB columns are decoded"),
        ({"fill": {"data": 0}}, SchemaError, "fill names column"),
        ({"fetcher": 3}, ConfigError, "fetcher must have a method"),
        ({"verify": 1}, ConfigError, "verify must be True or False"),
    ],
)
def test_wrong_options_are_refused(index: RowIndex, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        MapDataset(index, **options)
    with pytest.raises(ConfigError, match="a RowIndex, Mixture or Weighted is needed, got list"):
        MapDataset([1, 2])  # type: ignore[arg-type]


# ---- randomness


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": sample["id"], "noise": rng.integers(2**40)}


def first_draw(data: Any, rng: np.random.Generator) -> int:
    return int(rng.integers(2**40))


def test_randomness_follows_torchs_seed(index: RowIndex) -> None:
    ds = MapDataset(index, transform=noisy, decode={"data": first_draw})

    def run(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return [sample["noise"] for _ in range(2) for sample in ds.__getitems__([3, 4, 4])]

    assert run(1) == run(1)
    assert len(set(run(1)) | set(run(2))) == 12  # epochs and repeated rows differ
    both = MapDataset(index, transform=lambda sample, rng: (sample["data"], first_draw(None, rng)), decode={"data": first_draw})
    assert all(one == two for one, two in both.__getitems__([1, 2, 3]))  # an image and its mask are cropped alike


def test_torchs_generator_is_left_alone_where_nothing_is_random(images: RowIndex) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    MapDataset(images, decode={"image": Image()}).__getitems__([1, 2, 3])
    assert torch.equal(torch.rand(2), expected)


# ---- torch's DataLoader


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.s3
def test_worker_processes_with_samplers(images: RowIndex, method: str) -> None:
    ds = MapDataset(images, decode={"image": Image()})
    ds.__getitems__(list(range(60)))  # threads and open files of the parent must not be used by its children
    sampler = RandomSampler(ds, generator=torch.Generator().manual_seed(5))
    loader = DataLoader(ds, batch_size=16, sampler=sampler, num_workers=2, multiprocessing_context=method)
    batches = list(loader)
    assert [tuple(batch["image"].shape) for batch in batches] == [(16, 24, 32, 3)] * 3 + [(12, 24, 32, 3)]
    order = [i for batch in batches for i in batch["id"].tolist()]
    assert sorted(order) == list(range(60)) != order
    for batch in batches:
        for i, image in zip(batch["id"].tolist(), batch["image"], strict=True):
            assert torch.equal(image, ds[i]["image"])


def test_randomness_differs_between_workers_and_epochs(index: RowIndex) -> None:
    loader = DataLoader(MapDataset(index, transform=noisy), batch_size=10, num_workers=2, multiprocessing_context="fork")
    noises = [value for _ in range(2) for batch in loader for value in batch["noise"].tolist()]
    assert len(set(noises)) == 2 * 103


def test_a_weighted_sampler_of_torch(index: RowIndex) -> None:
    weights = [1.0 if i % 2 else 0.0 for i in range(103)]
    loader = DataLoader(MapDataset(index, columns=["id"]), batch_size=20, sampler=WeightedRandomSampler(weights, 60))
    drawn = [i for batch in loader for i in batch["id"].tolist()]
    assert len(drawn) == 60
    assert all(i % 2 for i in drawn)


def test_of_a_mixture_all_rows(index: RowIndex, tmp_path: Path) -> None:
    mixture = Mixture({"a": (index, 1), "b": (raw_index(tmp_path, 7), 1)}, source_column="source")
    ds = MapDataset(mixture)
    assert len(ds) == 110
    samples = ds.__getitems__([0, 102, 103, 109])
    assert [(sample["id"].item(), sample["source"]) for sample in samples] == [(0, "a"), (102, "a"), (0, "b"), (6, "b")]
    assert [sample["data"] for sample in samples] == [payload(i) for i in (0, 102, 0, 6)]


def test_pickles_without_threads_and_files(images: RowIndex) -> None:
    ds = MapDataset(images, decode={"image": Image()}, threads=2)
    ds.__getitems__([1, 2])
    twin = pickle.loads(pickle.dumps(ds))
    assert same(twin[5], ds[5])
    pid = os.fork()
    if not pid:
        os._exit(0 if same(ds.__getitems__([1, 5]), twin.__getitems__([1, 5])) else 1)
    assert os.waitpid(pid, 0)[1] == 0
