"""Deleting rows: marks in deletion vectors; no data file is written or read beyond what the predicate needs."""

from __future__ import annotations

from typing import Any

import numpy as np
from pypaimon.write.table_delete import TableDeleteByRowId

from lakehouse.changes.base import Base, Prepared
from lakehouse.changes.match import checked, chosen_groups, matched, row_ids
from lakehouse.errors import SchemaError
from lakehouse.write import as_ours, discard


def delete(base: Base, where: Any) -> Prepared | None:
    """Delete the rows for which ``where`` is true.

    Raises:
        SchemaError: a predicate that doesn't fit, or a table that was made without deletion vectors.
    """
    predicates = checked(where, base.version)
    needs_deletion_vectors(base, "delete")
    groups = chosen_groups(base.version, predicates)
    found = [row_ids(table) for _, table in matched(base.version, groups, predicates, ())]
    if not found:
        return None
    ids = np.concatenate(found)
    return Prepared(deletions(base, ids.tolist()), len(ids))


def needs_deletion_vectors(base: Base, operation: str) -> None:
    """Check that rows can be marked as deleted.

    Raises:
        SchemaError: the table was made without.
    """
    if not base.paimon.options.deletion_vectors_enabled(False):
        raise SchemaError(
            f"{base.version.name}: {operation} needs deletion vectors, and this table was made without them; "
            "overwrite() the partitions with the rows to keep, or turn them on: catalog.paimon.alter_table(name, "
            "[SchemaChange.set_option('deletion-vectors.enabled', 'true')]) with pypaimon's SchemaChange"
        )


def deletions(base: Base, ids: list[int]) -> list[Any]:
    """Commit messages that mark rows as deleted.

    Raises:
        CommitError: the marks can't be written.
    """
    marks = _Deletions(base.version.paimon)
    try:
        with as_ours(base.paimon):
            return list(marks.delete(ids))
    except BaseException:  # Ctrl-C too: files that no commit will name are deleted
        discard(base.paimon, marks.made)
        raise


class _Deletions(TableDeleteByRowId):
    """Upstream's writer of deletion vectors, which leaves behind those of the partitions before the one where it fails."""

    def __init__(self, paimon: Any) -> None:
        super().__init__(paimon)
        self.made: list[Any] = []

    def _build_commit_message(self, *given: Any) -> Any:
        message = super()._build_commit_message(*given)
        if message is not None:
            self.made.append(message)
        return message
