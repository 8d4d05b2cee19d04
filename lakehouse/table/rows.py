"""Any accepted input, as Arrow batches with exactly the table's columns.

Columns are matched by name. A value is cast only where it stays the same value: within integers, floats and decimals,
between large and small strings, dictionaries and their values, time zones of one instant. Everything else is refused,
naming the column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import SchemaError, cause_line
from lakehouse.fetch import BlobRef
from lakehouse.schema import Columns

# Rows and bytes that row dicts are gathered into before they are written: what bounds memory for an iterator of rows.
CHUNK_ROWS = 4096
CHUNK_BYTES = 64 * 1024 * 1024

# (uri, offset, length) -> serialised descriptor, after checking that the source holds those bytes
Describe = Callable[[BlobRef, str], bytes]

_REF_FIELDS = {"uri", "offset", "length"}
_DAFT_FILE_FIELDS = {"url", "position", "size"}
_DESCRIPTOR_PREFIX_BYTES = 9


def to_batches(data: Any, columns: Columns, describe: Describe) -> Iterator[pa.RecordBatch]:
    """Arrow batches in table order, each of bounded size where the input allows.

    Args:
        data: Arrow table, batch or reader; Daft or pandas frame; list of row dicts; or an iterator of any of these.
        columns: the table's.
        describe: turns a BlobRef into a serialised descriptor for the named column.

    Raises:
        SchemaError: unknown column, wrong type, a value that would change, a null where none may be.
    """
    for chunk in _chunks(data):
        batch = _conform(chunk, columns, describe)
        if batch.num_rows:
            yield from _sliced(batch)


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch so that a slice holds about `CHUNK_BYTES` at most: the writer copies what it is given."""
    rows = max(1, int(batch.num_rows * CHUNK_BYTES / max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


_Column = Any  # a pa.Array, or a sequence of Python values
_Chunk = tuple[dict[str, Any], int]  # columns by name, rows


def _chunks(data: Any) -> Iterator[_Chunk]:
    if isinstance(data, pa.RecordBatch):
        _check_unique(data.schema.names)
        yield {name: data.column(i) for i, name in enumerate(data.schema.names)}, data.num_rows
    elif isinstance(data, pa.Table):
        _check_unique(data.schema.names)
        for batch in data.to_batches():
            yield from _chunks(batch)
        if not data.num_rows:  # an empty table still has its columns checked
            yield {name: pa.nulls(0, data.schema.field(name).type) for name in data.schema.names}, 0
    elif isinstance(data, pa.RecordBatchReader):
        for batch in data:
            yield from _chunks(batch)
    elif _is_from(data, "pandas", "DataFrame"):
        yield from _pandas_chunks(data)
    elif _is_from(data, "daft", "DataFrame"):
        for batch in data.to_arrow_iter():
            yield from _chunks(batch)
    elif isinstance(data, Mapping):
        raise SchemaError("append takes a list of row dicts, not one dict: put the row into a list, or use pyarrow.table(...)")
    elif isinstance(data, (str, bytes, bytearray)):
        raise SchemaError(f"append takes rows, got {type(data).__name__}")
    elif isinstance(data, Iterable):
        yield from _iterated(iter(data))
    else:
        raise SchemaError(
            f"append takes an Arrow table, batch or reader, a Daft or pandas frame, a list of row dicts, or an iterator of "
            f"any of these; got {type(data).__name__}"
        )


def _iterated(items: Iterator[Any]) -> Iterator[_Chunk]:
    rows: list[Mapping[str, Any]] = []
    held_bytes = 0
    for item in items:
        if isinstance(item, Mapping):
            rows.append(item)
            held_bytes += sum(len(value) for value in item.values() if isinstance(value, (bytes, bytearray, memoryview)))
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


def _pandas_chunks(frame: Any) -> Iterator[_Chunk]:
    names = [str(name) for name in frame.columns]
    _check_unique(names)
    step = CHUNK_ROWS * 16
    for start in range(0, max(len(frame), 1), step):
        part = frame.iloc[start : start + step]
        columns: dict[str, Any] = {}
        for position, name in enumerate(names):
            series = part.iloc[:, position]
            if series.dtype == object:
                # pandas marks an absent object by None, NaN, NaT or NA; all mean null.
                absent = series.isna()
                columns[name] = [None if gone else value for value, gone in zip(series, absent, strict=True)]
            else:
                columns[name] = pa.Array.from_pandas(series)
        yield columns, len(part)


def _is_from(value: Any, package: str, name: str) -> bool:
    """Whether a value is of a package's class, without importing the package."""
    return any(kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(value).__mro__)


def _check_unique(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if list(names).count(name) > 1})
        raise SchemaError(f"the data has columns of one name: {', '.join(twice)}")


def _conform(chunk: _Chunk, columns: Columns, describe: Describe) -> pa.RecordBatch:
    given, rows = chunk
    unknown = [name for name in given if name not in columns.arrow.names]
    if unknown:
        raise SchemaError(
            f"the data has columns that the table lacks: {', '.join(map(str, unknown))}; "
            f"the table's columns: {', '.join(columns.arrow.names)}"
        )
    arrays = []
    for item in columns.arrow:
        if item.name not in given:
            array = pa.nulls(rows, item.type)
        elif item.name in columns.blobs:
            array = _blobs(given[item.name], item.name, item.name in columns.references, describe)
        else:
            array = _scalars(given[item.name], item)
        if array.null_count and not item.nullable:
            raise SchemaError(
                f"column {item.name} may not be null, but {array.null_count} of {rows} rows are"
                + ("" if item.name in given else " (the data lacks this column)")
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=columns.arrow)


# --- numbers, text, times and nested values ------------------------------------------------------------------------------


def _scalars(values: _Column, item: pa.Field) -> pa.Array:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        array = _cast(_plain(array), item.type, item.name)
    else:
        array = _from_python(values, item)
    _check_vectors(array, item.name)
    return array


def _plain(array: pa.Array) -> pa.Array:
    """Dictionaries, run-end encodings and extensions as the values that they stand for."""
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if pa.types.is_run_end_encoded(array.type):
        return pc.run_end_decode(array)
    return array


def _cast(array: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    if array.type == target:
        return array
    if not _same_family(array.type, target):
        raise SchemaError(f"column {name}: got {array.type}, the table holds {target}; cast it so that the meaning is yours")
    try:
        cast = array.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"column {name}: {array.type} to {target} would change a value ({cause_line(error)})") from error
    if _narrows_floats(array.type, target) and not array.equals(_nan_safe(cast.cast(array.type), array)):
        raise SchemaError(
            f"column {name}: {array.type} to {target} would change a value; round it yourself, or declare {array.type}"
        )
    return cast


def _nan_safe(back: pa.Array, original: pa.Array) -> pa.Array:
    """Make NaN equal NaN in a comparison by taking the original where both are NaN."""
    if not pa.types.is_floating(original.type):
        return back
    both = pc.and_(pc.is_nan(back), pc.is_nan(original))
    return pc.if_else(pc.fill_null(both, fill_value=False), original, back)


def _narrows_floats(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_floating(source) and pa.types.is_floating(target):
        return bool(source.bit_width > target.bit_width)
    if _is_any_list(source) and _is_any_list(target):
        return _narrows_floats(source.value_type, target.value_type)
    return False


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _same_family(source: pa.DataType, target: pa.DataType) -> bool:
    types = pa.types
    if types.is_null(source) or source == target:
        return True
    if types.is_dictionary(source):
        return _same_family(source.value_type, target)
    if _is_any_list(source) and _is_any_list(target):
        return _same_family(source.value_type, target.value_type)
    if types.is_map(source) and types.is_map(target):
        return _same_family(source.key_type, target.key_type) and _same_family(source.item_type, target.item_type)
    if types.is_struct(source) and types.is_struct(target):
        same = [item.name for item in source] == [item.name for item in target]
        return same and all(_same_family(a.type, b.type) for a, b in zip(source, target, strict=True))
    if types.is_timestamp(source) and types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    return any(
        all(any(test(kind) for test in family) for kind in (source, target))
        for family in (
            (types.is_integer, types.is_floating),
            (types.is_integer, types.is_decimal),
            (types.is_string, types.is_large_string, types.is_string_view),
            (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view),
            (types.is_date,),
            (types.is_time,),
        )
    )


def _from_python(values: Sequence[Any], item: pa.Field) -> pa.Array:
    _check_python(values, item)
    try:
        return pa.array(values, type=item.type)
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        TypeError,
        ValueError,
        OverflowError,
    ) as error:
        raise SchemaError(f"column {item.name}: not a {item.type}: {cause_line(error)}") from error


def _check_python(values: Sequence[Any], item: pa.Field) -> None:
    """Refuse what Arrow would take while changing its meaning."""
    kind = item.type
    if pa.types.is_timestamp(kind):
        aware = kind.tz is not None
        for value in values:
            if isinstance(value, datetime) and (value.tzinfo is not None) != aware:
                got = "without" if aware else "with"
                raise SchemaError(f"column {item.name}: got a time {got} a zone, the table holds {kind}")
    elif pa.types.is_float32(kind):
        for value in values:
            if isinstance(value, float) and math.isfinite(value) and abs(value) > 3.4028235677973366e38:
                raise SchemaError(f"column {item.name}: {value!r} is beyond float32")
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        want_bool = pa.types.is_boolean(kind)
        for value in values:
            if value is not None and (type(value).__name__ in ("bool", "bool_")) != want_bool:
                raise SchemaError(f"column {item.name}: {value!r} is no {kind}")


def _check_vectors(array: pa.Array, name: str) -> None:
    """A null in a fixed-size list is written by upstream and then makes the table unreadable."""
    if pa.types.is_fixed_size_list(array.type) and (array.null_count or array.flatten().null_count):
        raise SchemaError(f"column {name}: {array.type} can't hold nulls; declare pa.list_({array.type.value_type}) instead")


# --- BLOBs -----------------------------------------------------------------------------------------------------------------


def _blobs(values: _Column, name: str, reference: bool, describe: Describe) -> pa.Array:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        array = _plain(array)
        if pa.types.is_struct(array.type):
            return _blob_list(_struct_refs(array, name), name, reference, describe)
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), pa.large_binary())
        if not _same_family(array.type, pa.binary()):
            raise SchemaError(
                f"column {name}: got {array.type}, a BLOB takes binary, large_binary, or struct<uri, offset, length>"
            )
        if reference and array.null_count < len(array):
            raise SchemaError(f"column {name} is declared by reference: it takes lh.BlobRef, not bytes")
        array = array.cast(pa.large_binary())
        _refuse_descriptors(array, name)
        return array
    return _blob_list(values, name, reference, describe)


