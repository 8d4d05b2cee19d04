"""Draws expressions that are likely to meet some rows of a table and to miss others."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from tests.lake_expressions import (
    COMPARABLE,
    NUMBERS,
    ORDERINGS,
    Arithmetic,
    Between,
    Column,
    Compare,
    Expr,
    IsIn,
    IsNull,
    KnownFault,
    Literal,
    Logic,
    Made,
    NoSql,
    SameOrBothNull,
    Text,
)
from tests.lake_tables import State
from tests.lake_values import KINDS, Row, kind_of


class Drawer:
    """Draws expressions over the columns of a state that ``rng`` makes likely to meet some rows and miss others."""

    def __init__(self, rng: random.Random, state: State, *, own: bool = False) -> None:
        self.rng = rng
        self.own = own  # for our evaluation, which is right where Daft's is not
        self.beyond_daft = False
        self.rows: Sequence[Row] = state.rows
        self.columns = [Column(name, kind_of(name).family, own) for name in state.schema.names]

    def predicate(self, depth: int = 2) -> Expr:
        """A condition; and, or and not nested up to ``depth``."""
        roll = self.rng.random()
        if depth and roll < 0.5:
            op = self.rng.choice(("and", "and", "or", "or", "not", "xor"))
            return Logic(op, tuple(self.predicate(depth - 1) for _ in range(1 if op == "not" else 2)))
        if roll > 0.9:
            return IsNull(self.rng.choice(self.columns), self.rng.random() < 0.5)
        if roll > 0.88:
            return Literal(self.rng.random() < 0.7, "bool")
        value = self.value()
        if value.family == "int" and self.rng.random() < 0.05:
            return Made("even", value, "bool")
        kinds = [self.compared, self.compared, self.compared, self.between, self.between, self.is_in, self.is_in, self.same]
        if value.family == "str":
            kinds += [self.text, self.text]
        if value.family == "bool" and self.rng.random() < 0.4:
            return value
        return self.rng.choice(kinds)(value)

    def value(self) -> Expr:
        """A column that can be compared, or arithmetic on one."""
        column = self.rng.choice([column for column in self.columns if column.family in COMPARABLE | {"struct", "list"}])
        if column.family in {"struct", "list"}:
            return Made("field" if column.family == "struct" else "length", column, "int")
        if self.rng.random() < 0.05:
            return Made("alias", column, column.family)
        default = self.literal(column)
        if self.rng.random() < 0.05 and default.family == column.family and not column.name.startswith("ns"):
            return Made("fill_null", column, column.family, default.value)
        if self.rng.random() > 0.25 or column.family not in {"int", "float", "dec", "str"}:
            return column
        return self.computed(column)

    def computed(self, column: Column) -> Expr:
        """Arithmetic on a column, perhaps with another one."""
        rng = self.rng
        if column.family == "str":
            return Arithmetic("+", column, Literal(rng.choice(("", "x", "é")), "str"), "str")
        if column.family == "dec":
            return Arithmetic(rng.choice("+-"), column, Literal(rng.randrange(-3, 4), "int"), "dec")
        if column.family == "float":
            # Daft adds small integers to a float32 as float32.
            others = [c for c in self.columns if c.name[0] in "ik" and c.family == "int"]
            literal = Literal(rng.choice((0.5, 1.5, 3.0)), "float")
            return Arithmetic(rng.choice("+-*"), column, rng.choice([literal, *others]), "float")
        op = rng.choice("+-*/%")
        if op in "/%":
            return Arithmetic(op, column, Literal(rng.choice((2, 3, 7)), "int"), "float" if op == "/" else "int")
        other = Literal(rng.randrange(-3, 4), "int")
        return Arithmetic(op, column, other if op == "*" else rng.choice([other, *self.of_family({"int"})]), "int")

    def of_family(self, families: frozenset[str] | set[str]) -> list[Column]:
        return [column for column in self.columns if column.family in families]

    def compared(self, value: Expr) -> Expr:
        op = self.rng.choice(ORDERINGS)
        roll = self.rng.random()
        if roll < 0.2 and (others := self.others(value)):
            return Compare(op, value, self.rng.choice(others))
        literal = self.literal(value)
        return Compare(op, literal, value) if roll > 0.8 else Compare(op, value, literal)

    def others(self, value: Expr) -> list[Column]:
        """Columns that it may be compared with. Daft cuts nanoseconds off when it meets another unit."""
        families: dict[str, frozenset[str] | set[str]] = {
            "int": frozenset(NUMBERS),
            "float": {"int", "float"},
            "big": {"int", "big"},
        }
        fine = [c for c in self.of_family(families.get(value.family, {value.family})) if not c.name.startswith("ns")]
        return fine if not any(name.startswith("ns") for name in value.columns()) else []

    def same(self, value: Expr) -> Expr:
        others = [column for column in self.others(value) if column.family == value.family]
        return SameOrBothNull(value, self.rng.choice(others) if others and self.rng.random() < 0.5 else self.literal(value))

    def between(self, value: Expr) -> Expr:
        low, high = self.literal(value), self.literal(value)
        others = [column for column in self.others(value) if column.family == value.family]
        if others and self.rng.random() < 0.15:
            return Between(value, low, self.rng.choice(others))
        if low.family == high.family != "float" and low.value > high.value and self.rng.random() < 0.9:
            low, high = high, low
        return Between(value, low, high)

    def is_in(self, value: Expr) -> Expr:
        # Daft refuses null as the first item and, like no items at all, beside dates, timestamps and booleans.
        picky = value.family not in {"int", "float", "str"}
        items = [self.literal(value) for _ in range(self.rng.choice((1 if picky else 0, 1, 2, 3, 8)))]
        if len({type(item.value) for item in items}) > 1:
            items = items[:1]
        if items and not picky and self.rng.random() < 0.15:
            items.insert(self.rng.randrange(1, len(items) + 1), Literal(None, value.family))
        if len(items) > 3 and any(item.value is None or item.value != item.value for item in items):
            if not self.own:  # Daft's own filters take null for false, and miss values beside NaN, in a long list
                items = items[:1]
            self.beyond_daft = True
        return IsIn(value, tuple(items))

    def text(self, value: Expr) -> Expr:
        whole = str(self.literal(value).value)
        start = self.rng.randrange(len(whole) + 1)
        return Text(
            self.rng.choice(("startswith", "endswith", "contains")), value, whole[start : start + self.rng.randrange(4)]
        )

    def literal(self, value: Expr) -> Literal:
        """One that the column itself holds, most of the time."""
        rng = self.rng
        found: Any = None
        if self.rows and rng.random() < 0.7:
            try:
                found = value.of(rng.choice(self.rows))
            except KnownFault:
                found = None
        if found is None:
            drawn = [kind for kind in KINDS.values() if kind.family == value.family]
            found = (
                rng.choice(drawn).draw(rng, rng.randrange(4))
                if rng.random() < 0.5 or value.family != "int"
                else rng.randrange(200)
            )
        roll = rng.random()
        if value.family == "int" and roll < 0.15:
            return Literal(float(found) + rng.choice((0.0, 0.5)), "float")
        if value.family == "dec":
            if roll < 0.15:
                return Literal(int(found), "int") if roll < 0.07 else Literal(float(found), "float")
            return Literal(found.quantize(Decimal("0.01")), "dec")
        if value.family in {"ts", "tz"}:  # a literal holds microseconds; in frames Daft cuts it to the column's unit
            coarse = any(name.startswith(("ms", "mz", "pz")) for name in value.columns())
            found -= found % (10**6 if coarse and not self.own else 10**3)
            self.beyond_daft = self.beyond_daft or (coarse and found % 10**6 != 0)
        if isinstance(found, float) and math.isnan(found):
            found = math.nan  # without a sign, as it is usually written
        if value.family == "float" and roll < 0.1 and math.isfinite(found) and found == int(found) and abs(found) < 10**6:
            return Literal(int(found), "int")
        return Literal(found, value.family)


def to_daft(expr: Expr, rng: random.Random) -> Any:
    """The expression as Daft's own, or as SQL text where it can be said so."""
    if rng.random() < 0.35:
        try:
            return expr.sql()
        except NoSql:
            pass
    return expr.daft()
