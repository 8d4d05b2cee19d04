"""Random changes of a table and of a plain model, and every way to read a table."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakehouse as lh
from tests.stores.place import connect

NAME = "default.t"
Row = dict[str, Any]

# By name: type, and the values that rows of the partition column have.
PARTITIONS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["A", "b/c", "", None, "é=1"]),
    "int": (pa.int32(), [0, -1, None, 2_000_000_000]),
    "date": (pa.date32(), [date(1969, 12, 31), date(2024, 2, 29), None]),
    "bool": (pa.bool_(), [True, False, None]),
    "timestamp": (pa.timestamp("us"), [datetime(1970, 1, 1), datetime(2024, 5, 6, 7, 8, 9, 123456), None]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-3.25"), None]),
}


def schema_of(kind: str) -> pa.Schema:
    return pa.schema(
        [
            ("id", pa.int64()),
            ("p", PARTITIONS[kind][0]),
            ("img", pa.large_binary()),
            ("a", pa.int32()),
            ("v", pa.string()),
            ("tags", pa.list_(pa.string())),
            ("more", pa.large_binary()),
        ]
    )


@dataclass
class Lake:
    """A table and what it should hold."""

    table: lh.Table
    kind: str
    chooser: random.Random
    rows: dict[int, Row] = field(default_factory=dict)  # by id
    history: dict[int, list[Row]] = field(default_factory=dict)  # by snapshot
    next_id: int = 0
    extra: dict[str, pa.DataType] = field(default_factory=dict)  # columns that were added
    made_columns: int = 0
    column_steps: tuple[str, ...] = ()
    other_steps: tuple[str, ...] = ()

    @classmethod
    def made(cls, warehouse: Path, kind: str, seed: int) -> Lake:
        return cls.on(connect(warehouse), kind, seed)

    @classmethod
    def on(cls, catalog: lh.Catalog, kind: str, seed: int) -> Lake:
        table = catalog.create_table(NAME, schema_of(kind), partition_by=["p"], options={"blob.target-file-size": "100 b"})
        return cls(table, kind, random.Random(seed))

    # ---- random values

    def blob(self) -> bytes | None:
        value = self.chooser.choice([None, b"", b"x", b"long"])
        return None if value is None else value * self.chooser.randrange(1, 20) if value == b"long" else value

    def row(self, identity: int) -> Row:
        pick = self.chooser
        return {
            "id": identity,
            "p": pick.choice(PARTITIONS[self.kind][1]),
            "img": self.blob(),
            "a": pick.choice([None, *range(-3, 10)]),
            "v": pick.choice([None, "", "fog", "rain", "sun"]),
            "tags": pick.choice([None, [], ["x", None], ["y"]]),
            "more": self.blob(),
            **{name: self.extra_value(kind) for name, kind in self.extra.items()},
        }

    def extra_value(self, kind: pa.DataType) -> Any:
        if pa.types.is_large_binary(kind):
            return self.blob()
        limit = {pa.int16(): 2**15, pa.int32(): 2**31, pa.int64(): 2**63}[kind]
        return self.chooser.choice([None, 0, 1, limit - 1, -limit])

    def new_rows(self, most: int) -> list[Row]:
        rows = [self.row(self.next_id + i) for i in range(self.chooser.randrange(most + 1))]
        self.next_id += len(rows)
        return rows

    def where(self) -> tuple[str, Callable[[Row], bool]]:
        """SQL and the same in Python, with null as not true."""
        a, low = self.chooser.randrange(-3, 10), self.chooser.randrange(max(1, self.next_id))
        return self.chooser.choice(
            [
                (f"a < {a}", lambda r: r["a"] is not None and r["a"] < a),
                (f"NOT (a < {a})", lambda r: r["a"] is not None and not r["a"] < a),
                ("v = 'fog'", lambda r: r["v"] == "fog"),
                ("v IS NULL", lambda r: r["v"] is None),
                ("img IS NULL AND a IS NOT NULL", lambda r: r["img"] is None and r["a"] is not None),
                (f"id = {low}", lambda r: r["id"] == low),
                (f"id BETWEEN {low} AND {low + 3}", lambda r: low <= r["id"] <= low + 3),
                ("p IS NULL", lambda r: r["p"] is None),
                *((f"{name} IS NULL", lambda r, name=name: r[name] is None) for name in self.extra),
                *(
                    (f"{name} > 0", lambda r, name=name: r[name] is not None and r[name] > 0)
                    for name, kind in self.extra.items()
                    if not pa.types.is_large_binary(kind)
                ),
                ("p IS NOT NULL AND a > 5", lambda r: r["p"] is not None and r["a"] is not None and r["a"] > 5),
            ]
        )

    # ---- steps; each returns what the commit should count

    def append(self) -> int:
        rows = self.new_rows(12)
        assert self.table.append(rows).rows == len(rows)
        self.rows.update({r["id"]: r for r in rows})
        return len(rows)

    def delete(self) -> int:
        sql, keep = self.where()
        gone = [i for i, r in self.rows.items() if keep(r)]
        assert self.table.delete(sql).rows == len(gone)
        for i in gone:
            del self.rows[i]
        return len(gone)

    def update(self) -> int:
        from daft import col

        sql, keep = self.where()
        new = self.row(0)
        choices: dict[str, tuple[Any, Callable[[Row], Any]]] = {
            "a": (col("a") + 1, lambda r: None if r["a"] is None else r["a"] + 1),
            "v": (new["v"], lambda _: new["v"]),
            "tags": (new["tags"], lambda _: new["tags"]),
            "img": (new["img"], lambda _: new["img"]),
            "more": (
                lambda rows: [b"id %d" % i if i % 2 else None for i in rows.column("id").to_pylist()],
                lambda r: b"id %d" % r["id"] if r["id"] % 2 else None,
            ),
        }
        for name in self.extra:
            choices[name] = (new[name], lambda _, name=name: new[name])  # type: ignore[misc]
        names = self.chooser.sample(sorted(choices), self.chooser.randrange(1, 4))
        hit = [r for r in self.rows.values() if keep(r)]
        found = self.table.update(sql, {name: choices[name][0] for name in names})
        assert found.rows == len(hit)
        for r in hit:
            self.rows[r["id"]] = {**r, **{name: choices[name][1](r) for name in names}}
        return len(hit)

    def upsert(self) -> int:
        names = ["id", *self.chooser.sample(["p", "img", "a", "v", "tags", "more", *self.extra], self.chooser.randrange(1, 7))]
        known = self.chooser.sample(sorted(self.rows), min(len(self.rows), self.chooser.randrange(6)))
        rows = [{name: r[name] for name in names} for r in [*map(self.row, known), *self.new_rows(4)]]
        self.chooser.shuffle(rows)
        empty = dict.fromkeys(self.table.schema.names)
        changed = rows
        if set(names) <= {"id", "p"}:  # nothing to set in rows that stay where they are
            old = self.rows
            changed = [r for r in rows if r["id"] not in old or r.get("p", old[r["id"]]["p"]) != old[r["id"]]["p"]]
        assert self.table.upsert(rows, key=["id"]).rows == len(changed)
        for r in rows:
            self.rows[r["id"]] = {**self.rows.get(r["id"], empty), **r}
        return len(changed)

    def overwrite(self) -> int:
        whole = self.chooser.random() < 0.2
        value = self.chooser.choice(PARTITIONS[self.kind][1])
        rows = self.new_rows(8 if self.chooser.random() < 0.8 else 0)
        if not whole:
            rows = [{**r, "p": value} for r in rows]
        gone = [i for i, r in self.rows.items() if whole or r["p"] == value]
        found = self.table.overwrite(rows, partition=None if whole else {"p": value})
        assert found.rows == (len(rows) or len(gone))
        for i in gone:
            del self.rows[i]
        self.rows.update({r["id"]: r for r in rows})
        return found.rows

    # ---- what changes no row

    def compact(self) -> None:
        self.table.compact()

    def roll_back(self) -> None:
        """To the version before the last one, and on again."""
        latest = self.table.latest().id
        if latest is not None and latest > 1 and not self.column_steps:
            self.table.rollback(snapshot=latest - 1)
            self.table.rollback(snapshot=latest)

    # ---- changes of columns

    def add_column(self) -> int:
        name = f"x{self.made_columns}"
        kind = self.chooser.choice([pa.int16(), pa.int32(), pa.int64(), pa.large_binary()])
        self.table.add_column(name, kind)
        self.made_columns += 1
        self.extra[name] = kind
        self.rows = {i: {**r, name: None} for i, r in self.rows.items()}
        return 1

    def drop_column(self) -> int:
        names = [name for name, kind in self.extra.items() if not pa.types.is_large_binary(kind)]
        if not names:
            return 0
        name = self.chooser.choice(names)
        self.table.drop_column(name)
        del self.extra[name]
        self.rows = {i: {n: v for n, v in r.items() if n != name} for i, r in self.rows.items()}
        return 1

    def widen_column(self) -> int:
        names = [name for name, kind in self.extra.items() if kind in (pa.int16(), pa.int32())]
        if not names:
            return 0
        name = self.chooser.choice(names)
        self.extra[name] = pa.int64()
        self.table.widen_column(name, pa.int64())
        return 1

    def step(self) -> str:
        """One random change; its name."""
        before = self.table.latest().id
        name = self.chooser.choice(
            [
                *("append", "append", "delete", "update", "update", "upsert", "upsert", "overwrite"),
                *self.column_steps,
                *self.other_steps,
            ]
        )
        if name.endswith("column") and before is None:
            return name
        if name in ("compact", "roll_back"):
            getattr(self, name)()
            return name
        changed = getattr(self, name)()
        after = self.table.latest().id
        assert after == (before if not changed else (before or 0) + 1), (name, changed, before, after)
        if after is not None:
            self.history[after] = self.expected()
        return name

    def expected(self) -> list[Row]:
        return sorted(self.rows.values(), key=lambda r: r["id"])


# ---- every way to read


def by_arrow(snapshot: lh.Snapshot) -> list[Row]:
    return _sorted(snapshot.arrow(blobs="bytes").to_pylist())


def by_daft(snapshot: lh.Snapshot) -> list[Row]:
    frame = snapshot.daft()
    for name in _blobs(snapshot):
        frame = frame.with_column(name, snapshot.bytes(name))
    return _sorted(frame.to_pylist())


def by_index(snapshot: lh.Snapshot) -> list[Row]:
    index = snapshot.query().index()
    rows = []
    for i in range(len(index)):
        row = dict(index.row(i))
        for name in _blobs(snapshot):
            row[name] = None if row[name] is None else lh.fetch_blob(row[name], snapshot)
        rows.append(row)
    return _sorted(rows)


def by_dataset(snapshot: lh.Snapshot) -> list[Row]:
    """Ids and BLOBs, as training sees them."""
    index = snapshot.query().select("id", "img", "more").index()
    if not len(index):
        return []
    rows: list[Row] = []
    for batch in lh.Dataset(index, batch_size=4, tail="pad", seed=1):
        for i, valid in enumerate(batch["valid"].tolist()):
            if valid:
                rows.append({"id": int(batch["id"][i]), "img": batch["img"][i], "more": batch["more"][i]})
    return _sorted(rows)


def _blobs(snapshot: lh.Snapshot) -> list[str]:
    return [item.name for item in snapshot.schema if pa.types.is_large_binary(item.type)]


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: r["id"])
