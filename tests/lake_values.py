"""Kinds of columns of a random table, their values, and how values of Arrow and of the model become each other.

A model's values are plain: int, float, bool, str, bytes, date and Decimal; a timestamp is its nanoseconds since 1970, a time
of day its microseconds, a BLOB its bytes.
"""

from __future__ import annotations

import math
import random
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

NAN = math.nan
# What x86 makes of 0.0 / 0.0, and numpy with it: a NaN whose sign bit is set.
NEGATIVE_NAN: float = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0000))[0]
_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_NS = 86_400 * 10**9

Row = dict[str, Any]


def plain(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Arrow values as plain ones."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        return [None if v is None else v * _NS[kind.unit] for v in array.cast(pa.int64()).to_pylist()]
    if pa.types.is_time32(kind):
        return [None if v is None else v * 1000 for v in array.cast(pa.int32()).to_pylist()]
    if pa.types.is_time64(kind):
        return [None if v is None else v // (_NS["us"] // _NS[kind.unit]) for v in array.cast(pa.int64()).to_pylist()]
    return list(array.to_pylist())


def arrow(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Plain values as Arrow ones."""
    if pa.types.is_timestamp(kind):
        return pa.array([None if v is None else v // _NS[kind.unit] for v in values], pa.int64()).cast(kind)
    if pa.types.is_time32(kind):
        return pa.array([None if v is None else v // 1000 for v in values], pa.int32()).cast(kind)
    return pa.array(values, kind)


def frozen(value: Any) -> Any:
    """A value that hashes, and equals another exactly when nothing tells them apart: NaN is NaN, -0.0 is not 0.0, 1 not 1.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else ("float", value, math.copysign(1, value))
    if isinstance(value, (list, tuple)):
        return ("list", *map(frozen, value))
    if isinstance(value, dict):
        return ("struct", *((name, frozen(part)) for name, part in value.items()))
    return (type(value).__name__, value)


def _f32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0]) if math.isfinite(value) else value


_FLOATS = (NAN, NEGATIVE_NAN, math.inf, -math.inf, -0.0, 0.0, 0.1, 1.5, -2.25, 3.0, 1e30, -7.0)
_TEXTS = ("", "a", "A", "ab", "ba", "b%", "a_b", "é中文", "🙂", "it's", 'q"', "a\nb", " lead", "Z" * 60, "%")
_ODDKEYS = (
    "",
    "a/b",
    "a=b",
    "100%",
    "x y",
    "é中文",
    "__DEFAULT_PARTITION__",
    "..",
    "a:b",
    "it's",
    "%2F",
    "NULL",
    "A",
    "a",
    "#?",
)
_DATES = (date(1, 1, 1), date(1960, 2, 29), date(1970, 1, 1), date(2020, 1, 1), date(2020, 1, 2), date(9999, 12, 31))

Draw = Callable[[random.Random, int], Any]


def _instant(unit: str) -> Draw:
    def draw(rng: random.Random, commit: int) -> int:
        if rng.random() < 0.3:
            return rng.choice((-1, 0, 1, -3653)) * _DAY_NS
        value = commit * 20 * _DAY_NS + rng.randrange(10 * _DAY_NS)
        return value // _NS[unit] * _NS[unit]

    return draw


def _decimal(rng: random.Random, commit: int) -> Decimal:
    return rng.choice((Decimal("0.00"), Decimal("99999999.99"), Decimal(rng.randrange(-500, 500)).scaleb(-2) + commit))


@dataclass(frozen=True)
class Kind:
    """How a column is declared and drawn. ``family`` says what it compares with."""

    family: str
    type: pa.DataType
    draw: Draw


def _nested(rng: random.Random, commit: int) -> dict[str, Any]:
    return {"x": rng.choice((None, commit, -commit)), "y": rng.choice((None, *_TEXTS))}


KINDS: dict[str, Kind] = {
    "i": Kind("int", pa.int64(), lambda r, c: r.choice((0, 1, 10**12, r.randrange(-5, 10) + 5 * c))),
    "j": Kind("int", pa.int32(), lambda r, c: r.choice((0, 1_000_000, r.randrange(-9, 9) * (c + 1)))),
    "h": Kind("int", pa.int16(), lambda r, c: r.choice((0, 4_000, r.randrange(-9, 9) * (c + 1)))),
    "y": Kind("int", pa.int8(), lambda r, c: r.randrange(-9, 9) * min(c, 2)),
    "big": Kind("big", pa.int64(), lambda r, c: r.choice((-(2**63), 2**63 - 1, 2**53 + 1, 0, c))),
    "f": Kind("float", pa.float64(), lambda r, c: r.choice((r.choice(_FLOATS), r.randrange(-40, 40) / 8 + c))),
    "g": Kind("float", pa.float32(), lambda r, c: _f32(r.choice((r.choice(_FLOATS), r.randrange(-40, 40) / 10 + c)))),
    "s": Kind("str", pa.string(), lambda r, c: r.choice((r.choice(_TEXTS), f"c{c}-{r.randrange(9)}"))),
    "s2": Kind("str", pa.string(), lambda r, c: r.choice(_TEXTS)),
    "d": Kind("date", pa.date32(), lambda r, c: r.choice((r.choice(_DATES), date(2024, 1 + c % 12, r.randrange(1, 28))))),
    "ms": Kind("ts", pa.timestamp("ms"), _instant("ms")),
    "us": Kind("ts", pa.timestamp("us"), _instant("us")),
    "ns": Kind("ts", pa.timestamp("ns"), _instant("ns")),
    "uz": Kind("tz", pa.timestamp("us", "UTC"), _instant("us")),
    "mz": Kind("tz", pa.timestamp("ms", "UTC"), _instant("ms")),
    "dec": Kind("dec", pa.decimal128(10, 2), _decimal),
    "wide": Kind("other", pa.decimal128(38, 10), lambda r, c: Decimal(r.randrange(-(10**30), 10**30)).scaleb(-10)),
    "b": Kind("bool", pa.bool_(), lambda r, c: r.random() < 0.5),
    "bin": Kind("bin", pa.binary(), lambda r, c: r.choice((b"", b"a", b"\xff\x00", b"ab", bytes([c])))),
    "t": Kind("other", pa.time32("ms"), lambda r, c: r.randrange(86_400_000) * 1000),
    "l": Kind("list", pa.list_(pa.int64()), lambda r, c: [r.choice((None, c, 7)) for _ in range(r.randrange(4))]),
    "lf": Kind("other", pa.list_(pa.float64()), lambda r, c: [r.choice((None, *_FLOATS)) for _ in range(r.randrange(4))]),
    "st": Kind("struct", pa.struct([("x", pa.int64()), ("y", pa.string())]), _nested),
    "m": Kind(
        "other", pa.map_(pa.string(), pa.int32()), lambda r, c: [(f"k{i}", r.choice((None, c))) for i in range(r.randrange(3))]
    ),
    "vec": Kind("other", pa.list_(pa.float32(), 3), lambda r, c: [float(c), _f32(0.1), r.choice((0.0, 1.0))]),
    "p": Kind("str", pa.string(), lambda r, c: r.choice(_ODDKEYS)),
    "q": Kind("int", pa.int32(), lambda r, c: r.choice((-1, 0, c))),
    "pd": Kind("date", pa.date32(), lambda r, c: r.choice(_DATES[1:4])),
    "pb": Kind("bool", pa.bool_(), lambda r, c: r.random() < 0.5),
    "pf": Kind("float", pa.float64(), lambda r, c: r.choice((0.5, -1.0, math.inf))),
    "pt": Kind("ts", pa.timestamp("us"), lambda r, c: r.choice((-1, 0, 1_700_000_000_000_000)) * 1000),
    "pz": Kind("tz", pa.timestamp("ms", "UTC"), lambda r, c: r.choice((-1, 0, 1_700_000_000_000)) * 10**6),
    "pc": Kind("dec", pa.decimal128(10, 2), lambda r, c: r.choice((Decimal("0.00"), Decimal("-1.50"), Decimal("12.00")))),
}
BLOB = Kind(
    "blob", pa.large_binary(), lambda r, c: r.choice((b"", bytes([c]) * r.randrange(40), r.randbytes(r.randrange(300))))
)
KEY = Kind("int", pa.int64(), lambda r, c: 0)  # column k: the number of a row, never null
KEYS = ("p", "p", "q", "pd", "pb", "pf", "pt", "pz", "pc")
SCALARS = tuple(name for name in KINDS if name not in KEYS)
_BASE = re.compile(r"(?:late_)?([a-z0-9]+)")


def kind_of(name: str) -> Kind:
    """A column's kind, from its name: ``late_i`` and ``i x`` are ``i``."""
    match = _BASE.match(name)
    assert match is not None, name
    return KEY if name == "k" else KINDS.get(match[1], BLOB)
