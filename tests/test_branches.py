"""Branches: made with their data, written apart, given back only where nothing can be mixed up."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

import lakehouse as lh
from tests.lake_files import BAD_NAMES, everything_in, folder_of
from tests.numbered import SCHEMA, ids, rows
from tests.stores.place import on_stores

pytestmark = on_stores


@pytest.fixture
def table(catalog: lh.Catalog) -> lh.Table:
    """n rows in snapshot n, of three."""
    table = catalog.create_table("default.t", SCHEMA, partition_by=["p"])
    for i in range(3):
        add(table, i)
    return table


def add(table: lh.Table, i: int) -> int | None:
    return table.append(rows(i)).snapshot_id


# --- made with their data ----------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_a_branch_begins_with_a_versions_rows(table: lh.Table) -> None:
    table.tag("v1", snapshot=1)
    made = {
        "latest": table.create_branch("latest"),
        "tag": table.create_branch("tag", tag="v1"),
        "snapshot": table.create_branch("snapshot", snapshot=2),
    }
    assert table.branches() == ["latest", "snapshot", "tag"]
    assert {name: ids(branch) for name, branch in made.items()} == {"latest": [0, 1, 2], "tag": [0], "snapshot": [0, 1]}
    assert {name: ids(table.branch(name)) for name in made} == {name: ids(branch) for name, branch in made.items()}
    assert {name: table.at(branch=name).id for name in made} == {"latest": 3, "tag": 1, "snapshot": 2}
    assert made["tag"].name == "default.t$branch_tag"
    assert made["tag"].schema == table.schema
    assert [info.id for info in made["snapshot"].snapshots()] == [2]


def test_the_engine_itself_reads_it(table: lh.Table, catalog: lh.Catalog) -> None:
    table.create_branch("dev", snapshot=2)
    add(table.branch("dev"), 10)
    paimon = catalog.paimon.get_table("default.t$branch_dev")
    builder = paimon.new_read_builder()
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    assert sorted(rows.column("id").to_pylist()) == [0, 1, 10]


def test_a_branch_from_a_tag_that_outlived_its_snapshot(table: lh.Table) -> None:
    """Upstream can't."""
    table.tag("v2", snapshot=2)
    for number in (1, 2):
        (folder_of(table) / "snapshot" / f"snapshot-{number}").unlink()
    dev = table.create_branch("dev", tag="v2")
    assert ids(dev) == [0, 1]
    assert add(dev, 5) == 3
    assert ids(dev) == [0, 1, 5]


def test_a_branch_of_an_empty_table(catalog: lh.Catalog) -> None:
    empty = catalog.create_table("default.empty", SCHEMA)
    dev = empty.create_branch("dev")
    assert dev.latest().id is None
    assert add(dev, 1) == 1
    assert empty.latest().id is None
    assert empty.fast_forward("dev") == 1
    assert ids(empty) == ids(dev) == [1]


def test_the_schema_is_that_of_the_version(table: lh.Table, catalog: lh.Catalog) -> None:
    catalog.paimon.alter_table("default.t", [SchemaChange.add_column("score", AtomicType("DOUBLE"))], False)
    table.append([{"id": 3, "p": "p1", "frame": b"frame 3", "score": 0.5}])
    dev = table.create_branch("dev", snapshot=2)
    assert dev.schema.names == SCHEMA.names
    add(dev, 9)
    assert ids(dev) == [0, 1, 9]
    assert table.create_branch("new").schema.names == [*SCHEMA.names, "score"]


def test_a_branch_of_the_latest_has_columns_that_no_snapshot_has_yet(table: lh.Table, catalog: lh.Catalog) -> None:
    catalog.paimon.alter_table("default.t", [SchemaChange.add_column("score", AtomicType("DOUBLE"))], False)
    dev = table.create_branch("dev")
    assert dev.schema.names == [*SCHEMA.names, "score"]
    dev.append([{"id": 3, "p": "p1", "frame": b"frame 3", "score": 0.5}])
    assert ids(dev) == [0, 1, 2, 3]
    assert table.fast_forward("dev") == 4
    assert ids(table) == [0, 1, 2, 3]


# --- apart from the table ----------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_writing_stays_on_the_branch(table: lh.Table) -> None:
    dev = table.create_branch("dev", snapshot=2)
    assert add(dev, 10) == 3
    assert add(table, 20) == 4
    assert add(dev, 11) == 4
    assert ids(dev) == [0, 1, 10, 11]
    assert ids(table) == [0, 1, 2, 20]
    dev.tag("good", snapshot=3)
    assert (dev.tags(), table.tags()) == ({"good": 3}, {})
    assert ids(table.at(branch="dev", tag="good")) == ids(dev.at(tag="good")) == [0, 1, 10]
    assert dev.rollback(snapshot=2).snapshot_id == 5
    assert ids(dev) == [0, 1]
    assert ids(table) == [0, 1, 2, 20]
    assert table.append([{"id": 1, "p": "x"}], commit_id="c").snapshot_id == 5
    assert dev.append([{"id": 1, "p": "x"}], commit_id="c").snapshot_id == 6


