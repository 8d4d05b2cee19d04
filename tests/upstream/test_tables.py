"""Faults of pypaimon's commits, schema changes, updates and names."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from daft.exceptions import DaftCoreException
from pypaimon.daft import read_paimon
from pypaimon.filesystem.local_file_io import LocalFileIO
from pypaimon.filesystem.oss_file_io import OssFileIO
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange
from pypaimon.table.row.blob import BlobDescriptor

from tests.upstream.plain import NAME, SCHEMA, WITH_DELETES, append, few_files, files, leaking, plain, predicates, read, row

# ---- commits


def test_t02_two_processes_commit_one_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot file is looked for and then renamed into place over whatever is there by then: a commit is lost, no error.
    Remedy: lakehouse/upstream.py (LinkingSnapshotCommit) links, which fails when the name exists."""
    made = plain(tmp_path, [row(0)])
    rename = Path.rename
    between: list[Path] = []

    def rename_later(self: Path, target: Path) -> Path:
        if Path(target).name == "snapshot-2" and not between:
            between.append(self)
            with monkeypatch.context() as other_process:  # which has a lock of its own
                other_process.setattr(LocalFileIO, "RENAME_LOCK", threading.Lock())
                append(made.table, [row(1)])
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_later)
    append(made.table, [row(2)])
    assert between
    assert made.ids() == [0, 2]  # right: 0, 1 and 2


def test_t06_overwrite_replaces_other_partitions(tmp_path: Path) -> None:
    """overwrite() ignores the partition that it is given, replaces every one that the data has, and none for no data.
    Remedy: lakehouse/changes/overwrite.py names the files that it replaces, and publishes on the snapshot it saw."""
    made = plain(tmp_path, [row(i) for i in range(6)])
    overwrite(made.table, [row(100, p="P1")])
    assert made.ids() == [0, 2, 3, 5, 100]  # right: an error, as 100 is not in P0
    overwrite(made.table, [])
    assert made.ids() == [0, 2, 3, 5, 100]  # right: 2, 5 and 100


def overwrite(table: Any, rows: list[dict[str, Any]]) -> None:
    builder = table.new_batch_write_builder().overwrite({"p": "P0"})
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.Table.from_pylist(rows, schema=SCHEMA))
    commit.commit(write.prepare_commit())


def test_t06_overwrite_deletes_what_came_meanwhile(tmp_path: Path) -> None:
    """Rows appended between reading a partition and overwriting it are deleted.
    Remedy: lakehouse/changes/overwrite.py names the files that it replaces, and publishes on the snapshot it saw."""
    made = plain(tmp_path, [row(0)])
    kept = read(made.table).to_pylist()
    append(made.table, [row(3)])
    overwrite(made.table, kept)
    assert made.ids() == [0]  # right: a conflict


def test_t09_a_failed_write_can_be_committed(tmp_path: Path) -> None:
    """After write_arrow() fails the other partitions' rows commit; the failed one's earlier rows are gone.
    Remedy: lakehouse/table/changes.py (Table.append) aborts on any error."""
    made = plain(tmp_path)
    builder = made.table.new_batch_write_builder()
    write = builder.new_write()
    write.write_arrow(pa.Table.from_pylist([row(0), row(1), row(2)], schema=SCHEMA))
    missing = BlobDescriptor(str(tmp_path / "missing"), 0, -1).serialize()
    with leaking(), pytest.raises(OSError, match="does not exist"):
        write.write_arrow(pa.Table.from_pylist([row(4, img=missing)], schema=SCHEMA))
    builder.new_commit().commit(write.prepare_commit())
    assert made.ids() == [0, 2]  # right: an error


def test_t10_fast_forward_mixes_histories(tmp_path: Path) -> None:
    """fast_forward() of a branch copies its snapshots among main's: snapshot 2 is the branch's, the head is main's.
    Remedy: lakehouse/table/branches.py publishes them only where main has not moved."""
    made = plain(tmp_path, [row(0)])
    made.table.create_tag("base")
    made.table.branch_manager().create_branch("b", "base")
    append(made.catalog.get_table(f"{NAME}$branch_b"), [row(1)])
    append(made.table, [row(2)])
    append(made.table, [row(3)])
    made.table.branch_manager().fast_forward("b")
    assert made.ids() == [0, 2, 3]
    second = read(made.table.copy({"scan.snapshot-id": "2"})).column("id").to_pylist()
    assert sorted(second) == [0, 1]  # right: an error, or 0 and 2


