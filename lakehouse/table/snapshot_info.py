"""What each snapshot of a table did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from lakehouse.history import Change, changes_of
from lakehouse.write import BYTES, COMMIT_ID, OPERATION, RESTORED, ROWS

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_APPEND = "append"
_COMPACT = "compact"


@dataclass(frozen=True)
class SnapshotInfo:
    """One line of a table's history.

    Attributes:
        id: snapshot number.
        time: when it was committed, in UTC.
        kind: ``APPEND``, ``OVERWRITE``, ``COMPACT`` or ``ANALYZE``.
        commit_id: the id its writer gave, None where another engine wrote it.
        operation: ``append``, ``update``, ``delete``, ``overwrite``, ``compact``, ``rollback``, ...; None: by another engine.
        rows_added: rows that were not there before; updated ones don't count. None: can't be told.
        rows_deleted: rows that are gone. None: can't be told.
        bytes_added: bytes of the files written; None where another engine wrote it.
    """

    id: int
    time: datetime
    kind: str
    commit_id: str | None
    operation: str | None = None
    rows_added: int | None = None
    rows_deleted: int | None = None
    bytes_added: int | None = None


def info_of(snapshot: Any, change: Change | None = None) -> SnapshotInfo:
    """A pypaimon snapshot's line, with what it changed where that is known."""
    properties = snapshot.properties or {}
    written = properties.get(BYTES)
    return SnapshotInfo(
        id=int(snapshot.id),
        time=EPOCH + timedelta(milliseconds=snapshot.time_millis),
        kind=str(snapshot.commit_kind),
        commit_id=properties.get(COMMIT_ID),
        operation=properties.get(OPERATION),
        rows_added=None if change is None else change.added,
        rows_deleted=None if change is None else change.deleted,
        bytes_added=None if written is None else int(written),
    )


def change_of(paimon: Any, snapshot: Any, before: Any) -> Change:
    """What it changed; `before` is the snapshot before it, None where that has expired."""
    properties = snapshot.properties or {}
    if properties.get(OPERATION) == _APPEND and ROWS in properties:
        return Change(int(properties[ROWS]), 0)
    if str(properties.get(OPERATION, "")).startswith(_COMPACT) or snapshot.commit_kind == "COMPACT":
        return Change(0, 0)  # the same rows in other files, perhaps under new row ids
    if RESTORED in properties:  # its files are another snapshot's; `Table.diff` counts what it changed
        return Change(None, None)
    return changes_of(paimon, snapshot, before)
