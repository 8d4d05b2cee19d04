"""Any accepted input, as Arrow batches with exactly the table's columns, matched by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import SchemaError, cause_line
from lakehouse.schema import Columns
from lakehouse.write.blobs import Describe, blob_array
from lakehouse.write.values import exact

# What bounds memory: rows and bytes that are converted and handed to the writer at once.
CHUNK_ROWS = 4096
ARROW_ROWS = 65_536
CHUNK_BYTES = 64 * 1024 * 1024

_Chunk = tuple[dict[str, Any], int]  # columns by name (Arrow arrays, or lists of Python values), rows


def to_batches(data: Any, columns: Columns, describe: Describe) -> Iterator[pa.RecordBatch]:
    """Arrow batches in table order, each of bounded size where the input allows.

    Args:
        data: Arrow table, batch or reader; Daft or pandas frame; list of row dicts; or an iterator of any of these.
        columns: the table's.
        describe: turns a BlobRef into a serialised descriptor for the named column.

    Raises:
        SchemaError: unknown column, wrong type, a value that would change, a null where none may be.
        FetchError: a reference whose bytes are not there.
    """
    for chunk in _chunks(data):
        batch = _conform(chunk, columns, describe)
        if batch.num_rows:
            yield from _sliced(batch)


def given_batches(data: Any, columns: Columns, describe: Describe) -> tuple[list[str], list[pa.RecordBatch]]:
    """All rows at once, in memory, with only the columns that the data has.

    Args:
        data: as for `to_batches`; all its rows have the same columns.
        columns: the table's.
        describe: turns a BlobRef into a serialised descriptor for the named column.

    Returns:
        The columns that the data has, in table order, and batches of exactly these.

    Raises:
        SchemaError: as `to_batches` does, except for columns that the data lacks; a row that lacks a column of another one.
    """
    chunks = list(_chunks(_alike(data) if _is_iterated(data) else data))
    for given, _ in chunks:
        _check_known(given, columns)
        _check_alike(given, chunks[0][0])
    names = [name for name in columns.arrow.names if chunks and name in chunks[0][0]]
    part = replace(columns, arrow=pa.schema([columns.arrow.field(name) for name in names]))
    return names, [batch for chunk in chunks if (batch := _conform(chunk, part, describe)).num_rows]


def _is_iterated(data: Any) -> bool:
    known = (pa.RecordBatch, pa.Table, pa.RecordBatchReader, Mapping, str, bytes, bytearray, memoryview)
    frame = _is_from(data, "pandas", "DataFrame") or _is_from(data, "daft", "DataFrame")
    return isinstance(data, Iterable) and not isinstance(data, known) and not frame


def _alike(items: Iterable[Any]) -> Iterator[Any]:
    """The items, once it is seen that all rows among them have the same columns."""
    first: Mapping[str, Any] | None = None
    for item in items:
        if isinstance(item, Mapping):
            first = item if first is None else first
            _check_alike(item, first)
        yield item


def _check_alike(given: Iterable[str], first: Iterable[str]) -> None:
    if different := set(given) ^ set(first):
        raise SchemaError(
            f"some rows have {', '.join(sorted(map(str, different)))} and others lack it; give all rows the same columns: None "
            "for null, and rows of which a column is to stay as it is in a call of their own"
        )


def _sliced(batch: pa.RecordBatch, most_rows: int | None = None) -> Iterator[pa.RecordBatch]:
    """Cut a batch so that a slice holds about `CHUNK_BYTES` at most."""
    try:
        size = batch.nbytes
    except pa.ArrowTypeError:  # views of strings: Arrow can't tell which bytes are theirs
        size = batch.get_total_buffer_size()
    rows = max(1, int(batch.num_rows * CHUNK_BYTES / max(size, 1)))
    if most_rows is not None:
        rows = min(rows, most_rows)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


# --- the kinds of input ------------------------------------------------------------------------------------------------------


def _chunks(data: Any) -> Iterator[_Chunk]:
    if isinstance(data, pa.RecordBatch):
        _check_names(data.schema.names)
        yield from map(_columns_of, _sliced(data, ARROW_ROWS) if data.num_rows else [data])
    elif isinstance(data, (pa.Table, pa.RecordBatchReader)):
        yield _columns_of(pa.RecordBatch.from_pylist([], data.schema))  # columns are checked even where there is no row
        for batch in data.to_batches() if isinstance(data, pa.Table) else data:
            yield from _chunks(batch)
    elif _is_from(data, "pandas", "DataFrame"):
        yield from _pandas_chunks(data)
    elif _is_from(data, "daft", "DataFrame"):
        yield _columns_of(pa.RecordBatch.from_pylist([], data.schema().to_pyarrow_schema()))
        for batch in data.to_arrow_iter():
            yield from _chunks(batch)
    elif isinstance(data, Mapping):
        raise SchemaError("append takes a list of row dicts, not one dict: put the row into a list, or use pyarrow.table(...)")
    elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray, memoryview)):
        yield from _iterated(iter(data))
    else:
        raise SchemaError(
            f"append takes an Arrow table, batch or reader, a Daft or pandas frame, a list of row dicts, or an iterator of "
            f"any of these; got {type(data).__name__}"
        )


def _columns_of(batch: pa.RecordBatch) -> _Chunk:
    _check_names(batch.schema.names)
    return dict(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows


def _iterated(items: Iterator[Any]) -> Iterator[_Chunk]:
    rows: list[Mapping[str, Any]] = []
    held_bytes = 0
    for item in items:
        if isinstance(item, Mapping):
            rows.append(item)
            held_bytes += sum(map(_size, item.values()))
            if len(rows) >= CHUNK_ROWS or held_bytes >= CHUNK_BYTES:
                yield _row_columns(rows)
                rows, held_bytes = [], 0
        else:
            if rows:
                yield _row_columns(rows)
                rows, held_bytes = [], 0
            yield from _chunks(item)
    if rows:
        yield _row_columns(rows)


def _row_columns(rows: list[Mapping[str, Any]]) -> _Chunk:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}, len(rows)


def _size(value: Any) -> int:
    """About how many bytes a value takes; a list is judged by its first element."""
    if value is None or isinstance(value, (int, float)):
        return 8
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, (list, tuple)):
        return len(value) * (8 + _size(value[0])) if value else 8
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return int(getattr(value, "nbytes", 8))


def _pandas_chunks(frame: Any) -> Iterator[_Chunk]:
    names = [str(name) for name in frame.columns]
    _check_names(names)
    step = CHUNK_ROWS if frame.dtypes.eq(object).any() else ARROW_ROWS
    for start in range(0, max(len(frame), 1), step):
        part = frame.iloc[start : start + step]
        columns = {name: _series(part.iloc[:, position], name) for position, name in enumerate(names)}
        held_bytes = sum(_size(value) for values in columns.values() if isinstance(values, list) for value in values)
        rows = max(1, int(len(part) * min(1, CHUNK_BYTES / max(held_bytes, 1))))
        for first in range(0, max(len(part), 1), rows):
            piece = {name: values[first : first + rows] for name, values in columns.items()}
            yield piece, min(rows, len(part) - first)


def _series(series: Any, name: str) -> Any:
    """A pandas column as Arrow, or as a list where it holds Python objects. What pandas marks as absent is null."""
    if series.dtype == object:
        return [None if gone else value for value, gone in zip(series, series.isna(), strict=True)]
    try:
        return pa.Array.from_pandas(series)
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError) as error:
        raise SchemaError(f"column {name}: pandas {series.dtype} is no type of Arrow ({cause_line(error)})") from error


def _is_from(value: Any, package: str, name: str) -> bool:
    """Whether a value is of a package's class, without importing the package."""
    return any(kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(value).__mro__)


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if list(names).count(name) > 1})
        raise SchemaError(f"the data has columns of one name: {', '.join(twice)}")


