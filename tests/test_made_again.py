"""A table that is dropped and made again under its name is another one: what was opened before says so, and touches nothing."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pypaimon import Schema

import lakehouse as lh
from tests.stores.fixtures import Lake
from tests.stress.lake import SCHEMA, row, rows

NAME = "default.t"
OTHER = r"default\.t is another table now: .* dropped, and one of its name was made since\. .*; open it again"

CHANGES: dict[str, Callable[[lh.Table], Any]] = {
    "append": lambda table: table.append([row(9)]),
    "append under an id": lambda table: table.append([row(0)], commit_id="first"),
    "delete": lambda table: table.delete("id = 1"),
    "update": lambda table: table.update("id = 1", {"frame": b"x"}),
    "upsert": lambda table: table.upsert([row(1)], key="id"),
    "overwrite": lambda table: table.overwrite([row(1)]),
    "add_column": lambda table: table.add_column("x", pa.int64()),
    "drop_column": lambda table: table.drop_column("id"),
    "widen_column": lambda table: table.widen_column("id", pa.int64()),
    "purge": lambda table: table.purge("id = 1"),
    "expire": lambda table: table.expire(keep_last=1),
    "compact": lambda table: table.compact(),
    "remove_orphans": lambda table: table.remove_orphans(timedelta(0)),
    "tag": lambda table: table.tag("new"),
    "delete_tag": lambda table: table.delete_tag("v1"),
    "rollback": lambda table: table.rollback(snapshot=1),
    "create_branch": lambda table: table.create_branch("new"),
    "delete_branch": lambda table: table.delete_branch("dev"),
    "fast_forward": lambda table: table.fast_forward("dev"),
}
READS: dict[str, Callable[[lh.Table], Any]] = {
    "latest": lambda table: table.latest(),
    "at a snapshot": lambda table: table.at(snapshot=1),
    "at a tag": lambda table: table.at(tag="v1"),
    "snapshots": lambda table: table.snapshots(),
    "find_commit": lambda table: table.find_commit("first"),
    "tags": lambda table: table.tags(),
    "tag_info": lambda table: table.tag_info("v1"),
    "branch": lambda table: table.branch("dev"),
    "branches": lambda table: table.branches(),
    "at a branch": lambda table: table.at(branch="dev"),
    "diff": lambda table: table.diff(1, 2),
    "check": lambda table: table.check(),
    "schema": lambda table: table.schema,
    "paimon": lambda table: table.paimon,
    "fetcher": lambda table: table.fetcher(),
    "pickled": lambda table: pickle.loads(pickle.dumps(table)),
}
PINNED: dict[str, Callable[[lh.Snapshot], Any]] = {
    "arrow": lambda held: held.arrow(),
    "bytes": lambda held: held.arrow(blobs="bytes"),
    "count_rows": lambda held: held.count_rows(),
    "index": lambda held: held.query().index(),
    "filtered": lambda held: held.query().where("id > 0").arrow(),
    "explain": lambda held: held.query().explain(),
    "daft": lambda held: held.daft().collect(),
    "pickled": lambda held: pickle.loads(pickle.dumps(held)).arrow(),
}


def filled(catalog: lh.Catalog, numbers: range) -> lh.Table:
    """Two snapshots, a tag, a branch: the same numbers and names in each table that is made so."""
    table = catalog.create_table(NAME, SCHEMA, partition_by=["channel"])
    table.append(rows(numbers)[:3], commit_id="first")
    table.append(rows(numbers)[3:])
    table.tag("v1", snapshot=1)
    table.create_branch("dev").append([row(99)])
    return table


def state(catalog: lh.Catalog) -> Any:
    table = catalog.table(NAME)
    history = [(info.id, info.commit_id) for info in table.snapshots()]
    return table.latest().arrow(blobs="bytes").sort_by("id"), history, table.tags(), table.branches(), table.schema


@pytest.fixture
def old(catalog: lh.Catalog) -> Iterator[lh.Table]:
    """Opened before its table was dropped, and another one made; which stays as it is."""
    table = filled(catalog, range(6))
    catalog.drop_table(NAME)
    filled(catalog, range(10, 16))
    before = state(catalog)
    yield table
    assert state(catalog) == before


@pytest.mark.parametrize("call", [*CHANGES.values(), *READS.values()], ids=[*CHANGES, *READS])
def test_a_table_opened_before(old: lh.Table, call: Callable[[lh.Table], Any]) -> None:
    with pytest.raises(lh.NotFoundError, match=OTHER):
        call(old)


@pytest.mark.parametrize("read", PINNED.values(), ids=PINNED)
@pytest.mark.parametrize("touched", [False, True])
def test_a_snapshot_pinned_before(catalog: lh.Catalog, read: Callable[[lh.Snapshot], Any], touched: bool) -> None:
    held = filled(catalog, range(6)).at(snapshot=2)
    if touched:
        held.count_rows()
    catalog.drop_table(NAME)
    filled(catalog, range(10, 16))
    with pytest.raises(Exception, match=OTHER) as caught:
        read(held)
    assert isinstance(caught.value, lh.NotFoundError) or "NotFoundError" in str(caught.value)


def test_a_branch_opened_before(catalog: lh.Catalog) -> None:
    branch = filled(catalog, range(6)).branch("dev")
    catalog.drop_table(NAME)
    filled(catalog, range(10, 16))
    with pytest.raises(lh.NotFoundError, match=OTHER):
        branch.append([row(1)])


def test_a_frame_and_an_index_made_before(catalog: lh.Catalog) -> None:
    held = filled(catalog, range(6)).latest()
    frame, index = held.daft(), held.query().index()
    with_bytes = held.daft().with_column("frame", held.bytes("frame"))
    catalog.drop_table(NAME)
    filled(catalog, range(10, 16))
    for lazy in (frame, with_bytes):
        with pytest.raises(Exception, match=OTHER):
            lazy.collect()
    with pytest.raises(lh.FetchError, match="its table was made again since, open the table again"):
        index[0]["frame"].read(held)
    with pytest.raises(lh.FetchError, match=r"default\.t@2 .* open the table again"):
        next(iter(lh.Loader(lh.Dataset(index, batch_size=2))))


def test_only_dropped(catalog: lh.Catalog) -> None:
    table = filled(catalog, range(6))
    held = table.latest()
    catalog.drop_table(NAME)
    with pytest.raises(lh.NotFoundError, match="no table 'default.t'"):
        table.append([row(9)])
    with pytest.raises(lh.NotFoundError, match="no table 'default.t'"):
        held.arrow()


def test_columns_that_change_make_no_other_table(catalog: lh.Catalog) -> None:
    table, second = filled(catalog, range(6)), catalog.table(NAME)
    catalog.table(NAME).add_column("x", pa.int64())
    assert "x" in table.schema.names
    table.append([row(7)])
    assert second.latest().count_rows() == 7


def test_made_again_while_rows_are_written(lake: Lake) -> None:
    catalog = lake.connect()
    table = filled(catalog, range(6))

    def given() -> Iterator[Any]:
        catalog.drop_table(NAME)
        filled(catalog, range(10, 16))
        yield pa.Table.from_pylist([row(7)], schema=SCHEMA)

    with pytest.raises(lh.CommitError, match="nothing was committed: the table was dropped, .* open it again"):
        table.append(given())
    assert sorted(catalog.table(NAME).latest().arrow()["id"].to_pylist()) == list(range(10, 16))


def foreign(catalog: lh.Catalog) -> lh.Table:
    """A table as another engine makes it, without an identity of ours."""
    options = {"row-tracking.enabled": "true", "data-evolution.enabled": "true", "bucket": "-1"}
    catalog.create_database("default")
    catalog.paimon.create_table(NAME, Schema.from_pyarrow_schema(pa.schema([("id", pa.int64())]), options=options), False)
    table = catalog.table(NAME)
    table.append([{"id": 1}])
    return table


@pytest.mark.parametrize("evolved", [0, 1, 2])
def test_tables_of_other_engines(catalog: lh.Catalog, evolved: int) -> None:
    """Also where the new one has more schemas than the old one had: then the first of them is compared."""
    table = foreign(catalog)
    held = table.latest()
    catalog.drop_table(NAME)
    time.sleep(0.002)  # their identity is the time of the first schema, in milliseconds
    again = foreign(catalog)
    for number in range(evolved):
        again.add_column(f"x{number}", pa.int64())
    with pytest.raises(lh.NotFoundError, match=OTHER):
        table.append([{"id": 2}])
    with pytest.raises(lh.NotFoundError, match=OTHER):
        held.arrow()
    assert again.latest().count_rows() == 1


def test_on_every_store(lake: Lake) -> None:
    catalog = lake.connect()
    table = filled(catalog, range(6))
    held = table.latest()
    catalog.drop_table(NAME)
    filled(catalog, range(10, 16))
    before = state(catalog)
    for call in (CHANGES["append"], CHANGES["rollback"], CHANGES["compact"], READS["snapshots"]):
        with pytest.raises(lh.NotFoundError, match=OTHER):
            call(table)
    with pytest.raises(lh.NotFoundError, match=OTHER):
        held.arrow()
    assert state(catalog) == before
