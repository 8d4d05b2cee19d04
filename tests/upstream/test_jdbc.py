"""Faults of pypaimon's JDBC catalog that `lakehouse.database` keeps away."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory, Schema
from pypaimon.filesystem.local_file_io import LocalFileIO


def opened(folder: Path) -> Any:
    uri = f"jdbc:sqlite:{folder}/catalog.db"
    return CatalogFactory.create({"metastore": "jdbc", "uri": uri, "warehouse": str(folder / "lake")})


def schema() -> Any:
    return Schema.from_pyarrow_schema(pa.schema([("id", pa.int64())]))


def test_a_table_that_two_make_at_once_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    first.create_database("d", True)
    rename = Path.rename
    met: list[Path] = []

    def rename_later(self: Path, target: Path) -> Path:
        if not met:
            met.append(self)
            with monkeypatch.context() as other_process:  # which has a lock of its own
                other_process.setattr(LocalFileIO, "RENAME_LOCK", threading.Lock())
                first.create_table("d.t", schema(), False)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_later)
    with pytest.raises(sqlite3.IntegrityError):
        second.create_table("d.t", schema(), False)
    assert first.list_tables("d") == ["t"]
    assert not list((tmp_path / "lake").rglob("schema-0"))


def test_a_database_that_two_make_at_once_fails_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    insert = second._insert_database_properties

    def meeting(name: str, properties: dict[str, str]) -> None:
        first.create_database("d", True)
        insert(name, properties)

    monkeypatch.setattr(second, "_insert_database_properties", meeting)
    with pytest.raises(sqlite3.IntegrityError):
        second.create_database("d", True)
