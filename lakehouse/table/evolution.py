"""What changes a table's columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lakehouse.changes import columns as rules
from lakehouse.schema import Columns
from lakehouse.table.changes import Commit
from lakehouse.table.handle import Handle
from lakehouse.write import latest_id


class Evolution(Handle):
    """The part of `Table` that changes columns. Older snapshots and tags keep the columns of their time."""

    def add_column(self, field: pa.Field | str, kind: Any = None) -> Commit:
        """Add a column, null in all rows that are there. No file is written again; `update` fills it.

        Args:
            field: a nullable field, or the column's name.
            kind: with a name: a `pyarrow.DataType`, `Blob`, or a decoder such as `Image`, as in `Schema`.

        Returns:
            The snapshot from which on the column is there.

        Raises:
            SchemaError: a name that is taken or reserved, a column that may not be null, or a type that can't be stored or
                can't hold nulls (vectors: fixed-size lists).
            CommitError: nothing was changed, unless the text says that the next commit will show it.

        Example:
            >>> table.add_column("sharpness", pa.float32())  # doctest: +SKIP
            >>> table.add_column("thumbnail", lh.Image(codec="jpeg"))  # doctest: +SKIP
        """

        def changes(paimon: Any) -> list[Any]:
            from pypaimon.schema.data_types import PyarrowFieldParser
            from pypaimon.schema.schema_change import SchemaChange

            from lakehouse.changes.schema_files import dropped_names

            stored, reference = rules.added(field, kind, Columns.of(paimon), dropped_names(paimon))
            (paimon_field,) = PyarrowFieldParser.to_paimon_schema(pa.schema([stored]))
            comment = rules.comment_of(stored, reference=reference)
            return [SchemaChange.add_column(stored.name, paimon_field.type, comment)]

        return self._evolved(changes, "add_column")

    def drop_column(self, name: str) -> Commit:
        """Drop a scalar column. Its values stay in the files, for older snapshots and tags.

        Returns:
            The snapshot from which on the column is gone.

        Raises:
            NotFoundError: no such column.
            SchemaError: a BLOB column (other engines could read nothing of the table any more), a partition column, or the
                last one that is neither.
            CommitError: nothing was changed, unless the text says that the next commit will show it.

        Example:
            >>> table.drop_column("sharpness")  # doctest: +SKIP
        """

        def changes(paimon: Any) -> list[Any]:
            from pypaimon.schema.schema_change import SchemaChange

            rules.check_dropped(name, Columns.of(paimon))
            return [SchemaChange.drop_column(name)]

        return self._evolved(changes, "drop_column")

    def rename_column(self, old: str, new: str) -> Commit:
        """Refused, always: files know their columns by name, so that every engine reads a renamed column's old values as null.

        Raises:
            NotFoundError: no such column.
            SchemaError: with the three calls that do it: add a column, fill it, drop the old one.
        """
        rules.refuse_renamed(old, new, self._columns())

    def widen_column(self, name: str, kind: pa.DataType) -> Commit:
        """Give a column a type that holds every value of the present one. No file is written again.

        Args:
            name: the column.
            kind: a wider integer, ``float64`` for ``float32``, or a decimal of more digits and the same scale.

        Returns:
            The snapshot from which on the column has the type; the present one where it has it already.

        Raises:
            NotFoundError: no such column.
            SchemaError: another type, or a partition column.
            CommitError: nothing was changed, unless the text says that the next commit will show it.

        Example:
            >>> table.widen_column("frame_number", pa.int64())  # doctest: +SKIP
        """

        def changes(paimon: Any) -> list[Any]:
            from pypaimon.schema.data_types import PyarrowFieldParser
            from pypaimon.schema.schema_change import SchemaChange

            wider = rules.widened(name, kind, Columns.of(paimon))
            if wider is None:
                return []
            (paimon_field,) = PyarrowFieldParser.to_paimon_schema(pa.schema([(name, wider)]))
            return [SchemaChange.update_column_type(name, paimon_field.type, keep_nullability=True)]

        return self._evolved(changes, "widen_column")

    def _evolved(self, changes_of: Callable[[Any], list[Any]], operation: str) -> Commit:
        from lakehouse.changes.schema_files import evolve

        published, paimon = evolve(lambda: self._load(None), changes_of, operation)
        self._paimon = self._load(None)
        return Commit(latest_id(paimon), 0, 0) if published is None else Commit.of(published)
