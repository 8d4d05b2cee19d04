"""Predicates at work: pruning by storage and partitions, then exact evaluation by Daft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import LakehouseError, SchemaError, cause_line
from lakehouse.query.engine import Expression, daft
from lakehouse.query.predicate import columns_of, conjuncts, storage_predicate
from lakehouse.scan import Groups, Version, plan

_POSITION = "__lakehouse_position"


def pruned(version: Version, predicates: Sequence[Expression]) -> Groups:
    """The groups that may hold matching rows, from metadata and partition values only."""
    groups = plan(version, storage_predicate(predicates, version.paimon, version.columns) if predicates else None)
    keys = set(version.columns.partition_by)
    by_partition = [
        part
        for predicate in predicates
        for part in conjuncts(predicate)
        if len(columns_of(part)) > 0 and columns_of(part) <= keys
    ]
    if not by_partition or not groups.groups:
        return groups
    partitions = list(dict.fromkeys(group.partition for group in groups.groups))
    names = version.columns.partition_by
    values = pa.table(
        {
            name: pa.array([partition[i] for partition in partitions], version.columns.arrow.field(name).type)
            for i, name in enumerate(names)
        }
    )
    kept = {partitions[i] for i in matching(values, by_partition).tolist()}
    return groups.where(lambda group: group.partition in kept)


def matching(table: pa.Table, predicates: Sequence[Expression]) -> npt.NDArray[np.int64]:
    """Positions of the rows for which every predicate is true, ascending.

    Raises:
        SchemaError: a predicate does not fit the columns' types.
    """
    if not predicates:
        return np.arange(table.num_rows)
    facts = pa.table({name: for_daft(table.column(name)) for name in table.column_names})
    frame = daft.from_arrow(facts.append_column(_POSITION, pa.array(np.arange(table.num_rows))))
    try:
        for predicate in predicates:
            frame = frame.where(predicate)
        found = frame.select(_POSITION).to_arrow()
    except LakehouseError:
        raise
    except Exception as error:  # Daft raises private classes, and whatever a UDF raises
        raise SchemaError(f"where({' AND '.join(map(str, predicates))}) can't be evaluated: {cause_line(error)}") from error
    return np.sort(found.column(0).combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64))


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
