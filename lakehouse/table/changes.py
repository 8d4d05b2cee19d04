"""What changes a table's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse import changes
from lakehouse.errors import CommitUnknownError
from lakehouse.scan import Version, snapshot_identity
from lakehouse.table.handle import Handle
from lakehouse.table.pinned import Reopen
from lakehouse.upstream import pinned
from lakehouse.write import (
    BYTES,
    COMMIT_ID,
    ROWS,
    Describer,
    Published,
    Writer,
    checked_commit_id,
    discard,
    find_commit,
    latest_id,
    latest_snapshot,
    publish_snapshot,
    to_batches,
)


@dataclass(frozen=True)
class Commit:
    """What an append, or another change, did.

    Attributes:
        snapshot_id: the snapshot that now holds the rows; with zero rows, the current one or None.
        rows: rows written; of a delete, update or upsert, the rows that it deleted, updated, moved or added; of an overwrite,
            those that it wrote, or, when it wrote none, those that it removed.
        bytes: bytes of the files written.
        commit_id: the id that the snapshot carries; with zero rows, the one given or None.
    """

    snapshot_id: int | None
    rows: int
    bytes: int
    commit_id: str | None = None

    @classmethod
    def of(cls, published: Published) -> Commit:
        """What the properties of a snapshot say that its commit did."""
        properties = published.properties
        return cls(published.id, int(properties.get(ROWS, 0)), int(properties.get(BYTES, 0)), properties.get(COMMIT_ID))


class Changes(Handle):
    """The part of `Table` that changes rows."""

    def append(self, data: Any, *, commit_id: str | None = None) -> Commit:
        """Add rows in one commit: all of them become visible at once, or none.

        Args:
            data: an Arrow table, batch or reader; a Daft or pandas frame; a list of row dicts; or an iterator of any of
                these, written in bounded memory. Columns are matched by name; nullable columns that are missing become
                null, and so does what pandas marks as absent (NaN, NaT, NA). A BLOB is ``bytes``, or a `BlobRef` whose
                bytes are copied as a stream (or kept as a reference where the column is declared so).
            commit_id: a name for this commit, such as ``"drive-0412/part-7"``. An append whose id is already in the table's
                history does nothing and returns the earlier `Commit`, so that an import can be run again after a crash.
                None: a new one.

        Returns:
            What was written. Zero rows make no commit.

        Raises:
            ConfigError: a commit id that is blank, longer than 256 characters or not printable.
            SchemaError: an unknown column, a wrong type, a value that would change, a null where none may be.
            FetchError: a `BlobRef`'s source is missing or too short.
            CommitError: nothing was published; trying again is safe.
            CommitUnknownError: the outcome is unknown; look at `snapshots` first.

        Example:
            >>> commit = table.append([{"id": 1, "frame_jpg": b"..."}])  # doctest: +SKIP
        """
        columns = self._columns()
        paimon = self._paimon
        if commit_id is not None:
            earlier = find_commit(paimon, checked_commit_id(commit_id))
            if earlier is not None:
                return Commit.of(earlier)
        writer = Writer(paimon, columns)
        try:
            for batch in to_batches(data, columns, Describer(paimon)):
                writer.write(batch)
            messages = writer.finish()
        except BaseException:  # Ctrl-C too: files that no commit will name are deleted
            writer.abort()
            raise
        if not writer.rows:
            return Commit(latest_id(paimon), 0, 0, commit_id)
        return Commit.of(publish_snapshot(paimon, messages, commit_id=commit_id, properties={ROWS: str(writer.rows)}))

    def delete(self, where: Any) -> Commit:
        """Delete rows in one commit. Their bytes stay in the files, for older snapshots and tags.

        Args:
            where: which rows: a Daft expression or SQL text, as `Query.where` takes it; rows for which it is null stay.

        Returns:
            How many rows were deleted. None at all make no commit.

        Raises:
            NotFoundError: a column that does not exist.
            SchemaError: a predicate that does not fit, or a table that was made without deletion vectors.
            CommitError: nothing was published; trying again is safe. Other writers' changes of the table are waited out first.
            CommitUnknownError: the outcome is unknown; look at `snapshots` first.

        Example:
            >>> table.delete("weather = 'fog' AND ego_speed_kmh < 5")  # doctest: +SKIP
        """
        return self._changed(lambda base: changes.delete(base, where), "delete", over_appends=True)

    def update(self, where: Any, values: Mapping[str, Any]) -> Commit:
        """Set columns of the rows for which a predicate is true, in one commit. Row ids stay, and no other BLOB is written.

        Args:
            where: which rows, as `Query.where` takes it; None: all.
            values: by column what it is set to: one value for all rows (for a BLOB ``bytes``, a `BlobRef`, or None), a Daft
                expression over the scalar columns of the row as it was, or a function. A function gets the matched rows as an
                Arrow table of all columns, some thousands at a time, with BLOBs as ``struct<uri, offset, length>``, and
                returns one value a row, as an array or a list.

        Returns:
            How many rows were set. None at all make no commit.

        Raises:
            NotFoundError: a column that does not exist.
            SchemaError: a predicate or a value that does not fit, or a partition column: `upsert` moves rows.
            FetchError: a `BlobRef`'s source is missing or too short.
            CommitError: nothing was published; trying again is safe. Other writers' changes of the table are waited out first.
            CommitUnknownError: the outcome is unknown; look at `snapshots` first.

        Example:
            >>> table.update("id = 7", {"weather": "rain", "frame_jpg": b"..."})  # doctest: +SKIP
            >>> table.update(None, {"speed_ms": col("ego_speed_kmh") / 3.6})  # doctest: +SKIP
        """
        return self._changed(lambda base: changes.update(base, where, values), "update", over_appends=True)

    def upsert(self, data: Any, key: Sequence[str] | str) -> Commit:
        """Update the rows whose key is there, wherever they are, and add the others, in one commit.

        Columns that the data lacks stay as they are in rows that are there, and are null in added ones. A row whose partition
        changes is moved: it gets a new row id, and keeps what the data lacks.

        Args:
            data: as for `append`, with the same columns in all rows. It is held in memory as a whole: pass BLOBs as `BlobRef`
                where they are large.
            key: columns that together tell rows apart. Their values are compared exactly; floats, nested values and BLOBs are
                no keys.

        Returns:
            How many rows were updated, moved and added together.

        Raises:
            NotFoundError: a column that does not exist.
            SchemaError: a null in the key, a key that the data or the table has twice (nothing is changed then), or what
                `append` refuses.
            FetchError: a `BlobRef`'s source is missing or too short.
            CommitError: nothing was published; trying again is safe. Other writers' changes of the table are waited out first.
            CommitUnknownError: the outcome is unknown; look at `snapshots` first.

        Example:
            >>> table.upsert([{"id": 7, "weather": "rain"}], key=["id"])  # doctest: +SKIP
        """
        given = changes.Given.of(data, key, self._base())
        return self._changed(lambda base: changes.upsert(base, given), "upsert", over_appends=False)

    def overwrite(self, data: Any, *, partition: Mapping[str, Any] | None = None) -> Commit:
        """Replace all rows, or those of some partitions, in one commit.

        What is replaced is what the table held when this began. Rows that others append meanwhile stay; when they change or
        delete rows meanwhile, the replacing is done again on what the table holds then.

        Args:
            data: the new rows, as for `append`. No rows: those that are there are removed.
            partition: values of some or all partition columns, such as ``{"channel": "CAM_FRONT"}``: only partitions with these
                values are replaced, and the data may have no other rows. None: the whole table.

        Returns:
            How many rows were written, or removed when none were. Nothing to do makes no commit.

        Raises:
            NotFoundError: a column that does not exist.
            SchemaError: rows outside of ``partition``, or what `append` refuses.
            FetchError: a `BlobRef`'s source is missing or too short.
            CommitError: nothing was published; trying again is safe. Other writers' changes of the table are waited out first.
            CommitUnknownError: the outcome is unknown; look at `snapshots` first.

        Example:
            >>> table.overwrite(rows, partition={"channel": "CAM_FRONT"})  # doctest: +SKIP
        """
        first = self._base()
        replaced = changes.checked_partition(partition, first.columns, Describer(first.paimon))
        messages, rows = changes.written(first, data, replaced)
        bases = iter([first])
        try:
            return self._changed(
                lambda base: changes.overwrite(base, messages, rows, replaced),
                "overwrite",
                over_appends=True,
                keep=True,
                fresh=lambda: next(bases, None) or self._base(),
            )
        except CommitUnknownError:
            raise
        except BaseException:
            discard(first.paimon, messages)
            raise

    def _base(self) -> changes.Base:
        """The table as it is now."""
        paimon = self._load(None)
        snapshot = latest_snapshot(paimon)
        number, identity = (None, "") if snapshot is None else (int(snapshot.id), snapshot_identity(snapshot))
        reopen = Reopen(self._load, None, number, identity, latest_schema=True)
        handle = pinned(paimon, snapshot)
        return changes.Base(paimon, Version(handle, self.name, number, self._load.uuid, self._roots, reopen, self._store))

    def _changed(
        self,
        work: Callable[[changes.Base], changes.Prepared | None],
        operation: str,
        *,
        over_appends: bool,
        keep: bool = False,
        fresh: Callable[[], changes.Base] | None = None,
    ) -> Commit:
        published, before = changes.committed(
            fresh or self._base, work, operation=operation, over_appends=over_appends, keep=keep
        )
        return Commit(before, 0, 0) if published is None else Commit.of(published)
