"""Faults of pypaimon that show when a row is updated or deleted after something else was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.upstream.plain import SCHEMA, WITH_DELETES, bytes_read, files, plain, predicates, read, row


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


def test_an_upsert_doubles_a_key_that_changes_its_partition(tmp_path: Path) -> None:
    """T15. Remedy: lakehouse/changes/upsert.py looks in all partitions."""
    made = plain(tmp_path, [row(1)])
    moved = pa.Table.from_pylist([row(1, p="P2")], schema=SCHEMA)
    change(made.table, lambda update: update.upsert_by_arrow_with_key(moved, ["id"]))
    assert made.ids() == [1, 1]  # right: [1]


def test_an_overwrite_of_one_partition_replaces_others(tmp_path: Path) -> None:
    """T6. Remedy: lakehouse/changes/overwrite.py names the files to replace."""
    made = plain(tmp_path, [row(i) for i in range(3)])

    def overwrite(rows: list[dict[str, Any]]) -> None:
        builder = made.table.new_batch_write_builder().overwrite({"p": "P0"})
        write, commit = builder.new_write(), builder.new_commit()
        if rows:
            write.write_arrow(pa.Table.from_pylist(rows, schema=SCHEMA))
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    overwrite([])
    assert made.ids() == [0, 1, 2]  # right: [1, 2]
    overwrite([row(10, p="P1")])
    assert made.ids() == [0, 2, 10]  # right: refused


def test_rows_that_were_deleted_meanwhile_come_back_when_their_files_are_replaced(tmp_path: Path) -> None:
    """Remedy: lakehouse/write/exclusive.py publishes on the expected snapshot only."""
    made = plain(tmp_path, [row(i, p="P0") for i in range(4)], options=WITH_DELETES)
    table = made.table
    split = table.new_read_builder().new_scan().plan().splits()[0]
    builder = table.new_batch_write_builder()
    write = builder.new_write()
    write.write_arrow(pa.Table.from_pylist([row(i, p="P0") for i in range(4)], schema=SCHEMA))
    (message,) = write.prepare_commit()
    message.deleted_files = list(split.files)
    message.check_from_snapshot = 1
    change(made.table, lambda update: update.delete_by_row_id([1]))
    assert made.ids() == [0, 2, 3]
    builder.new_commit().commit([message])
    assert made.ids() == [0, 1, 2, 3]  # right: a conflict
