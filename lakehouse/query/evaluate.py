"""Predicates at work: pruning by storage and partitions, then exact evaluation by Daft's kernels."""

from __future__ import annotations

import contextlib
import math
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
    truth = _Truth(pa.table({name: _comparable(for_daft(table.column(name))) for name in table.column_names}))
    try:
        for predicate in predicates:
            taken &= truth.visit(predicate).fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    except LakehouseError:
        raise
    except Exception as error:  # Daft raises private classes, and whatever a UDF raises
        raise SchemaError(f"where({' AND '.join(map(str, predicates))}) can't be evaluated: {cause_line(error)}") from error
    return np.flatnonzero(taken)


def _comparable(column: Any) -> Any:
    """Values that Daft compares by SQL's rules.

    It cuts a literal to the unit of a coarser column, so instants are given in microseconds, as literals are. And it takes
    -0.0 for less than 0.0.
    """
    if pa.types.is_timestamp(column.type) and column.type.unit in ("s", "ms"):
        with contextlib.suppress(pa.ArrowInvalid):  # further from 1970 than microseconds reach
            return column.cast(pa.timestamp("us", column.type.tz))
    if pa.types.is_floating(column.type):
        return pc.add(column, pa.scalar(0.0, column.type))  # which makes 0.0 of -0.0, and leaves all others
    return column


class _Truth(Walk):
    """True, false or null for each row.

    Only what AND, OR, XOR and NOT join is given to Daft, and to its kernels, not to a plan. Its optimiser drops conditions
    where two of them call Python functions; and a plan that runs inside the task of another one waits for ever. What its
    kernels lack or get wrong is made of what they have: BETWEEN of strings and bytes, IN a list that has a null or NaN.
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
            return self._is_in(*flat(args))
        if name in _JOINS:
            return _JOINS[name](*(self.visit(arg) for arg in args))
        return None

    def closed(self, expr: Expression) -> None:  # noqa: ARG002
        return None

    def _is_in(self, value: Expression, *items: Expression) -> pa.Array:
        """Kernels say false for a value that only the null may equal, and look up floats in a list that NaN leaves unsorted."""
        nulls = [item for item in items if item.is_literal() and item.as_py() is None]
        nans = [item for item in items if item.is_literal() and isinstance(item.as_py(), float) and math.isnan(item.as_py())]
        plain = [item for item in items if not any(item is other for other in (*nulls, *nans))]
        answer = self._evaluated(value.is_in(plain))
        for item in nans[:1]:
            answer = pc.or_kleene(answer, self._evaluated(value == item))
        return pc.or_kleene(answer, pa.scalar(None, pa.bool_())) if nulls else answer

    def _evaluated(self, expr: Expression) -> pa.Array:
        answer = self._rows.eval_expression_list([expr.alias("answer")]).to_arrow_record_batch().column(0)
        return answer.cast(pa.bool_())  # from null, where a literal null is compared


_JOINS = {"and": pc.and_kleene, "or": pc.or_kleene, "xor": pc.xor, "not": pc.invert}
