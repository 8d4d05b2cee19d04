"""What a compaction did, or would do."""

from __future__ import annotations

from dataclasses import dataclass


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
