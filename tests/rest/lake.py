"""What the catalog server keeps: databases, tables, snapshots, tags and branches, in files as Paimon lays them out.

The server alone moves a table's head: a commit is published when it follows the head, refused otherwise.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import fs
from pypaimon.common.file_io import FileIO
from pypaimon.common.json_util import JSON
from pypaimon.common.options import Options
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
    folder: str
    lock: threading.Lock = field(default_factory=threading.Lock)


class Lake:
    """The databases of one warehouse.

    Args:
        folder: where tables lie: a path, or an ``s3://`` URL.
        options: the server's own keys for it, as pypaimon's options.
    """

    def __init__(self, folder: Path | str, options: Mapping[str, str] | None = None) -> None:
        self.folder = Path(folder)  # of no use where it is a URL
        self._root = str(folder)
        self._file_io = FileIO.get(self._root, Options(dict(options or {})))
        self._files = Files(self._file_io.filesystem if "://" in self._root else fs.LocalFileSystem())
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
        return {"id": name, "name": name, "location": f"{self._root}/{name}.db", "options": self._databases[name]}

    def drop_database(self, name: str) -> None:
        self.database(name)
        with self._lock:
            for pair in [pair for pair in self._tables if pair[0] == name]:
                self._files.drop(self._tables.pop(pair).folder)
            del self._databases[name]

    def tables(self, database: str) -> list[str]:
        self.database(database)
        return sorted(table for base, table in self._tables if base == database)

    def create_table(self, database: str, body: Mapping[str, Any]) -> None:
        self.database(database)
        name = body["identifier"]["object"]
        held = Held(str(uuid.uuid4()), f"{self._root}/{database}.db/{name}")
        with self._lock:
            if (database, name) in self._tables:
                raise Answer(409, "TABLE", name, f"Table {name} already exists")
            self._schemas(held).create_table(JSON.from_json(json.dumps(body["schema"]), Schema))
            self._tables[database, name] = held

    def table(self, database: str, name: str) -> dict[str, Any]:
        held, branch = self._find(database, name)
        schema = self._schemas(held, branch).latest()
        shape = json.loads(JSON.to_json(schema.to_schema()))
        fields = {"id": held.uuid, "name": name, "path": str(held.folder), "isExternal": False}
        return {**fields, "schemaId": schema.id, "schema": shape, "owner": "test", "createdAt": 1, "createdBy": "test"}

    def alter_table(self, database: str, name: str, changes: list[Mapping[str, Any]]) -> None:
        held, branch = self._find(database, name)
        with held.lock:
            self._schemas(held, branch).commit_changes([_change(change) for change in changes])

    def drop_table(self, database: str, name: str) -> None:
        held, _ = self._find(database, name)
        with self._lock:
            del self._tables[database, name]
        self._files.drop(held.folder)

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
            folder = _root(held, branch)
            self._files.write(f"{folder}/snapshot/snapshot-{following}", json.dumps(snapshot))
            self._files.write(f"{folder}/snapshot/LATEST", str(following))
        return True

    def snapshot(self, database: str, name: str, version: str = "LATEST") -> dict[str, Any]:
        held, branch = self._find(database, name)
        if version == "LATEST":
            head = self._head(held, branch)
        else:
            head = self._files.read(f"{_root(held, branch)}/snapshot/snapshot-{version}")
        if head is None:
            raise Answer(404, "SNAPSHOT", version, "the snapshot does not exist")
        return head

    def rollback(self, database: str, name: str, body: Mapping[str, Any]) -> None:
        held, branch = self._find(database, name)
        instant = body["instant"]
        folder = f"{_root(held, branch)}/snapshot"
        with held.lock:
            if "tagName" in instant:
                target = self._tag(held, branch, instant["tagName"])
                self._files.write(f"{folder}/snapshot-{target['id']}", json.dumps(target))
            number = instant.get("snapshotId") or target["id"]
            self.snapshot(database, name, str(number))
            for later in self._numbers(held, branch):
                if later > number:
                    self._files.delete(f"{folder}/snapshot-{later}")
            self._files.write(f"{folder}/LATEST", str(number))

    def tags(self, database: str, name: str) -> list[str]:
        held, branch = self._find(database, name)
        return self._files.names(f"{_root(held, branch)}/tag", "tag-")

    def tag(self, database: str, name: str, tag: str) -> dict[str, Any]:
        held, branch = self._find(database, name)
        return {"tagName": tag, "snapshot": self._tag(held, branch, tag)}

    def create_tag(self, database: str, name: str, body: Mapping[str, Any]) -> None:
        held, branch = self._find(database, name)
        with held.lock:
            path = f"{_root(held, branch)}/tag/tag-{body['tagName']}"
            if self._files.read(path) is not None:
                raise Answer(409, "TAG", body["tagName"], "the tag already exists")
            number = body.get("snapshotId")
            snapshot = self.snapshot(database, name, "LATEST" if number is None else str(number))
            self._files.write(path, json.dumps(snapshot))

    def delete_tag(self, database: str, name: str, tag: str) -> None:
        held, branch = self._find(database, name)
        self._tag(held, branch, tag)
        self._files.delete(f"{_root(held, branch)}/tag/tag-{tag}")

    def branches(self, database: str, name: str) -> list[str]:
        held, _ = self._find(database, name)
        return self._files.names(f"{held.folder}/branch", "branch-")

    def create_branch(self, database: str, name: str, body: Mapping[str, Any]) -> None:
        held, _ = self._find(database, name)
        branch, tag = body["branch"], body.get("fromTag")
        if branch in self.branches(database, name):
            raise Answer(409, "BRANCH", branch, "the branch already exists")
        target = _root(held, branch)
        for number in self._files.names(f"{held.folder}/schema", "schema-"):
            schema = self._files.read(f"{held.folder}/schema/schema-{number}")
            self._files.write(f"{target}/schema/schema-{number}", json.dumps(schema))
        if tag is not None:
            snapshot = self._tag(held, None, tag)
            self._files.write(f"{target}/tag/tag-{tag}", json.dumps(snapshot))
            self._files.write(f"{target}/snapshot/snapshot-{snapshot['id']}", json.dumps(snapshot))
            self._files.write(f"{target}/snapshot/LATEST", str(snapshot["id"]))

    def drop_branch(self, database: str, name: str, branch: str) -> None:
        held, _ = self._find(database, name)
        if branch not in self.branches(database, name):
            raise Answer(404, "BRANCH", branch, "the branch does not exist")
        self._files.drop(_root(held, branch))

    def _find(self, database: str, name: str) -> tuple[Held, str | None]:
        table, _, branch = name.partition("$branch_")
        held = self._tables.get((database, table))
        if held is None or (branch and branch not in self._files.names(f"{held.folder}/branch", "branch-")):
            self.database(database)
            raise Answer(404, "TABLE", name, f"Table {name} does not exist")
        return held, branch or None

    def _numbers(self, held: Held, branch: str | None) -> list[int]:
        return sorted(map(int, self._files.names(f"{_root(held, branch)}/snapshot", "snapshot-")))

    def _head(self, held: Held, branch: str | None) -> dict[str, Any] | None:
        numbers = self._numbers(held, branch)
        return self._files.read(f"{_root(held, branch)}/snapshot/snapshot-{numbers[-1]}") if numbers else None

    def _tag(self, held: Held, branch: str | None, tag: str) -> dict[str, Any]:
        snapshot = self._files.read(f"{_root(held, branch)}/tag/tag-{tag}")
        if snapshot is None:
            raise Answer(404, "TAG", tag, "the tag does not exist")
        return snapshot

    def _schemas(self, held: Held, branch: str | None = None) -> SchemaManager:
        return SchemaManager(self._file_io, held.folder, branch or "main")


class Files:
    """Small files of one store, by path or URL."""

    def __init__(self, store: fs.FileSystem) -> None:
        self._store = store

    def read(self, path: str) -> dict[str, Any] | None:
        """The JSON that a file holds, None when there is none."""
        try:
            found: dict[str, Any] = json.loads(self._store.open_input_stream(_plain(path)).read())
        except FileNotFoundError:
            return None
        return found

    def write(self, path: str, text: str) -> None:
        """Make or replace a file, whole for whoever reads it meanwhile."""
        if isinstance(self._store, fs.S3FileSystem):
            with self._store.open_output_stream(_plain(path)) as out:
                out.write(text.encode())
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        draft.write_text(text)
        draft.replace(target)

    def names(self, folder: str, prefix: str) -> list[str]:
        """What follows the prefix in the names of a folder's files and folders, sorted."""
        found = self._store.get_file_info(fs.FileSelector(_plain(folder), allow_not_found=True))
        return sorted(one.base_name.removeprefix(prefix) for one in found if one.base_name.startswith(prefix))

    def delete(self, path: str) -> None:
        self._store.delete_file(_plain(path))

    def drop(self, folder: str) -> None:
        """Remove a folder with all that is in it; one that is not there is no error."""
        self._store.delete_dir_contents(_plain(folder), missing_dir_ok=True)
        if not isinstance(self._store, fs.S3FileSystem) and Path(folder).exists():
            Path(folder).rmdir()


def _root(held: Held, branch: str | None) -> str:
    return f"{held.folder}/branch/branch-{branch}" if branch else held.folder


def _plain(path: str) -> str:
    return path.removeprefix("s3://")


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
