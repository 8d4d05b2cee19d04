"""How many rows a snapshot added and deleted, from what it did to files. Pure.

An engine's own counts are no help: each BLOB column's files count their rows again, and so do the files of an update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FileChange:
    """A row file that a snapshot added or removed; BLOBs lie beside the row files and hold the same rows.

    Attributes:
        name: of the file.
        added: False: removed.
        first_row_id: of its rows.
        rows: how many, deleted ones included.
    """

    name: str
    added: bool
    first_row_id: int
    rows: int


@dataclass(frozen=True)
class Change:
    """Rows that a snapshot added and deleted; None: can't be told. Updated rows count as neither."""

    added: int | None
    deleted: int | None


def counted(
    changes: Iterable[FileChange],
    next_row_id: int | None,
    deleted_before: Mapping[str, int | None],
    deleted_after: Mapping[str, int | None],
) -> Change:
    """Count a snapshot's rows.

    Args:
        changes: the row files that it added and removed.
        next_row_id: the first row id that the snapshot before it had not given out; None: unknown.
        deleted_before: rows marked as deleted in each file, by its name, before the snapshot; None: unknown.
        deleted_after: the same after it.
    """
    files = list(changes)
    came = _merged((item.first_row_id, item.first_row_id + item.rows) for item in files if item.added)
    went = _merged((item.first_row_id, item.first_row_id + item.rows) for item in files if not item.added)
    added: int | None = None
    if not came:
        added = 0
    elif next_row_id is not None:
        added = sum(stop - max(start, next_row_id) for start, stop in came if stop > next_row_id)
    # Files that were written anew with the same row ids lost no rows.
    removed_rows = sum(stop - start for start, stop in went) - _overlap(came, went)
    removed = {item.name for item in files if not item.added}
    marks: list[int | None] = [deleted_after[name] for name in deleted_after if name not in removed]
    lifted: list[int | None] = [deleted_before.get(name, 0) for name in removed | (deleted_after.keys() - removed)]
    if None in marks or None in lifted:
        return Change(added, None)
    deleted = removed_rows + sum(filter(None, marks)) - sum(filter(None, lifted))
    return Change(added, deleted if deleted >= 0 else None)


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Half-open ranges without overlaps, ascending."""
    result: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return result


def _overlap(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> int:
    total = i = j = 0
    while i < len(left) and j < len(right):
        total += max(0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return total
