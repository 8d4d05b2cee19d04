"""Predicates at work: pruning by storage and partitions, then exact evaluation by Daft's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from daft.recordbatch import RecordBatch

from lakehouse.errors import LakehouseError, SchemaError, cause_line
from lakehouse.query.daft_types import for_daft
from lakehouse.query.engine import Expression
from lakehouse.query.predicate import storage_predicate
from lakehouse.query.walk import Walk, columns_of, conjuncts, flat
from lakehouse.scan import Groups, Version, plan


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
        SchemaError: a predicate does not fit the columns' types, or a function that it calls raised.
    """
    taken = np.ones(table.num_rows, np.bool_)
    if not predicates or not table.num_rows:
        return np.flatnonzero(taken)
    truth = _Truth(pa.table({name: for_daft(table.column(name)) for name in table.column_names}))
    try:
        for predicate in predicates:
            taken &= truth.visit(predicate).fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    except LakehouseError:
        raise
    except Exception as error:  # Daft raises private classes, and whatever a UDF raises
        raise SchemaError(f"where({' AND '.join(map(str, predicates))}) can't be evaluated: {cause_line(error)}") from error
    return np.flatnonzero(taken)


class _Truth(Walk):
    """True, false or null for each row.

    Only what AND, OR, XOR and NOT join is given to Daft, and to its kernels, not to a plan. Its optimiser drops conditions
    where two of them call Python functions; and a plan that runs inside the task of another one waits for ever. Kernels lack
    two things that plans have: BETWEEN of strings and bytes, which is two comparisons, and IN of a list that has a null.
    """

    def __init__(self, facts: pa.Table) -> None:
        self._rows = RecordBatch.from_arrow_record_batches(facts.to_batches(), facts.schema)

    def visit(self, expr: Expression) -> Any:
        joined = super().visit(expr)
        return self._evaluated(expr) if joined is None else joined

    def node(self, name: str, args: list[Any]) -> Any:
        if name == "between":
            value, low, high = args
            return pc.and_kleene(self._evaluated(value >= low), self._evaluated(value <= high))
        if name == "is_in":
            value, *items = flat(args)
            if any(item.is_literal() and item.as_py() is None for item in items):
                # In SQL a value that equals none of the others may equal the null; the kernels say false.
                found = self._evaluated(
                    value.is_in([item for item in items if not item.is_literal() or item.as_py() is not None])
                )
                return pc.if_else(found, found, pa.scalar(None, pa.bool_()))
        if name in _JOINS:
            return _JOINS[name](*(self.visit(arg) for arg in args))
        return None

    def closed(self, expr: Expression) -> None:  # noqa: ARG002
        return None

    def _evaluated(self, expr: Expression) -> pa.Array:
        answer = self._rows.eval_expression_list([expr.alias("answer")]).to_arrow_record_batch().column(0)
        return answer.cast(pa.bool_())  # from null, where a literal null is compared


_JOINS = {"and": pc.and_kleene, "or": pc.or_kleene, "xor": pc.xor, "not": pc.invert}