def test_t10_fast_forward_leaves_the_schema_behind(tmp_path: Path) -> None:
    """When the branch has a newer schema, main can't be read after fast_forward().
    Remedy: lakehouse/table/branches.py refuses where schemas differ."""
    made = plain(tmp_path, [row(0)])
    made.table.create_tag("base")
    made.table.branch_manager().create_branch("b", "base")
    branch = f"{NAME}$branch_b"
    made.catalog.alter_table(branch, [SchemaChange.add_column("score", AtomicType("DOUBLE"))], False)
    append(made.catalog.get_table(branch), [row(1)], SCHEMA.append(pa.field("score", pa.float64())))
    made.table.branch_manager().fast_forward("b")
    with leaking(), pytest.raises(AttributeError, match="'NoneType' object has no attribute 'fields'"):
        read(made.table)


def test_t18_no_snapshot_expires(tmp_path: Path) -> None:
    """Retention options do nothing, and there is no call that expires, compacts or removes orphans.
    Not exposed: lakehouse promises no clean-up."""
    keep_one = {"snapshot.num-retained.max": "1", "snapshot.num-retained.min": "1", "snapshot.time-retained": "1 ms"}
    made = plain(tmp_path, options=keep_one)
    for i in range(3):
        append(made.table, [row(i)])
    table = made.table
    assert len(table.snapshot_manager().list_snapshots()) == 3  # right: 1
    offered = {name for owner in (table, made.catalog, table.new_batch_write_builder().new_commit()) for name in dir(owner)}
    assert not [name for name in offered if any(word in name for word in ("expire", "orphan", "compact"))]


def test_t19_counts_are_doubled(tmp_path: Path) -> None:
    """Metadata counts a row again for each of its BLOB columns.
    Remedy: lakehouse/scan/groups.py (Groups.rows) counts row ids less deletions."""
    made = plain(tmp_path, [row(0), row(3)])
    (split,) = made.table.new_read_builder().new_scan().plan().splits()
    assert made.table.snapshot_manager().get_latest_snapshot().total_record_count == 4  # right: 2
    assert (split.row_count, split.merged_row_count()) == (4, 2)


def test_t20_files_stay_open_for_every_partition(tmp_path: Path) -> None:
    """Writing opens a file per partition and BLOB column and closes none before the end.
    Remedy: lakehouse/write/writer.py (Writer) bounds the partitions open at once."""
    made = plain(tmp_path)
    with leaking(), few_files(24), pytest.raises(OSError, match="Too many open files"):
        append(made.table, [row(i, p=f"P{i}") for i in range(40)])


