"""Faults of pypaimon's rollback and branches."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.upstream import pinned
from tests.upstream.plain import NAME, append, plain, row


def test_rollback_gives_numbers_and_row_ids_out_again(tmp_path: Path) -> None:
    """rollback_to() deletes newer snapshots and the tags of them; the next commit gets their number and row ids.
    Remedy: lakehouse/write/restore.py makes a new snapshot of the old content; lakehouse/index keeps a snapshot's identity."""
    made = plain(tmp_path, [row(0)])
    append(made.table, [row(1)])
    made.table.create_tag("newest")
    before = made.table.snapshot_manager().get_snapshot_by_id(2)
    made.table.rollback_to(1)
    assert made.table.tag_manager().get("newest") is None  # right: it is still there
    append(made.table, [row(2)])
    after = made.table.snapshot_manager().get_snapshot_by_id(2)
    assert (after.id, after.next_row_id) == (before.id, before.next_row_id)  # right: 3, and a row id that none had
    assert after.uuid != before.uuid


def test_a_pinned_handle_reads_whatever_has_its_number(tmp_path: Path) -> None:
    """Each plan looks the snapshot up by its number: of a table that was made again since, it is another table's.
    Remedy: `pinned` in lakehouse/upstream.py, by which a handle holds its snapshot; here it finds that its files are gone."""
    made = plain(tmp_path, [row(0)])
    handle = made.table.copy({"scan.snapshot-id": "1"})
    held = pinned(made.table, made.table.snapshot_manager().get_latest_snapshot())
    made.catalog.drop_table(NAME, False)
    plain(tmp_path, [row(1), row(2)])
    plan = handle.new_read_builder().new_scan().plan()
    assert sum(file.row_count for split in plan.splits() for file in split.files if file.file_name.endswith("parquet")) == 2
    with pytest.raises(FileNotFoundError):
        held.new_read_builder().new_scan().plan()


def test_a_branch_can_not_begin_at_a_tag_whose_snapshot_has_expired(tmp_path: Path) -> None:
    """create_branch(tag) copies the snapshot's file, although the tag holds all that is in it.
    Remedy: lakehouse/history/branches.py writes it from the tag."""
    made = plain(tmp_path, [row(0)])
    made.table.create_tag("first")
    append(made.table, [row(1)])
    (Path(str(made.table.table_path)) / "snapshot" / "snapshot-1").unlink()
    with pytest.raises(RuntimeError, match="Exception occurs when create branch 'b'"):
        made.table.branch_manager().create_branch("b", "first")
