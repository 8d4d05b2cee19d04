"""Table: a name whose content moves from snapshot to snapshot. `Snapshot` is one that does not move."""

from __future__ import annotations

from lakehouse.table.branches import Branches
from lakehouse.table.changes import Changes, Commit
from lakehouse.table.compaction import Compaction
from lakehouse.table.evolution import Evolution
from lakehouse.table.restore import Restore
from lakehouse.table.snapshot import Snapshot
from lakehouse.table.snapshot_info import SnapshotInfo
from lakehouse.table.upkeep import Upkeep
from lakehouse.table.versions import Versions

__all__ = ["Commit", "Snapshot", "SnapshotInfo", "Table"]


class Table(Changes, Evolution, Compaction, Restore, Branches, Upkeep, Versions):
    """A table of a catalog. Made by `Catalog.create_table` and `Catalog.table`.

    Args:
        load: makes a fresh pypaimon handle: of the main branch, or of the named one.
        name: ``database.table``.
        roots: where references outside the table's own folder may point.
    """
