"""Random expressions over a table's columns, each of which can say what it is in Daft, in SQL and in plain Python.

The Python side knows nothing of Daft. Its rules: SQL's three-valued logic, with None for unknown; NaN equals NaN and is
greater than every number; integers are compared with floats as floats. Where Daft itself is known to break them, whatever
the source (``tests/upstream/test_expressions.py`` shows each case), evaluation raises `KnownFault` and the query is drawn
again.
"""

from __future__ import annotations

import functools
import math
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from tests.lake_tables import KINDS, Row, State, kind_of

NUMBERS = frozenset({"int", "float", "dec", "big"})
COMPARABLE = NUMBERS | {"date", "ts", "tz", "str", "bool", "bin"}
_EPOCH = datetime(1970, 1, 1)
_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


class KnownFault(Exception):
    """Daft itself is wrong about this value."""


class NoSql(Exception):
    """This can't be said in Daft's SQL."""


class Expr:
    """A node: ``family`` says what it compares with; `of` evaluates it for one row."""

    family: str

    def of(self, row: Row) -> Any:
        raise NotImplementedError

    def daft(self) -> Any:
        raise NotImplementedError

    def sql(self) -> str:
        raise NoSql

    def columns(self) -> set[str]:
        raise NotImplementedError


@dataclass(frozen=True)
class Column(Expr):
    name: str
    family: str

    def of(self, row: Row) -> Any:
        return row[self.name]

    def daft(self) -> Any:
        from daft import col

        return col(self.name)

    def sql(self) -> str:
        if not self.name.isidentifier():
            raise NoSql
        return self.name

    def columns(self) -> set[str]:
        return {self.name}


@dataclass(frozen=True)
class Literal(Expr):
    value: Any
    family: str

    def of(self, row: Row) -> Any:
        return self.value

    def python(self) -> Any:
        """The object that a user would write."""
        if self.value is None or self.family not in {"ts", "tz"}:
            return self.value
        naive = _EPOCH + timedelta(microseconds=self.value // 1000)
        return naive if self.family == "ts" else naive.replace(tzinfo=timezone.utc).astimezone(timezone(timedelta(hours=8)))

    def daft(self) -> Any:
        from daft import lit

        return lit(self.python())

    def sql(self) -> str:
        value = self.value
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int) and self.family == "int":
            return str(value)
        if isinstance(value, float) and math.isfinite(value):
            return repr(value)
        if isinstance(value, str):
            return "'" + value.replace("'", "''") + "'"
        if isinstance(value, date) and value.year >= 1000:
            return f"date '{value.isoformat()}'"
        raise NoSql

    def columns(self) -> set[str]:
        return set()


@dataclass(frozen=True)
class Arithmetic(Expr):
    op: str
    left: Expr
    right: Expr
    family: str

    def of(self, row: Row) -> Any:
        a, b = self.left.of(row), self.right.of(row)
        if a is None or b is None:
            return None
        if self.family == "float":
            a, b = float(a), float(b)
            result = a / b if self.op == "/" else _OPERATORS[self.op](a, b)
            if math.isnan(result) and not (math.isnan(a) or math.isnan(b)):
                raise KnownFault("a NaN from arithmetic has its sign set and is less than every number")
            return result
        result = math.fmod(a, b) if self.op == "%" else _OPERATORS[self.op](a, b)
        return int(result) if self.family == "int" else result

    def daft(self) -> Any:
        return _OPERATORS[self.op](self.left.daft(), self.right.daft())

    def sql(self) -> str:
        if self.family == "str":
            raise NoSql
        return f"({self.left.sql()} {self.op} {self.right.sql()})"

    def columns(self) -> set[str]:
        return self.left.columns() | self.right.columns()


@dataclass(frozen=True)
class Compare(Expr):
    op: str
    left: Expr
    right: Expr
    family: str = "bool"

    def of(self, row: Row) -> bool | None:
        sign = order(self.left.of(row), self.right.of(row), self.left.family)
        return None if sign is None else bool(_OPERATORS[self.op](sign, 0))

    def daft(self) -> Any:
        left, right = self.left, self.right
        if isinstance(right, Literal) and right.value is not None:  # as it is usually written, without lit()
            return _OPERATORS[self.op](left.daft(), right.python())
        return _OPERATORS[self.op](left.daft(), right.daft())

    def sql(self) -> str:
        return f"({self.left.sql()} {'=' if self.op == '==' else self.op} {self.right.sql()})"

    def columns(self) -> set[str]:
        return self.left.columns() | self.right.columns()