def _blob_list(values: Sequence[Any], name: str, reference: bool, describe: Describe) -> pa.Array:
    stored: list[bytes | None] = []
    for value in values:
        if value is None:
            stored.append(None)
        elif isinstance(value, BlobRef):
            stored.append(describe(value, name))
        elif _is_from(value, "daft", "File"):
            stored.append(describe(BlobRef(str(value.path), int(value.position or 0), int(value.size())), name))
        elif reference:
            raise SchemaError(f"column {name} is declared by reference: it takes lh.BlobRef, not {type(value).__name__}")
        elif isinstance(value, (bytes, bytearray, memoryview)):
            data = bytes(value)
            if _looks_like_descriptor(data):
                raise _descriptor_error(name)
            stored.append(data)
        else:
            raise SchemaError(f"column {name}: a BLOB takes bytes or lh.BlobRef, got {type(value).__name__}")
    return pa.array(stored, pa.large_binary())


def _struct_refs(array: pa.StructArray, name: str) -> list[BlobRef | None]:
    fields = {item.name for item in array.type}
    if fields == _REF_FIELDS:
        keys = ("uri", "offset", "length")
    elif fields >= _DAFT_FILE_FIELDS:  # a Daft File column
        keys = ("url", "position", "size")
    else:
        raise SchemaError(f"column {name}: got {array.type}, a BLOB takes binary or struct<uri, offset, length>")
    refs: list[BlobRef | None] = []
    for value in array.to_pylist():
        if value is None or value[keys[0]] is None:
            refs.append(None)
            continue
        offset, length = value[keys[1]], value[keys[2]]
        refs.append(BlobRef(value[keys[0]], 0 if offset is None else offset, -1 if length is None else length))
    return refs