def test_main_is_the_table(table: lh.Table) -> None:
    assert table.branch("main") is table


def test_a_branch_handle_travels(table: lh.Table) -> None:
    dev = table.create_branch("dev", snapshot=1)
    add(dev, 7)
    again = pickle.loads(pickle.dumps(dev))
    assert again.name == dev.name
    assert ids(again) == [0, 7]
    assert ids(pickle.loads(pickle.dumps(dev.latest()))) == [0, 7]


def test_an_index_of_a_branch_is_none_of_main(catalog: lh.Catalog, tmp_path: Path) -> None:
    """After both were written, snapshot number, row ids and columns are the same: only the rows differ."""
    table = catalog.create_table("default.n", pa.schema([("id", pa.int64())]))
    table.append([{"id": 1}])
    dev = table.create_branch("dev")
    shared = (table.latest().query().index(), dev.latest().query().index())
    assert shared[0].fingerprint == shared[1].fingerprint  # the same rows, for now
    table.append([{"id": 2}])
    dev.append([{"id": 3}])
    ours, theirs = table.latest().query().index(), dev.latest().query().index()
    assert (ours.snapshot_id, ours.row_ids.tolist()) == (theirs.snapshot_id, theirs.row_ids.tolist()) == (2, [0, 1])
    assert ours.fingerprint != theirs.fingerprint
    for name, index in (("ours", ours), ("theirs", theirs)):
        index.save(tmp_path / name)
        loaded = lh.RowIndex.load(tmp_path / name, catalog)
        assert loaded.fingerprint == index.fingerprint
        assert loaded.column("id").to_pylist() == index.column("id").to_pylist()
    table.branch("dev").tag("kept")
    (folder_of(table) / "branch/branch-dev/snapshot/snapshot-2").unlink()
    assert lh.RowIndex.load(tmp_path / "theirs", catalog).fingerprint == theirs.fingerprint
    table.delete_branch("dev")
    with pytest.raises(lh.NotFoundError, match="no branch 'dev'"):
        lh.RowIndex.load(tmp_path / "theirs", catalog)
    table.create_branch("dev").append([{"id": 4}])
    table.branch("dev").append([{"id": 5}])
    table.create_branch("dev2", snapshot=1).append([{"id": 6}])
    (folder_of(table) / "branch/branch-dev2").rename(folder_of(table) / "branch/branch-dev3")
    assert lh.RowIndex.load(tmp_path / "ours", catalog).fingerprint == ours.fingerprint


