"""Faults of pypaimon's commits, and of how it makes and drops tables; `lakehouse.write.engine`, `lakehouse.warehouse` heal them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pypaimon.catalog.catalog_environment import CatalogEnvironment
from pypaimon.schema.schema_manager import SchemaManager
from pypaimon.snapshot.renaming_snapshot_commit import RenamingSnapshotCommit

from tests.upstream.plain import NAME, append, plain, row


def _with(table: Any, commit: Any) -> Any:
    """The table, its snapshots published by this class."""

    class Environment(CatalogEnvironment):
        def snapshot_commit(self, snapshot_manager: Any) -> Any:
            return commit(snapshot_manager)

    old = table.catalog_environment
    table.catalog_environment = Environment(old.identifier, old.uuid, old.catalog_loader)
    return table


def test_a_lost_race_leaves_its_manifests(warehouse: Path) -> None:
    made = plain(warehouse, [row(0)])
    answers = [False]

    class Second(RenamingSnapshotCommit):
        def commit(self, *given: Any) -> bool:
            return answers.pop() if answers else super().commit(*given)

    manifests = warehouse / "default.db" / "t" / "manifest"
    before = len(list(manifests.iterdir()))
    append(_with(made.table, Second), [row(1)])
    assert len(list(manifests.iterdir())) == before + 6  # 3 of them are named by nothing


def test_a_store_that_refuses_is_asked_again_and_again(warehouse: Path) -> None:
    made = plain(warehouse, [row(0)])
    asked = []

    class Refuses(RenamingSnapshotCommit):
        def commit(self, *_: Any) -> bool:
            asked.append(1)
            raise PermissionError(13, "Permission denied")

    table = _with(made.table, Refuses).copy({"commit.max-retries": "3", "commit.max-retry-wait": "20 ms"})
    table.catalog_environment = _with(made.table, Refuses).catalog_environment
    with pytest.raises(RuntimeError, match="Commit failed"):
        append(table, [row(1)])
    assert len(asked) == 4


def test_nothing_is_flushed(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plain(warehouse)
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    append(made.table, [row(0)])
    assert flushed == []


def test_a_table_made_at_the_same_moment_is_overwritten(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plain(warehouse)
    schema = made.catalog.get_table(NAME).table_schema.to_schema()
    rename = Path.rename
    manager = SchemaManager(made.catalog.file_io, str(warehouse / "default.db" / "u"))

    def after_another(source: Path, target: Path) -> Path:
        if not target.exists():
            target.write_text("another writer's schema")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", after_another)
    assert manager.create_table(schema).id == 0  # success is reported
    assert "another" not in (warehouse / "default.db" / "u" / "schema" / "schema-0").read_text()


def test_half_a_dropped_table_is_listed_and_its_rows_come_back(warehouse: Path) -> None:
    made = plain(warehouse, [row(0)])
    schema = made.catalog.get_table(NAME).table_schema.to_schema()
    shutil.rmtree(warehouse / "default.db" / "t" / "schema")  # as far as a drop came before it was killed
    assert made.catalog.list_tables("default") == ["t"]
    made.catalog.create_table(NAME, schema, False)
    assert made.ids() == [0]
