"""The part of `Table` that rewrites files: merging small ones, and removing rows for good."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from lakehouse.compaction import TARGET_BYTES, CompactReport, PurgeReport, compact, purge
from lakehouse.errors import ConfigError
from lakehouse.table.branches import Branches
from lakehouse.upkeep import Progress


class Compaction(Branches):
    """The part of `Table` that rewrites files."""

    def compact(
        self,
        where: Any = None,
        *,
        target_size: int = TARGET_BYTES,
        row_ids: Literal["any", "keep"] = "any",
        dry_run: bool = False,
        progress: Progress = False,
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
            progress: True: a bar on the terminal. A callable is given bytes done and bytes in all.

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

    def purge(self, where: Any, *, dry_run: bool = False, orphans_older_than: timedelta = timedelta(days=1)) -> PurgeReport:
        """Remove rows for good, as a person may ask for whose face or plate they show: from every file, snapshot and tag.

        Every version is searched, with the rows that were deleted or updated since. A row for which the condition was true
        in one version is removed from all versions that share files with it. The latest version of each branch, and each
        tag that held such rows, gets files without them; the other rows keep their values. Snapshots from before can't be
        read any more on a branch where any of them held such rows, or the statistics of their files. At the end no file
        below the table's folder holds them, but for those that the report names.

        Args:
            where: an expression or SQL text, as for `Query.where`. By a key it also finds rows that were changed since.
            dry_run: only say what would be done.
            orphans_older_than: files that no version names, left by writers that were killed, are deleted when they are
                older. ``timedelta(0)`` only while nothing writes to the table.

        Returns:
            What was removed and rewritten, and which tags lost how many rows.

        Raises:
            NotFoundError: ``where`` names a column that no version has.
            SchemaError: it does not fit the columns, or the table has files of a kind that can't be rewritten here.
            ConfigError: a catalog server keeps the table's snapshots.
            FetchError: a file of some version is missing.
            CommitError: such rows were written again and again meanwhile, or files can't be written. Call it again.

        Example:
            >>> print(table.purge("plate = 'AB 123'"))  # doctest: +SKIP
            default.frames: 3 rows of default.frames removed, 4 files rewritten; 7 snapshots dropped; written anew: tag 'train'
        """
        self._only_on_main("purge()")
        return purge(
            lambda: [self, *(self.branch(name) for name in self.branches())],
            where,
            dry_run=dry_run,
            orphans_older_than=orphans_older_than,
        )
