"""Rows by number: what torch's samplers ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import lakehouse as lh
from lakehouse.fetch import BlobRefs, Fetched, Fetcher
from tests.drawing import draw_road, jpeg_bytes


@pytest.fixture
def index(warehouse: Path) -> lh.RowIndex:
    table = lh.connect(warehouse=str(warehouse)).create_table(
        "t", pa.schema([("id", pa.int64()), ("name", pa.string()), ("jpg", pa.large_binary())])
    )
    table.append([{"id": i, "name": f"n{i}", "jpg": jpeg_bytes(draw_road(i, 32, 24))} for i in range(20)])
    return table.latest().query().index()


class Counting:
    def __init__(self, inner: Fetcher) -> None:
        self.inner = inner
        self.calls: list[int] = []

    def fetch(self, refs: BlobRefs) -> Fetched:
        self.calls.append(len(refs))
        return self.inner.fetch(refs)


def test_samples_equal_the_rows(index: lh.RowIndex) -> None:
    ds = lh.MapDataset(index, decode={"jpg": lh.Image()})
    assert len(ds) == 20
    table: Any = index
    for i in (0, 7, 19, -1):
        sample, row = ds[i], index.row(i)
        assert (int(sample["id"]), sample["name"]) == (row["id"], row["name"])
        assert torch.equal(torch.as_tensor(sample["jpg"]), torch.from_numpy(lh.Image()(row["jpg"].read(table), None)))
    with pytest.raises(IndexError):
        ds[20]


def test_a_batch_is_one_read_and_keeps_the_samplers_order(index: lh.RowIndex) -> None:
    counting = Counting(index.fetcher())
    ds = lh.MapDataset(index, decode={"jpg": lh.Image(size=(16, 16))}, fetcher=counting)
    rows = [5, 3, 3, 17]
    samples = ds.__getitems__(rows)
    assert [int(sample["id"]) for sample in samples] == rows
    assert counting.calls == [4]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_torchs_own_loader_collates_every_row_once(index: lh.RowIndex, method: str) -> None:
    ds = lh.MapDataset(index, decode={"jpg": lh.Image(size=(16, 16))})
    loader = torch.utils.data.DataLoader(ds, batch_size=6, shuffle=True, num_workers=2, multiprocessing_context=method)
    batches = list(loader)
    assert sorted(int(i) for batch in batches for i in batch["id"]) == list(range(20))
    assert batches[0]["jpg"].shape == (6, 16, 16, 3)