@dataclass(frozen=True)
class Between(Expr):
    value: Expr
    low: Expr
    high: Expr
    family: str = "bool"

    def of(self, row: Row) -> bool | None:
        value, low, high = self.value.of(row), self.low.of(row), self.high.of(row)
        return both([_at_most(order(low, value, self.value.family)), _at_most(order(value, high, self.value.family))])

    def daft(self) -> Any:
        low, high = (b.python() if isinstance(b, Literal) else b.daft() for b in (self.low, self.high))
        return self.value.daft().between(low, high)

    def sql(self) -> str:
        return f"({self.value.sql()} BETWEEN {self.low.sql()} AND {self.high.sql()})"

    def columns(self) -> set[str]:
        return self.value.columns() | self.low.columns() | self.high.columns()


@dataclass(frozen=True)
class IsIn(Expr):
    value: Expr
    items: tuple[Literal, ...]
    family: str = "bool"

    def of(self, row: Row) -> bool | None:
        value = self.value.of(row)
        signs = [order(value, item.value, self.value.family) for item in self.items]
        return either([None if sign is None else sign == 0 for sign in signs])

    def daft(self) -> Any:
        return self.value.daft().is_in([item.python() for item in self.items])

    def sql(self) -> str:
        if not self.items:
            raise NoSql
        return f"({self.value.sql()} IN ({', '.join(item.sql() for item in self.items)}))"

    def columns(self) -> set[str]:
        return self.value.columns()


@dataclass(frozen=True)
class Text(Expr):
    op: str
    value: Expr
    part: str
    family: str = "bool"

    def of(self, row: Row) -> bool | None:
        value = self.value.of(row)
        if value is None:
            return None
        tests: dict[str, Callable[[str], bool]] = {
            "startswith": value.startswith,
            "endswith": value.endswith,
            "contains": value.__contains__,
        }
        return tests[self.op](self.part)

    def daft(self) -> Any:
        return getattr(self.value.daft(), self.op)(self.part)

    def sql(self) -> str:
        if self.part.isalnum() and self.op == "startswith":
            return f"({self.value.sql()} LIKE '{self.part}%')"
        name = {"startswith": "starts_with", "endswith": "ends_with", "contains": "contains"}[self.op]
        return f"{name}({self.value.sql()}, {Literal(self.part, 'str').sql()})"

    def columns(self) -> set[str]:
        return self.value.columns()


@dataclass(frozen=True)
class IsNull(Expr):
    value: Expr
    negated: bool
    family: str = "bool"

    def of(self, row: Row) -> bool:
        return (self.value.of(row) is None) != self.negated

    def daft(self) -> Any:
        return self.value.daft().not_null() if self.negated else self.value.daft().is_null()

    def sql(self) -> str:
        return f"({self.value.sql()} IS {'NOT ' if self.negated else ''}NULL)"

    def columns(self) -> set[str]:
        return self.value.columns()


@dataclass(frozen=True)
class Logic(Expr):
    op: str
    parts: tuple[Expr, ...]
    family: str = "bool"

    def of(self, row: Row) -> bool | None:
        values = [part.of(row) for part in self.parts]
        if self.op == "not":
            return None if values[0] is None else not values[0]
        if self.op == "xor":
            return None if None in values else values[0] is not values[1]
        return both(values) if self.op == "and" else either(values)

    def daft(self) -> Any:
        parts = [part.daft() for part in self.parts]
        if self.op == "not":
            return ~parts[0]
        if self.op == "xor":
            return parts[0] ^ parts[1]
        return parts[0] & parts[1] if self.op == "and" else parts[0] | parts[1]

    def sql(self) -> str:
        if self.op == "xor":
            raise NoSql
        if self.op == "not":
            return f"(NOT {self.parts[0].sql()})"
        return f"({f' {self.op.upper()} '.join(part.sql() for part in self.parts)})"

    def columns(self) -> set[str]:
        return set().union(*(part.columns() for part in self.parts))


