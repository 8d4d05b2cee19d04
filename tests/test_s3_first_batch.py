"""A cold start with a saved index: which requests the first batch waits for, and how many one after the other."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.loader import Loader
from tests.stores.fixtures import Lake, lake_on
from tests.stores.proxy import Proxy

SCHEMA = pa.schema([("id", pa.int64()), ("frame", pa.large_binary())])
BATCH = 32


def made(proxy: Proxy, tmp_path: Path) -> tuple[Lake, lh.Table, Path]:
    """A table whose rows lie in two snapshots, and a saved index of the older one."""
    lake = lake_on(proxy.server)
    table = lake.connect().create_table("default.frames", SCHEMA)
    table.append([{"id": i, "frame": os.urandom(10_000)} for i in range(1000)])
    table.latest().query().index().save(tmp_path / "train.idx")
    table.append([{"id": 1000, "frame": b"later"}])
    return lake, table, tmp_path / "train.idx"


@pytest.mark.parametrize("decode", [{}, {"frame": lambda data, rng: len(data)}], ids=["raw", "decoded"])
def test_the_first_batch_comes_within_15_round_trips(decode: Any, s3_proxy: Proxy, tmp_path: Path) -> None:
    """Of a cold start: it waits for 3 requests in a row, and nothing is asked for that it does not need."""
    lake, _, saved = made(s3_proxy, tmp_path)
    s3_proxy.reset()
    s3_proxy.delay_s = 0.3
    began_s = time.monotonic()
    loaded = lh.RowIndex.load(saved, lake.connect())
    batches = iter(Loader(lh.Dataset(loaded, batch_size=BATCH, seed=1, decode=decode)))
    batch = next(batches)
    took_s = time.monotonic() - began_s
    answered, round_trips, asked = len(s3_proxy.answered), s3_proxy.round_trips, list(s3_proxy.requests)
    s3_proxy.delay_s = 0.0
    assert len(batch["id"]) == BATCH
    assert round_trips <= 4  # 3 on a machine that is not too busy to send all of the first batch's requests at once
    assert took_s < 15 * 0.3
    # The table's schemas are listed, the newest and the snapshot read; then each row, or fewer where rows are neighbours.
    assert sorted(request.path.rpartition("/")[2] for request in asked[:3])[1:] == ["schema-0", "snapshot-1"]
    assert "list-type=2" in asked[0].path + asked[1].path
    assert answered <= 3 + BATCH
    assert all(".blob" in request.path for request in asked[3:])
    batches.close()  # type: ignore[attr-defined]


def test_what_is_foreseen_is_checked_all_the_same(s3_proxy: Proxy, tmp_path: Path) -> None:
    lake, table, saved = made(s3_proxy, tmp_path)
    assert lh.RowIndex.load(saved, lake.connect()).snapshot_id == 1
    table.tag("kept", snapshot=1)
    assert table.expire(keep_last=1).snapshots == (1,)
    assert len(lh.RowIndex.load(saved, lake.connect())) == 1000  # by its tag
    table.delete_tag("kept")
    with pytest.raises(lh.NotFoundError, match="has expired and has no tag"):
        lh.RowIndex.load(saved, lake.connect())
    catalog = lake.connect()
    catalog.drop_table("default.frames")
    with pytest.raises(lh.NotFoundError, match="no table"):
        lh.RowIndex.load(saved, lake.connect())
    made_again = catalog.create_table("default.frames", SCHEMA)
    made_again.append([{"id": 1, "frame": b"other"}])
    with pytest.raises(lh.ResumeError, match="another table of the name"):
        lh.RowIndex.load(saved, lake.connect())


def test_a_foreseen_read_that_fails_is_made_again(s3_proxy: Proxy, tmp_path: Path) -> None:
    lake, _, saved = made(s3_proxy, tmp_path)
    s3_proxy.reset()
    s3_proxy.rule = lambda request: "500" if request.path.endswith("/snapshot-1") and not request.again else None
    assert len(lh.RowIndex.load(saved, lake.connect())) == 1000
    assert s3_proxy.faults == {"500": 1}
