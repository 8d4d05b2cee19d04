"""Rows that leave for good: after a purge their bytes are in no file, and every other row is as it was."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import daft
import pytest
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

import lakehouse as lh
from tests.stores import place
from tests.stores.place import connect, on_stores
from tests.test_compact import SCHEMA, change, delete, held, listed, made, row
from tests.test_compact_meanwhile import ended, started

pytestmark = on_stores

KILLS = int(os.environ.get("LAKEHOUSE_STRESS_KILLS", "3"))
NOW = timedelta(0)
MARK = b"SECRET-FACE"
NAME = "SECRET-PLATE"


def secret(i: int, **changes: Any) -> dict[str, Any]:
    """A row with a marker in a BLOB and in a value, both of which statistics and files would show."""
    return row(i, **{"v": f"{NAME}-{i}", "img": MARK + b"-%d" % i, **changes})


def traces(table: lh.Table) -> list[str]:
    """Files below the table's folder in which a marker lies, as written or compressed, or that have it in their path."""
    found = []
    for name in listed(table):
        data = (place.path(table.paimon.table_path) / name).read_bytes()
        if MARK in data or NAME.encode() in data or NAME in name or any(NAME.encode() in part for part in unpacked(name, data)):
            found.append(name)
    return found


def unpacked(name: str, data: bytes) -> Iterator[bytes]:
    """What compressed files hold."""
    if name.endswith(".parquet"):
        import pyarrow.parquet as pq

        file = pq.ParquetFile(io.BytesIO(data))
        yield str(file.read().to_pylist()).encode()
        yield str(file.metadata.to_dict()).encode()
    elif data.startswith(b"Obj\1"):
        import fastavro

        records: Any = fastavro.reader(io.BytesIO(data))
        yield from (str(record).encode() for record in records)


def without(rows: list[dict[str, Any]], *ids: int) -> list[dict[str, Any]]:
    return [found for found in rows if found["id"] not in ids]


def test_markers_are_found_where_they_lie(warehouse: Path) -> None:
    """The search that the other tests stand on: row file, BLOB file, manifest."""
    table = made(warehouse, commits=1)
    table.append([secret(100)])
    assert {Path(name).suffix for name in traces(table)} == {".parquet", ".blob", ""}


@pytest.mark.s3
def test_rows_leave_every_file(warehouse: Path) -> None:
    table = made(warehouse, commits=4)
    table.append([secret(100), row(101, p="P1"), row(102, p="P1")])
    table.append([secret(103), row(104)])
    before = held(table.latest())
    would = table.purge(f"v like '{NAME}%'", dry_run=True)
    assert held(table.latest()) == before
    report = table.purge(f"v like '{NAME}%'", orphans_older_than=NOW)
    assert traces(table) == []
    assert held(table.latest()) == without(before, 100, 103)
    assert would.rows == report.rows == {"default.t": 2}
    assert would.versions == report.versions == {"snapshot 5": 1, "snapshot 6": 2}
    assert would.snapshots_removed == report.snapshots_removed == tuple(f"snapshot {n}" for n in range(1, 7))
    assert [info.id for info in table.snapshots()] == [report.snapshots[-1]]
    assert "2 rows of default.t removed" in str(report)
    assert "would be removed" in str(would)
    assert (report.unnamed, report.left) == (0, ())
    table.append([row(105)])
    delete(table, 102)
    assert held(table.latest()) == sorted([*without(before, 100, 102, 103), row(105)], key=lambda found: found["id"])


def test_rows_keep_their_ids(warehouse: Path) -> None:
    table = made(warehouse, commits=3, by=())
    index = table.latest().query().index()
    ids = dict(zip(index.column("id").to_pylist(), index.row_ids.tolist(), strict=True))
    table.purge("id in (3, 8, 9)", orphans_older_than=NOW)
    index = table.latest().query().index()
    for i in (3, 8, 9):
        del ids[i]
    assert dict(zip(index.column("id").to_pylist(), index.row_ids.tolist(), strict=True)) == ids


def test_rows_that_are_gone_from_the_latest_version(warehouse: Path) -> None:
    """Deleted, overwritten by an update, in a dropped partition: their bytes lie in older files."""
    table = made(warehouse, commits=2)
    table.append([secret(100), secret(101), secret(102, p="gone"), row(103)])
    delete(table, 100)
    where = table.paimon.new_read_builder().new_predicate_builder().equal("id", 101)
    change(table, lambda update: update.update_by_predicate(where, {"v": "anonymous", "img": b"grey"}))
    gone = table.paimon.new_read_builder().new_predicate_builder().equal("p", "gone")
    change(table, lambda update: update.delete_by_predicate(gone))
    before = held(table.latest())
    report = table.purge(f"v like '{NAME}%'", orphans_older_than=NOW)
    assert traces(table) == []
    # Row 101 was such a row once: it is removed as a whole.
    assert held(table.latest()) == without(before, 101)
    assert report.rows == {"default.t": 1}


