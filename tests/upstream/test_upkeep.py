"""Faults of pypaimon that expiry would bring out."""

from __future__ import annotations

from pathlib import Path

import pytest
from pypaimon.filesystem.local_file_io import LocalFileIO

from lakehouse.upstream import snapshot_of, snapshots_of
from tests.upstream.plain import WITH_DELETES, append, plain, row


def test_a_missing_index_manifest_deletes_nothing(tmp_path: Path) -> None:
    """It is taken for an empty one: deleted rows are back, no error, for a reader of a snapshot that expires meanwhile.
    Remedy: lakehouse/scan/groups.py looks for it after the plan is made."""
    made = plain(tmp_path, [row(i) for i in range(6)], options=WITH_DELETES)
    builder = made.table.new_batch_write_builder()
    by_id = made.table.new_read_builder().new_predicate_builder().equal("id", 3)
    builder.new_commit().commit(builder.new_update().delete_by_predicate(by_id))
    assert made.ids() == [0, 1, 2, 4, 5]
    (manifest,) = tmp_path.rglob("index-manifest-*")
    manifest.unlink()
    assert made.ids() == [0, 1, 2, 3, 4, 5]  # right: an error


def test_a_snapshot_that_expires_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot's file is looked for and then read: one that goes in between is an error, and so are all lists of snapshots.
    Remedy: lakehouse/upstream.py (snapshot_of, snapshots_of)."""
    made = plain(tmp_path, [row(0)])
    append(made.table, [row(1)])
    exists = LocalFileIO.exists

    def exists_until_now(self: LocalFileIO, path: str) -> bool:
        found = bool(exists(self, path))
        if path.endswith("/snapshot-1"):
            Path(path).unlink(missing_ok=True)  # as another process does
        return found

    content = next(tmp_path.rglob("snapshot-1")).read_text()
    manager = made.table.snapshot_manager()
    path = Path(manager.get_snapshot_path(1))
    monkeypatch.setattr(LocalFileIO, "exists", exists_until_now)
    with pytest.raises(FileNotFoundError):  # right: None
        manager.get_snapshot_by_id(1)
    path.write_text(content)
    with pytest.raises(FileNotFoundError):  # right: the second
        manager.list_snapshots()
    path.write_text(content)
    assert snapshot_of(manager, 1) is None
    path.write_text(content)
    assert [snapshot.id for snapshot in snapshots_of(manager)] == [2]
