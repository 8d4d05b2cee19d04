"""Handles that read one version of a table, and how another process makes them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse.errors import NotFoundError
from lakehouse.identity import Opened
from lakehouse.scan import snapshot_identity
from lakehouse.upstream import pinned, snapshot_of, tag_of


def at_snapshot(paimon: Any, snapshot: Any, tag: str | None = None) -> Any:
    """A handle that reads a snapshot under the schema of its time; None when it expired this moment.

    Args:
        paimon: a handle that is not pinned.
        snapshot: a pypaimon snapshot or tag; None: the table has none.
        tag: the tag's name, where the snapshot's own file is gone.
    """
    if snapshot is None:
        return pinned(paimon, None)
    options = {"scan.snapshot-id": str(snapshot.id)} if tag is None else {"scan.tag-name": tag}
    handle = paimon.copy(options)
    # Upstream keeps the latest schema, without a word, where it can't find the snapshot.
    return pinned(handle, snapshot) if handle.table_schema.id == snapshot.schema_id else None


@dataclass(frozen=True)
class Reopen:
    """Makes a version's handle again from its catalog, where it was pickled to.

    Attributes:
        opened: the table.
        branch: of it; None: main.
        number: of the snapshot; None: the table had none.
        identity: of the snapshot: its number may come again.
        tag: by which it is found where its own file is gone.
        latest_schema: read it under the table's latest schema.
    """

    opened: Opened
    branch: str | None
    number: int | None
    identity: str
    tag: str | None = None
    latest_schema: bool = False

    def __call__(self) -> Any:
        """The handle.

        Raises:
            NotFoundError: the snapshot or the table is gone, or another one has its number or name.
        """
        paimon = self.opened(self.branch)
        snapshot = None if self.number is None else self._snapshot(paimon)
        if self.latest_schema:
            return pinned(paimon, snapshot)
        handle = at_snapshot(paimon, snapshot, self.tag)
        if handle is None:
            raise self._gone()
        return handle

    def _snapshot(self, paimon: Any) -> Any:
        found = snapshot_of(paimon.snapshot_manager(), self.number or 0) if self.tag is None else tag_of(paimon, self.tag)
        if found is None:
            raise self._gone()
        if snapshot_identity(found) != self.identity:
            raise self._gone(f": tag {self.tag!r} names another one now" if self.tag else ": another one has its number now")
        return found

    def _gone(self, why: str = "") -> NotFoundError:
        name = self.opened.name if self.branch is None else f"{self.opened.name}$branch_{self.branch}"
        return NotFoundError(f"{name}@{self.number}: this snapshot can no longer be read{why}; tag snapshots that must stay")
