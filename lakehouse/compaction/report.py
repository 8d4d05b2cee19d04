"""What a compaction or a purge did, or would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CompactReport:
    """What `Table.compact` did, or would do.

    Attributes:
        table: ``database.table``.
        snapshots: numbers of the snapshots it made, ascending; none when there was nothing to do.
        partitions: partitions whose files were merged.
        rows: rows that were copied into new files.
        renumbered: how many of these got new row ids.
        dropped: deleted rows that left the files.
        files_before, files_after: data files of the table (of the partitions that ``where`` takes) before and after. In a
            dry run the second is about right: a file more for each time that one grows beyond the target.
        bytes_read: bytes of the files that were replaced; ``bytes_written`` of those that were made (0 in a dry run).
        manifests_before, manifests_after: manifest files that have to be read to open the table.
        left: file groups that could only be merged by giving rows new ids, where ``row_ids="keep"``.
        attempts: how often rows changed meanwhile, so that part of the work was done again, plus one.
        dry_run: nothing was done.
    """

    table: str
    snapshots: tuple[int, ...] = ()
    partitions: int = 0
    rows: int = 0
    renumbered: int = 0
    dropped: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    manifests_before: int = 0
    manifests_after: int = 0
    left: int = 0
    attempts: int = 1
    dry_run: bool = False

    def __str__(self) -> str:
        would = "would rewrite" if self.dry_run else "rewrote"
        text = (
            f"{self.table}: {would} {self.rows:,} rows of {self.partitions} partitions, {self.bytes_read:,} bytes: "
            f"files {self.files_before:,} -> {self.files_after:,}, manifests {self.manifests_before} -> {self.manifests_after}"
        )
        if self.renumbered:
            text += f"; {self.renumbered:,} rows {'would get' if self.dry_run else 'got'} new row ids"
        if self.dropped:
            text += f"; {self.dropped:,} deleted rows {'would leave' if self.dry_run else 'left'} the files"
        if self.left:
            text += f"; {self.left} groups were left, since only new row ids would let them merge"
        if self.attempts > 1:
            text += f"; {self.attempts} attempts"
        return text


@dataclass(frozen=True)
class PurgeReport:
    """What `Table.purge` did, or would do.

    Attributes:
        table: ``database.table``.
        rows: rows that left the latest version, by branch: ``{"default.frames": 3}``; branches that had none are left out.
        versions: how many rows each snapshot and tag showed that had to leave, such as ``{"tag 'train'": 3}``.
        tags: tags that were written anew, with the training sets that they pin: those without such rows only lost the
            statistics of files that had left before.
        snapshots_removed: snapshots that can no longer be read.
        snapshots: numbers of the snapshots that were made, each on its branch.
        files_rewritten: data files that held such rows.
        files_removed: files deleted, ``bytes_removed`` their bytes.
        unnamed: files that no version names and that stayed because they are young: a writer may be at work on them. What
            they hold is not known; purge again once they are older.
        left: files that were to go and stayed, and why.
        dry_run: nothing was done.
    """

    table: str
    rows: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    snapshots_removed: tuple[str, ...] = ()
    snapshots: tuple[int, ...] = ()
    files_rewritten: int = 0
    files_removed: int = 0
    bytes_removed: int = 0
    unnamed: int = 0
    left: tuple[str, ...] = ()
    dry_run: bool = False

    def __str__(self) -> str:
        if not self.files_rewritten:
            text = f"{self.table}: no version holds such rows"
        else:
            would = "would be " if self.dry_run else ""
            rows = (
                ", ".join(f"{count:,} rows of {name}" for name, count in self.rows.items()) or "no rows of the latest version"
            )
            text = f"{self.table}: {rows} {would}removed, {self.files_rewritten} files {would}rewritten"
            text += f"; {len(self.snapshots_removed)} snapshots {would}dropped"
            if self.tags:
                text += f"; {would}written anew: {', '.join(self.tags)}"
        if self.files_removed:
            text += f"; {self.files_removed:,} files deleted, {self.bytes_removed:,} bytes"
        if self.unnamed:
            text += f"; {self.unnamed} files that no version names are too young to delete: purge again later"
        return text + "".join(f"\n  left: {item}" for item in self.left)
