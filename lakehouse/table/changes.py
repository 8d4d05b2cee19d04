"""What changes a table's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse.table.handle import Handle
from lakehouse.write import Describer, Writer, latest_id, publish, to_batches


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


class Changes(Handle):
    """The part of `Table` that changes rows."""

    def append(self, data: Any) -> Commit:
        """Add rows in one commit: all of them become visible at once, or none.

        Args:
            data: an Arrow table, batch or reader; a Daft or pandas frame; a list of row dicts; or an iterator of any of
                these, written in bounded memory. Columns are matched by name; nullable columns that are missing become
                null, and so does what pandas marks as absent (NaN, NaT, NA). A BLOB is ``bytes``, or a `BlobRef` whose
                bytes are copied as a stream (or kept as a reference where the column is declared so).

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
            return Commit(latest_id(paimon), 0, 0)
        size = sum(file.file_size for message in messages for file in message.new_files)
        return Commit(publish(paimon, messages), writer.rows, size)
