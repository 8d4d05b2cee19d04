"""Random Daft chains on a table's frame, each step of which is also done on a plain list of rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pyarrow as pa
from daft import DataFrame, col, from_arrow

import lakehouse as lh
from tests.lake_drawing import Drawer, to_daft
from tests.lake_expressions import Column, KnownFault, sort_key
from tests.lake_tables import State
from tests.lake_values import Row, arrow, frozen, kind_of

# What Daft can group by, join on, sort by and tell apart. It hangs when it joins on binary and fails to sort it.
_KEYS = frozenset({"int", "str", "date", "ts", "tz", "dec", "bool", "float"})
_JOINED = frozenset({"int", "str", "date", "bool"})


@dataclass
class Chain:
    """A frame and what it must hold.

    Attributes:
        families: column to family, in the frame's order; a BLOB column that was read is ``bytes``.
        sorted_by: columns and directions, when the rows come in an order.
        subset: how many rows of ``rows`` come, when any may; None: all of them.
    """

    frame: DataFrame
    rows: list[Row]
    families: dict[str, str]
    text: str
    sorted_by: list[tuple[str, bool]] = field(default_factory=list)
    subset: int | None = None


class ChainDrawer:
    """Draws chains on the frame of one snapshot."""

    def __init__(self, rng: random.Random, state: State, snapshot: lh.Snapshot, earlier: tuple[State, lh.Snapshot]) -> None:
        self.rng = rng
        self.state = state
        self.snapshot = snapshot
        self.earlier = earlier
        self.drawer = Drawer(rng, state)

    def chain(self) -> Chain:
        """Filters, a computed column, bytes of a BLOB and the like, then what ends a query.

        Raises:
            KnownFault: Daft itself would be wrong.
        """
        self.begin()
        steps: list[Callable[[], None]] = [self.where, self.where, self.with_column, self.read_bytes, self.keep_all, self.first]
        for step in self.rng.sample(steps, self.rng.randrange(len(steps))):
            step()
        last = [
            self.select,
            self.sort,
            self.group,
            self.join,
            self.distinct,
            self.limit,
            self.total,
            self.concat,
            self.versions,
        ]
        self.rng.choice([*last, self.select, self.compute, self.compute, self.sort])()
        if self.at.text.count(".even-") > 1:
            raise KnownFault("filters that call two Python functions are lost")
        return self.at

    def begin(self) -> None:
        """The snapshot's frame: whole, of some columns, or a query's."""
        names = list(self.state.schema.names)
        rows = [dict(row) for row in self.state.rows]
        frame, text = self.snapshot.daft(), "snap.daft()"
        roll = self.rng.random()
        if roll < 0.3:
            self.rng.shuffle(names)
            names = sorted([*names[: self.rng.randrange(3, len(names))], "k"], key=names.index)
            names = list(dict.fromkeys(names))
        if roll < 0.15:
            frame, text = self.snapshot.daft(columns=names), f"snap.daft(columns={names})"
        elif roll < 0.3:
            expr = self.drawer.predicate()
            predicate, n = to_daft(expr, self.rng), self.rng.choice((3, 20, 1000))
            query = self.snapshot.query().where(predicate).limit(n).select(*names)
            frame, text, rows = query.daft(), f"{query}.daft()", [row for row in rows if expr.of(row) is True][:n]
        self.drawer.columns = [column for column in self.drawer.columns if column.name in names]
        self.drawer.rows = rows
        self.at = Chain(frame, rows, {name: kind_of(name).family for name in names}, text)

    # --- in between ------------------------------------------------------------------------------------------------------

    def where(self) -> None:
        expr = self.drawer.predicate()
        predicate = to_daft(expr, self.rng)
        self.at.frame = self.at.frame.where(predicate)
        self.drawer.rows = self.at.rows = [row for row in self.at.rows if expr.of(row) is True]
        self.at.text += f".where({predicate!s})"

    def with_column(self) -> None:
        columns = self.drawer.of_family({"int", "float", "dec", "str"})
        expr = self.drawer.computed(self.rng.choice(columns)) if self.rng.random() < 0.6 else self.drawer.predicate(1)
        self.at.frame = self.at.frame.with_column("made", expr.daft())
        for row in self.at.rows:
            row["made"] = expr.of(row)
        self.at.families["made"] = expr.family
        self.drawer.columns.append(Column("made", expr.family))
        self.at.text += f".with_column('made', {expr.daft()})"

    def read_bytes(self) -> None:
        blobs = [name for name, family in self.at.families.items() if family == "blob"]
        if not blobs:
            return
        name = self.rng.choice(blobs)
        made = f"bytes of {name}"
        self.at.frame = self.at.frame.with_column(made, self.snapshot.bytes(name))
        for row in self.at.rows:
            row[made] = row[name]
        self.at.families[made] = "bytes"
        self.at.text += f".with_column({made!r}, snap.bytes({name!r}))"

    def first(self) -> None:
        """A limit in the middle: what comes after must not move before it."""
        n = self.rng.choice((2, 8, 30))
        down = self.rng.random() < 0.5
        self.at.frame = self.at.frame.sort("k", desc=down).limit(n)
        self.drawer.rows = self.at.rows = sorted(self.at.rows, key=lambda row: int(row["k"]), reverse=down)[:n]
        self.at.text += f".sort('k', desc={down}).limit({n})"

    def keep_all(self) -> None:
        """A select that keeps every column, in another order."""
        names = list(self.at.families)
        self.rng.shuffle(names)
        self.kept(names)

    # --- at the end ------------------------------------------------------------------------------------------------------

    def kept(self, names: list[str]) -> None:
        self.at.frame = self.at.frame.select(*names)
        self.at.families = {name: self.at.families[name] for name in names}
        self.at.text += f".select{tuple(names)}"

    def some(self, families: frozenset[str] | None = None, most: int = 5) -> list[str]:
        names = [n for n, family in self.at.families.items() if families is None or family in families]
        return self.rng.sample(names, min(len(names), self.rng.randrange(1, most + 1)))

    def select(self) -> None:
        self.kept(self.some())

    def compute(self) -> None:
        """A select of columns, expressions and bytes, mixed."""
        names = self.some(most=3)
        parts: list[tuple[str, str, Any, Callable[[Row], Any]]] = [
            (n, self.at.families[n], col(n), itemgetter(n)) for n in names
        ]
        for n in range(self.rng.randrange(1, 3)):
            expr = self.drawer.value() if self.rng.random() < 0.7 else self.drawer.predicate(0)
            parts.append((f"e{n}", expr.family, expr.daft().alias(f"e{n}"), expr.of))
        blobs = [name for name, family in self.at.families.items() if family == "blob"]
        if blobs and self.rng.random() < 0.5:
            blob = self.rng.choice(blobs)
            parts.append(("read", "bytes", self.snapshot.bytes(blob).alias("read"), itemgetter(blob)))
        self.rng.shuffle(parts)
        self.at.frame = self.at.frame.select(*[part for _, _, part, _ in parts])
        self.at.rows = [{name: value(row) for name, _, _, value in parts} for row in self.at.rows]
        self.at.families = {name: family for name, family, _, _ in parts}
        self.at.text += f".select({', '.join(str(part) for _, _, part, _ in parts)})"

    def concat(self) -> None:
        """The rows twice, filtered differently."""
        self.kept(list(dict.fromkeys([*self.some(), "k"])))
        base, rows, text = self.at.frame, self.at.rows, self.at.text
        k = self.rng.randrange(100)
        self.at.frame = base.where(col("k") < k).concat(base.where(col("k") > k // 2))
        self.at.rows = [row for row in rows if row["k"] < k] + [row for row in rows if row["k"] > k // 2]
        self.at.text = f"{text} twice: k < {k}, k > {k // 2}"

    def versions(self) -> None:
        """A join with another version of the same table."""
        state, snapshot = self.earlier
        name = self.rng.choice(state.schema.names)
        other = snapshot.daft().select(col("k"), col(name).alias("then"))
        held = {row["k"]: row[name] for row in state.rows}
        self.at.frame = self.at.frame.join(other, on="k")
        self.at.rows = [row | {"then": held[row["k"]]} for row in self.at.rows if row["k"] in held]
        self.at.families["then"] = kind_of(name).family
        self.at.text += f" joined on k with {name} at snapshot {state.snapshot}"
        self.kept(list(dict.fromkeys(["then", *self.some()])))

    def sort(self) -> None:
        names = self.some(_KEYS, 2)
        total = self.rng.random() < 0.6
        if total and "k" not in names:
            names.append("k")
        down = [self.rng.random() < 0.5 for _ in names]
        self.at.frame = self.at.frame.sort(names, desc=down)
        for name, descending in reversed(list(zip(names, down, strict=True))):
            self.at.rows.sort(key=lambda row: sort_key(row[name], descending=descending))
        self.at.sorted_by = list(zip(names, down, strict=True))
        self.at.text += f".sort({names}, desc={down})"
        if total and self.rng.random() < 0.5:
            n = self.rng.choice((0, 1, 3, 10))
            self.at.frame, self.at.rows = self.at.frame.limit(n), self.at.rows[:n]
            self.at.text += f".limit({n})"
        if self.rng.random() < 0.7:
            self.kept(self.some())

    def limit(self) -> None:
        n = self.rng.choice((0, 1, 2, 7, 30))
        self.at.frame = self.at.frame.limit(n)
        self.at.subset = min(n, len(self.at.rows))
        self.at.text += f".limit({n})"
        if self.rng.random() < 0.7:
            self.kept(self.some())

    def distinct(self) -> None:
        self.kept(self.some(_KEYS | {"bin"}, 3))
        for name in self.at.families:
            _one_zero([row[name] for row in self.at.rows])
        self.at.frame = self.at.frame.distinct()
        self.at.rows = list({frozen([row[name] for name in self.at.families]): row for row in self.at.rows}.values())
        self.at.text += ".distinct()"

    def total(self) -> None:
        """One row of aggregates over everything."""
        self.aggregate([])

    def group(self) -> None:
        keys = self.some(_KEYS | {"bin"}, 2)
        for name in keys:
            _one_zero([row[name] for row in self.at.rows])
        self.aggregate(keys)

    def aggregate(self, keys: list[str]) -> None:
        aggregates: dict[str, tuple[str, str]] = {"n": ("count", "k")}
        for name in self.some(_KEYS, 3):
            kinds = ["count", "min", "max"] + (["sum", "sum"] if self.at.families[name] in {"int", "dec"} else [])
            aggregates[f"a_{name}"] = (self.rng.choice(kinds), name)
        expressions = [getattr(col(name), kind)().alias(made) for made, (kind, name) in aggregates.items()]
        self.at.frame = self.at.frame.groupby(*keys).agg(*expressions) if keys else self.at.frame.agg(*expressions)
        groups: dict[Any, list[Row]] = {} if keys else {frozen([]): []}
        for row in self.at.rows:
            groups.setdefault(frozen([row[name] for name in keys]), []).append(row)
        self.at.rows = [
            {name: rows[0][name] for name in keys}
            | {made: _aggregate(kind, [row[name] for row in rows]) for made, (kind, name) in aggregates.items()}
            for rows in groups.values()
        ]
        families = {name: self.at.families[name] for name in keys}
        self.at.families = families | {
            made: "int" if kind == "count" else self.at.families[name] for made, (kind, name) in aggregates.items()
        }
        self.at.text += f".groupby({keys}).agg({aggregates})"

    def join(self) -> None:
        key = self.rng.choice([name for name in self.at.families if self.at.families[name] in _JOINED and name != "made"])
        values = [self.drawer.literal(Column(key, self.at.families[key])) for _ in range(self.rng.randrange(1, 6))]
        kind = self.state.schema.field(key).type
        most = 2 ** (kind.bit_width - 1) - 1 if pa.types.is_integer(kind) else 0
        held = [
            v.value for v in values if v.family == self.at.families[key] and not (v.family == "int" and abs(v.value) > most)
        ]
        held += [None] if self.rng.random() < 0.3 else []
        held += held[:1] if self.rng.random() < 0.3 else []  # one twice: rows come twice
        small = [{key: value, "tag": f"z{n}"} for n, value in enumerate(held)]
        right = from_arrow(pa.table({key: arrow(held, kind), "tag": pa.array([row["tag"] for row in small], pa.string())}))
        how = self.rng.choice(("inner", "inner", "left", "semi", "anti", "right-hand"))
        self.at.text += f" joined on {key} how={how} with {small}"
        matches = {
            id(row): [other for other in small if other[key] is not None and other[key] == row[key]] for row in self.at.rows
        }
        if how in {"semi", "anti"}:
            self.at.frame = self.at.frame.join(right, on=key, how=how)
            self.at.rows = [row for row in self.at.rows if bool(matches[id(row)]) == (how == "semi")]
        else:
            unmatched = [{"tag": None}] if how == "left" else []
            self.at.rows = [row | {"tag": other["tag"]} for row in self.at.rows for other in matches[id(row)] or unmatched]
            frame = self.at.frame
            self.at.frame = right.join(frame, on=key) if how == "right-hand" else frame.join(right, on=key, how=how)
            self.at.families["tag"] = "str"
        self.kept(self.some())


def _one_zero(values: list[Any]) -> None:
    zeros = {math.copysign(1, value) for value in values if isinstance(value, float) and value == 0}
    if len(zeros) > 1:
        raise KnownFault("-0.0 and 0.0 are two keys")


def _aggregate(kind: str, values: list[Any]) -> Any:
    held = [value for value in values if value is not None]
    if kind == "count":
        return len(held)
    if not held:
        return None
    if kind == "sum":
        return sum(held[1:], held[0])
    _one_zero(held)
    if any(isinstance(value, float) and math.isnan(value) for value in held):
        raise KnownFault("a group's greatest value leaves NaN out, the greatest of all does not")
    return min(held) if kind == "min" else max(held)