def test_old_values_whose_snapshots_are_gone(warehouse: Path) -> None:
    """No version shows them, yet the files of the latest one still hold them."""
    table = made(warehouse, commits=1)
    table.append([secret(100), secret(101), row(102)])
    where = table.paimon.new_read_builder().new_predicate_builder().equal("id", 101)
    change(table, lambda update: update.update_by_predicate(where, {"v": "anonymous"}))
    delete(table, 100)
    table.expire(keep_last=1)
    before = held(table.latest())
    assert traces(table)
    table.purge(f"v like '{NAME}%'", orphans_older_than=NOW)
    assert traces(table) == []
    assert held(table.latest()) == without(before, 101)


def test_tags_lose_the_rows_and_nothing_else(warehouse: Path, tmp_path: Path) -> None:
    table = made(warehouse, commits=2)
    table.tag("clean")
    clean = held(table.latest())
    table.append([secret(100), row(101), row(102)])
    table.tag("train", description="for the paper", keep_for=timedelta(days=300))
    train = held(table.latest())
    index = table.at(tag="train").query().index()
    index.save(tmp_path / "train.idx")
    delete(table, 100)
    table.compact()
    table.tag("later")
    later = held(table.latest())
    info = table.tag_info("train")
    report = table.purge(f"v like '{NAME}%'", orphans_older_than=NOW)
    assert traces(table) == []
    assert held(table.at(tag="clean")) == clean
    assert held(table.at(tag="train")) == without(train, 100)
    assert held(table.at(tag="later")) == later
    assert held(table.latest()) == later
    assert report.versions == {"snapshot 3": 1, "tag 'train'": 1}
    assert "tag 'train'" in report.tags
    assert "tag 'clean'" not in report.tags
    assert table.tag_info("train") == info
    # The saved training set is another one now, and says so.
    catalog = connect(warehouse)
    with pytest.raises(lh.LakehouseError, match="train|snapshot"):
        lh.RowIndex.load(tmp_path / "train.idx", catalog)


def test_branches_too(warehouse: Path) -> None:
    table = made(warehouse, commits=2)
    table.append([secret(100), row(101)])
    dev = table.create_branch("dev")
    dev.append([secret(102), row(103)])
    dev.tag("mine")
    before = held(dev.latest())
    report = table.purge(f"v like '{NAME}%'", orphans_older_than=NOW)
    assert traces(table) == []
    assert held(table.branch("dev").latest()) == without(before, 100, 102)
    assert held(table.branch("dev").at(tag="mine")) == without(before, 100, 102)
    assert 100 not in {found["id"] for found in held(table.latest())}
    assert report.rows == {"default.t": 1, "default.t$branch_dev": 2}
    with pytest.raises(lh.ConfigError, match=r"purge\(\)"):
        table.branch("dev").purge("id = 1")


def test_a_partition_whose_name_is_the_secret(warehouse: Path) -> None:
    table = made(warehouse, commits=2)
    table.append([row(100, p=NAME), row(101)])
    table.purge(daft.col("p") == NAME, orphans_older_than=NOW)
    assert traces(table) == []
    assert not [path for path in place.path(table.paimon.table_path).rglob("*") if NAME in path.name]
    assert 100 not in {found["id"] for found in held(table.latest())}


@pytest.mark.local("object stores have no empty folders")
@pytest.mark.parametrize("value", [NAME, None, "", "a/b"])
def test_a_folder_that_was_emptied_before(warehouse: Path, value: str | None) -> None:
    """Its rows were deleted, merged away and expired; its name still held their value."""
    table = made(warehouse, commits=1)
    root = place.path(table.paimon.table_path)
    before = {path.name for path in root.glob("p=*")}
    table.append([row(100, p=value)])
    table.delete("id = 100")
    table.compact()
    table.expire(keep_last=1)
    (foreign := root / "p=P0" / "notes").mkdir()
    assert len({path.name for path in root.glob("p=*")} - before) == 1
    table.purge("id = 100", orphans_older_than=NOW)
    assert {path.name for path in root.glob("p=*")} == before
    assert foreign.is_dir()
    assert len(held(table.latest())) == table.latest().count_rows() > 0


def test_all_rows(warehouse: Path) -> None:
    table = connect(warehouse).create_table("default.t", SCHEMA)
    assert not table.purge("id = 1").rows
    table.append([secret(1), secret(2)])
    table.tag("x")
    table.purge("id > 0", orphans_older_than=NOW)
    assert traces(table) == []
    assert table.latest().count_rows() == table.at(tag="x").count_rows() == 0
    table.append([row(3)])
    assert held(table.latest()) == [row(3)]


