"""Which snapshots led to the latest one: those that a rollback undid did not. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

RESTORED = "lakehouse.restored-snapshot"  # of a rollback's snapshot: the number of the one whose content it has again

SnapshotT = TypeVar("SnapshotT")


def in_force(snapshots: Iterable[SnapshotT]) -> list[SnapshotT]:
    """The snapshots whose changes the latest one still shows, in the order given.

    Args:
        snapshots: of one branch, each with ``id`` and ``properties`` as pypaimon's have them.
    """
    found: list[Any] = list(snapshots)
    by_id = {int(snapshot.id): snapshot for snapshot in found}
    kept = set()
    at = max(by_id, default=0)
    first = min(by_id, default=0)
    while at >= first and at > 0:
        kept.add(at)
        restored = ((by_id[at].properties if at in by_id else None) or {}).get(RESTORED)
        at = min(int(restored), at - 1) if restored is not None and restored.isdigit() else at - 1
    return [snapshot for snapshot in found if int(snapshot.id) in kept]
