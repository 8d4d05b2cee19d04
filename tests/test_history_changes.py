"""History beside the changes of this package: on branches, after rollbacks, and through `diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from tests.stores.place import connect, on_stores

pytestmark = on_stores

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.float64()), ("frame", pa.large_binary())])


@pytest.fixture
def table(warehouse: Path) -> lh.Table:
    table = connect(warehouse).create_table("default.t", SCHEMA, partition_by=["p"])
    table.append(rows(range(6)))
    table.append(rows(range(6, 10)))
    return table


def rows(ids: Any) -> list[dict[str, Any]]:
    return [{"id": i, "p": f"p{i % 2}", "v": float(i), "frame": b"frame %d" % i} for i in ids]


def held(table: lh.Table | lh.Snapshot) -> dict[int, tuple[float, bytes]]:
    snapshot = table.latest() if isinstance(table, lh.Table) else table
    return {row["id"]: (row["v"], row["frame"]) for row in snapshot.arrow(blobs="bytes").to_pylist()}


def change(table: lh.Table) -> dict[int, tuple[float, bytes]]:
    """One of each; what the table holds then."""
    expected = held(table)
    table.update("id = 1", {"v": -1.0})
    expected[1] = (-1.0, expected[1][1])
    table.update("id = 2", {"frame": b"another"})
    expected[2] = (expected[2][0], b"another")
    table.delete("id = 3")
    expected.pop(3, None)
    table.upsert([{"id": 4, "p": "p0", "v": 44.0, "frame": b"frame 44"}, *rows([50])], key=["id", "p"])
    expected |= {4: (44.0, b"frame 44"), 50: (50.0, b"frame 50")}
    assert held(table) == expected
    return expected


@pytest.mark.s3
def test_what_changed(table: lh.Table) -> None:
    change(table)
    for key in (None, "id"):
        diff = table.diff(2, table.latest(), key=key)
        assert (diff.added, diff.deleted, diff.changed_rows) == (1, 1, 3)
        assert diff.changed == {"v": 2, "frame": 2}
        changed = diff.rows("changed", columns=["id"])
        assert dict(zip(changed["id"].to_pylist(), changed["_changed"].to_pylist(), strict=True)) == {
            1: ["v"],
            2: ["frame"],
            4: ["v", "frame"],
        }
    infos = table.snapshots()
    assert sum(info.rows_added or 0 for info in infos) == 11
    assert sum(info.rows_deleted or 0 for info in infos) == 1
    assert [info.operation for info in infos][:5] == ["append", "append", "update", "update", "delete"]


def test_changes_on_a_branch_stay_there(table: lh.Table) -> None:
    before = held(table)
    dev = table.create_branch("dev")
    expected = change(dev)
    dev.compact()
    assert held(dev) == expected
    assert held(table) == before
    assert [info.id for info in table.snapshots()] == [1, 2]
    assert table.fast_forward("dev") == dev.latest().id
    assert held(table) == expected
    assert change(table)[1] == (-1.0, b"frame 1")
    assert held(dev) == expected


def test_changes_after_a_rollback(table: lh.Table) -> None:
    first = held(table)
    second = change(table)
    last = table.latest().id
    table.rollback(snapshot=2)
    assert held(table) == first
    assert change(table) == second
    table.compact()
    assert held(table) == second
    assert table.rollback(snapshot=2).rows == len(first)
    assert held(table) == first
    table.rollback(snapshot=last)
    assert held(table) == second
    table.overwrite(rows([200]), partition={"p": "p0"})
    assert set(held(table)) == {i for i in second if i % 2} | {200}
    table.rollback(snapshot=2)
    assert held(table) == first


def test_compaction_is_no_difference(table: lh.Table) -> None:
    for i in range(20, 26):
        table.append(rows([i]))
    before = table.latest()
    table.compact()
    assert table.latest().id != before.id
    diff = table.diff(before, table.latest(), key="id")
    assert diff.is_empty
    last = [info for info in table.snapshots() if before.id is not None and info.id > before.id]
    assert last[0].operation == "compact"
    assert [(info.rows_added, info.rows_deleted) for info in last] == [(0, 0)] * len(last)
