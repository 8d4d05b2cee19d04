"""Table: a name whose content moves from snapshot to snapshot. `Snapshot` is one that does not move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from lakehouse.errors import ConfigError, NotFoundError, SchemaError, cause_line
from lakehouse.fetch import Fetcher
from lakehouse.scan import Version
from lakehouse.schema import TABLE_UUID_OPTION, Columns
from lakehouse.table.names import checked, split_table_name
from lakehouse.table.rows import to_batches
from lakehouse.table.snapshot import Snapshot
from lakehouse.table.write import COMMIT_ID, Describer, Writer, latest_id, publish

__all__ = ["Commit", "Snapshot", "SnapshotInfo", "Table", "split_table_name"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Commit:
    """What an append did.

    Attributes:
        snapshot_id: the snapshot that now holds the rows; with zero rows, the current one or None.
        rows: rows written.
        bytes: bytes of the files written.
    """

    snapshot_id: int | None
    rows: int
    bytes: int


@dataclass(frozen=True)
class SnapshotInfo:
    """One line of a table's history.

    Attributes:
        id: snapshot number.
        time: when it was committed, in UTC.
        kind: ``APPEND``, ``OVERWRITE``, ``COMPACT`` or ``ANALYZE``.
        commit_id: the id its writer gave, None where another engine wrote it.
    """

    id: int
    time: datetime
    kind: str
    commit_id: str | None


class Table:
    """A table of a catalog. Made by `Catalog.create_table` and `Catalog.table`.

    Args:
        load: makes a fresh pypaimon handle: of the main branch, or of the named one.
        name: ``database.table``.
        roots: where references outside the table's own folder may point.
    """

    def __init__(self, load: Callable[[str | None], Any], name: str, roots: tuple[str, ...] = ()) -> None:
        self._load = load
        self._paimon = load(None)
        self._name = name
        self._roots = roots

    @property
    def name(self) -> str:
        """``database.table``."""
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """The columns as the table holds them; BLOB columns are ``large_binary``."""
        return self._columns().arrow

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Names of the partition columns."""
        return tuple(self._paimon.partition_keys)

    @property
    def paimon(self) -> Any:
        """The pypaimon table underneath, as it is now."""
        return self._load(None)

    def _columns(self) -> Columns:
        self._paimon = self._load(None)
        return Columns.of(self._paimon)

    # --- writing -------------------------------------------------------------------------------------------------------

    def append(self, data: Any) -> Commit:
        """Add rows in one commit: all of them become visible at once, or none.

        Args:
            data: an Arrow table, batch or reader; a Daft or pandas frame; a list of row dicts; or an iterator of any of
                these, written in bounded memory. Columns are matched by name; nullable columns that are missing become
                null. A BLOB is ``bytes``, or a `BlobRef` whose bytes are copied as a stream (or kept as a reference where
                the column is declared so).

        Returns:
            What was written. Zero rows make no commit.

        Raises:
            SchemaError: an unknown column, a wrong type, a value that would change, a null where none may be.
            FetchError: a `BlobRef`'s source is missing or too short.
            CommitError: nothing was published; trying again is safe.
            CommitUnknownError: the outcome is unknown; look at `snapshots` first.

        Example:
            >>> commit = table.append([{"id": 1, "frame_jpg": b"..."}])  # doctest: +SKIP
        """
        columns = self._columns()
        paimon = self._paimon
        writer = Writer(paimon, columns)
        try:
            for batch in to_batches(data, columns, Describer(paimon)):
                writer.write(batch)
            messages = writer.finish()
        except BaseException:  # Ctrl-C too: files that no commit will name are deleted
            writer.abort()
            raise
        if not writer.rows:
            return Commit(latest_id(paimon) or None, 0, 0)
        size = sum(file.file_size for message in messages for file in message.new_files)
        return Commit(publish(paimon, messages), writer.rows, size)

    # --- history -------------------------------------------------------------------------------------------------------

    def snapshots(self) -> list[SnapshotInfo]:
        """The snapshots that can be read, oldest first."""
        return [
            SnapshotInfo(
                id=int(snapshot.id),
                time=_EPOCH + timedelta(milliseconds=snapshot.time_millis),
                kind=str(snapshot.commit_kind),
                commit_id=(snapshot.properties or {}).get(COMMIT_ID),
            )
            for snapshot in sorted(self.paimon.snapshot_manager().list_snapshots(), key=lambda snapshot: snapshot.id)
        ]

    def tags(self) -> dict[str, int]:
        """Tag names and the snapshots they name, by name."""
        paimon = self.paimon
        return {name: int(tag.id) for name in sorted(paimon.list_tags()) if (tag := paimon.tag_manager().get(name)) is not None}

    def tag(self, name: str, *, snapshot: int | None = None, replace: bool = False) -> int:
        """Name a snapshot, so that it stays readable and can be found by name.

        Args:
            name: letters, digits, ``_``, ``-`` and ``.``; at most 128.
            snapshot: its number; None: the latest.
            replace: move a tag that exists.

        Returns:
            The number of the snapshot that the tag names.

        Raises:
            ConfigError: a name that can't be a file name, or one that exists while ``replace`` is False.
            NotFoundError: no such snapshot.
        """
        checked(name, "tag")
        paimon = self.paimon
        manager = paimon.snapshot_manager()
        found = manager.get_latest_snapshot() if snapshot is None else self._snapshot(paimon, snapshot)
        if found is None:
            raise NotFoundError(f"{self.name} has no snapshot to tag yet; append rows first")
        if paimon.tag_manager().tag_exists(name):
            if not replace:
                existing = self.tags()[name]
                raise ConfigError(f"{self.name}: tag {name!r} exists and names snapshot {existing}; replace=True moves it")
            paimon.replace_tag(name, found.id)
        else:
            paimon.create_tag(name, found.id)
        return int(found.id)

    def delete_tag(self, name: str) -> None:
        """Remove a tag; its snapshot stays as long as history keeps it.

        Raises:
            NotFoundError: no such tag; the text lists those that exist.
        """
        checked(name, "tag")
        if name not in self.tags():
            raise self._no_tag(name)
        self.paimon.delete_tag(name)

    def latest(self) -> Snapshot:
        """The latest snapshot; of an empty table, one of zero rows whose id is None."""
        paimon = self.paimon
        return self._pin(paimon, latest_id(paimon) or None)

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
            branch: on this branch instead of main; may stand alone: the branch's latest snapshot.

        Raises:
            ConfigError: none or more than one of the three, or a naive datetime.
            NotFoundError: no such tag, snapshot or branch; the text lists what exists.

        Example:
            >>> snap = table.at(tag="training_v1")  # doctest: +SKIP
        """
        given = [name for name, value in (("tag", tag), ("snapshot", snapshot), ("time", time)) if value is not None]
        if len(given) > 1 or (not given and branch is None):
            raise ConfigError(f"at() takes exactly one of tag, snapshot and time, got {' and '.join(given) or 'none'}")
        paimon = self.paimon if branch is None else self._branch(branch)
        if tag is not None:
            return self._at_tag(paimon, tag, branch)
        if snapshot is not None:
            if isinstance(snapshot, bool) or not isinstance(snapshot, int):
                raise ConfigError(f"snapshot is a number, got {snapshot!r}; for a tag write at(tag=...)")
            if self._snapshot(paimon, snapshot) is None:
                raise self._no_snapshot(paimon, snapshot)
            return self._pin(paimon, snapshot, branch)
        if time is not None:
            if not isinstance(time, datetime) or time.tzinfo is None:
                raise ConfigError(f"time is a datetime with a time zone, got {time!r}; e.g. datetime.now(timezone.utc)")
            found = paimon.snapshot_manager().earlier_or_equal_time_mills((time - _EPOCH) // timedelta(milliseconds=1))
            if found is None:
                raise NotFoundError(f"{self.name} has no snapshot at or before {time.isoformat()}; {self._known(paimon)}")
            return self._pin(paimon, int(found.id), branch)
        return self._pin(paimon, latest_id(paimon) or None, branch)

    def _at_tag(self, paimon: Any, tag: str, branch: str | None) -> Snapshot:
        checked(tag, "tag")
        found = paimon.tag_manager().get(tag)
        if found is None:
            raise self._no_tag(tag, paimon)
        number = int(found.id)
        if self._snapshot(paimon, number) is not None:
            return self._pin(paimon, number, branch)
        # The snapshot's own file has expired; the tag still holds its metadata.
        return self._pin(paimon, number, branch, options={"scan.tag-name": tag})

    def _pin(
        self, paimon: Any, number: int | None, branch: str | None = None, options: dict[str, str] | None = None
    ) -> Snapshot:
        name = self.name if branch is None else f"{self.name}$branch_{branch}"
        if number is not None:
            paimon = paimon.copy(options or {"scan.snapshot-id": str(number)})
        return Snapshot(Version(paimon, name, number, table_uuid(paimon), self._roots))

    def _branch(self, branch: str) -> Any:
        checked(branch, "branch")
        names = self.paimon.branch_manager().branches()
        if branch not in names:
            raise NotFoundError(f"{self.name} has no branch {branch!r}; branches: {', '.join(sorted(names)) or 'none'}")
        return self._load(branch)

    def _snapshot(self, paimon: Any, number: int) -> Any:
        try:
            return paimon.snapshot_manager().get_snapshot_by_id(number)
        except FileNotFoundError:
            return None

    def _no_snapshot(self, paimon: Any, number: int) -> NotFoundError:
        return NotFoundError(f"{self.name} has no snapshot {number}; {self._known(paimon)}")

    def _no_tag(self, name: str, paimon: Any = None) -> NotFoundError:
        names = sorted((paimon or self.paimon).list_tags())
        return NotFoundError(f"{self.name} has no tag {name!r}; tags: {', '.join(names) or 'none'}")

    def _known(self, paimon: Any) -> str:
        ids = [int(snapshot.id) for snapshot in paimon.snapshot_manager().list_snapshots()]
        return f"snapshots: {min(ids)} to {max(ids)}" if ids else "it has no snapshots"

    # --- reading -------------------------------------------------------------------------------------------------------

    def fetcher(self) -> Fetcher:
        """What reads the bytes of this table's BLOBs."""
        return self.latest().fetcher()

    def __repr__(self) -> str:
        by = f", partition_by={list(self.partition_by)}" if self.partition_by else ""
        return f"Table({self.name}, {len(self._paimon.fields)} columns{by})"


def table_uuid(paimon: Any) -> str:
    """The identity of a table: other for a table of the same name that was made later.

    Written by `Catalog.create_table`; for tables made elsewhere the catalog server's, else from when schema 0 was made.
    """
    own = paimon.options.options.to_map().get(TABLE_UUID_OPTION)
    if own:
        return str(own)
    if paimon.catalog_environment.uuid:
        return str(paimon.catalog_environment.uuid)
    try:
        first = paimon.schema_manager.get_schema(0)
    except (OSError, ValueError) as error:
        raise SchemaError(f"{paimon.identifier.get_full_name()}: can't read its first schema ({cause_line(error)})") from error
    return f"{paimon.identifier.get_database_name()}.{paimon.identifier.get_table_name()}#{first.time_millis}"