def test_a_branch_made_again_is_another_one(catalog: lh.Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("default.n", pa.schema([("id", pa.int64())]))
    table.append([{"id": 1}])
    table.create_branch("dev").append([{"id": 2}])
    table.branch("dev").latest().query().index().save(tmp_path / "dev.idx")
    table.delete_branch("dev")
    table.create_branch("dev").append([{"id": 3}])
    with pytest.raises(lh.ResumeError, match="another snapshot 2"):
        lh.RowIndex.load(tmp_path / "dev.idx", catalog)


# --- given back --------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_fast_forward_gives_the_table_the_branchs_snapshots(table: lh.Table) -> None:
    dev = table.create_branch("dev")
    add(dev, 10)
    dev.append([{"id": 11, "p": "p1", "frame": b"frame 11"}], commit_id="mine")
    assert table.fast_forward("dev") == 5
    assert ids(table) == ids(dev) == [0, 1, 2, 10, 11]
    assert [info.id for info in table.snapshots()] == [1, 2, 3, 4, 5]
    assert table.snapshots()[3:] == dev.snapshots()[1:]
    assert table.append([{"id": 11, "p": "p1", "frame": b"frame 11"}], commit_id="mine").snapshot_id == 5
    assert add(table, 12) == 6
    assert ids(table) == [0, 1, 2, 10, 11, 12]
    assert ids(dev) == [0, 1, 2, 10, 11]
    assert len(set(table.latest().query().index().row_ids.tolist())) == 6


def test_fast_forward_with_nothing_new(table: lh.Table) -> None:
    table.create_branch("dev")
    assert table.fast_forward("dev") == 3
    assert ids(table) == [0, 1, 2]


def test_no_fast_forward_where_the_table_has_moved(table: lh.Table) -> None:
    """Upstream copies the branch's snapshot files over the table's."""
    dev = table.create_branch("dev")
    old = table.create_branch("old", snapshot=2)
    for branch in (dev, old):
        add(branch, 10)
    add(table, 20)
    before = everything_in(folder_of(table))
    for name in ("dev", "old"):
        with pytest.raises(lh.CommitError, match="the table has moved to snapshot 4, which the branch does not have"):
            table.fast_forward(name)
    assert everything_in(folder_of(table)) == before
    assert ids(table) == [0, 1, 2, 20]


def test_no_fast_forward_from_an_older_snapshot(table: lh.Table) -> None:
    add(table.create_branch("old", snapshot=2), 10)  # its snapshot 3 is not the table's
    with pytest.raises(lh.CommitError, match="moved to snapshot 3"):
        table.fast_forward("old")
    assert ids(table) == [0, 1, 2]


@pytest.mark.parametrize("where", ["default.t", "default.t$branch_dev"])
def test_no_fast_forward_where_schemas_differ(table: lh.Table, catalog: lh.Catalog, where: str) -> None:
    add(table.create_branch("dev"), 10)
    catalog.paimon.alter_table(where, [SchemaChange.add_column("score", AtomicType("DOUBLE"))], False)
    before = everything_in(folder_of(table))
    with pytest.raises(lh.CommitError, match="their schemas differ"):
        table.fast_forward("dev")
    assert everything_in(folder_of(table)) == before
    assert ids(table) == [0, 1, 2]


def test_a_fast_forward_that_was_killed_half_way_goes_on(table: lh.Table) -> None:
    dev = table.create_branch("dev")
    for i in (10, 11, 12):
        add(dev, i)
    branch = folder_of(table) / "branch/branch-dev/snapshot"
    (folder_of(table) / "snapshot/snapshot-4").write_bytes((branch / "snapshot-4").read_bytes())
    assert ids(table) == [0, 1, 2, 10]
    assert table.fast_forward("dev") == 6
    assert ids(table) == [0, 1, 2, 10, 11, 12]


# --- names, and what is not there --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*BAD_NAMES, "main", "123"], ids=repr)
def test_names_that_are_paths_touch_nothing(table: lh.Table, warehouse: Path, name: Any) -> None:
    table.create_branch("good")
    before = everything_in(warehouse.parent)
    calls: list[Callable[[], Any]] = [lambda: table.create_branch(name), lambda: table.create_branch(name, snapshot=1)]
    if name not in ("main", "123"):
        calls += [lambda: table.branch(name), lambda: table.delete_branch(name), lambda: table.fast_forward(name)]
    for call in calls:
        with pytest.raises(lh.ConfigError, match="can't name a branch"):
            call()
    assert everything_in(warehouse.parent) == before
    assert table.branches() == ["good"]


def test_what_is_not_there_says_what_is(table: lh.Table) -> None:
    table.create_branch("b")
    table.create_branch("a")
    for call in (table.branch, table.delete_branch, table.fast_forward):
        with pytest.raises(lh.NotFoundError, match="no branch 'x'; branches: a, b"):
            call("x")
    with pytest.raises(lh.NotFoundError, match="no snapshot 9"):
        table.create_branch("c", snapshot=9)
    with pytest.raises(lh.NotFoundError, match="no tag 'v'"):
        table.create_branch("c", tag="v")
    with pytest.raises(lh.ConfigError, match="exactly one of"):
        table.create_branch("c", tag="v", snapshot=1)
    with pytest.raises(lh.ConfigError, match="branch 'a' exists"):
        table.create_branch("a", snapshot=1)
    assert table.branches() == ["a", "b"]
    assert ids(table.branch("a")) == [0, 1, 2]


def test_a_branch_has_no_branches(table: lh.Table) -> None:
    dev = table.create_branch("dev")
    asks: list[Callable[[str], Any]] = [dev.branch, dev.create_branch, dev.delete_branch, dev.fast_forward]
    for ask in asks:
        with pytest.raises(lh.ConfigError, match="is asked of the table itself"):
            ask("x")


def test_deleting_leaves_the_table(table: lh.Table) -> None:
    dev = table.create_branch("dev")
    add(dev, 10)
    table.delete_branch("dev")
    assert table.branches() == []
    assert ids(table) == [0, 1, 2]
    assert list((folder_of(table) / "branch").iterdir()) == []
    with pytest.raises(lh.NotFoundError, match="no branch 'dev'; branches: none"):
        table.at(branch="dev")
    assert ids(table.create_branch("dev", snapshot=1)) == [0]


@pytest.mark.s3
def test_one_of_many_makers_wins(table: lh.Table) -> None:
    def make(number: int) -> bool:
        try:
            table.create_branch("dev", snapshot=number % 3 + 1)
        except lh.ConfigError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(make, range(16))) == 1
    assert [path.name for path in (folder_of(table) / "branch").iterdir()] == ["branch-dev"]
    assert len(ids(table.branch("dev"))) == table.branch("dev").latest().id
