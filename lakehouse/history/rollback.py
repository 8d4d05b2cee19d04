"""Going back to an earlier snapshot: what it gives, and when it can't be done."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakehouse.schema import Columns


@dataclass(frozen=True)
class Rollback:
    """What a rollback did, or would do.

    Attributes:
        snapshot_id: the new snapshot; None of a dry run, and where the target was the latest already.
        target: the snapshot whose content the table has again.
        undone: the snapshots after it, whose changes the table no longer shows; all of them can still be read.
        rows: rows of the table afterwards.
        rows_before: rows of the latest snapshot before.
        null_columns: columns that were added since; they stay, and are null in the rows of the target.
    """

    snapshot_id: int | None
    target: int
    undone: tuple[int, ...]
    rows: int
    rows_before: int
    null_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Field:
    """A column by its identity: a column that was dropped and added again is another one.

    Attributes:
        id: given once, kept when the column is renamed.
        name: of the column.
        type: as files hold it.
    """

    id: int
    name: str
    type: pa.DataType


def fields_of(paimon: object, columns: Columns) -> tuple[Field, ...]:
    """The columns of a pypaimon handle."""
    ids = {item.name: int(item.id) for item in paimon.fields}  # type: ignore[attr-defined]
    return tuple(Field(ids[item.name], item.name, item.type) for item in columns.arrow)


def unreadable_since(then: tuple[Field, ...], now: tuple[Field, ...]) -> tuple[str, ...]:
    """Why rows of an earlier schema would not come back as they were under the present one; empty when they would.

    Columns added since are no reason: they are null in those rows. Neither are types that hold all earlier values.
    """
    present = {item.id: item for item in now}
    reasons = []
    for old in then:
        new = present.get(old.id)
        if new is None:
            reasons.append(f"column {old.name} was dropped")
        elif new.name != old.name:
            reasons.append(f"column {old.name} was renamed to {new.name}")
        elif not _holds(new.type, old.type):
            reasons.append(f"column {old.name} was {old.type} and is {new.type}")
    return tuple(reasons)


def added_since(then: tuple[Field, ...], now: tuple[Field, ...]) -> tuple[str, ...]:
    """Names of the columns that the earlier schema lacks."""
    known = {item.id for item in then}
    return tuple(item.name for item in now if item.id not in known)


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether every value of ``narrow`` reads as an equal one of ``wide``."""
    if wide == narrow:
        return True
    if pa.types.is_signed_integer(wide) and pa.types.is_signed_integer(narrow):
        return bool(wide.bit_width >= narrow.bit_width)
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision)
    return bool(pa.types.is_float64(wide) and pa.types.is_float32(narrow))