@dataclass(frozen=True)
class SameOrBothNull(Expr):
    """``<=>``."""

    left: Expr
    right: Expr
    family: str = "bool"

    def of(self, row: Row) -> bool:
        a, b = self.left.of(row), self.right.of(row)
        return (a is None) == (b is None) and order(a, b, self.left.family) in {0, None}

    def daft(self) -> Any:
        return self.left.daft().eq_null_safe(self.right.daft())

    def columns(self) -> set[str]:
        return self.left.columns() | self.right.columns()


@dataclass(frozen=True)
class Made(Expr):
    """A value that storage knows nothing of: a field, a default for null, a length, a Python function."""

    op: str
    value: Expr
    family: str
    default: Any = None

    def of(self, row: Row) -> Any:
        value = self.value.of(row)
        if self.op == "fill_null":
            return self.default if value is None else value
        if value is None:
            return None
        if self.op == "alias":
            return value
        if self.op == "field":
            return value["x"]
        return len(value) if self.op == "length" else value % 2 == 0

    def daft(self) -> Any:
        value = self.value.daft()
        if self.op == "fill_null":
            return value.fill_null(Literal(self.default, self.value.family).python())
        if self.op == "even":
            return is_even()(value)
        if self.op == "field":
            return value.get("x")
        return value.length() if self.op == "length" else value.alias("other")

    def columns(self) -> set[str]:
        return self.value.columns()


@functools.cache
def is_even() -> Any:
    """A Python function inside a predicate."""
    import daft

    def even(number: int) -> bool | None:
        return None if number is None else number % 2 == 0

    return daft.func(even, return_dtype=daft.DataType.bool())


# --- evaluation ------------------------------------------------------------------------------------------------------------

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}


def both(values: Sequence[bool | None]) -> bool | None:
    """AND."""
    return False if False in values else None if None in values else True


def either(values: Sequence[bool | None]) -> bool | None:
    """OR."""
    return True if True in values else None if None in values else False


def _at_most(sign: int | None) -> bool | None:
    return None if sign is None else sign <= 0


def order(a: Any, b: Any, family: str) -> int | None:
    """-1, 0 or 1: how ``a`` compares with ``b``, values of a family; None when either is null.

    Raises:
        KnownFault: where Daft's own answer is another.
    """
    if a is None or b is None:
        return None
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) - math.isnan(b)
        if a == b == 0 and math.copysign(1, a) != math.copysign(1, b):
            raise KnownFault("-0.0 is less than 0.0")
    elif family in {"ts", "tz"} and a != b and abs(a - b) < 1000:
        raise KnownFault("nanoseconds are cut off")
    return int(a > b) - int(a < b)


def sort_key(value: Any, *, descending: bool) -> tuple[Any, ...]:
    """Ascending: nulls last, NaN before them; descending: the other way round."""
    rank = 2 if value is None else 1 if isinstance(value, float) and math.isnan(value) else 0
    if rank:
        return (-rank if descending else rank, 0)
    if isinstance(value, bool):
        value = int(value)
    return (0, _Reversed(value) if descending else value)


class _Reversed:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]


# --- drawing ---------------------------------------------------------------------------------------------------------------


class Drawer:
    """Draws expressions over the columns of a state that ``rng`` makes likely to meet some rows and miss others."""

    def __init__(self, rng: random.Random, state: State, *, own: bool = False) -> None:
        self.rng = rng
        self.own = own  # for our evaluation, which is right where Daft's is not
        self.beyond_daft = False
        self.rows: Sequence[Row] = state.rows
        self.columns = [Column(name, kind_of(name).family) for name in state.schema.names]

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
        if self.rng.random() < 0.05 and default.family == column.family:
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
        op = self.rng.choice(tuple(_SWAPPED))
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
        if value.family in {"ts", "tz"}:  # Daft cuts a literal to the column's unit; the literal itself holds microseconds
            found -= found % (10**6 if any(name.startswith(("ms", "mz", "pz")) for name in value.columns()) else 10**3)
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


__all__ = ["KINDS", "Column", "Drawer", "Expr", "KnownFault", "Literal", "NoSql", "order", "sort_key", "to_daft"]