def _looks_like_descriptor(data: bytes) -> bool:
    from pypaimon.table.row.blob import BlobDescriptorSerde, BlobViewStruct

    return bool(BlobDescriptorSerde.is_descriptor(data) or BlobViewStruct.is_blob_view_struct(data))


def _refuse_descriptors(array: pa.Array, name: str) -> None:
    """Upstream opens the path that such bytes name and stores that file instead."""
    heads = pc.binary_slice(array.cast(pa.binary()), 0, _DESCRIPTOR_PREFIX_BYTES) if len(array) else array
    for head in pc.unique(heads).to_pylist() if len(array) else ():
        if head is not None and len(head) == _DESCRIPTOR_PREFIX_BYTES and head[1:] in _magics():
            raise _descriptor_error(name)


def _magics() -> frozenset[bytes]:
    from pypaimon.table.row.blob import BlobDescriptor, BlobViewStruct, VideoFrameDescriptor

    return frozenset(kind.MAGIC.to_bytes(8, "little") for kind in (BlobDescriptor, BlobViewStruct, VideoFrameDescriptor))


def _descriptor_error(name: str) -> SchemaError:
    return SchemaError(
        f"column {name}: a value begins like a serialised blob descriptor, which the engine would follow instead of storing; "
        "to store a reference pass lh.BlobRef, to keep such bytes wrap them (a header of your own, or a zip)"
    )
