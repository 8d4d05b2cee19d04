"""Snapshot: one version of a table, fixed for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from lakehouse.fetch import Fetcher
from lakehouse.index import table_fetcher
from lakehouse.query import Query, bytes_expression, lazy_frame
from lakehouse.scan import Version, plan

if TYPE_CHECKING:
    from daft import DataFrame, Expression


class Snapshot:
    """A version of a table that does not change, however the table does.

    Made by `Table.at` and `Table.latest`. Every read of it gives the same rows in the same order.
    """

    def __init__(self, version: Version) -> None:
        self._version = version

    @property
    def id(self) -> int | None:
        """The snapshot's number; None for a table that had none yet."""
        return self._version.snapshot_id

    @property
    def table(self) -> str:
        """``database.table``, with ``$branch_NAME`` on a branch."""
        return self._version.name

    @property
    def schema(self) -> pa.Schema:
        """The columns as they were at this snapshot; BLOB columns are ``large_binary``."""
        return self._version.columns.arrow

    @property
    def version(self) -> Version:
        """What the layers below work on."""
        return self._version

    def query(self) -> Query:
        """A query over all rows and columns, to be narrowed.

        Example:
            >>> index = snap.query().where("ego_speed_kmh >= 60").select("frame_jpg", "weather").index()  # doctest: +SKIP
        """
        return Query(self._version)

    def daft(self, *, columns: Sequence[str] | None = None) -> DataFrame:
        """A lazy Daft frame; BLOB columns are ``daft.File`` references without credentials, and no bytes are read.

        Args:
            columns: which, in which order; None: all, in table order.

        Raises:
            NotFoundError: a column that does not exist.
        """
        return lazy_frame(self._version, columns)

    def arrow(self, *, blobs: Literal["ref", "bytes"] = "ref") -> pa.Table:
        """All rows in ascending row id.

        Args:
            blobs: ``"ref"``: BLOB columns are ``struct<uri, offset, length>``; ``"bytes"``: ``large_binary``, read now.

        Raises:
            FetchError: a BLOB could not be read.
        """
        return self.query().arrow(blobs=blobs)

    def count_rows(self) -> int:
        """How many rows, from metadata."""
        return plan(self._version).rows

    def bytes(self, column: str) -> Expression:
        """An expression that reads a BLOB column's bytes inside a Daft plan, concurrently, with the catalog's credentials.

        Args:
            column: a BLOB column of this snapshot.

        Raises:
            NotFoundError: no such column.
            SchemaError: not a BLOB column.

        Example:
            >>> df = snap.daft().with_column("jpg", snap.bytes("frame_jpg"))  # doctest: +SKIP
        """
        return bytes_expression(self._version, column)

    def fetcher(self) -> Fetcher:
        """What reads the bytes of this table's BLOBs."""
        return table_fetcher(self._version)

    def __repr__(self) -> str:
        return f"Snapshot({self._version}, {len(self.schema)} columns)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        return (self._version.uuid, self.table, self.id) == (other._version.uuid, other.table, other.id)

    def __hash__(self) -> int:
        return hash((self._version.uuid, self.table, self.id))
