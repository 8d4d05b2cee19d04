"""The part of `Table` that rewrites files: merging small ones, and removing rows for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from lakehouse.compaction import TARGET_BYTES, CompactReport, compact
from lakehouse.errors import ConfigError
from lakehouse.table.versions import Versions


class Compaction(Versions):
    """The part of `Table` that rewrites files."""

    def compact(
        self,
        where: Any = None,
        *,
        target_size: int = TARGET_BYTES,
        row_ids: Literal["any", "keep"] = "any",
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> CompactReport:
        """Merge the files of many small commits, so that the table opens and reads as if it had been written at once.

        Rows, BLOBs and their checksums stay as they are; deleted rows leave the files, updates are folded in. Snapshots and
        tags made before keep their files. Appends, and changes of other rows, may go on meanwhile.

        Args:
            where: which partitions: an expression or SQL text over partition columns only. None: all.
            target_size: about how large a file may become, in bytes. Groups of files of half of that are left alone.
            row_ids: a row keeps its id where the ids of merged rows follow each other. Commits that wrote several partitions
                at once deal ids out in turns; there ``"any"`` gives rows new ids, ``"keep"`` leaves their files as they are.
            dry_run: only say what would be done.
            progress: called with bytes done and bytes in all.

        Returns:
            What was done, or would be.

        Raises:
            SchemaError: ``where`` reads a column that is no partition column, or the table has files of a kind that can't be
                rewritten here.
            NotFoundError: ``where`` names a column that does not exist.
            FetchError: a file of the table is missing or short; nothing was published of the part it belongs to.
            CommitError: rows were changed by others again and again, or files can't be written.

        Example:
            >>> print(table.compact(dry_run=True))  # doctest: +SKIP
            default.frames: would rewrite 2,000 rows of 5 partitions, 3,511,400 bytes: files 2,000 -> 10, manifests 200 -> 1
        """
        if row_ids not in ("any", "keep"):
            raise ConfigError(f"row_ids is 'any' or 'keep', got {row_ids!r}")
        return compact(
            lambda: self.latest().version,
            lambda: self.paimon,
            where,
            target_size,
            keep_ids=row_ids == "keep",
            dry_run=dry_run,
            progress=progress,
        )