# --- to the table's columns --------------------------------------------------------------------------------------------------


def _conform(chunk: _Chunk, columns: Columns, describe: Describe) -> pa.RecordBatch:
    given, rows = chunk
    _check_known(given, columns)
    arrays = []
    for item in columns.arrow:
        if item.name not in given:
            if rows and not item.nullable:
                raise SchemaError(f"column {item.name} may not be null, and the data lacks it")
            values: Any = pa.nulls(rows, item.type)
        else:
            values = given[item.name]
        arrays.append(column_values(values, item, columns, describe))
    return pa.RecordBatch.from_arrays(arrays, schema=columns.arrow)


def _check_known(given: Iterable[str], columns: Columns) -> None:
    unknown = [name for name in given if name not in columns.arrow.names]
    if unknown:
        raise SchemaError(
            f"the data has columns that the table lacks: {', '.join(map(str, unknown))}; "
            f"the table's columns: {', '.join(columns.arrow.names)}"
        )


def column_values(values: Any, item: pa.Field, columns: Columns, describe: Describe) -> pa.Array:
    """One column in the form that the engine takes.

    Args:
        values: an Arrow array, or a list of Python values.
        item: the column as the table holds it.
        columns: the table's.
        describe: turns a BlobRef into a serialised descriptor for the named column.

    Raises:
        SchemaError: a wrong type, a value that would change, a null where none may be.
        FetchError: a reference whose bytes are not there.
    """
    name = item.name
    if name in columns.references or (name in columns.blobs and name not in columns.inline):
        array = blob_array(values, name, reference=name in columns.references, describe=describe)
        if array.null_count and not item.nullable:
            raise SchemaError(f"column {name} may not be null, but {array.null_count} of {len(array)} values are")
        return array
    if name in columns.inline:
        if not isinstance(values, pa.Array) or values.null_count < len(values):
            raise SchemaError(f"column {name}: BLOB views, lists and maps of BLOBs can be read here, not written")
        return pa.nulls(len(values), item.type)
    array = exact(values, item)
    if name in columns.partition_by and pa.types.is_floating(array.type) and pc.any(pc.is_nan(array)).as_py():
        # NaN equals nothing: the engine makes partitions of it that can't be read.
        raise SchemaError(f"column {name}: NaN can't be the value of a partition key; use null")
    return array
