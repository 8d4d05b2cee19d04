"""What keeps a table small: expiry of old snapshots, removal of what crashed writers left."""

from __future__ import annotations

from datetime import datetime, timedelta

from lakehouse.table.handle import Handle
from lakehouse.upkeep import ExpireReport, OrphanReport, Progress, expire, remove_orphans

_DAY = timedelta(days=1)


class Upkeep(Handle):
    """The part of `Table` that removes what nobody needs."""

    def expire(
        self,
        older_than: datetime | timedelta | None = None,
        keep_last: int | None = None,
        *,
        dry_run: bool = False,
        progress: Progress = False,
    ) -> ExpireReport:
        """Remove old snapshots, and the files that only they need.

        A file that a snapshot that stays, a tag, or a branch reaches is never removed: tag what must stay. Tags whose time
        (``keep_for``) is over go, too. The latest snapshot always stays. Commit ids given to `append` stay known. It can be
        stopped at any moment; what it leaves behind `remove_orphans` finds.

        Args:
            older_than: only snapshots committed before this aware datetime, or longer ago than this timedelta.
            keep_last: keep the latest so many. With both arguments, a snapshot goes only when both let it go.
            dry_run: report what would go, and remove nothing.
            progress: True: a progress bar, where tqdm is installed; a callable is given ``(done, total)`` files.

        Returns:
            What was removed: snapshots, tags, files by kind, bytes.

        Raises:
            ConfigError: neither argument is given, or one can't be used; the table's snapshots are kept by a server.
            FetchError: a manifest can't be read, so what is needed is not known. Nothing was removed.
            CommitError: another process expires or purges the table, or the store refuses.

        Example:
            >>> print(table.expire(older_than=timedelta(days=30), keep_last=10, dry_run=True))  # doctest: +SKIP
            default.frames: would remove 12 snapshots (1 to 12), 61 files (5 data, 5 blob, 51 manifest), 1.2 GB
        """
        return expire(self.paimon, self.name, older_than=older_than, keep_last=keep_last, dry_run=dry_run, progress=progress)

    def remove_orphans(
        self, older_than: timedelta = _DAY, *, dry_run: bool = False, progress: Progress = False
    ) -> OrphanReport:
        """Remove files in the table's folder that no snapshot, tag or branch reaches: what crashed writers left.

        Only files whose names and places are those that writers give; all others are not touched, nor are symbolic links
        followed.

        Args:
            older_than: only files last written longer ago than this, by the clock of the store. Younger ones may belong to a
                writer that is still at work: a write that takes longer than this loses its files and fails. ``timedelta(0)``
                takes them all: only while nothing writes.
            dry_run: report what would go, and remove nothing.
            progress: True: a progress bar, where tqdm is installed; a callable is given ``(done, total)`` files.

        Returns:
            What was removed: paths, files by kind, bytes; how many were spared because they are young.

        Raises:
            ConfigError: a negative ``older_than``; the table's snapshots are kept by a server.
            FetchError: a manifest can't be read, so what is needed is not known. Nothing was removed.

        Example:
            >>> print(table.remove_orphans(dry_run=True))  # doctest: +SKIP
            default.frames: would remove 7 files (2 blob, 2 data, 3 manifest), 31.2 MB
        """
        return remove_orphans(self.paimon, self.name, older_than=older_than, dry_run=dry_run, progress=progress)