def test_t24_versioned_oss_buckets_lose_commits(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """On an OSS bucket with versioning commits are renamed into place unprotected, with no more than a warning.
    Not refused yet: lakehouse/upstream.py guards local warehouses only."""
    fake: Any = ModuleType("oss2")
    fake.exceptions = SimpleNamespace(ServerError=OSError)
    monkeypatch.setitem(sys.modules, "oss2", fake)
    bucket = SimpleNamespace(get_bucket_versioning=lambda: SimpleNamespace(status="Enabled"))
    file_io = SimpleNamespace(_atomic_write_supported=None, _oss_bucket="b", logger=logging.getLogger("oss"))
    assert OssFileIO._supports_atomic_write(file_io, bucket) is False
    assert "Concurrent commits are not protected against overwrites." in caplog.text


def test_a_compaction_brings_deleted_rows_back(tmp_path: Path) -> None:
    """Replacing a partition's files by check_from_snapshot does not see a delete that came meanwhile.
    Not exposed: Table has no compaction yet."""
    made = plain(tmp_path, [row(0), row(3)], options=WITH_DELETES)
    builder = made.table.new_batch_write_builder()
    write = builder.new_write()
    planned = made.table.new_read_builder().new_scan().plan()
    write.write_arrow(read(made.table))
    (message,) = write.prepare_commit()
    message.deleted_files = [file for split in planned.splits() for file in split.files]
    message.check_from_snapshot = planned.snapshot_id

    deleting = made.table.new_batch_write_builder()
    deleting.new_commit().commit(deleting.new_update().delete_by_predicate(predicates(made.table).equal("id", 3)))
    assert made.ids() == [0]
    builder.new_commit().commit([message])
    assert made.ids() == [0, 3]  # right: a conflict


# ---- schema changes


def test_t03_rows_vanish_when_only_a_new_column_is_read(tmp_path: Path) -> None:
    """Rows written before a column was added are left out when nothing but that column is read.
    Remedy: lakehouse/scan/rows.py (read) always reads the row id too."""
    made = plain(tmp_path, [row(i) for i in range(10)])
    made.alter(SchemaChange.add_column("score", AtomicType("DOUBLE")))
    assert read(made.table, ["score"]).num_rows == 0  # right: 10
    assert read(made.table, ["score", "_ROW_ID"]).num_rows == 10


def test_t04_a_renamed_column_reads_as_null(tmp_path: Path) -> None:
    """After rename_column() every value written before is null.
    Refused: Table.rename_column()."""
    made = plain(tmp_path, [row(0), row(1)])
    made.alter(SchemaChange.rename_column("v", "w"))
    assert read(made.table).column("w").to_pylist() == [None, None]  # right: v0 and v1


def test_t05_a_dropped_blob_column_ends_the_table(tmp_path: Path) -> None:
    """After drop_column() of a BLOB nothing of the table can be read; after adding it again neither.
    Refused: Table.drop_column()."""
    made = plain(tmp_path, [row(0)])
    made.alter(SchemaChange.drop_column("img"))
    with leaking(), pytest.raises(ValueError, match="Field img not found in table schema"):
        read(made.table, ["id"])
    made.alter(SchemaChange.add_column("img", AtomicType("BLOB")))
    with leaking(), pytest.raises(IndexError, match="list index out of range"):
        read(made.table)


def test_t11_a_null_vector_makes_the_table_unreadable(tmp_path: Path) -> None:
    """A null in a fixed-size list is written, and can't be read.
    Refused by lakehouse/write/values.py."""
    schema = pa.schema([("id", pa.int64()), ("e", pa.list_(pa.float32(), 3)), ("img", pa.large_binary())])
    rows: list[dict[str, Any]] = [{"id": 0, "e": [1, 2, 3], "img": b""}, {"id": 1, "e": None, "img": b""}]
    made = plain(tmp_path, rows, schema=schema, partition_by=())
    with leaking(), pytest.raises(pa.ArrowInvalid, match="Expected all lists to be of size=3 but index 2 had size=0"):
        read(made.table)


def test_a_column_that_may_not_be_null_takes_null(tmp_path: Path) -> None:
    """NOT NULL is only checked when the data's own schema says it.
    Refused by lakehouse/write/rows.py and values.py."""
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), ("img", pa.large_binary())])
    made = plain(tmp_path, schema=strict, partition_by=())
    loose = pa.schema([("id", pa.int64()), ("img", pa.large_binary())])
    append(made.table, [{"id": None, "img": b""}], loose)
    assert read(made.table).column("id").to_pylist() == [None]  # right: an error


# ---- updates and indexes


def test_t12_rows_that_a_global_index_does_not_know(tmp_path: Path) -> None:
    """A filter on an indexed column leaves out rows appended after the index was made.
    Remedy: lakehouse/upstream.py (remedied) turns global indexes off."""
    made = plain(tmp_path, [row(i) for i in range(6)])
    made.table.create_global_index("id", "btree")
    append(made.table, [row(100)])
    assert read(made.table, predicate=predicates(made.table).equal("id", 100)).num_rows == 0  # right: 1


def test_t14_a_shard_updater_puts_blobs_into_a_row_file(tmp_path: Path) -> None:
    """BLOBs updated by shard are kept in a Parquet file, where pypaimon finds them and its Daft source does not.
    Remedy: Table.update() writes BLOBs by row id, into .blob files."""
    made = plain(tmp_path, [row(0), row(3)])
    replace_blobs_by_shard(made.table)
    assert read(made.table).column("img").to_pylist() == [b"new", b"new"]
    assert any(file.file_name.endswith(".parquet") and file.write_cols == ["img"] for file in files(made.table))
    with leaking(), pytest.raises(DaftCoreException, match="Invalid BlobDescriptor data: too short"):
        read_paimon(NAME, dict(made.options)).select("id", "img").collect()


def replace_blobs_by_shard(table: Any) -> None:
    builder = table.new_batch_write_builder()
    update = builder.new_update()
    update.with_read_projection(["id"])
    update.with_update_type(["img"])
    shard = update.new_shard_updator(0, 1)
    reader = shard.arrow_reader()
    for batch in iter(reader.read_next_batch, None):
        shard.update_by_arrow_batch(pa.record_batch({"img": pa.array([b"new"] * batch.num_rows, pa.large_binary())}))
    builder.new_commit().commit(shard.prepare_commit())


def test_t15_an_upsert_misses_other_partitions(tmp_path: Path) -> None:
    """A key that exists in another partition is inserted once more.
    Remedy: lakehouse/changes/upsert.py looks in all partitions."""
    made = plain(tmp_path, [row(0, p="A")])
    builder = made.table.new_batch_write_builder()
    again = pa.Table.from_pylist([row(0, p="B")], schema=SCHEMA)
    builder.new_commit().commit(builder.new_update().upsert_by_arrow_with_key(again, ["id"]))
    assert made.ids() == [0, 0]  # right: an error, or 0


