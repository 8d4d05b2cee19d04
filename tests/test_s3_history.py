"""Rollback, branches, diff and training sets, on a local warehouse and on a real S3 server alike."""

from __future__ import annotations

import pytest

import lakehouse as lh
from tests.numbered import SCHEMA, held, rows
from tests.stores.fixtures import Lake


@pytest.fixture
def catalog(lake: Lake) -> lh.Catalog:
    return lake.connect()


@pytest.fixture
def table(catalog: lh.Catalog) -> lh.Table:
    table = catalog.create_table("default.t", SCHEMA, partition_by=["p"])
    for i in range(3):
        table.append(rows(2 * i, 2 * i + 1))
    return table


def test_rollback_and_diff(table: lh.Table) -> None:
    table.tag("two", snapshot=2)
    assert table.rollback(tag="two").snapshot_id == 4
    assert held(table) == [0, 1, 2, 3]
    table.append(rows(9))
    diff = table.diff(3, table.latest(), key="id")
    assert (diff.added, diff.deleted, diff.changed) == (1, 2, {})
    assert sorted(diff.rows("deleted", blobs="bytes")["frame"].to_pylist()) == [b"frame 4", b"frame 5"]
    assert [info.rows_added for info in table.snapshots()] == [2, 2, 2, None, 1]


def test_branches(table: lh.Table) -> None:
    table.tag("v1", snapshot=1)
    old = table.create_branch("old", tag="v1")
    dev = table.create_branch("dev")
    assert (table.branches(), held(old), held(dev)) == (["dev", "old"], [0, 1], held(table))
    for i in (10, 11):
        dev.append(rows(i))
    old.append(rows(20))
    with pytest.raises(lh.CommitError, match="the table has moved to snapshot 3"):
        table.fast_forward("old")
    assert table.fast_forward("dev") == 5
    assert held(table) == [0, 1, 2, 3, 4, 5, 10, 11]
    table.delete_branch("old")
    assert table.branches() == ["dev"]
    assert table.tags() == {"v1": 1}


def test_training_sets(table: lh.Table, catalog: lh.Catalog, lake: Lake) -> None:
    index = table.at(snapshot=2).query().where("id >= 1").index().take([2, 0, 0])
    saved = catalog.save_training_set("set", index)
    table.append(rows(30))
    again = lake.connect().training_set("set")
    assert again == saved
    assert again.index().fingerprint == index.fingerprint
    assert [row["frame"].read(table) for row in again.index()] == [row["frame"].read(table) for row in index]
