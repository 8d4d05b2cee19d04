"""A disk that is full in the middle of a change: a clear error, nothing committed, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pypaimon.filesystem.local_file_io import LocalFileIO

import lakehouse as lh
from tests.test_changes import all_files, made, state
from tests.upstream.plain import row

CHANGES: dict[str, tuple[Callable[[lh.Table], Any], int]] = {  # and how many files it writes before it publishes
    "update scalar": (lambda t: t.update(None, {"v": "new"}), 3),
    "update blob": (lambda t: t.update(None, {"img": b"new"}), 3),
    "update both": (lambda t: t.update(None, {"img": b"new", "v": "new"}), 6),
    "delete": (lambda t: t.delete("id < 3"), 3),
    "upsert": (lambda t: t.upsert([row(0, v="new"), row(1, p="P2"), row(9)], key=["id"]), 7),
    "overwrite": (lambda t: t.overwrite([row(0), row(1), row(2)]), 6),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_full_disk_at_every_file(warehouse: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    change, written = CHANGES[name]
    table = made(warehouse, [row(i) for i in range(6)])
    before = all_files(warehouse)
    opened = LocalFileIO.new_output_stream
    for position in range(1, written + 1):
        count = 0

        def full(self: Any, path: str, position: int = position) -> Any:
            nonlocal count
            count += 1
            if count == position:
                raise OSError(28, "No space left on device", path)
            return opened(self, path)

        with monkeypatch.context() as patch:
            patch.setattr(LocalFileIO, "new_output_stream", full)
            with pytest.raises(lh.CommitError, match="No space left on device"):
                change(table)
        assert all_files(warehouse) == before, position
        assert state(table) == [row(i) for i in range(6)]
    assert change(table).snapshot_id == 2
