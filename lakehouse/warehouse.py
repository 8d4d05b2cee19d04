"""A warehouse in a local folder: tables appear and go in one step, whatever else happens at the same moment."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

from pypaimon.catalog.catalog_exception import TableAlreadyExistException
from pypaimon.catalog.filesystem_catalog import FileSystemCatalog
from pypaimon.common.identifier import Identifier
from pypaimon.common.options import Options

from lakehouse.durable import publish_file, sync_files
from lakehouse.errors import CommitError, cause_line
from lakehouse.upstream import local_path

_DROPPED = ".dropped-"  # names that begin with a dot are listed nowhere


def open_local(options: Mapping[str, str]) -> LocalCatalog:
    """The catalog of a local warehouse."""
    return LocalCatalog(Options(dict(options)))


class LocalCatalog(FileSystemCatalog):
    """Upstream's, with tables that are made and dropped in one step.

    Upstream asks whether a table is there and then writes its schema over whatever is: of two processes that make it with
    other columns both succeed. It drops a table file by file: a crash in between leaves one that is listed and can't be
    opened, or one whose old snapshots come back when a table of that name is made again.
    """

    def list_tables(self, database_name: str) -> list[str]:
        """Tables that have a schema; what else lies in the folder is no table."""
        folder = self._folder(database_name)
        return [name for name in super().list_tables(database_name) if any((folder / name / "schema").glob("schema-*"))]

    def create_table(self, identifier: Any, schema: Any, ignore_if_exists: bool) -> None:
        """Make a table; of several processes at once, one does."""
        named = _identifier(identifier)
        folder = local_path(self.get_table_path(named))
        if any((folder / "snapshot").glob("snapshot-*")) and not any((folder / "schema").glob("schema-*")):
            remove_folder(folder)  # half of a table that was dropped: its snapshots would be the new table's
        try:
            maker = copy(self)
            maker.file_io = LinkingFiles(self.file_io)
            super(LocalCatalog, maker).create_table(named, schema, ignore_if_exists)
        except RuntimeError as error:
            if "creation is not allowed" not in str(error):  # upstream's words where another process was first
                raise
            if not ignore_if_exists:
                raise TableAlreadyExistException(named) from error
        sync_files([folder, folder.parent, folder.parent.parent])

    def drop_table(self, identifier: Any, ignore_if_not_exists: bool = False) -> None:
        """Drop a table: it is gone at once and as a whole; then its files are deleted."""
        folder = local_path(self.get_table_path(_identifier(identifier)))
        if not folder.is_dir():
            super().drop_table(identifier, ignore_if_not_exists)  # which says that it is not there
            return
        remove_folder(folder)

    def has_remains(self, identifier: str) -> bool:
        """Whether there is a folder of this name, a table or not."""
        return local_path(self.get_table_path(_identifier(identifier))).is_dir()

    def _folder(self, database: str) -> Path:
        return local_path(self.get_database_path(database))


def remove_folder(folder: Path) -> None:
    """Delete a table's folder: it is gone at once and as a whole; then its files are deleted.

    Raises:
        CommitError: some of its files are left, where nothing lists them.
    """
    with contextlib.suppress(FileNotFoundError):  # another process was first
        folder.rename(folder.with_name(f"{_DROPPED}{folder.name}-{uuid.uuid4().hex[:8]}"))
        sync_files([folder.parent])
    for dropped in folder.parent.glob(f"{_DROPPED}*"):  # and what a crash left of earlier ones
        try:
            shutil.rmtree(dropped)
        except OSError as error:  # noqa: PERF203 - one folder, as a rule
            if not dropped.exists():  # another process deleted it at the same time
                continue
            raise CommitError(
                f"it is no table any more, but files of it are left in {dropped} ({cause_line(error)}); "
                "delete that folder, or drop any table of this database once it can be deleted"
            ) from error


class LinkingFiles:
    """A FileIO whose atomic writes never take the place of a file that is there."""

    def __init__(self, file_io: Any) -> None:
        self._file_io = file_io

    def try_to_write_atomic(self, path: str, content: str) -> bool:
        """Whether the file was made here."""
        return publish_file(local_path(path), content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file_io, name)


def _identifier(identifier: Any) -> Any:
    return identifier if isinstance(identifier, Identifier) else Identifier.from_string(identifier)
