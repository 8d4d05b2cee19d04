"""A table's versions: snapshots, tags, and how one is pinned."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from operator import index
from typing import Any

from pyarrow.fs import FileType

from lakehouse.errors import CommitError, ConfigError, NotFoundError, cause_line
from lakehouse.fetch import Fetcher
from lakehouse.names import checked, kept_training_set
from lakehouse.scan import Version, snapshot_identity
from lakehouse.table.handle import Handle
from lakehouse.table.pinned import Reopen, at_snapshot
from lakehouse.table.snapshot import Snapshot
from lakehouse.table.snapshot_info import EPOCH, SnapshotInfo, change_of, info_of
from lakehouse.upkeep import TagInfo, extras, tag_info
from lakehouse.upstream import (
    is_served,
    served_tags,
    snapshot_at,
    snapshot_numbers,
    snapshot_of,
    snapshots_of,
    tag_of,
    write_tag,
)
from lakehouse.write import find_commit, latest_id, latest_snapshot

_TAG_PREFIX = "tag-"
_MAIN = "main"


class Versions(Handle):
    """The part of `Table` that names and opens versions."""

    def snapshots(self) -> list[SnapshotInfo]:
        """The snapshots that can be read, oldest first, with what each did.

        Counts are exact, whoever wrote the snapshot: they come from its own files' row ids and deletion marks, not from the
        engine's counts, which count the rows once for each BLOB column.

        Example:
            >>> for info in table.snapshots():  # doctest: +SKIP
            ...     print(info.id, info.time, info.operation or info.kind, info.rows_added, info.rows_deleted)
        """
        paimon = self.paimon
        found = snapshots_of(paimon.snapshot_manager())
        known = {int(snapshot.id): snapshot for snapshot in found}
        return [info_of(snapshot, change_of(paimon, snapshot, known.get(int(snapshot.id) - 1))) for snapshot in found]

    def find_commit(self, commit_id: str) -> SnapshotInfo | None:
        """The commit that carries an id: how to learn what became of one whose outcome was unknown.

        Args:
            commit_id: what was given to `append`, or what the text of a `CommitUnknownError` names.

        Returns:
            Its line of history, also when the snapshot itself has expired (as far as the id was given by a caller); None
            where no commit of this id was made.

        Raises:
            NotFoundError, CommitError: the history can't be read.

        Example:
            >>> if table.find_commit("drive-0412/part-7") is None:  # doctest: +SKIP
            ...     table.append(rows, commit_id="drive-0412/part-7")
        """
        found = find_commit(self.paimon, commit_id)
        return None if found is None else info_of(found)

    def tags(self) -> dict[str, int]:
        """Tag names and the snapshots they name, by name."""
        paimon = self.paimon
        found = ((name, self._tagged(paimon, name)) for name in _tag_names(paimon))
        return {name: int(tag.id) for name, tag in found if tag is not None}

    def tag(
        self,
        name: str,
        *,
        snapshot: int | None = None,
        replace: bool = False,
        description: str | None = None,
        keep_for: timedelta | None = None,
    ) -> int:
        """Name a snapshot, so that it stays readable and can be found by name.

        Args:
            name: letters, digits, ``_``, ``-`` and ``.``; at most 128.
            snapshot: its number; None: the latest.
            replace: move a tag that exists.
            description: for people; `tag_info` shows it.
            keep_for: how long the tag is kept at least: `expire` removes it afterwards. None: until `delete_tag`.

        Returns:
            The number of the snapshot that the tag names.

        Raises:
            ConfigError: a name that can't be a file name, one that exists while ``replace`` is False or that keeps the rows of
                a training set, or a time to live that is not positive.
            NotFoundError: no such snapshot.

        Example:
            >>> table.tag(
            ...     "nightly", replace=True, keep_for=timedelta(days=14), description="what night 7 saw"
            ... )  # doctest: +SKIP
        """
        checked(name, "tag")
        added = extras(datetime.now(timezone.utc), keep_for, description)
        paimon = self.paimon
        kept = kept_training_set(name)
        if replace and kept and name in _tag_names(paimon):
            raise ConfigError(
                f"{self.name}: tag {name!r} keeps the rows of training set {kept} and is not moved: expiry could take them; "
                "use another name"
            )
        if is_served(paimon) and (description is not None or keep_for is not None):
            raise ConfigError(f"{self.name}: its catalog server keeps the tags, without a description or a time to live")
        number = latest_id(paimon) if snapshot is None else _number(snapshot)
        if number is None:
            raise NotFoundError(f"{self.name} has no snapshot to tag yet; append rows first")
        found = snapshot_of(paimon.snapshot_manager(), number)
        if found is None:
            raise self._no_snapshot(paimon, number)
        try:
            written = write_tag(paimon, name, found, replace=replace, extras=added)
        except OSError as error:
            raise CommitError(f"{self.name}: tag {name!r} can't be written ({cause_line(error)})") from error
        if not written:
            existing = self.tags().get(name)
            raise ConfigError(f"{self.name}: tag {name!r} exists and names snapshot {existing}; replace=True moves it")
        if snapshot_of(paimon.snapshot_manager(), number) is None:
            # It expired while it was tagged. Expiry reads tags after it has removed snapshots, so it may have missed this one.
            self.delete_tag(name, force=True)
            raise self._no_snapshot(paimon, number)
        return number

    def tag_info(self, name: str) -> TagInfo:
        """What a tag says: its snapshot, when it was made, until when it is kept, and its description.

        Raises:
            NotFoundError: no such tag; the text lists those that exist.
        """
        paimon = self.paimon
        found = self._tagged(paimon, checked(name, "tag"))
        if found is None:
            raise self._no_tag(name, paimon)
        if is_served(paimon):
            return TagInfo(name, int(found.id), None, None, None)
        manager = paimon.tag_manager()
        try:
            return tag_info(name, json.loads(manager.file_io.read_file_utf8(manager.tag_path(name))))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise NotFoundError(f"{self.name}: tag {name!r} can't be read ({cause_line(error)})") from error

    def delete_tag(self, name: str, *, force: bool = False) -> None:
        """Remove a tag; its snapshot stays as long as history keeps it.

        Args:
            name: the tag's.
            force: also one that keeps the rows of a training set, which are lost then as soon as the snapshot expires.

        Raises:
            NotFoundError: no such tag; the text lists those that exist.
            ConfigError: it keeps the rows of a training set.

        Example:
            >>> table.delete_tag("nightly")  # doctest: +SKIP
        """
        checked(name, "tag")
        paimon = self.paimon
        if name not in _tag_names(paimon):
            raise self._no_tag(name, paimon)
        kept = kept_training_set(name)
        if kept and not force:
            raise ConfigError(
                f"{self.name}: tag {name!r} keeps the rows of training set {kept}; delete_tag({name!r}, force=True) "
                "if they may go"
            )
        served = served_tags(paimon)
        if served is not None:
            try:
                served.remove(name)
            except OSError as error:
                raise CommitError(f"{self.name}: tag {name!r} can't be removed ({cause_line(error)})") from error
            return
        manager = paimon.tag_manager()
        manager.file_io.delete_quietly(manager.tag_path(name))
        if name in _tag_names(paimon):
            raise CommitError(f"{self.name}: tag {name!r} can't be removed; see that {manager.tag_directory()} can be written")

    def latest(self) -> Snapshot:
        """The latest snapshot; of an empty table, one of zero rows whose id is None."""
        return self._latest(self.paimon)

    def at(
        self,
        *,
        tag: str | None = None,
        snapshot: int | None = None,
        time: datetime | None = None,
        branch: str | None = None,
    ) -> Snapshot:
        """A version of the table, by exactly one of tag, snapshot number, and time.

        Args:
            tag: a tag's name.
            snapshot: a snapshot's number.
            time: an aware datetime: the latest snapshot committed at or before it.
            branch: on this branch instead of ``main``; may stand alone: the branch's latest snapshot.

        Raises:
            ConfigError: none or more than one of the three, or a naive datetime.
            NotFoundError: no such tag, snapshot or branch; the text lists what exists.

        Example:
            >>> snap = table.at(tag="training_v1")  # doctest: +SKIP
        """
        given = [name for name, value in (("tag", tag), ("snapshot", snapshot), ("time", time)) if value is not None]
        if len(given) > 1 or (not given and branch is None):
            raise ConfigError(f"at() takes exactly one of tag, snapshot and time, got {' and '.join(given) or 'none'}")
        branch = None if branch == _MAIN else branch
        paimon = self.paimon if branch is None else self._branch(branch)
        if tag is not None:
            return self._at_tag(paimon, tag, branch)
        if snapshot is not None:
            return self._at_number(paimon, _number(snapshot), branch)
        if time is not None:
            if not isinstance(time, datetime) or time.utcoffset() is None:
                raise ConfigError(f"time is a datetime with a time zone, got {time!r}; e.g. datetime.now(timezone.utc)")
            found = snapshot_at(paimon.snapshot_manager(), (time - EPOCH) // timedelta(milliseconds=1))
            if found is None:
                raise NotFoundError(f"{self.name} has no snapshot at or before {time.isoformat()}; {self._known(paimon)}")
            return self._pin(paimon, found, branch)
        return self._latest(paimon, branch)

    def opened_at(self, snapshot: int) -> Snapshot:
        """As ``at(snapshot=...)``, for a table that was opened this moment: it is not opened again.

        Args:
            snapshot: its number.

        Raises:
            NotFoundError: no such snapshot.
        """
        return self._at_number(self._paimon, snapshot, None)

    def _at_number(self, paimon: Any, number: int, branch: str | None) -> Snapshot:
        found = snapshot_of(paimon.snapshot_manager(), number)
        if found is None:
            raise self._no_snapshot(paimon, number)
        return self._pin(paimon, found, branch)

    def _latest(self, paimon: Any, branch: str | None = None) -> Snapshot:
        latest = latest_snapshot(paimon)
        try:
            return self._pin(paimon, latest, branch)
        except NotFoundError:
            if latest is None or latest_id(paimon) == latest.id:
                raise
            return self._latest(paimon, branch)  # a commit came, and the snapshot before it expired

    def _at_tag(self, paimon: Any, tag: str, branch: str | None) -> Snapshot:
        checked(tag, "tag")
        found = self._tagged(paimon, tag)
        if found is None:
            raise self._no_tag(tag, paimon)
        snapshot = snapshot_of(paimon.snapshot_manager(), int(found.id))
        if snapshot is not None and snapshot_identity(snapshot) == snapshot_identity(found):
            return self._pin(paimon, snapshot, branch)
        # The snapshot's own file has expired (or its number was given out again); the tag still holds its metadata.
        return self._pin(paimon, found, branch, tag)

    def _pin(self, paimon: Any, snapshot: Any, branch: str | None = None, tag: str | None = None) -> Snapshot:
        name = self.name if branch is None else f"{self.name}$branch_{branch}"
        number, identity = (None, "") if snapshot is None else (int(snapshot.id), snapshot_identity(snapshot))
        handle = at_snapshot(paimon, snapshot, tag)
        if handle is None:
            raise self._no_snapshot(paimon, number or 0)
        reopen = Reopen(self._load, branch, number, identity, tag)
        return Snapshot(Version(handle, name, number, self._load.uuid, self._roots, reopen, self._store))

    def _branch(self, branch: str) -> Any:
        checked(branch, "branch")
        names = self.paimon.branch_manager().branches()
        if branch not in names:
            raise NotFoundError(f"{self.name} has no branch {branch!r}; branches: {', '.join(sorted(names)) or 'none'}")
        return self._load(branch)

    def _tagged(self, paimon: Any, name: str) -> Any:
        try:
            return tag_of(paimon, name)
        except IsADirectoryError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise NotFoundError(
                f"{self.name}: tag {name!r} can't be read ({cause_line(error)}); delete_tag({name!r}) removes it"
            ) from error

    def _no_snapshot(self, paimon: Any, number: int) -> NotFoundError:
        ids = self._ids(paimon)
        if ids and 0 < number < min(ids):
            held = sorted(tag for tag in _tag_names(paimon) if (found := self._tagged(paimon, tag)) and found.id == number)
            advice = f"at(tag={held[0]!r}) still reads it" if held else "tag snapshots that must stay"
            return NotFoundError(f"{self.name} has no snapshot {number}; {self._known(paimon)}; it has expired: {advice}")
        return NotFoundError(f"{self.name} has no snapshot {number}; {self._known(paimon)}")

    def _no_tag(self, name: str, paimon: Any) -> NotFoundError:
        return NotFoundError(f"{self.name} has no tag {name!r}; tags: {', '.join(_tag_names(paimon)) or 'none'}")

    def _ids(self, paimon: Any) -> list[int]:
        return snapshot_numbers(paimon.snapshot_manager())

    def _known(self, paimon: Any) -> str:
        ids = self._ids(paimon)
        return f"snapshots: {min(ids)} to {max(ids)}" if ids else "it has no snapshots"

    def fetcher(self) -> Fetcher:
        """What reads the bytes of this table's BLOBs."""
        return self.latest().fetcher()


def _number(snapshot: Any) -> int:
    try:
        number = -1 if isinstance(snapshot, bool) else index(snapshot)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigError(f"snapshot is a number, got {snapshot!r}; for a tag write at(tag=...)")
    return number


def _tag_names(paimon: Any) -> list[str]:
    """Names of all tags, sorted. Upstream's own list fails for good once a file of another name is in the folder."""
    served = served_tags(paimon)
    if served is not None:
        return served.names()
    manager = paimon.tag_manager()
    try:
        found = manager.file_io.list_status(manager.tag_directory())
    except FileNotFoundError:
        return []
    names = [str(status.base_name) for status in found if status.type == FileType.File]
    return sorted(name.removeprefix(_TAG_PREFIX) for name in names if name.startswith(_TAG_PREFIX))
