"""One snapshot of one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lakehouse.schema import Columns
from lakehouse.stores import Store
from lakehouse.upstream import pinned_snapshot


@dataclass(frozen=True, eq=False)
class Version:
    """One snapshot of one table: everything after it is a function of this.

    Attributes:
        paimon: pypaimon table handle that holds the snapshot (`lakehouse.upstream.pinned`).
        name: ``database.table``, with ``$branch_x`` on a branch.
        snapshot_id: None for a table without a snapshot: zero rows, for ever.
        uuid: identity of the table, other for a table of the same name made later.
        roots: folders and URL prefixes outside the table's own from which BLOBs may be read.
        reopen: makes ``paimon`` again, or says that its snapshot is gone. A pickle carries this instead of the handle, which
            holds credentials in clear.
        store: reads what is not on a local disk; None: nothing does.
    """

    paimon: Any
    name: str
    snapshot_id: int | None
    uuid: str
    roots: tuple[str, ...]
    reopen: Callable[[], Any]
    store: Store | None = None

    @property
    def path(self) -> str:
        """The table's own folder."""
        return str(self.paimon.table_path).rstrip("/")

    @cached_property
    def columns(self) -> Columns:
        """The columns at this snapshot."""
        return Columns.of(self.paimon)

    @property
    def snapshot(self) -> Any:
        """Pypaimon's snapshot, or the tag that stands for it; None for a table without one."""
        return pinned_snapshot(self.paimon)

    @property
    def snapshot_uuid(self) -> str:
        """The snapshot's identity: engines whose rollback deletes snapshots give their numbers out again."""
        return "" if self.snapshot is None else snapshot_identity(self.snapshot)

    def __str__(self) -> str:
        return f"{self.name}@{self.snapshot_id}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.name, self.snapshot_id, self.uuid, self.roots, self.reopen, self.store)


def snapshot_identity(snapshot: Any) -> str:
    """What tells a pypaimon snapshot from another one of its number: its uuid, or the name of its own manifest list."""
    return str(snapshot.uuid or snapshot.delta_manifest_list)


def _reopened(
    name: str, snapshot_id: int | None, uuid: str, roots: tuple[str, ...], reopen: Callable[[], Any], store: Store | None
) -> Version:
    return Version(reopen(), name, snapshot_id, uuid, roots, reopen, store)
