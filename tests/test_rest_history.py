"""History of tables whose server decides: rollback, branches, diff and training sets go through it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from tests.rest import RestServer

SCHEMA = pa.schema([("id", pa.int64()), ("channel", pa.string()), ("frame", pa.large_binary())])


@pytest.fixture
def catalog(rest: RestServer) -> lh.Catalog:
    return lh.connect(**rest.options())


@pytest.fixture
def table(catalog: lh.Catalog) -> lh.Table:
    """n rows in snapshot n."""
    table = catalog.create_table("drives.t", SCHEMA, partition_by=["channel"])
    for i in range(3):
        table.append(rows(i))
    return table


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "channel": f"c{i % 2}", "frame": b"frame %d" % i} for i in ids]


def ids(held: lh.Table | lh.Snapshot) -> list[int]:
    snapshot = held.latest() if isinstance(held, lh.Table) else held
    found: list[int] = snapshot.arrow(blobs="bytes").sort_by("id")["id"].to_pylist()
    return found


def test_rollback_is_a_commit_of_the_server(rest: RestServer, table: lh.Table) -> None:
    table.tag("two", snapshot=2)
    before = rest.count("POST commit")
    done = table.rollback(tag="two")
    assert (done.snapshot_id, done.undone, rest.count("POST commit")) == (4, (3,), before + 1)
    assert ids(table) == [0, 1]
    table.append(rows(9))
    assert (ids(table), ids(table.at(snapshot=3))) == ([0, 1, 9], [0, 1, 2])
    diff = table.diff("two", table.latest())
    assert (diff.added, diff.deleted, diff.changed) == (1, 0, {})
    assert [(info.operation, info.rows_added) for info in table.snapshots()][2:] == [
        ("append", 1),
        ("rollback", None),
        ("append", 1),
    ]


def test_a_branch_knows_the_commit_ids_of_its_rows(table: lh.Table) -> None:
    table.append(rows(3), commit_id="a")
    table.append(rows(4), commit_id="x")
    table.append(rows(5), commit_id="b")
    branch = table.create_branch("dev", snapshot=5)
    assert [branch.append(rows(9), commit_id=commit_id).snapshot_id for commit_id in "axb"] == [4, 5, 6]
    assert ids(branch) == [0, 1, 2, 3, 4, 9]
    assert table.append(rows(3), commit_id="a").snapshot_id == 4


def test_branches_are_the_servers(rest: RestServer, table: lh.Table) -> None:
    dev = table.create_branch("dev", snapshot=2)
    assert (table.branches(), rest.count("POST branches")) == (["dev"], 1)
    assert table.tags() == {}
    assert ids(dev) == [0, 1]
    assert dev.append(rows(7)).snapshot_id == 3
    assert (ids(dev), ids(table)) == ([0, 1, 7], [0, 1, 2])
    with pytest.raises(lh.CommitError, match="the table has moved to snapshot 3"):
        table.fast_forward("dev")
    with pytest.raises(lh.ConfigError, match="branch 'dev' exists"):
        table.create_branch("dev")
    new = table.create_branch("new")
    new.append(rows(8))
    new.append(rows(9))
    assert table.fast_forward("new") == 5
    assert ids(table) == [0, 1, 2, 8, 9]
    table.delete_branch("dev")
    assert table.branches() == ["new"]
    assert rest.count("DELETE dev") == 1


def test_training_sets(catalog: lh.Catalog, table: lh.Table) -> None:
    index = table.at(snapshot=2).query().where("id >= 1").index()
    saved = catalog.save_training_set("set", index)
    assert table.tags() == {"training-set.set.v1": 2}
    table.append(rows(5))
    assert catalog.training_set("set") == saved
    assert saved.index().fingerprint == index.fingerprint