# ---- names and references


def test_t07_tag_names_are_paths(tmp_path: Path) -> None:
    """A tag may be named ../../x; from then on no tag can be listed, and rollback fails after deleting the snapshots.
    Refused by lakehouse/names.py (checked)."""
    made = plain(tmp_path, [row(0)])
    table = made.table
    table.create_tag("../../x")
    with pytest.raises(ValueError, match=r"not enough values to unpack \(expected 2, got 1\)"):
        table.list_tags()
    append(table, [row(1)])
    with pytest.raises(ValueError, match=r"not enough values to unpack \(expected 2, got 1\)"):
        table.rollback_to(1)
    assert made.ids() == [0]  # right: nothing done


def test_t07_a_tag_of_another_name(tmp_path: Path) -> None:
    """The tag x/y is listed as x, which can't be read.
    Refused by lakehouse/names.py (checked)."""
    table = plain(tmp_path, [row(0)]).table
    table.create_tag("x/y")
    assert table.list_tags() == ["x"]
    with pytest.raises(IsADirectoryError):
        table.tag_manager().get("x")


def test_t08_bytes_that_look_like_a_descriptor_are_followed(tmp_path: Path) -> None:
    """A value that starts like a descriptor is taken for a path when it is written: that file's content is stored.
    Refused by lakehouse/write/blobs.py."""
    (tmp_path / "private").write_bytes(b"secret")
    value = BlobDescriptor(str(tmp_path / "private"), 0, -1).serialize()
    made = plain(tmp_path / "warehouse", [row(0, img=value)])
    assert read(made.table).column("img").to_pylist() == [b"secret"]  # right: the value


def test_t23_a_reference_column_reads_any_file(tmp_path: Path) -> None:
    """A table's references may name any file of the reader's machine.
    Refused by lakehouse/fetch (TableFetcher) outside blob_roots."""
    (tmp_path / "private").write_bytes(b"secret")
    value = BlobDescriptor(str(tmp_path / "private"), 0, -1).serialize()
    made = plain(tmp_path / "warehouse", [row(0, img=value)], options={"blob-descriptor-field": "img"})
    assert read(made.table).column("img").to_pylist() == [b"secret"]


def test_a_short_source_is_stored_short(tmp_path: Path) -> None:
    """A descriptor of 10 bytes over a file of 3 stores 3.
    Refused by lakehouse/write/blobs.py (Describer)."""
    (tmp_path / "source").write_bytes(b"abc")
    value = BlobDescriptor(str(tmp_path / "source"), 0, 10).serialize()
    made = plain(tmp_path / "warehouse", [row(0, img=value)])
    assert read(made.table).column("img").to_pylist() == [b"abc"]  # right: an error


def test_damaged_blobs_are_read(tmp_path: Path) -> None:
    """The checksum beside each BLOB is never compared.
    Remedy: lakehouse/fetch (VerifyingFetcher) compares it."""
    made = plain(tmp_path, [row(0, img=b"abcdef")])
    (file,) = tmp_path.rglob("*.blob")
    file.write_bytes(file.read_bytes().replace(b"abcdef", b"abcdeX"))
    assert read(made.table).column("img").to_pylist() == [b"abcdeX"]  # right: an error


# ---- reading


def test_incremental_between_reads_everything(tmp_path: Path) -> None:
    """The option incremental-between is ignored: the whole table comes back.
    Not exposed: Table.at takes one of tag, snapshot and time."""
    made = plain(tmp_path, [row(0)])
    append(made.table, [row(1)])
    assert read(made.table.copy({"incremental-between": "1,2"})).num_rows == 2  # right: 1


def test_unknown_columns_are_left_out(tmp_path: Path) -> None:
    """A projection drops names that the table lacks.
    Refused by lakehouse/schema.py (known_columns)."""
    assert read(plain(tmp_path, [row(0)]).table, ["id", "idd"]).column_names == ["id"]  # right: an error


def test_a_branch_without_a_tag_is_empty(tmp_path: Path) -> None:
    """create_branch() without a tag copies the schema and no row.
    Remedy: lakehouse/history/branches.py writes the latest snapshot into it."""
    made = plain(tmp_path, [row(0)])
    made.table.branch_manager().create_branch("b")
    assert read(made.catalog.get_table(f"{NAME}$branch_b")).num_rows == 0
