"""Which changes of a table's columns keep every file, snapshot and tag readable, by every engine. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import pyarrow as pa

from lakehouse.errors import SchemaError
from lakehouse.schema import Blob, Columns, check_column_name, declared_field, is_reference, known_columns, stored_type

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_DIRECTIVES = ("__BLOB", "__VECTOR")  # how comments begin that the engine takes for more than a comment


def added(field: pa.Field | str, kind: Any, columns: Columns, dropped_names: Iterable[str]) -> tuple[pa.Field, bool]:
    """A column to add, as the table will hold it; and whether it is declared by reference.

    Args:
        field: a field, or the column's name.
        kind: with a name: a `pyarrow.DataType`, `Blob`, or a decoder.
        columns: the table's.
        dropped_names: names that the table had once and has no more.

    Raises:
        SchemaError: a name that is taken, a type that can't be stored, or one that rows without a value can't have.
    """
    if isinstance(field, pa.Field) and kind is None:
        declared = field
    elif isinstance(field, str) and kind is not None:
        declared = declared_field(field, kind)
    else:
        raise SchemaError(
            "add_column() takes a pyarrow.Field, or a name and a type: a pyarrow.DataType, lh.Blob() or lh.Image()"
        )
    name = declared.name
    _check_new(name, columns)
    if not declared.nullable:
        raise SchemaError(f"column {name}: rows that are there have no value for it; declare it nullable")
    stored = pa.field(name, stored_type(declared.type, name), metadata=declared.metadata)
    if pa.types.is_fixed_size_list(stored.type):
        raise SchemaError(
            f"column {name}: {stored.type} can't hold nulls, which rows that are there would; declare "
            f"pa.list_({stored.type.value_type})"
        )
    if pa.types.is_large_binary(stored.type) and name in dropped_names:
        raise SchemaError(
            f"column {name}: a column of this name was dropped, whose values lie in old files; choose another name"
        )
    comment = _comment(declared)
    if comment.startswith(_DIRECTIVES):
        raise SchemaError(f"column {name}: the engine takes the comment {comment!r} for an instruction; word it otherwise")
    return stored, is_reference(declared)


def _check_new(name: str, columns: Columns) -> None:
    if name in columns.arrow.names:
        raise SchemaError(f"column {name} is there already, as {columns.arrow.field(name).type}")
    check_column_name(name, set())


def _comment(field: pa.Field) -> str:
    comment: bytes = (field.metadata or {}).get(b"description", b"")
    return comment.decode().strip()


def comment_of(field: pa.Field, *, reference: bool) -> str | None:
    """What the engine takes as the comment of a new column: how a column by reference is declared to it."""
    comment = _comment(field)
    if not reference:
        return comment or None
    return f"__BLOB_DESCRIPTOR_FIELD; {comment}" if comment else "__BLOB_DESCRIPTOR_FIELD"


def check_dropped(name: str, columns: Columns) -> None:
    """Check that a column can be dropped.

    Raises:
        NotFoundError: it does not exist.
        SchemaError: a BLOB, a partition column, or the last one of its kind.
    """
    known_columns([name], columns.arrow)
    if name in columns.lazy:
        raise SchemaError(
            f"column {name} holds BLOBs, and other engines can't read a table any more whose BLOB column was dropped; "
            f"update(None, {{{name!r}: None}}) empties it"
        )
    if name in columns.partition_by:
        raise SchemaError(f"column {name} says in which partition a row lies, so it can't be dropped; make a new table")
    rest = [item for item in columns.arrow.names if item != name and item not in columns.lazy]
    if not set(rest) - set(columns.partition_by):
        raise SchemaError(f"column {name} is the last one that is neither a BLOB nor a partition key; a table needs one")


def refuse_renamed(old: str, new: str, columns: Columns) -> NoReturn:
    """Say what to do instead of renaming.

    Raises:
        NotFoundError: the column does not exist.
        SchemaError: always.
    """
    known_columns([old], columns.arrow)
    _check_new(new, columns)
    if old in columns.partition_by:
        raise SchemaError(f"column {old} says in which partition a row lies, so it can't be renamed; make a new table")
    if old in columns.lazy:
        raise SchemaError(f"column {old} holds BLOBs, which can't be renamed: files know their BLOB column by name")
    raise SchemaError(
        f"column {old} can't be renamed: files know their columns by name, and every engine would read the old values as null. "
        f"Instead: table.add_column({new!r}, table.schema.field({old!r}).type); table.update(None, {{{new!r}: col({old!r})}}); "
        f"table.drop_column({old!r})"
    )


def widened(name: str, kind: pa.DataType, columns: Columns) -> pa.DataType | None:
    """The type that a column is to have, or None where it has it already.

    Raises:
        NotFoundError: the column does not exist.
        SchemaError: a type that does not hold every value of the present one, or a partition column.
    """
    known_columns([name], columns.arrow)
    if isinstance(kind, Blob) or not isinstance(kind, pa.DataType):
        raise SchemaError(f"column {name}: widen_column() takes a pyarrow.DataType, got {kind!r}")
    old, new = columns.arrow.field(name).type, stored_type(kind, name)
    if new == old:
        return None
    if name in columns.partition_by:
        raise SchemaError(f"column {name} says in which partition a row lies, so its type can't change; make a new table")
    if not _holds(new, old):
        raise SchemaError(
            f"column {name}: {new} does not hold every value of {old} in the same way; integers widen to integers, float32 to "
            "float64, decimals to more digits of the same scale. For another type add a column and fill it with update()"
        )
    return new


def _holds(new: pa.DataType, old: pa.DataType) -> bool:
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(new) > _INTEGERS.index(old)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return bool(pa.types.is_float32(old) and pa.types.is_float64(new))
