"""A table's columns as Daft takes them."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from daft.schema import Schema

from lakehouse.query.engine import daft
from lakehouse.scan import ROW_ID
from lakehouse.schema import Columns


def daft_schema(columns: Columns, *, row_ids: bool = False) -> Schema:
    """Columns in table order, BLOBs as File; with ``row_ids`` a last one for those."""
    fields = []
    for item in columns.arrow:
        if item.name in columns.lazy:
            fields.append((item.name, _file_type(item.type)))
        else:
            fields.append((item.name, daft.DataType.from_arrow_type(promoted_type(item.type))))
    if row_ids:
        fields.append((ROW_ID, daft.DataType.int64()))
    return Schema.from_field_name_and_types(fields)


def empty_frame(columns: Columns) -> daft.DataFrame:
    """A frame of these columns without rows, to resolve expressions on."""
    return daft.from_pydict(
        {item.name: daft.Series.from_pylist([], name=item.name, dtype=item.dtype) for item in daft_schema(columns)}
    )


def _file_type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return daft.DataType.list(_file_type(kind.value_type))
    if pa.types.is_map(kind):
        return daft.DataType.map(daft.DataType.from_arrow_type(kind.key_type), _file_type(kind.item_type))
    return daft.DataType.file()


def for_daft(column: pa.Array | pa.ChunkedArray) -> Any:
    """The same values as Daft takes them rightly.

    It lacks 32-bit times, and orders NaN by its bits: one whose sign is set, which is what 0.0 / 0.0 gives on x86, would be
    less than every number and unequal to other NaN.
    """
    promoted = promoted_type(column.type)
    if promoted != column.type:
        return column.cast(promoted)
    if pa.types.is_floating(column.type):
        nan = pc.is_nan(column)
        if pc.any(nan).as_py():
            return pc.if_else(nan, pa.scalar(math.nan, column.type), column)
    return column


def promoted_type(kind: pa.DataType) -> pa.DataType:
    """A type without 32-bit times, at any depth."""
    if pa.types.is_time32(kind):
        return pa.time64("us")
    if pa.types.is_fixed_size_list(kind):
        return kind
    if pa.types.is_list(kind):
        inner = kind.value_field
        return pa.list_(inner.with_type(promoted_type(inner.type)))
    if pa.types.is_struct(kind):
        return pa.struct([item.with_type(promoted_type(item.type)) for item in kind])
    if pa.types.is_map(kind):
        return pa.map_(promoted_type(kind.key_type), kind.item_field.with_type(promoted_type(kind.item_type)))
    return kind
