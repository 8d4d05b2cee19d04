"""What the catalog server keeps: databases, tables, snapshots, tags and branches, in a local folder as Paimon lays it out.

The server alone moves a table's head: a commit is published when it follows the head, refused otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pypaimon.common.json_util import JSON
from pypaimon.filesystem.local_file_io import LocalFileIO
from pypaimon.schema.data_types import DataTypeParser
from pypaimon.schema.schema import Schema
from pypaimon.schema.schema_change import (
    AddColumn,
    DropColumn,
    RemoveOption,
    RenameColumn,
    SetOption,
    UpdateColumnNullability,
    UpdateColumnType,
)
from pypaimon.schema.schema_manager import SchemaManager


class Answer(Exception):
    """An error of the API: status, what kind of thing, its name."""

    def __init__(self, status: int, kind: str, name: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.name, self.message = status, kind, name, message


@dataclass
class Held:
    """One table."""

    uuid: str
    folder: Path
    lock: threading.Lock = field(default_factory=threading.Lock)


class Lake:
    """The databases of one warehouse.

    Args:
        folder: where tables lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._databases: dict[str, dict[str, str]] = {}
        self._tables: dict[tuple[str, str], Held] = {}

    def databases(self) -> list[str]:
        return sorted(self._databases)

    def create_database(self, name: str, options: Mapping[str, str] | None) -> None:
        with self._lock:
            if name in self._databases:
                raise Answer(409, "DATABASE", name, f"Database {name} already exists")
            self._databases[name] = dict(options or {})

    def database(self, name: str) -> dict[str, Any]:
        if name not in self._databases:
            raise Answer(404, "DATABASE", name, f"Database {name} does not exist")
        return {"id": name, "name": name, "location": f"{self.folder}/{name}.db", "options": self._databases[name]}

    def drop_database(self, name: str) -> None:
        self.database(name)
        with self._lock:
            for pair in [pair for pair in self._tables if pair[0] == name]:
                shutil.rmtree(self._tables.pop(pair).folder, ignore_errors=True)
            del self._databases[name]

    def tables(self, database: str) -> list[str]:
        self.database(database)
        return sorted(table for base, table in self._tables if base == database)

    def create_table(self, database: str, body: Mapping[str, Any]) -> None:
        self.database(database)
        name = body["identifier"]["object"]
        held = Held(str(uuid.uuid4()), self.folder / f"{database}.db" / name)
        with self._lock:
            if (database, name) in self._tables:
                raise Answer(409, "TABLE", name, f"Table {name} already exists")
            held.folder.mkdir(parents=True)
            _schemas(held.folder).create_table(JSON.from_json(json.dumps(body["schema"]), Schema))
            self._tables[database, name] = held

    def table(self, database: str, name: str) -> dict[str, Any]:
        held, branch = self._find(database, name)
        schema = _schemas(held.folder, branch).latest()
        shape = json.loads(JSON.to_json(schema.to_schema()))
        fields = {"id": held.uuid, "name": name, "path": str(held.folder), "isExternal": False}
        return {**fields, "schemaId": schema.id, "schema": shape, "owner": "test", "createdAt": 1, "createdBy": "test"}

    def alter_table(self, database: str, name: str, changes: list[Mapping[str, Any]]) -> None:
        held, branch = self._find(database, name)
        with held.lock:
            _schemas(held.folder, branch).commit_changes([_change(change) for change in changes])

    def drop_table(self, database: str, name: str) -> None:
        held, _ = self._find(database, name)
        with self._lock:
            del self._tables[database, name]
        shutil.rmtree(held.folder, ignore_errors=True)

    def commit(self, database: str, name: str, body: Mapping[str, Any]) -> bool:
        """Publish a snapshot if it follows the head. The server decides; False: another commit came first."""
        held, branch = self._find(database, name)
        if body.get("tableId") not in (None, held.uuid):
            raise Answer(404, "TABLE", name, "the table was dropped and made again")
        snapshot = body["snapshot"]
        with held.lock:
            head = self._head(held, branch)
            following = (0 if head is None else head["id"]) + 1
            if snapshot["id"] != following or body.get("baseSnapshotUuid") != (None if head is None else head.get("uuid")):
                return False
            folder = _root(held.folder, branch) / "snapshot"
            _publish(folder / f"snapshot-{following}", json.dumps(snapshot))
            _publish(folder / "LATEST", str(following))
        return True

    def snapshot(self, database: str, name: str, version: str = "LATEST") -> dict[str, Any]:
        held, branch = self._find(database, name)
        if version == "LATEST":
            head = self._head(held, branch)
        else:
            path = _root(held.folder, branch) / "snapshot" / f"snapshot-{version}"
            head = json.loads(path.read_text()) if path.exists() else None
        if head is None:
            raise Answer(404, "SNAPSHOT", version, "the snapshot does not exist")
        return head

    def rollback(self, database: str, name: str, body: Mapping[str, Any]) -> None:
        held, branch = self._find(database, name)
        instant = body["instant"]
        folder = _root(held.folder, branch)
        with held.lock:
            if "tagName" in instant:
                target = json.loads(self._tag(held, branch, instant["tagName"]).read_text())
                _publish(folder / "snapshot" / f"snapshot-{target['id']}", json.dumps(target))
            number = instant.get("snapshotId") or target["id"]
            if not (folder / "snapshot" / f"snapshot-{number}").exists():
                raise Answer(404, "SNAPSHOT", str(number), "the snapshot does not exist")
            for path in (folder / "snapshot").glob("snapshot-*"):
                if int(path.name.removeprefix("snapshot-")) > number:
                    path.unlink()
            _publish(folder / "snapshot" / "LATEST", str(number))

    def tags(self, database: str, name: str) -> list[str]:
        held, branch = self._find(database, name)
        return sorted(path.name.removeprefix("tag-") for path in (_root(held.folder, branch) / "tag").glob("tag-*"))

    def tag(self, database: str, name: str, tag: str) -> dict[str, Any]:
        held, branch = self._find(database, name)
        return {"tagName": tag, "snapshot": json.loads(self._tag(held, branch, tag).read_text())}

    def create_tag(self, database: str, name: str, body: Mapping[str, Any]) -> None:
        held, branch = self._find(database, name)
        with held.lock:
            path = _root(held.folder, branch) / "tag" / f"tag-{body['tagName']}"
            if path.exists():
                raise Answer(409, "TAG", body["tagName"], "the tag already exists")
            number = body.get("snapshotId")
            _publish(path, json.dumps(self.snapshot(database, name, "LATEST" if number is None else str(number))))

    def delete_tag(self, database: str, name: str, tag: str) -> None:
        held, branch = self._find(database, name)
        self._tag(held, branch, tag).unlink()

    def branches(self, database: str, name: str) -> list[str]:
        held, _ = self._find(database, name)
        return sorted(path.name.removeprefix("branch-") for path in (held.folder / "branch").glob("branch-*"))

    def create_branch(self, database: str, name: str, body: Mapping[str, Any]) -> None:
        held, _ = self._find(database, name)
        branch, tag = body["branch"], body.get("fromTag")
        target = _root(held.folder, branch)
        if target.exists():
            raise Answer(409, "BRANCH", branch, "the branch already exists")
        shutil.copytree(held.folder / "schema", target / "schema")
        if tag is not None:
            snapshot = json.loads(self._tag(held, None, tag).read_text())
            _publish(target / "tag" / f"tag-{tag}", json.dumps(snapshot))
            _publish(target / "snapshot" / f"snapshot-{snapshot['id']}", json.dumps(snapshot))
            _publish(target / "snapshot" / "LATEST", str(snapshot["id"]))

    def drop_branch(self, database: str, name: str, branch: str) -> None:
        held, _ = self._find(database, name)
        if branch not in self.branches(database, name):
            raise Answer(404, "BRANCH", branch, "the branch does not exist")
        shutil.rmtree(_root(held.folder, branch))

    def _find(self, database: str, name: str) -> tuple[Held, str | None]:
        table, _, branch = name.partition("$branch_")
        held = self._tables.get((database, table))
        if held is None or (branch and not _root(held.folder, branch).exists()):
            self.database(database)
            raise Answer(404, "TABLE", name, f"Table {name} does not exist")
        return held, branch or None

    def _head(self, held: Held, branch: str | None) -> dict[str, Any] | None:
        folder = _root(held.folder, branch) / "snapshot"
        numbers = [int(path.name.removeprefix("snapshot-")) for path in folder.glob("snapshot-*")]
        head: dict[str, Any] | None = json.loads((folder / f"snapshot-{max(numbers)}").read_text()) if numbers else None
        return head

    def _tag(self, held: Held, branch: str | None, tag: str) -> Path:
        path = _root(held.folder, branch) / "tag" / f"tag-{tag}"
        if not path.exists():
            raise Answer(404, "TAG", tag, "the tag does not exist")
        return path


def _root(folder: Path, branch: str | None) -> Path:
    return folder / "branch" / f"branch-{branch}" if branch else folder


def _schemas(folder: Path, branch: str | None = None) -> SchemaManager:
    return SchemaManager(LocalFileIO(), str(folder), branch or "main")


def _publish(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_text(text)
    os.replace(draft, path)


def _change(body: Mapping[str, Any]) -> Any:
    names = body.get("fieldNames")
    action = body["action"]
    if action == "setOption":
        return SetOption(body["key"], body["value"])
    if action == "removeOption":
        return RemoveOption(body["key"])
    if action == "addColumn":
        return AddColumn(names, DataTypeParser.parse_data_type(body["dataType"]), body.get("comment"), None)
    if action == "dropColumn":
        return DropColumn(names)
    if action == "renameColumn":
        return RenameColumn(names, body["newName"])
    if action == "updateColumnType":
        kept = body.get("keepNullability", False)
        return UpdateColumnType(names, DataTypeParser.parse_data_type(body["newDataType"]), kept)
    if action == "updateColumnNullability":
        return UpdateColumnNullability(names, body["newNullability"])
    raise Answer(400, "UNKNOWN", action, f"this server does not know the change {action}")
