"""Faults of pypaimon that show when a row is updated or deleted after something else was written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon.filesystem.local_file_io import LocalFileIO
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

from tests.upstream.plain import SCHEMA, WITH_DELETES, append, bytes_read, files, plain, predicates, read, row


def change(table: Any, messages_of: Callable[[Any], Any]) -> None:
    """One commit of an update or a delete."""
    builder = table.new_batch_write_builder()
    commit = builder.new_commit()
    try:
        commit.commit(messages_of(builder.new_update()))
    finally:
        commit.close()


def test_an_update_of_a_rolled_blob_is_lost(tmp_path: Path) -> None:
    """A column's first .blob file is numbered by its snapshot, the next ones by counts of rows; an update, which carries its
    own snapshot's number, loses against the larger count. By default a second file begins at 256 MB.
    Remedy: `Writer` in lakehouse/write/writer.py has all of them numbered by the snapshot."""
    rows = [row(i, p="P0", img=b"%d" % i * 100) for i in range(30)]
    made = plain(tmp_path, rows, options={"blob.target-file-size": "1 kb"})
    numbers = sorted(file.max_sequence_number for file in files(made.table) if file.file_name.endswith(".blob"))
    assert numbers[0] == 1
    assert numbers[-1] > 20  # right: 1
    for i in (0, 29):
        where = predicates(made.table).equal("id", i)
        change(made.table, lambda update, where=where: update.update_by_predicate(where, {"img": b"new"}))  # type: ignore[misc]
    held = read(made.table, ["id", "img"]).sort_by("id").column("img").to_pylist()
    assert held[0] == b"new"
    assert held[29] == b"29" * 100  # right: b"new"


def test_no_row_can_be_deleted_after_an_overwrite_of_deleted_rows(tmp_path: Path) -> None:
    """The deletion vectors of the files that an overwrite replaced stay in the index, and every later delete trips over them."""
    made = plain(tmp_path, [row(i, p="P0") for i in range(10)], options=WITH_DELETES)
    change(made.table, lambda update: update.delete_by_row_id([1]))
    builder = made.table.new_batch_write_builder().overwrite()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.Table.from_pylist([row(i, p="P0") for i in range(20, 30)], schema=SCHEMA))
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()
    with pytest.raises(RuntimeError, match="Deletion vector index conflict"):
        change(made.table, lambda update: update.delete_by_row_id([12]))


def test_an_update_of_one_blob_reads_all_of_them(tmp_path: Path) -> None:
    """Only to learn how many rows there are. Remedy: lakehouse/changes/column_files.py."""
    made = plain(tmp_path, [row(i, p="P0", img=bytes(100_000)) for i in range(50)])
    before = bytes_read()
    where = predicates(made.table).equal("id", 3)
    change(made.table, lambda update: update.update_by_predicate(where, {"img": b"new"}))
    assert bytes_read() - before > 5_000_000  # right: some kB


def test_two_changes_of_columns_at_once_leave_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema file is looked for and then renamed into place over whatever is there by then.
    Remedy: lakehouse/changes/schema_files.py."""
    made = plain(tmp_path, [row(0)])
    rename = Path.rename
    raced: list[int] = []

    def rename_later(self: Path, target: Path) -> Path:
        if Path(target).name == "schema-1" and not raced:
            raced.append(1)
            with monkeypatch.context() as other_process:  # which has a lock of its own
                other_process.setattr(LocalFileIO, "RENAME_LOCK", threading.Lock())
                made.alter(SchemaChange.add_column("theirs", AtomicType("INT")))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_later)
    made.alter(SchemaChange.add_column("mine", AtomicType("INT")))
    assert raced
    assert [field.name for field in made.table.fields] == [*SCHEMA.names, "mine"]  # right: both


def test_a_writer_that_began_earlier_hides_a_column(tmp_path: Path) -> None:
    """A snapshot is read with the columns that its writer began with.
    Remedy: the commit takes the newest schema, `newest_schema` in lakehouse/upstream.py."""
    made = plain(tmp_path, [row(0)])
    early = made.table
    made.alter(SchemaChange.add_column("score", AtomicType("INT")))
    append(made.table, [row(1, score=5)], SCHEMA.append(pa.field("score", pa.int32())))
    append(early, [row(2)])
    pinned = made.table.copy({"scan.snapshot-id": "3"})
    assert "score" not in [field.name for field in pinned.fields]  # right: it is there
