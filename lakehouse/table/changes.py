"""What changes a table's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse.table.handle import Handle
from lakehouse.write import (
    BYTES,
    COMMIT_ID,
    ROWS,
    Describer,
    Published,
    Writer,
    checked_commit_id,
    find_commit,
    latest_id,
    publish_snapshot,
    to_batches,
)


@dataclass(frozen=True)
class Commit:
    """What an append did.

    Attributes:
        snapshot_id: the snapshot that now holds the rows; with zero rows, the current one or None.
        rows: rows written.
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
