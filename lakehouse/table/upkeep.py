"""What keeps a table small: expiry of old snapshots, removal of what crashed writers left."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import Literal

from lakehouse.check import CheckReport, check
from lakehouse.table.versions import Versions
from lakehouse.upkeep import ExpireReport, OrphanReport, Progress, expire, remove_orphans

_DAY = timedelta(days=1)


class Upkeep(Versions):
    """The part of `Table` that removes what nobody needs, and proves that the rest is whole."""

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

    def check(
        self,
        *,
        tag: str | None = None,
        snapshot: int | None = None,
        verify: Literal["size", "crc"] = "size",
        threads: int | None = None,
        resume: str | os.PathLike[str] | None = None,
        progress: Progress = True,
    ) -> CheckReport:
        """Prove that every row of a version can be read as it was written, or list what can't.

        All files are there and have the size that the manifests say; manifests, footers of row files, indexes of BLOB files
        and deletion marks can be read; row ids belong to one row each and files hold all of them; what references point at is
        there and long enough. By ``crc`` every BLOB's record is read and its magic number, length and crc32 compared, and every
        row file decoded.

        Args:
            tag: the version to check, by a tag's name.
            snapshot: by its number; neither of the two: the latest one.
            verify: ``"size"`` reads metadata and footers; ``"crc"`` reads every byte.
            threads: how many files are read at a time. None: as many as there are cores, 16 on object stores.
            resume: a file that notes which files are whole; a run that was stopped goes on from there. Files that changed since
                are checked anew. None: nothing is kept.
            progress: True: a progress bar, where tqdm is installed and stderr is a terminal; a callable is given
                ``(done, total)``, in bytes by ``crc``, else in files.

        Returns:
            What was found: `CheckReport.ok`, and every damaged row.

        Raises:
            NotFoundError: no such version.
            ConfigError: an argument that can't be used, or a ``resume`` file of another table.

        Example:
            >>> report = table.check(tag="training_v1", verify="crc", resume="check.jsonl")  # doctest: +SKIP
            >>> print(report)  # doctest: +SKIP
            default.frames@41: ok, 61 files, 5000 blobs, 712.4 MB checked by crc in 0.9 s
        """
        named = tag is not None or snapshot is not None
        version = self.at(tag=tag, snapshot=snapshot) if named else self.latest()
        return check(version.version, version.fetcher(), verify=verify, threads=threads, resume=resume, progress=progress)
