"""Walks over Daft expressions: which columns they read, and what AND joins at their top."""

# ruff: noqa: D102 - visit_x is called for x
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from daft.expressions.visitor import PredicateVisitor

from lakehouse.query.daft_types import empty_frame
from lakehouse.query.engine import Expression
from lakehouse.schema import Columns


class Walk(PredicateVisitor[Any]):
    """A visitor that treats every node as a function of its arguments, unless a subclass knows better."""

    @abstractmethod
    def node(self, name: str, args: list[Any]) -> Any:
        """Called for every node that is no column and no literal."""

    @abstractmethod
    def closed(self, expr: Expression) -> Any:
        """Called for a node whose arguments Daft does not show: a struct's field, a map's value, a subquery."""

    def visit(self, expr: Any) -> Any:
        try:
            return super().visit(expr)
        except ValueError as error:
            if not str(error).startswith("Visitor does not support"):
                raise
            return self.closed(expr)

    def visit_col(self, name: str) -> Any:  # noqa: ARG002
        return self.node("col", [])

    def visit_lit(self, value: Any) -> Any:  # noqa: ARG002
        return self.node("lit", [])

    def visit_alias(self, expr: Any, alias: str) -> Any:  # noqa: ARG002
        return self.visit(expr)

    def visit_cast(self, expr: Any, dtype: Any) -> Any:  # noqa: ARG002
        return self.node("cast", [expr])

    def visit_function(self, name: str, args: list[Any]) -> Any:
        return self.node(name, args)

    def visit_coalesce(self, args: list[Any]) -> Any:
        return self.node("coalesce", args)

    def visit_and(self, left: Any, right: Any) -> Any:
        return self.node("and", [left, right])

    def visit_or(self, left: Any, right: Any) -> Any:
        return self.node("or", [left, right])

    def visit_not(self, expr: Any) -> Any:
        return self.node("not", [expr])

    def visit_equal(self, left: Any, right: Any) -> Any:
        return self.node("equal", [left, right])

    def visit_not_equal(self, left: Any, right: Any) -> Any:
        return self.node("not_equal", [left, right])

    def visit_less_than(self, left: Any, right: Any) -> Any:
        return self.node("less_than", [left, right])

    def visit_less_than_or_equal(self, left: Any, right: Any) -> Any:
        return self.node("less_or_equal", [left, right])

    def visit_greater_than(self, left: Any, right: Any) -> Any:
        return self.node("greater_than", [left, right])

    def visit_greater_than_or_equal(self, left: Any, right: Any) -> Any:
        return self.node("greater_or_equal", [left, right])

    def visit_between(self, expr: Any, lower: Any, upper: Any) -> Any:
        return self.node("between", [expr, lower, upper])

    def visit_is_in(self, expr: Any, items: list[Any]) -> Any:
        return self.node("is_in", [expr, *items])

    def visit_is_null(self, expr: Any) -> Any:
        return self.node("is_null", [expr])

    def visit_not_null(self, expr: Any) -> Any:
        return self.node("not_null", [expr])


def flat(args: Iterable[Any]) -> Iterable[Any]:
    """Arguments one by one: Daft hands lists (of ``is_in`` items) over as they are."""
    for arg in args:
        if isinstance(arg, (list, tuple)):
            yield from flat(arg)
        elif isinstance(arg, Expression):
            yield arg


class _Columns(Walk):
    """Names of the columns that an expression reads."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def visit_col(self, name: str) -> set[str]:
        return {name}

    def node(self, name: str, args: list[Any]) -> set[str]:  # noqa: ARG002
        return set().union(*(self.visit(arg) for arg in flat(args)))

    def closed(self, expr: Expression) -> set[str]:
        """Those without which it does not resolve."""
        frame = empty_frame(self._columns)
        if not _resolves(frame, expr):
            return set()
        return {name for name in frame.column_names if not _resolves(frame.exclude(name), expr)}


def _resolves(frame: Any, expr: Expression) -> bool:
    try:
        frame.select(expr)
    except Exception:  # noqa: BLE001 - Daft's own class for this is private
        return False
    return True


class _BareColumns(_Columns):
    """Columns used otherwise than directly inside a null test."""

    def node(self, name: str, args: list[Any]) -> set[str]:
        parts = list(flat(args))
        if name in ("is_null", "not_null") and len(parts) == 1 and parts[0].is_column():
            return set()
        return super().node(name, args)


class _Conjuncts(Walk):
    def node(self, name: str, args: list[Any]) -> list[Expression] | None:
        if name != "and":
            return None
        return [part for arg in flat(args) for part in conjuncts(arg)]

    def closed(self, expr: Expression) -> None:  # noqa: ARG002
        return None


def columns_of(predicate: Expression, columns: Columns) -> set[str]:
    """Names of the columns that an expression over ``columns`` reads, existing or not."""
    return set(_Columns(columns).visit(predicate))


def columns_beyond_null_tests(predicate: Expression, columns: Columns) -> set[str]:
    """Those of `columns_of` whose values matter, not only whether they are null."""
    return set(_BareColumns(columns).visit(predicate))


def conjuncts(predicate: Expression) -> list[Expression]:
    """The parts of a predicate that are joined by AND at its top."""
    return _Conjuncts().visit(predicate) or [predicate]
