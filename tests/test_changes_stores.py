"""Changes of rows and columns on an S3 store, and on tables whose server decides what is committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from daft import col

import lakehouse as lh
from lakehouse.write import Moved, publish_on
from tests.lake_changes import Lake, by_arrow, by_daft, by_dataset, by_index

if TYPE_CHECKING:
    from tests.rest import RestServer
    from tests.stores.fixtures import Lake as Warehouse

Connect = Callable[[], lh.Catalog]


@pytest.fixture(params=["s3", "rest"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Opens one catalog anew."""
    if request.param == "s3":
        lake: Warehouse = request.getfixturevalue("s3_lake")
        return lake.connect
    server: RestServer = request.getfixturevalue("rest")
    return lambda: lh.connect(**server.options())


def test_a_random_sequence_equals_a_model(connect: Connect) -> None:
    lake = Lake.on(connect(), "string", 4)
    for _ in range(5):
        lake.step()
        assert by_arrow(lake.table.latest()) == lake.expected()
    snapshot = lake.table.latest()
    assert by_daft(snapshot) == by_index(snapshot) == lake.expected()
    assert by_dataset(snapshot) == [{n: r[n] for n in ("id", "img", "more")} for r in lake.expected()]
    for snapshot_id, held in lake.history.items():
        assert by_arrow(lake.table.at(snapshot=snapshot_id)) == held


SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("a", pa.int64()), ("img", pa.large_binary())])


def made(catalog: lh.Catalog) -> lh.Table:
    table = catalog.create_table("default.t", SCHEMA, partition_by=["p"])
    table.append([{"id": i, "p": f"P{i % 2}", "a": i, "img": b"%d" % i} for i in range(6)])
    return table


def values(table: lh.Table, column: str) -> list[Any]:
    found: list[Any] = table.latest().arrow(blobs="bytes").sort_by("id").column(column).to_pylist()
    return found


def test_columns_and_a_row_that_moves_with_its_blob(connect: Connect) -> None:
    table = made(connect())
    table.tag("before")
    assert table.add_column("score", pa.float32()).snapshot_id == 2
    assert table.update("a > 2", {"score": col("a") / 2}).rows == 3
    assert table.widen_column("score", pa.float64()).snapshot_id == 4
    assert table.upsert([{"id": 4, "p": "P9"}], key=["id"]).rows == 1
    assert table.drop_column("a").snapshot_id == 6
    assert table.latest().schema.names == ["id", "p", "img", "score"]
    assert values(table, "score") == [None, None, None, 1.5, 2.0, 2.5]
    assert values(table, "img") == [b"%d" % i for i in range(6)]
    assert table.at(tag="before").arrow(blobs="bytes").column_names == SCHEMA.names


def test_a_commit_in_between_is_seen(connect: Connect) -> None:
    table = made(connect())
    paimon = table.paimon
    messages = paimon.new_batch_write_builder().new_update().delete_by_row_id([0])
    connect().table("default.t").update("id = 5", {"a": 50})
    with pytest.raises(Moved):
        publish_on(paimon, messages, 1, operation="delete", over_appends=True)
    assert values(table, "a") == [0, 1, 2, 3, 4, 50]
