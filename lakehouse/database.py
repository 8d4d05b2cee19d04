"""A catalog whose names lie in a database, for several processes that make and drop tables at the same moment."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from copy import copy
from typing import Any

from pypaimon.catalog.catalog_context import CatalogContext
from pypaimon.catalog.catalog_exception import (
    DatabaseAlreadyExistException,
    DatabaseNotExistException,
    TableAlreadyExistException,
)
from pypaimon.catalog.jdbc_catalog import JdbcCatalog
from pypaimon.common.identifier import Identifier
from pypaimon.common.options import Options

from lakehouse.durable import sync_files
from lakehouse.errors import CommitError
from lakehouse.upstream import is_local, local_path
from lakehouse.warehouse import LinkingFiles, remove_folder

# From a table's schema file to its row in the database, with room for a SQLite file that is locked for five seconds.
_LISTED_WITHIN_S = 10.0
_LOOK_S = 0.05
_OPENING_TRIES = 3


def open_database(options: Mapping[str, str]) -> DatabaseCatalog:
    """The catalog of a database."""
    tries = 0
    while True:
        tries += 1
        try:
            return DatabaseCatalog(CatalogContext.create_from_options(Options(dict(options))))
        except Exception as error:
            # PostgreSQL's CREATE TABLE IF NOT EXISTS fails in one of two processes that run it at the same moment.
            if tries == _OPENING_TRIES or type(error).__name__ not in ("UniqueViolation", "DuplicateTable"):
                raise


class DatabaseCatalog(JdbcCatalog):
    """Upstream's, for writers that meet.

    Upstream looks whether a name is free, then writes: of two processes that make a database at the same moment one fails.
    Of two that make a table, the later one's schema replaces the earlier one's, and then its failure to list the table
    deletes the folder, with what the earlier one has already written.
    """

    def create_database(self, name: str, ignore_if_exists: bool, properties: dict[str, str] | None = None) -> None:
        """Make a database; of several processes at once, one does."""
        try:
            super().create_database(name, ignore_if_exists, properties)
        except DatabaseAlreadyExistException:
            raise
        except Exception as error:
            if not self._has_database(name):
                raise
            if not ignore_if_exists:
                raise DatabaseAlreadyExistException(name) from error

    def create_table(self, identifier: Any, schema: Any, ignore_if_exists: bool) -> None:
        """Make a table: who writes its schema lists it, and others wait for that."""
        named = identifier if isinstance(identifier, Identifier) else Identifier.from_string(identifier)
        path = self.get_table_path(named)
        until_s = time.monotonic() + _LISTED_WITHIN_S
        while True:
            try:
                super(DatabaseCatalog, self._writer()).create_table(named, schema, ignore_if_exists)
                break
            except RuntimeError as error:
                if "creation is not allowed" not in str(error):  # upstream's words where there is a schema
                    raise
                if self._has_table(named):
                    if ignore_if_exists:
                        return
                    raise TableAlreadyExistException(named) from error
                if time.monotonic() > until_s:
                    raise CommitError(
                        f"{path} holds a table that the database doesn't list: another catalog's, or one whose making or "
                        "dropping was cut short; in the latter case delete that folder"
                    ) from error
                time.sleep(_LOOK_S)
        if is_local(path):
            folder = local_path(path)
            sync_files([folder, folder.parent, folder.parent.parent])

    def drop_table(self, identifier: Any, ignore_if_not_exists: bool = False) -> None:
        """Drop a table: its row, then its folder."""
        super(DatabaseCatalog, self._writer()).drop_table(identifier, ignore_if_not_exists)

    def _writer(self) -> DatabaseCatalog:
        """The same catalog, over a local warehouse with files that are made once and folders that go as a whole."""
        if not is_local(self.warehouse):
            return self
        writer = copy(self)
        writer.file_io = _WholeFolders(self.file_io)
        return writer

    def _has_database(self, name: str) -> bool:
        with self.connection.transaction():  # a new one, which sees what others have written
            try:
                self.get_database(name)
            except DatabaseNotExistException:
                return False
            return True

    def _has_table(self, named: Any) -> bool:
        with self.connection.transaction():
            return named.get_table_name() in self.list_tables(named.get_database_name())


class _WholeFolders(LinkingFiles):
    def delete_directory_quietly(self, path: str) -> None:
        with contextlib.suppress(OSError, CommitError):
            remove_folder(local_path(path))
