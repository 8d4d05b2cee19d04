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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any

from tests.lake_values import Row

NUMBERS = frozenset({"int", "float", "dec", "big"})
COMPARABLE = NUMBERS | {"date", "ts", "tz", "str", "bool", "bin"}
_EPOCH = datetime(1970, 1, 1)
ORDERINGS = ("<", "<=", ">", ">=", "==", "!=")


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
        held = [part for value in vars(self).values() for part in (value if isinstance(value, tuple) else (value,))]
        return set().union(*(part.columns() for part in held if isinstance(part, Expr)))


@dataclass(frozen=True)
class Column(Expr):
    name: str
    family: str
    own: bool = False  # evaluated by us, who take -0.0 for 0.0, and not by a frame's filter

    def of(self, row: Row) -> Any:
        value = row[self.name]
        return value + 0.0 if self.own and isinstance(value, float) else value

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
