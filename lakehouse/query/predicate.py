"""Predicates: checked against a version's columns, split, and turned into what storage can prune by.

Pruning only ever leaves out what can hold no matching row. What remains is evaluated by Daft, so its rules hold: SQL's
three-valued logic for nulls; NaN equals NaN and is greater than every number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakehouse.errors import SchemaError, cause_line
from lakehouse.query.daft_types import empty_frame
from lakehouse.query.engine import Expression, daft
from lakehouse.query.walk import Walk, columns_beyond_null_tests, columns_of, conjuncts, flat
from lakehouse.schema import Columns, known_columns

# A column that no table has; see `_of_sql`.
_END = "_end_of_predicate"


def checked_predicate(predicate: Any, columns: Columns) -> Expression:
    """A predicate as an expression over the table's columns.

    Args:
        predicate: a Daft expression, or SQL text.
        columns: the version's.

    Raises:
        NotFoundError: it names a column that does not exist.
        SchemaError: not a predicate, SQL that can't be read, other types than the columns', or a test of a BLOB's bytes.
    """
    otherwise = ""
    if isinstance(predicate, str):
        predicate, otherwise = _of_sql(predicate), " (SQL writes text in single quotes: channel = 'CAM_FRONT')"
    if not isinstance(predicate, Expression):
        raise SchemaError(f"where() takes a Daft expression or SQL text, got {type(predicate).__name__}: {predicate!r}")
    known_columns(columns_of(predicate, columns), columns.arrow, otherwise=otherwise)
    read = sorted(columns_beyond_null_tests(predicate, columns) & columns.lazy)
    if read:
        raise SchemaError(
            f"where() can test a BLOB column only for null, and this reads {', '.join(read)}: select the rows first, then "
            "work on Snapshot.bytes(column) in a Daft plan"
        )
    try:
        empty_frame(columns).where(predicate)
    except Exception as error:  # Daft's own class for this is private
        raise SchemaError(f"where({predicate}) does not fit the columns: {cause_line(error)}") from error
    return predicate


def _of_sql(text: str) -> Expression:
    """SQL text as an expression.

    Daft reads as far as it can and drops the rest without a word: ``id = 1, v = 2`` is ``id = 1`` to it. So the text is read
    inside of parentheses, and what comes behind them has to be read, too.
    """
    try:
        predicate = daft.sql_expr(f"({text}\n)")  # a new line ends a comment
        read_whole = str(daft.sql_expr(f"({text}\n) OR {_END} = 0")).endswith(str(daft.sql_expr(f"{_END} = 0")) + "]")
    except Exception as error:  # Daft's own class for this is private
        raise SchemaError(f"where({text!r}) can't be read as SQL: {cause_line(error)}") from error
    if not read_whole:
        raise SchemaError(f"where({text!r}) can't be read as SQL: parentheses that don't match, or more than one expression")
    return predicate


# --- pruning ---------------------------------------------------------------------------------------------------------------

_COMPARISONS = {"equal", "less_than", "less_or_equal", "greater_than", "greater_or_equal"}
_SWAPPED = {
    "equal": "equal",
    "less_than": "greater_than",
    "less_or_equal": "greater_or_equal",
    "greater_than": "less_than",
    "greater_or_equal": "less_or_equal",
}


class _Literal:
    def __init__(self, value: Any) -> None:
        self.value = value


class _Prunable(Walk):
    """A pypaimon predicate that is true wherever the expression is, or None where storage can't help."""

    def __init__(self, builder: Any, schema: pa.Schema) -> None:
        self._builder = builder
        self._schema = schema

    def visit_col(self, name: str) -> Any:
        return name

    def visit_lit(self, value: Any) -> Any:
        return _Literal(value)

    def node(self, name: str, args: list[Any]) -> Any:
        if name in ("and", "or"):
            return self._joined(name, [self.visit(arg) for arg in args])
        if name in _COMPARISONS:
            return self._compared(name, *(self.visit(arg) for arg in args))
        if name == "between":
            column, low, high = (self.visit(arg) for arg in args)
            upper = self._range(column, "less_or_equal", high)
            if upper is None:  # perhaps NaN, or a column of it: a lower bound alone
                return self._compared("greater_or_equal", column, low)
            return self._joined("and", [self._range(column, "greater_or_equal", low), upper])
        if name == "is_in":
            column, *items = (self.visit(arg) for arg in flat(args))
            if items and all(self._fits(column, item) for item in items):
                return self._builder.is_in(column, [item.value for item in items])
        return None

    def closed(self, expr: Expression) -> None:  # noqa: ARG002
        return None

    def _joined(self, name: str, parts: list[Any]) -> Any:
        known = [part for part in parts if part is not None and not isinstance(part, (str, _Literal))]
        if name == "or":
            return self._builder.or_predicates(known) if len(known) == len(parts) else None
        return self._builder.and_predicates(known) if len(known) > 1 else (known[0] if known else None)

    def _compared(self, name: str, left: Any, right: Any) -> Any:
        if isinstance(left, _Literal):
            left, right, name = right, left, _SWAPPED[name]
        if not self._fits(left, right):
            return None
        if name.startswith("greater") and pa.types.is_floating(self._schema.field(left).type):
            return None  # a file's greatest value leaves NaN out, which is greater than anything
        return self._range(left, name, right)

    def _range(self, column: Any, name: str, literal: Any) -> Any:
        return getattr(self._builder, name)(column, literal.value) if self._fits(column, literal) else None

    def _fits(self, column: Any, literal: Any) -> bool:
        """Whether storage compares this literal with this column as Daft does."""
        if not isinstance(column, str) or not isinstance(literal, _Literal):
            return False
        value, kind = literal.value, self._schema.field(column).type
        if isinstance(value, bool):
            return bool(pa.types.is_boolean(kind))
        if pa.types.is_integer(kind):
            return isinstance(value, int)
        if pa.types.is_floating(kind):
            # A float32 column is compared as float32 in files and as float64 by Daft.
            return pa.types.is_float64(kind) and isinstance(value, (int, float)) and math.isfinite(value) and value != 0
        if pa.types.is_string(kind):
            return isinstance(value, str)
        if pa.types.is_date(kind):
            return isinstance(value, date) and not isinstance(value, datetime)
        if pa.types.is_timestamp(kind):
            return kind.tz is None and kind.unit in ("ms", "us") and isinstance(value, datetime) and value.tzinfo is None
        if pa.types.is_decimal(kind):
            return isinstance(value, Decimal) and value.is_finite()
        return False


def storage_predicate(predicates: Iterable[Expression], paimon: Any, columns: Columns) -> Any:
    """The part of the predicates that storage can prune by, as a pypaimon predicate; None for none."""
    builder = paimon.new_read_builder().new_predicate_builder()
    walk = _Prunable(builder, columns.arrow)
    parts = [walk.visit(part) for predicate in predicates for part in conjuncts(predicate)]
    known = [part for part in parts if part is not None and not isinstance(part, (str, _Literal))]
    if not known:
        return None
    return builder.and_predicates(known) if len(known) > 1 else known[0]
