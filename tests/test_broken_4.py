"""Faults that were found by trying to break changes, history and upkeep together."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.int64()), ("img", pa.large_binary())])
ROWS = [{"id": i, "p": f"P{i % 2}", "v": i, "img": b"img %d" % i} for i in range(6)]


@pytest.fixture
def table(tmp_path: Path) -> lh.Table:
    table = lh.connect(warehouse=str(tmp_path)).create_table("default.t", SCHEMA, partition_by=["p"])
    table.append(ROWS)
    return table


def held(table: lh.Table) -> list[dict[str, Any]]:
    return sorted(table.latest().arrow(blobs="bytes").to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("dropped", ["w", None])
def test_a_purge_writes_each_branch_with_its_own_columns(table: lh.Table, dropped: str | None) -> None:
    """Both branches reach the same schema number; ``v`` of one of them is another column than that of the other."""
    branch = table.create_branch("dev")
    table.add_column("w", pa.int64())
    if dropped:
        table.drop_column(dropped)
    else:
        table.add_column("x", pa.int64())
    branch.drop_column("v")
    branch.add_column("v", pa.int64())
    kept = [row for row in ROWS if row["id"] != 3]
    table.purge("id = 3")
    assert held(table) == [row | ({} if dropped else {"w": None, "x": None}) for row in kept]
    assert held(table.branch("dev")) == [row | {"v": None} for row in kept]


@pytest.mark.parametrize(
    "text",
    [
        "id = 1, v = 7",
        "id = 1 v = 7",
        "id = 1 ANDD v = 7",
        "id = 1 AND v = 1 garbage",
        "id = 1; v = 7",
        "id = 1 WHERE v = 7",
        "id = 1 AS one",
        "id = 1)",
        "id = 1) garbage (",
        "(id = 1",
        "id = 1 /* v = 7",
    ],
)
def test_sql_that_is_not_read_whole_is_refused(table: lh.Table, text: str) -> None:
    for change in (table.delete, table.purge, lambda where: table.update(where, {"v": 0}), table.latest().query().where):
        with pytest.raises(lh.SchemaError, match="can't be read as SQL"):
            change(text)
    assert held(table) == ROWS


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("id = 1 -- and more", 1),
        ("id = 1 /* v = 7 */ OR id = 2", 2),
        ("p = ')' OR (id = 2)", 1),
        ("(id) IN (1, 2)", 2),
        ("\n id = 1 \n", 1),
    ],
)
def test_sql_with_comments_and_parentheses_is_read(table: lh.Table, text: str, count: int) -> None:
    assert table.latest().query().where(text).count_rows() == count


def test_expiry_carries_the_commit_that_stands_of_two_with_one_id(table: lh.Table) -> None:
    """A rollback frees an id, it is used again, and a second rollback brings the first commit back."""
    row = ROWS[0] | {"id": 10}
    first = table.append([row], commit_id="again")
    table.tag("with")
    table.rollback(snapshot=1)
    assert table.append([row], commit_id="again").snapshot_id == 4
    table.rollback(tag="with")
    assert table.append([row], commit_id="again") == first
    table.expire(keep_last=1)
    assert table.append([row], commit_id="again").snapshot_id == first.snapshot_id
    assert held(table) == [*ROWS, row]


def test_an_age_that_reaches_back_before_the_calendar_lets_no_snapshot_go(table: lh.Table) -> None:
    table.delete("id = 1")
    assert table.expire(older_than=timedelta.max).snapshots == ()
