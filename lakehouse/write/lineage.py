"""The commits that a version's content comes from, newest first, whether their snapshots are still there or have expired."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from lakehouse.errors import NotFoundError, cause_line
from lakehouse.upstream import latest_of
from lakehouse.write.ledger import is_kept, kept, ledger_text
from lakehouse.write.published import Published, snapshots_there


def lineage(paimon: Any, start: Any = None) -> Iterator[Published]:
    """The snapshots that a version's content comes from, newest first.

    A rollback's snapshot has the content of an earlier one: what was committed between the two is undone, and left out. Of
    snapshots that have expired only those come that the ledger keeps: with a commit id that a caller chose, and rollbacks.

    Args:
        paimon: the table, or a branch of it.
        start: a pypaimon snapshot or tag; None: the latest snapshot.

    Raises:
        NotFoundError: the snapshots can't be read.
        CommitError: the ledger can't be read.
    """
    try:
        start = latest_of(paimon.snapshot_manager()) if start is None else start
        known = snapshots_there(paimon) if start is not None else {}
    except (RuntimeError, OSError, ValueError) as error:
        where = paimon.identifier.get_full_name()
        raise NotFoundError(f"{where}: its snapshots can't be read ({cause_line(error)})") from error
    if start is None:
        return
    yield (published := Published.of(start))
    order: list[int] | None = None  # of all that is known, once the ledger is read: after the snapshots, since expiry writes
    number = published.parent  # there first and deletes then
    while number > 0:
        if number in known:
            yield known[number]
            number = known[number].parent
            continue
        if order is None:
            known = {**kept(paimon), **known}
            order = sorted(known)
        else:
            before = bisect_right(order, number)
            number = order[before - 1] if before else 0


def inherited(paimon: Any, start: Any) -> str:
    """The ledger with which a branch begins that is made from a version: the commit ids behind its rows stay known there.

    Args:
        paimon: the table.
        start: a pypaimon snapshot or tag, with which the branch begins.

    Raises:
        NotFoundError, CommitError: as `lineage`.
    """
    commits = [commit for commit in lineage(paimon, start) if is_kept(commit) and not commit.is_rollback]
    return ledger_text({commit.id: commit for commit in commits if commit.id != int(start.id)})
