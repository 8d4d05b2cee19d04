"""Predicates at work: pruning by storage and partitions, then exact evaluation by Daft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.errors import LakehouseError, SchemaError, cause_line
from lakehouse.query.daft_types import for_daft
from lakehouse.query.engine import Expression, daft
from lakehouse.query.predicate import storage_predicate
from lakehouse.query.walk import columns_of, conjuncts
from lakehouse.scan import Groups, Version, plan

_POSITION = "__lakehouse_position"


def pruned(version: Version, predicates: Sequence[Expression]) -> Groups:
    """The groups that may hold matching rows, from metadata and partition values only."""
    groups = plan(version, storage_predicate(predicates, version.paimon, version.columns) if predicates else None)
    keys = set(version.columns.partition_by)
    parts = [(part, columns_of(part, version.columns)) for predicate in predicates for part in conjuncts(predicate)]
    by_partition = [part for part, read in parts if read and read <= keys]
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
