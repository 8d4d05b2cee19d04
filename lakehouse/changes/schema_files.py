"""A changed schema: published so that of two writers who change it at once none undoes the other's change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pypaimon.schema.schema_manager import SchemaManager

from lakehouse.durable import publish_file
from lakehouse.errors import CommitError, SchemaError, cause_line, causes
from lakehouse.upstream import is_local, is_served, local_path
from lakehouse.write import ROWS, Published, latest_id, name_of, publish_snapshot

_TRIES = 100


class _TakenError(Exception):
    """Another writer made the schema of this number."""


class _OwnFiles:
    """A FileIO whose files appear under names that are free, or not at all.

    Upstream asks whether a file exists and then renames over whatever is there by then: of two schemas of one number, both
    reported as made, one is lost.
    """

    def __init__(self, file_io: Any) -> None:
        self._file_io = file_io

    def try_to_write_atomic(self, path: str, content: str) -> bool:
        if is_local(path):
            return publish_file(local_path(path), content)
        return bool(self._file_io.try_to_write_atomic(path, content))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file_io, name)


class _Schemas(SchemaManager):
    """Upstream's schemas of one table. Where another writer was first, `evolve` begins again, with its own checks."""

    def commit(self, new_schema: Any) -> bool:
        if not super().commit(new_schema):
            raise _TakenError
        return True


def evolve(fresh: Callable[[], Any], changes_of: Callable[[Any], list[Any]], operation: str) -> tuple[Published | None, Any]:
    """Change a table's columns, and make a snapshot from which on they are as they are now.

    Args:
        fresh: gives the table's handle as it is now.
        changes_of: checks a handle's columns and gives pypaimon's schema changes; none: there is nothing to change.
        operation: its name in the history.

    Returns:
        The new snapshot; None where nothing was to be changed, or where the table has no snapshot yet. And the handle that the
        change was made from.

    Raises:
        SchemaError: what ``changes_of`` or the engine refuses.
        CommitError: the store refuses, or other writers came first `_TRIES` times; nothing was changed, unless the text says
            that the next commit will show the change.
    """
    for _ in range(_TRIES):
        paimon = fresh()
        changes = changes_of(paimon)
        if not changes:
            return None, paimon
        try:
            _publish(paimon, changes)
        except _TakenError:
            continue
        break
    else:
        raise CommitError(f"{name_of(paimon)}: other writers changed its columns {_TRIES} times first; nothing was changed")
    # A snapshot says which schema it is read with. This one has the same files as the one before, and the new schema.
    handle = fresh()
    if latest_id(handle) is None:
        return None, paimon
    handle = handle.copy({"snapshot.ignore-empty-commit": "false"})
    try:
        return publish_snapshot(handle, [], properties={ROWS: "0"}, operation=operation), paimon
    except CommitError as error:
        raise CommitError(
            f"{name_of(paimon)}: its columns are changed, which only the next commit will show: making a snapshot failed "
            f"({cause_line(error)})"
        ) from error


def _publish(paimon: Any, changes: list[Any]) -> None:
    try:
        if is_served(paimon):
            paimon.catalog_environment.catalog_loader.load().alter_table(paimon.identifier, changes)
            return
        manager = paimon.schema_manager
        _Schemas(_OwnFiles(paimon.file_io), manager.table_path, manager.branch).commit_changes(changes)
    except Exception as error:
        for cause in causes(error):
            if isinstance(cause, _TakenError):
                raise _TakenError from error
            if isinstance(cause, OSError):
                raise CommitError(
                    f"{name_of(paimon)}: its columns can't be changed ({cause_line(cause)}); nothing was changed"
                ) from error
        raise SchemaError(f"{name_of(paimon)}: the engine refuses this change ({cause_line(error)})") from error


def dropped_names(paimon: Any) -> set[str]:
    """Names of columns that the table had once and has no more, or has anew."""
    now = {item.id for item in paimon.fields}
    return {item.name for schema in paimon.schema_manager.list_all() for item in schema.fields if item.id not in now}
