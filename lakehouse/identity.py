"""Which table a name means: a table that was dropped and made again under its name is another one, and is told apart here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import CommitError, NotFoundError, SchemaError, cause_line
from lakehouse.schema import TABLE_UUID_OPTION
from lakehouse.upstream import is_served, newest_schema


def table_uuid(paimon: Any) -> str:
    """The identity of a table: other for a table of the same name that was made later.

    Written by `Catalog.create_table`; for tables made elsewhere the catalog server's, else from when schema 0 was made.
    """
    own = paimon.options.options.to_map().get(TABLE_UUID_OPTION)
    if own:
        return str(own)
    if paimon.catalog_environment.uuid:
        return str(paimon.catalog_environment.uuid)
    first = paimon.table_schema
    if first.id != 0:
        try:
            first = paimon.schema_manager.get_schema(0)
        except (OSError, ValueError) as error:
            where = paimon.identifier.get_full_name()
            raise SchemaError(f"{where}: can't read its first schema ({cause_line(error)})") from error
    return f"{paimon.identifier.get_database_name()}.{paimon.identifier.get_table_name()}#{first.time_millis}"


@dataclass(frozen=True)
class Opened:
    """Opens one table anew, as often as it is asked, and never another one that was made under its name since.

    That costs no request: what is compared comes with the schema, which is read in any case. Only where a table was made by
    another engine and its columns have changed since, its first schema is read too.

    Attributes:
        load: makes a fresh pypaimon handle: of the main branch, or of the named one.
        name: ``database.table``, with ``$branch_NAME`` on a branch.
        uuid: identity of the table.
        schema_id: number of its schema when it was opened first.
        schema_millis: when that schema was made; None: a server does not say.
    """

    load: Callable[[str | None], Any]
    name: str
    uuid: str
    schema_id: int
    schema_millis: int | None

    @classmethod
    def first(cls, load: Callable[[str | None], Any], name: str) -> tuple[Opened, Any]:
        """Open a table for the first time: with its pypaimon handle."""
        paimon = load(None)
        schema = paimon.table_schema
        millis = None if is_served(paimon) else schema.time_millis
        return cls(load, name, table_uuid(paimon), int(schema.id), millis), paimon

    def __call__(self, branch: str | None) -> Any:
        """A fresh pypaimon handle.

        Raises:
            NotFoundError: the table is gone, or was made again.
        """
        paimon = self.load(branch)
        if self._is_other(paimon, branch):
            raise NotFoundError(
                f"{self.name} is another table now: the one that this was opened for was dropped, and one of its name was made "
                "since. Nothing of it was read or changed; open it again, with catalog.table(...)"
            )
        return paimon

    def _is_other(self, paimon: Any, branch: str | None) -> bool:
        schema = paimon.table_schema
        if branch is None and self.schema_millis is not None:  # a branch has schemas of its own
            # Also of tables that another engine made from the same description, with the same options.
            if schema.id < self.schema_id or (schema.id == self.schema_id and schema.time_millis != self.schema_millis):
                return True
            if schema.id == self.schema_id:
                return False
        return table_uuid(paimon) != self.uuid


def check_same_table(paimon: Any, newest: Any = None) -> None:
    """See, before something is published, that what would be published to is still the table that was opened.

    Args:
        paimon: its handle.
        newest: the table's schema as the store has it now; None: it is read. Where a server keeps the table nothing is: it
            looks by itself.

    Raises:
        CommitError: it was dropped; perhaps another one of its name was made since.
    """
    if is_served(paimon):
        return
    opened = paimon.table_schema
    newest = newest_schema(paimon.snapshot_manager()) if newest is None else newest
    uuids = [None if schema is None else schema.options.get(TABLE_UUID_OPTION) for schema in (opened, newest)]
    if (
        newest is None
        or uuids[0] != uuids[1]
        or newest.id < opened.id
        or (newest.id == opened.id and newest.time_millis != opened.time_millis)
    ):
        raise CommitError(
            f"{paimon.identifier.get_full_name()}: nothing was committed: the table was dropped, and perhaps another one of "
            "its name was made since; open it again, with catalog.table(...)"
        )
