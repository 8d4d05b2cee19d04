"""What a column is set to: one value for all rows, a Daft expression over the row, or a function of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.changes.match import row_ids
from lakehouse.errors import SchemaError
from lakehouse.references import inline_structs, ref_structs
from lakehouse.scan import ROW_ID, Groups, Locator
from lakehouse.schema import Columns, known_columns
from lakehouse.write import column_values

Describe = Callable[[Any, str], bytes]


@dataclass(frozen=True)
class Assignment:
    """New values of one column.

    Attributes:
        column: its name.
        reads: the scalar columns that they are made from; None: all, and references to the BLOBs.
        values: from the matched rows (`reads`, then ``_ROW_ID``), one value a row in the form that the engine takes.
    """

    column: str
    reads: tuple[str, ...] | None
    values: Callable[[pa.Table], Any]


def assignments(given: Mapping[str, Any], columns: Columns, describe: Describe) -> list[Assignment]:
    """Check what columns are to be set to.

    Args:
        given: by column a value, a Daft expression, or a function of an Arrow table.
        columns: the table's.
        describe: turns a BlobRef into a serialised descriptor for the named column.

    Raises:
        NotFoundError: a column that does not exist.
        SchemaError: a partition column, or a value that doesn't fit its column.
        FetchError: a reference whose bytes are not there.
    """
    if not isinstance(given, Mapping) or not given:
        raise SchemaError(f"update() takes a mapping of one or more columns to their new values, got {given!r}")
    known_columns(given, columns.arrow)
    for name in given:
        if name in columns.partition_by:
            raise SchemaError(
                f"column {name} says in which partition a row lies, so update() can't set it; upsert() moves rows: "
                f"upsert(rows, key=[...]) with the new {name}"
            )
    return [_assignment(name, value, columns, describe) for name, value in given.items()]


def _assignment(name: str, value: Any, columns: Columns, describe: Describe) -> Assignment:
    item = columns.arrow.field(name)
    if _is_expression(value):
        return _expression(value, item, columns, describe)
    if callable(value):
        return Assignment(name, None, lambda rows: _called(value, rows, item, columns, describe))
    one = column_values([value], item, columns, describe)

    def same(rows: pa.Table) -> Any:
        # Encoded, so that a large value is there once.
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows.num_rows, np.int32)), one)

    if name in columns.blobs and name not in columns.inline:
        return Assignment(name, (), same)
    return Assignment(name, (), lambda rows: one.take(pa.array(np.zeros(rows.num_rows, np.int32))))


def _is_expression(value: Any) -> bool:
    return any(kind.__name__ == "Expression" and kind.__module__.partition(".")[0] == "daft" for kind in type(value).__mro__)


def _expression(value: Any, item: pa.Field, columns: Columns, describe: Describe) -> Assignment:
    from lakehouse.query.computed import computed, computed_from

    reads = computed_from(value, columns, item.name)
    return Assignment(item.name, reads, lambda rows: column_values(computed(value, rows, item.name), item, columns, describe))


def _called(function: Any, rows: pa.Table, item: pa.Field, columns: Columns, describe: Describe) -> Any:
    given = function(rows.drop_columns([ROW_ID]))
    if isinstance(given, np.ndarray):
        given = given.tolist() if given.dtype == object else pa.array(given)
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if not isinstance(given, (pa.Array, list, tuple)) or len(given) != rows.num_rows:
        got = f"{len(given)} values" if hasattr(given, "__len__") else type(given).__name__
        raise SchemaError(f"column {item.name}: the function must return one value for each of {rows.num_rows} rows, got {got}")
    return column_values(given if isinstance(given, pa.Array) else list(given), item, columns, describe)


def facts(table: pa.Table, columns: Columns, locators: Mapping[str, Locator]) -> pa.Table:
    """The rows as functions see them: in table order, BLOBs as ``struct<uri, offset, length>``, then the row ids."""
    arrays: dict[str, Any] = {}
    for name in columns.arrow.names:
        if name in locators:
            places = locators[name].locate(row_ids(table))
            arrays[name] = ref_structs(locators[name].uris, *places)
        elif name in columns.lazy:
            arrays[name] = inline_structs(table.column(name).combine_chunks())
        else:
            arrays[name] = table.column(name)
    return pa.table({**arrays, ROW_ID: table.column(ROW_ID)})


def locators_of(version: Any, groups: Groups) -> dict[str, Locator]:
    """What finds the bytes of each BLOB column that is kept in ``.blob`` files."""
    columns = version.columns
    return {name: Locator(version, groups, name) for name in columns.blobs if name not in columns.inline}