def test_nothing_to_do_changes_nothing(warehouse: Path) -> None:
    table = made(warehouse, commits=3)
    before = listed(table)
    report = table.purge("v = 'nobody'")
    assert listed(table).keys() - {"lakehouse/.history.lock"} == before.keys()
    assert (report.rows, report.versions, report.snapshots, report.files_removed) == ({}, {}, (), 0)
    assert str(report) == "default.t: no version holds such rows"
    for wrong, error in (("nope = 1", lh.NotFoundError), ("v = ", lh.SchemaError), ("img = 'x'", lh.SchemaError)):
        with pytest.raises(error):
            table.purge(wrong)


def test_columns_of_their_time(warehouse: Path) -> None:
    """A condition on a column that older versions lack finds rows there by the files that they share."""
    table = made(warehouse, commits=1)
    table.append([secret(100, v="plain"), row(101)])
    table.tag("old")
    paimon = table.paimon
    added = SchemaChange.add_column("face", AtomicType("BOOLEAN"))
    paimon.catalog_environment.catalog_loader.load().alter_table(paimon.identifier.get_full_name(), [added], False)
    where = table.paimon.new_read_builder().new_predicate_builder().equal("id", 100)
    change(table, lambda update: update.update_by_predicate(where, {"face": True}))
    table.purge("face", orphans_older_than=NOW)
    assert traces(table) == []
    assert [found["id"] for found in held(table.at(tag="old"))] == [0, 1, 2, 3, 4, 5, 101]
    assert table.at(tag="old").schema.names == SCHEMA.names


@pytest.mark.local("sets the age of files, which stores do not let one do")
def test_leftovers_of_killed_writers(warehouse: Path) -> None:
    table = made(warehouse, commits=1)
    folder = next(place.path(table.paimon.table_path).rglob("bucket-0"))
    orphan = folder / "data-00000000-0000-4000-8000-000000000000-0.blob"
    orphan.write_bytes(MARK)
    report = table.purge("v = 'nobody'")
    assert report.unnamed == 1
    assert "purge again later" in str(report)
    os.utime(orphan, (0, 0))
    report = table.purge("v = 'nobody'")
    assert (report.unnamed, report.files_removed) == (0, 1)
    assert traces(table) == []


_PURGER = """
import json, sys, datetime, lakehouse as lh
table = lh.connect(json.loads(sys.argv[1])).table("default.t")
print("ready", flush=True)
table.purge(f"v like '{sys.argv[2]}%'")
"""
_WRITER = """
import json, sys, lakehouse as lh
from tests.test_purge import secret, row
table = lh.connect(json.loads(sys.argv[1])).table("default.t")
print("ready", flush=True)
for n in range(int(sys.argv[2])):
    table.append([secret(2000 + 2 * n), row(2001 + 2 * n)])
"""


@pytest.mark.local("kills processes many times; commits on S3 are in test_s3_commits.py")
def test_killed_at_any_moment(warehouse: Path) -> None:
    """Every version that can still be opened is whole, and calling it again ends the work."""
    rng = random.Random(7)
    table = made(warehouse, commits=3)
    killed = 0
    for n in range(KILLS):
        table.append([secret(1000 + 10 * n), row(1001 + 10 * n)])
        table.tag(f"t{n}")
        tags = {tag: held(table.at(tag=tag)) for tag in table.tags()}
        rows = held(table.latest())
        child = started(_PURGER, json.dumps(place.options(warehouse)), NAME)
        time.sleep(rng.uniform(0, 0.5))
        child.send_signal(signal.SIGKILL)
        killed += ended(child) == -signal.SIGKILL
        table = connect(warehouse).table("default.t")
        secrets = {found["id"] for found in rows if found["v"].startswith(NAME)}
        assert held(table.latest()) in (rows, without(rows, *secrets))
        for tag, was in tags.items():
            assert held(table.at(tag=tag)) in (was, without(was, *secrets))
        if n % 2:
            table.purge(f"v like '{NAME}%'", orphans_older_than=NOW)
            assert traces(table) == []
            assert held(table.latest()) == without(rows, *secrets)
    assert killed


def test_rows_that_come_meanwhile(warehouse: Path) -> None:
    table = made(warehouse, commits=3)
    rows = held(table.latest())
    writer = started(_WRITER, json.dumps(place.options(warehouse)), 10)
    while writer.poll() is None:
        with contextlib.suppress(lh.CommitError):
            table.purge(f"v like '{NAME}%'")
    assert ended(writer) == 0
    table.purge(f"v like '{NAME}%'", orphans_older_than=NOW)
    assert traces(table) == []
    assert held(table.latest()) == [*rows, *(row(2001 + 2 * n) for n in range(10))]
