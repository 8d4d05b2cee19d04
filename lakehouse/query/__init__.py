"""Query: which rows and columns of a version, to Arrow, to Daft, to a RowIndex.

A query is a frozen value and runs nothing until it is asked for a result. Its conditions hold together, in whatever order
they were given: rows for which every ``where`` is true and that every ``sample`` takes, in ascending row id, cut by
``limit``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.errors import FetchError, SchemaError
from lakehouse.fetch import BlobRefs
from lakehouse.index import RowIndex, table_fetcher
from lakehouse.index.build import build_index
from lakehouse.query.stream import holding, rows
from lakehouse.references import REF_TYPE, inline_structs, ref_structs, refs_of
from lakehouse.scan import ROW_ID, Groups, Locator, Version, plan
from lakehouse.schema import known_columns

if TYPE_CHECKING:
    import daft

_BYTES_UDF_ROWS = 64  # rows whose bytes are held at once; the engine's own morsel of 131,072 rows is no bound on bytes


@dataclass(frozen=True)
class Plan:
    """What a query will touch, from metadata alone.

    Attributes:
        partitions: partitions left after pruning; ``partitions_total`` of all.
        files: data files left after pruning; ``files_total`` of all.
        rows: rows in those files, deleted ones left out: an upper bound of the result.
        blob_bytes: bytes of those files' BLOBs in the selected columns: an upper bound of what training reads.
    """

    partitions: int
    partitions_total: int
    files: int
    files_total: int
    rows: int
    blob_bytes: int

    def __str__(self) -> str:
        return (
            f"partitions {self.partitions} of {self.partitions_total}, files {self.files} of {self.files_total}, "
            f"at most {self.rows:,} rows referencing {self.blob_bytes:,} bytes"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Query:
    """A choice of rows and columns of one version. Made by `Snapshot.query`; every method that narrows returns a copy."""

    _version: Version
    _predicates: tuple[Any, ...] = ()
    _columns: tuple[str, ...] | None = None
    _samples: tuple[tuple[float, int], ...] = ()
    _limit: int | None = None
    _only: npt.NDArray[np.int64] | None = None  # ascending row ids: no other rows

    def where(self, predicate: Any) -> Query:
        """Keep rows for which ``predicate`` is true; with an earlier one, both must be.

        Args:
            predicate: a Daft expression (``col("speed") > 60``) or SQL text (``"speed > 60"``). Null tests are exact on
                BLOB columns, other tests of BLOBs are refused. NaN equals NaN and is greater than every number.

        Raises:
            NotFoundError: a column that does not exist.
            SchemaError: text that is no SQL, a predicate of other types than the columns, a test of a BLOB's bytes.
        """
        from lakehouse.query.predicate import checked_predicate

        checked = checked_predicate(predicate, self._version.columns)
        return replace(self, _predicates=(*self._predicates, checked))

    def select(self, *columns: str) -> Query:
        """Keep these columns, in this order.

        Raises:
            NotFoundError: a column that does not exist.
            SchemaError: a column named twice, or a name that is not a string.
        """
        if any(not isinstance(name, str) for name in columns):
            raise SchemaError(f"select() takes column names, got {columns!r}; compute columns in a Daft plan: query.daft()")
        known_columns(columns, self._version.columns.arrow)
        if not columns or len(set(columns)) != len(columns):
            raise SchemaError(f"select() takes one or more different columns, got {list(columns)}")
        return replace(self, _columns=tuple(columns))

    def limit(self, n: int) -> Query:
        """Keep the first ``n`` of the chosen rows, in ascending row id."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise SchemaError(f"limit() takes a number of rows, got {n!r}")
        return replace(self, _limit=n if self._limit is None else min(n, self._limit))

    def sample(self, fraction: float, seed: int = 0) -> Query:
        """Keep about ``fraction`` of the rows: those whose hashed row id lies below it, so rows added later move none.

        Args:
            fraction: 0 to 1.
            seed: another seed takes an independent sample.
        """
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise SchemaError(f"sample() takes a fraction from 0 to 1, got {fraction!r}")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise SchemaError(f"sample() takes a seed of 0 or more, got {seed!r}")
        return replace(self, _samples=(*self._samples, (float(fraction), seed)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The selected columns, in order."""
        return tuple(self._version.columns.arrow.names) if self._columns is None else self._columns

    # --- results -------------------------------------------------------------------------------------------------------

    def explain(self) -> Plan:
        """What would be touched. Reads metadata only."""
        from lakehouse.query.evaluate import pruned

        everything = plan(self._version)
        left = self._held(pruned(self._version, self._predicates))
        return Plan(
            partitions=left.partitions,
            partitions_total=everything.partitions,
            files=left.files,
            files_total=everything.files,
            rows=self._at_most(left.rows),
            blob_bytes=left.blob_bytes(set(self.columns) & set(self._version.columns.blobs)),
        )

    def daft(self) -> daft.DataFrame:
        """The result as a lazy Daft frame; BLOB columns are ``daft.File`` references and no bytes are read."""
        from lakehouse.query.source import LakeSource

        limited = self._limit is not None
        frame = LakeSource(self._version, self._predicates, self._samples, row_ids=limited, only=self._only).read()
        if limited:
            frame = frame.sort(ROW_ID).limit(self._limit or 0)
        return frame.select(*self.columns)

    def arrow(self, *, blobs: Literal["ref", "bytes"] = "ref") -> pa.Table:
        """The result as an Arrow table, in ascending row id.

        Args:
            blobs: ``"ref"``: BLOB columns are ``struct<uri, offset, length>``; ``"bytes"``: ``large_binary``, read now.

        Raises:
            FetchError: a BLOB could not be read.
            SchemaError: another value of ``blobs``.
        """
        if blobs not in ("ref", "bytes"):
            raise SchemaError(f"blobs is 'ref' or 'bytes', got {blobs!r}")
        columns = self._version.columns
        groups = self._groups()
        located = {name: Locator(self._version, groups, name) for name in self.columns if self._in_blob_files(name)}
        in_rows = [name for name in self.columns if name not in located]
        fields = []
        for name in self.columns:
            if name in columns.blobs:
                fields.append(pa.field(name, REF_TYPE))
            elif name in columns.inline:
                fields.append(pa.field(name, inline_structs(pa.nulls(0, columns.arrow.field(name).type)).type))
            else:
                fields.append(columns.arrow.field(name))
        parts: list[pa.Table] = []
        left = self._limit
        for table in rows(self._version, groups, self._predicates, self._samples, in_rows, self._only):
            part = table if left is None else table.slice(0, left)
            row_ids = part.column(ROW_ID).combine_chunks().to_numpy()
            arrays = []
            for name in self.columns:
                if name in located:
                    uri_ids, offsets, lengths = located[name].locate(row_ids)
                    arrays.append(ref_structs(located[name].uris, uri_ids, offsets, lengths))
                elif name in columns.lazy:
                    arrays.append(inline_structs(part.column(name).combine_chunks()))
                else:
                    arrays.append(part.column(name))
            parts.append(pa.table(arrays, schema=pa.schema(fields)))
            if left is not None:
                left -= part.num_rows
                if left <= 0:
                    break
        result = pa.concat_tables(parts) if parts else pa.schema(fields).empty_table()
        return self._with_bytes(result) if blobs == "bytes" else result

    def index(self) -> RowIndex:
        """The chosen rows as arrays: scalar columns, and for each BLOB column where its bytes are. Reads no BLOB.

        Raises:
            FetchError: a ``.blob`` file is missing or damaged.
        """
        groups = self._groups()
        located = {name: Locator(self._version, groups, name) for name in self.columns if self._in_blob_files(name)}
        in_rows = [name for name in self.columns if name not in located]
        chunks = rows(self._version, groups, self._predicates, self._samples, in_rows, self._only)
        where = " AND ".join(f"({predicate})" for predicate in self._predicates)
        recipe: list[dict[str, Any]] = [{"where": str(predicate)} for predicate in self._predicates]
        recipe += [{"sample": fraction, "seed": seed} for fraction, seed in self._samples]
        recipe += [] if self._limit is None else [{"limit": self._limit}]
        return build_index(self._version, chunks, self.columns, located, limit=self._limit, where=where, recipe=recipe)

    def count_rows(self) -> int:
        """How many rows the result has; from metadata alone when nothing narrows it."""
        groups = self._groups()
        if not self._predicates and not self._samples and self._only is None:
            found = int(groups.rows)
        else:
            found = sum(t.num_rows for t in rows(self._version, groups, self._predicates, self._samples, [], self._only))
        return found if self._limit is None else min(found, self._limit)

    def _groups(self) -> Groups:
        if not self._predicates:
            return self._held(plan(self._version))
        from lakehouse.query.evaluate import pruned

        return self._held(pruned(self._version, self._predicates))

    def _held(self, groups: Groups) -> Groups:
        return groups if self._only is None else holding(groups, self._only)

    def _at_most(self, rows: int) -> int:
        bounds = [rows, self._limit, None if self._only is None else len(self._only)]
        return min(bound for bound in bounds if bound is not None)

    def _in_blob_files(self, name: str) -> bool:
        return name in self._version.columns.blobs and name not in self._version.columns.inline

    def _with_bytes(self, table: pa.Table) -> pa.Table:
        fetcher = table_fetcher(self._version)
        for i, name in enumerate(table.column_names):
            if name in self._version.columns.blobs:
                refs = refs_of(table.column(i).combine_chunks())
                table = table.set_column(
                    i, name, pa.array(fetched(fetcher, refs, f"{self._version} column {name}"), pa.large_binary())
                )
        return table

    def __repr__(self) -> str:
        parts = [f"Query({self._version})"]
        parts += [] if self._only is None else [f".only({len(self._only):,} rows)"]
        parts += [f".where({predicate})" for predicate in self._predicates]
        parts += [f".sample({fraction}, seed={seed})" for fraction, seed in self._samples]
        parts += [] if self._limit is None else [f".limit({self._limit})"]
        parts += [] if self._columns is None else [f".select({', '.join(self._columns)})"]
        return "".join(parts)


def query_of_rows(version: Version, row_ids: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> Query:
    """A query over rows that are known by their ids: ascending ones, each once. Ids that the version lacks give no rows."""
    query = Query(version, _only=np.asarray(row_ids, np.int64))
    return query if columns is None else query.select(*columns)


def fetched(fetcher: Any, refs: BlobRefs, where: str) -> list[bytes | None]:
    """The bytes of every reference, or the first error with its place."""
    values: list[bytes | None] = []
    for value in fetcher.fetch(refs).values:
        if isinstance(value, FetchError):
            raise FetchError(f"{where}: {value}") from value
        values.append(None if value is None else bytes(value))
    return values


def lazy_frame(version: Version, columns: Sequence[str] | None) -> daft.DataFrame:
    """A version as a lazy Daft frame.

    Raises:
        NotFoundError: a column that does not exist.
    """
    from lakehouse.query.source import LakeSource

    frame = LakeSource(version).read()
    if columns is None:
        return frame
    known_columns(columns, version.columns.arrow)
    return frame.select(*columns)


def bytes_expression(version: Version, column: str) -> daft.Expression:
    """A BLOB column's bytes, read by the catalog's own fetcher inside the plan.

    Raises:
        NotFoundError: no such column.
        SchemaError: not a BLOB column.
    """
    from lakehouse.query.engine import daft as engine

    known_columns([column], version.columns.arrow)
    if column not in version.columns.blobs:
        raise SchemaError(f"column {column} is {version.columns.arrow.field(column).type}, not a BLOB; it needs no reading")
    fetcher = table_fetcher(version)
    where = f"{version} column {column}"

    @engine.func.batch(return_dtype=engine.DataType.binary(), batch_size=_BYTES_UDF_ROWS, use_process=False)  # type: ignore[untyped-decorator]
    def blob_bytes(files: Any) -> Any:
        array = files.to_arrow()
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        return pa.array(fetched(fetcher, refs_of(storage), where), pa.large_binary())

    return blob_bytes(engine.col(column))


__all__ = ["Plan", "Query", "bytes_expression", "lazy_frame", "query_of_rows"]
