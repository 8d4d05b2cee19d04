"""One column's values in exactly the table's type.

A value is cast only where it stays the same value: within integers, floats and decimals, between large and small strings,
dictionaries and their values, time zones of one instant. Everything else is refused, naming the column and, inside lists,
structs and maps, the place: ``boxes[].x``. Python's numbers, which know no narrower float, are rounded to ``float32``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import SchemaError, cause_line

_ARROW_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)
# Extension types whose storage is the value itself. That of others is not: a pandas period is stored as a bare number.
_TRANSPARENT = ("daft.super_extension", "arrow.fixed_shape_tensor")
_MAX_FLOAT32 = 3.4028235677973366e38  # the largest double that rounds to a finite float32
# Years 1 to 9999, which Python's dates (and with them the engine's statistics) reach.
_FIRST_DAY, _LAST_DAY = (day.toordinal() - date(1970, 1, 1).toordinal() for day in (date.min, date.max))
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000}


def exact(values: Any, item: pa.Field) -> pa.Array:
    """A column as the table's type.

    Args:
        values: an Arrow array, or a list of Python values.
        item: name, type and nullability.

    Raises:
        SchemaError: a value of another type, one that would change, or a null where none may be.
    """
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        array = _cast(plain(values, item.name), item.type, item.name)
    else:
        array = _built(values, item.type, item.name)
    _check(array, item)
    return array


def plain(values: pa.Array | pa.ChunkedArray, name: str) -> pa.Array:
    """Chunks, dictionaries, run-end encodings and Daft's own types as one array of the values that they stand for.

    Raises:
        SchemaError: more values than one array holds.
    """
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    try:
        if isinstance(array, pa.ExtensionArray) and array.type.extension_name in _TRANSPARENT:
            return plain(array.storage, name)
        if pa.types.is_dictionary(array.type):
            return plain(array.dictionary_decode(), name)
        if pa.types.is_run_end_encoded(array.type):
            return plain(pc.run_end_decode(array), name)
    except _ARROW_ERRORS as error:
        raise SchemaError(f"column {name}: {array.type} can't be decoded ({cause_line(error)})") from error
    return array


# --- from Arrow --------------------------------------------------------------------------------------------------------------


def _cast(array: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    source = array.type
    if source == target and not pa.types.is_nested(target):
        return array
    if not same_family(source, target):
        raise SchemaError(f"column {name}: got {source}, the table holds {target}; cast it so that the meaning is yours")
    try:
        if pa.types.is_integer(source) and pa.types.is_decimal(target):
            array = array.cast(pa.decimal128(20, 0))  # a cast from integers asks for digits that the values may not have
        cast = _rebuilt(array.cast(_nullable(target)), target)
    except _ARROW_ERRORS as error:
        raise SchemaError(f"column {name}: {source} to {target} would change a value ({cause_line(error)})") from error
    for (before, _, _), (after, _, path) in zip(_nodes(array, name), _nodes(cast, name), strict=False):
        floats = pa.types.is_floating(before.type) and pa.types.is_floating(after.type)
        if floats and before.type.bit_width > after.type.bit_width:  # the one cast that Arrow does not check
            back = after.cast(before.type)
            same = pc.or_(pc.equal(back, before), pc.and_(pc.is_nan(back), pc.is_nan(before)))
            if pc.all(same, min_count=0).as_py() is False:
                raise SchemaError(
                    f"column {path}: {before.type} to {after.type} would change a value; round it yourself, "
                    f"or declare {before.type}"
                )
    return cast


def _rebuilt(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values as a type that differs only in what may be null, without the values that null lists may hide.

    Arrow casts no nullable field to one that is not, even where it holds no null, and the Parquet writer refuses hidden
    values. Whether a null is where none may be is for `_check` to see.
    """
    if pa.types.is_struct(kind):
        children = [_rebuilt(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        null = array.is_null().to_numpy(zero_copy_only=False)
        offsets = _offsets(np.where(null, 0, np.diff(array.offsets.to_numpy())), null)
        held = array.drop_null()
        first, stop = held.offsets[0].as_py(), held.offsets[-1].as_py()
        if pa.types.is_list(kind):
            values = _rebuilt(held.values.slice(first, stop - first), kind.value_type)
            return pa.ListArray.from_arrays(offsets, values, type=kind)
        keys = _rebuilt(held.keys.slice(first, stop - first), kind.key_type)
        items = _rebuilt(held.items.slice(first, stop - first), kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind)
    return array


def same_family(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a value of the one type can be the same value in the other."""
    types = pa.types
    if types.is_null(source) or source == target:
        return True
    if types.is_dictionary(source):
        return same_family(source.value_type, target)
    if _is_any_list(source) and _is_any_list(target):
        return same_family(source.value_type, target.value_type)
    if types.is_map(source) and types.is_map(target):
        return same_family(source.key_type, target.key_type) and same_family(source.item_type, target.item_type)
    if types.is_struct(source) and types.is_struct(target):
        same = [item.name for item in source] == [item.name for item in target]
        return same and all(same_family(a.type, b.type) for a, b in zip(source, target, strict=True))
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


def _nullable(kind: pa.DataType) -> pa.DataType:
    """The same type with nulls allowed at every place inside."""
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_nullable(kind.value_type), kind.list_size)
    if _is_any_list(kind):
        return pa.list_(_nullable(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(item.name, _nullable(item.type)) for item in kind])
    return kind


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


# --- from Python -------------------------------------------------------------------------------------------------------------

_INTEGERS = (int, np.integer)
_FLOATS = (float, np.float16, np.float32)  # np.float64 is a float; np.longdouble would be cut
# Which Python values a type takes, and which subclasses of those it does not; Arrow itself takes more and cuts them.
_PYTHON: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...], tuple[type, ...]], ...] = (
    (pa.types.is_boolean, (bool, np.bool_), ()),
    (pa.types.is_integer, (*_INTEGERS, *_FLOATS), (bool,)),
    (pa.types.is_floating, (*_INTEGERS, *_FLOATS), (bool,)),
    (pa.types.is_decimal, (int, Decimal), (bool,)),
    (pa.types.is_string, (str,), ()),
    (pa.types.is_binary, (bytes, bytearray, memoryview), ()),
    (pa.types.is_date, (date,), (datetime,)),
    (pa.types.is_timestamp, (datetime,), ()),
    (pa.types.is_time, (time,), ()),
    (_is_any_list, (list, tuple, np.ndarray), ()),
    (pa.types.is_map, (Mapping, list, tuple), ()),
    (pa.types.is_struct, (Mapping,), ()),
)


def _built(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    """An array from Python values, level by level."""
    kinds = set(map(type, values)) - {type(None)}
    absent = {name for name in kinds if name.__name__ in ("NaTType", "NAType")}  # what pandas puts for an absent object
    if absent:
        values = [None if type(value) in absent else value for value in values]
    _check_python(values, kinds - absent, kind, path)
    try:
        if pa.types.is_struct(kind):
            return _built_struct(values, kind, path)
        if pa.types.is_map(kind):
            return _built_map(values, kind, path)
        if _is_any_list(kind):
            return _built_list(values, kind, path)
        array = pa.array(values, type=kind)
    except _ARROW_ERRORS as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"column {path}: not a {kind}: {cause_line(error)}") from error
    if isinstance(array, pa.ChunkedArray):
        raise SchemaError(f"column {path}: more than 2 GiB in one batch; append smaller ones, or store it in a BLOB column")
    return array


def _built_list(values: Sequence[Any], kind: pa.DataType, path: str) -> pa.Array:
    rows = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    flat = [inner for row in rows if row is not None for inner in row]
    inner = _built(flat, kind.value_type, f"{path}[]")
    if not pa.types.is_fixed_size_list(kind):
        return pa.ListArray.from_arrays(_offsets_of(rows), inner, type=kind)
    for row in rows:
        if row is None or len(row) != kind.list_size:
            got = "null" if row is None else f"a list of {len(row)}"
            raise SchemaError(f"column {path}: got {got}, the table holds lists of exactly {kind.list_size} values")
    return pa.FixedSizeListArray.from_arrays(inner, type=kind)


def _built_map(values: Sequence[Any], kind: pa.MapType, path: str) -> pa.Array:
    rows = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
    pairs = [pair for row in rows if row is not None for pair in row]
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise SchemaError(f"column {path}: {pair!r} is no (key, value) pair")
    keys = _built([key for key, _ in pairs], kind.key_type, f"{path}{{key}}")
    items = _built([item for _, item in pairs], kind.item_type, f"{path}{{value}}")
    return pa.MapArray.from_arrays(_offsets_of(rows), keys, items, type=kind)


def _built_struct(values: Sequence[Any], kind: pa.StructType, path: str) -> pa.Array:
    names = {item.name for item in kind}
    for value in values:
        if value is not None and not names.issuperset(value):
            unknown = ", ".join(str(name) for name in value if name not in names)
            raise SchemaError(f"column {path}: no field {unknown}; fields: {', '.join(sorted(names))}")
    children = [
        _built([None if value is None else value.get(item.name) for value in values], item.type, f"{path}.{item.name}")
        for item in kind
    ]
    null = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=null)


def _offsets_of(rows: Sequence[Any]) -> pa.Array:
    null = np.fromiter((row is None for row in rows), np.bool_, len(rows))
    return _offsets(np.fromiter((0 if row is None else len(row) for row in rows), np.int64, len(rows)), null)


def _offsets(lengths: np.ndarray[Any, Any], null: np.ndarray[Any, Any]) -> pa.Array:
    """Where each row's values begin, int32[rows + 1]; null for a row that is null."""
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32(), mask=np.append(null, False))


def _check_python(values: Sequence[Any], kinds: set[type], kind: pa.DataType, path: str) -> None:
    """Refuse what Arrow would take while changing its value or meaning."""
    for fits, allowed, excluded in _PYTHON:
        if fits(kind):
            wrong = {found for found in kinds if not issubclass(found, allowed) or issubclass(found, excluded)}
            if wrong:
                example = next(value for value in values if type(value) in wrong)
                raise SchemaError(f"column {path}: {_shown(example)} is no {kind}")
            break
    if pa.types.is_integer(kind) and any(issubclass(found, _FLOATS) for found in kinds):
        _refuse(values, path, kind, lambda value: isinstance(value, _FLOATS) and not _is_whole(value))
    elif pa.types.is_float32(kind):
        _refuse(values, path, kind, lambda value: isinstance(value, float) and _MAX_FLOAT32 < abs(value) < math.inf)
    elif pa.types.is_timestamp(kind):
        aware = kind.tz is not None
        for value in values:
            if value is not None and (value.utcoffset() is not None) != aware:
                got = "without" if aware else "with"
                raise SchemaError(f"column {path}: got a time {got} a zone ({value}), the table holds {kind}")
        if kind.unit != "ns":
            step_us = 1_000_000 // _PER_SECOND[kind.unit]
            _refuse(values, path, kind, lambda value: value.microsecond % step_us or getattr(value, "nanosecond", 0))
    elif pa.types.is_time(kind):
        _refuse(values, path, kind, lambda value: value.microsecond % 1000 or value.tzinfo is not None)


def _refuse(values: Sequence[Any], path: str, kind: pa.DataType, wrong: Callable[[Any], Any]) -> None:
    for value in values:
        if value is not None and wrong(value):
            raise SchemaError(f"column {path}: {_shown(value)} would not stay the same value as {kind}")


def _is_whole(value: Any) -> bool:
    return math.isfinite(value) and float(value).is_integer() and abs(value) < 2**63


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- what a table can hold, whatever it came from ----------------------------------------------------------------------------


def _nodes(array: pa.Array, path: str, item: pa.Field | None = None) -> Iterator[tuple[pa.Array, pa.Field | None, str]]:
    """An array and all arrays inside it, with the values of null lists and structs left out."""
    yield array, item, path
    kind = array.type
    if pa.types.is_map(kind):
        held = array.drop_null()
        first, stop = held.offsets[0].as_py(), held.offsets[-1].as_py()
        yield from _nodes(held.keys.slice(first, stop - first), f"{path}{{key}}", kind.key_field)
        yield from _nodes(held.items.slice(first, stop - first), f"{path}{{value}}", kind.item_field)
    elif _is_any_list(kind):
        yield from _nodes(array.drop_null().flatten(), f"{path}[]", kind.value_field)
    elif pa.types.is_struct(kind):
        for field, child in zip(kind, array.drop_null().flatten(), strict=True):
            yield from _nodes(child, f"{path}.{field.name}", field)


def _check(array: pa.Array, item: pa.Field) -> None:
    try:
        array.validate(full=True)  # text that is no UTF-8, decimals of too many digits, times beyond a day
    except _ARROW_ERRORS as error:
        raise SchemaError(f"column {item.name}: damaged values ({cause_line(error)})") from error
    for node, field, path in _nodes(array, item.name, item):
        kind = node.type
        if node.null_count and field is not None and not field.nullable:
            raise SchemaError(f"column {path} may not be null, but {node.null_count} of {len(node)} values are")
        if pa.types.is_fixed_size_list(kind) and (node.null_count or node.flatten().null_count):
            # Upstream writes them, and can't read the table afterwards.
            raise SchemaError(f"column {path}: {kind} can't hold nulls; declare pa.list_({kind.value_type}) instead")
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            _check_range(node, path)


def _check_range(array: pa.Array, path: str) -> None:
    kind = array.type
    if pa.types.is_date(kind):
        low, high, numbers = _FIRST_DAY, _LAST_DAY, array.cast(pa.int32())
    elif kind.unit == "ns":  # all of int64 but the value by which numpy and pandas mark an absent time
        low, high, numbers = -(2**63) + 1, 2**63 - 1, array.cast(pa.int64())
    else:
        per_day = 86_400 * _PER_SECOND[kind.unit]
        low, high, numbers = _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1, array.cast(pa.int64())
    found = pc.min_max(numbers).as_py()
    if found["min"] is not None and not (low <= found["min"] and found["max"] <= high):
        raise SchemaError(f"column {path}: a {kind} beyond the years 1 to 9999 (for ns: 1677 to 2262) can't be held")
