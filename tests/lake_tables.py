"""Random tables, each beside a plain Python model of what it holds at every snapshot.

Rows are written by `Table.append`; deletes, updates and added columns go through pypaimon's own API, since what it writes
is what other engines write too. The model never looks at what our reader returns: row ids come from pypaimon's reader,
which also checks that the table holds what the model says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pypaimon.schema.data_types import AtomicType, PyarrowFieldParser
from pypaimon.schema.schema_change import SchemaChange
from pypaimon.table.row.blob import BlobDescriptor

import lakehouse as lh
from tests.lake_values import KEYS, SCALARS, Row, arrow, frozen, kind_of, plain
from tests.stores import place

ROW_ID = "_ROW_ID"
_LATER = ("late_i", "late_s", "late_f", "late_d", "late_blob", "late_blob é")
_DECORATIONS = ("", "", "", " x", ".y", "-é", "%'q\"")  # a column's name can be anything
_ROLLING: tuple[dict[str, str], ...] = ({}, {}, {"blob.target-file-size": "1 kb"}, {"target-file-size": "1 kb"})


@dataclass(frozen=True)
class State:
    """What a table holds at one snapshot, in ascending row id."""

    snapshot: int
    tag: str | None
    schema: pa.Schema
    row_ids: tuple[int, ...]
    rows: tuple[Row, ...]
    descriptors: dict[str, list[BlobDescriptor | None]]  # what pypaimon says about each BLOB, row by row

    @property
    def blobs(self) -> list[str]:
        """Names of the BLOB columns."""
        return [item.name for item in self.schema if pa.types.is_large_binary(item.type)]


@dataclass
class LakeTable:
    """A table, how it was made, and what it holds at each of its snapshots."""

    seed: int
    table: lh.Table
    partition_by: tuple[str, ...]
    recipe: list[str] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def snapshot(self, state: State) -> lh.Snapshot:
        """The snapshot that ``state`` models, by its tag where it has one."""
        return self.table.at(tag=state.tag) if state.tag else self.table.at(snapshot=state.snapshot)


class _Pointed(bytes):
    """Bytes of a column that is declared by reference, and where they are."""

    offset: int


def build(seed: int, catalog: lh.Catalog, outside: Path) -> LakeTable:
    """Make table ``default.t<seed>``: equal for equal seeds.

    Args:
        seed: of everything drawn.
        catalog: whose ``blob_roots`` hold ``outside``.
        outside: a folder for the file that references point into.
    """
    return _Builder(seed, catalog, outside).run()


class _Builder:
    def __init__(self, seed: int, catalog: lh.Catalog, outside: Path) -> None:
        self.rng = rng = random.Random(seed)
        self.source = outside / f"{seed}.bin"
        self.source.write_bytes(rng.randbytes(500))
        keys = sorted({rng.choice(KEYS) for _ in range(rng.randrange(3))})
        scalars = [name + rng.choice(_DECORATIONS) for name in rng.sample(SCALARS, rng.randrange(4, 11))]
        names = ["k", *keys, *scalars, "img", "thumb", *(["ref"] if rng.random() < 0.25 else [])]
        rng.shuffle(names)
        self.schema = pa.schema([(name, kind_of(name).type) for name in names])
        self.options = rng.choice(_ROLLING)
        declared = lh.Schema({item.name: lh.Blob(reference=True) if item.name == "ref" else item.type for item in self.schema})
        table = catalog.create_table(f"default.t{seed}", declared, partition_by=keys, options=self.options)
        self.lake = LakeTable(seed, table, tuple(keys), [f"create {names} partition_by={keys} {self.options}"])
        self.rows: dict[int, Row] = {}  # by k
        self.ids: dict[int, int] = {}  # k to row id
        self.commit = 0
        self.deleted = False
        self.undeletable = False  # upstream deletes no row after an overwrite of deleted ones

    def run(self) -> LakeTable:
        self.append()
        common = [self.append, self.append, self.delete, self.update_scalars, self.update_blobs, self.add_column]
        rare = [self.empty_partition, self.drop_partition, self.overwrite, self.widen, self.drop_column]
        for step in self.rng.choices(common * 2 + rare, k=self.rng.randrange(2, 8)):
            step()
        return self.lake

    # --- steps -----------------------------------------------------------------------------------------------------------

    def append(self) -> None:
        batch = self.new_rows()
        cut = self.rng.randrange(1, len(batch) + 1)
        self.lake.table.append(self.table_of(part) for part in (batch[:cut], batch[cut:]) if part)
        self.keep(batch)
        self.done(f"append k={batch[0]['k']}..{batch[-1]['k']} in batches of {cut} and the rest")

    def new_rows(self) -> list[Row]:
        self.commit += 1
        count = self.rng.choice((1, 2, self.rng.randrange(5, 60)))
        first = max(self.ids, default=0) + self.rng.randrange(1, 20)
        return [{name: self.draw(name) for name in self.schema.names} | {"k": first + n} for n in range(count)]

    def keep(self, rows: list[Row]) -> None:
        for row in rows:
            self.rows[row["k"]] = {n: bytes(v) if isinstance(v, _Pointed) else v for n, v in row.items()}

    def overwrite(self) -> None:
        """Replace every partition that the new rows fall into."""
        if self.options or "ref" in self.schema.names:  # the engine's own writer numbers a second .blob file too high
            return
        batch = self.new_rows()
        builder = self.lake.table.paimon.new_batch_write_builder().overwrite()
        write = builder.new_write()
        write.write_arrow(self.table_of(batch))
        self.publish(builder, write.prepare_commit())
        write.close()
        self.undeletable = self.deleted
        replaced = {self.partition(row) for row in batch}
        self.rows = {k: row for k, row in self.rows.items() if self.partition(row) not in replaced}
        self.keep(batch)
        self.done(f"overwrite partitions with k={batch[0]['k']}..{batch[-1]['k']}")

    def delete(self) -> None:
        self.delete_rows(self.some_keys(self.rng.choice((0.1, 0.5))), "delete")

    def empty_partition(self) -> None:
        """Delete every row of one, row by row: its files stay."""
        if self.rows:
            gone = self.partition(self.rng.choice(list(self.rows.values())))
            self.delete_rows([k for k, row in self.rows.items() if self.partition(row) == gone], "empty a partition:")

    def drop_partition(self) -> None:
        """Delete one by its value: its files go."""
        if not self.rows or not self.lake.partition_by:
            return
        name, row = self.lake.partition_by[0], self.rng.choice(list(self.rows.values()))
        value, kind = row[name], self.schema.field(self.lake.partition_by[0]).type
        if value is None or pa.types.is_temporal(kind) or pa.types.is_floating(kind):
            return
        predicate = self.lake.table.paimon.new_read_builder().new_predicate_builder().equal(name, value)
        self.commit_with(lambda update: update.delete_by_predicate(predicate))
        self.rows = {k: row for k, row in self.rows.items() if row[name] != value}
        self.done(f"drop {name}={value!r}")

    def delete_rows(self, keys: list[int], what: str) -> None:
        if not keys or self.undeletable:
            return
        self.deleted = True
        self.commit_with(lambda update: update.delete_by_row_id([self.ids[k] for k in keys]))
        for k in keys:
            del self.rows[k]
        self.done(f"{what} k={keys}")

    def update_scalars(self) -> None:
        free = [n for n in self.schema.names if n not in {"k", *self.lake.partition_by} and kind_of(n).family != "blob"]
        free = [n for n in free if not n.startswith("vec")]
        self.update(self.rng.sample(free, min(len(free), self.rng.choice((1, 1, 2)))), self.some_keys(0.3))

    def update_blobs(self) -> None:
        blobs = [n for n in self.schema.names if kind_of(n).family == "blob" and n != "ref"]
        self.update(self.rng.sample(blobs, self.rng.randrange(1, len(blobs) + 1)), self.some_keys(0.3))

    def update(self, names: list[str], keys: list[int]) -> None:
        if not keys or not names:
            return
        self.commit += 1
        changes = {k: {name: self.draw(name) for name in names} for k in keys}
        columns = {ROW_ID: pa.array([self.ids[k] for k in keys], pa.int64())}
        columns |= {name: arrow([changes[k][name] for k in keys], self.schema.field(name).type) for name in names}
        self.commit_with(lambda update: update.with_update_type(names).update_by_arrow_with_row_id(pa.table(columns)))
        for k in keys:
            self.rows[k] |= changes[k]
        self.done(f"update {names} of k={keys}")

    def add_column(self) -> None:
        name = self.rng.choice([n for n in _LATER if n not in self.schema.names])
        kind = kind_of(name).type
        self.alter(SchemaChange.add_column(name, PyarrowFieldParser.to_paimon_type(kind, True)), f"add column {name}: {kind}")
        self.schema = self.schema.append(pa.field(name, kind))
        for row in self.rows.values():
            row[name] = None
        if share := self.rng.choice((0, 0.4, 1)):
            self.update([name], self.some_keys(share))

    def drop_column(self) -> None:
        """A later `add_column` may bring its name back, without its values."""
        late = [name for name in self.schema.names if name.startswith("late_") and kind_of(name).family != "blob"]
        if late:
            name = self.rng.choice(late)
            self.alter(SchemaChange.drop_column(name), f"drop column {name}")
            self.schema = self.schema.remove(self.schema.get_field_index(name))
            for row in self.rows.values():
                del row[name]

    def widen(self) -> None:
        for name in self.schema.names:
            if self.schema.field(name).type == pa.int32() and name not in self.lake.partition_by:
                self.alter(SchemaChange.update_column_type(name, AtomicType("BIGINT")), f"widen {name}")
                self.schema = self.schema.set(self.schema.get_field_index(name), pa.field(name, pa.int64()))

    # --- how -------------------------------------------------------------------------------------------------------------

    def draw(self, name: str) -> Any:
        rare = 0 if name == "k" or name.startswith("vec") else 0.1 if name in self.lake.partition_by else 0.25
        if self.rng.random() < rare:
            return None
        if name == "ref":
            offset = self.rng.randrange(400)
            value = _Pointed(self.source.read_bytes()[offset : offset + self.rng.randrange(90)])
            value.offset = offset
            return value
        return kind_of(name).draw(self.rng, self.commit)

    def partition(self, row: Row) -> tuple[Any, ...]:
        return tuple(frozen(row[name]) for name in self.lake.partition_by)

    def some_keys(self, share: float) -> list[int]:
        return [k for k in self.rows if self.rng.random() < share]

    def table_of(self, rows: list[Row]) -> pa.Table:
        return pa.table({item.name: self.column(rows, item) for item in self.schema})

    def column(self, rows: list[Row], item: pa.Field) -> pa.Array:
        values = [row[item.name] for row in rows]
        if item.name != "ref":
            return arrow(values, item.type)
        refs = [None if v is None else {"uri": str(self.source), "offset": v.offset, "length": len(v)} for v in values]
        return pa.array(refs, pa.struct([("uri", pa.string()), ("offset", pa.int64()), ("length", pa.int64())]))

    def commit_with(self, change: Callable[[Any], Any]) -> None:
        builder = self.lake.table.paimon.new_batch_write_builder()
        self.publish(builder, change(builder.new_update()))

    def publish(self, builder: Any, messages: Any) -> None:
        commit = builder.new_commit()
        commit.commit(messages)
        commit.close()

    def alter(self, change: Any, what: str) -> None:
        paimon = self.lake.table.paimon
        paimon.catalog_environment.catalog_loader.load().alter_table(paimon.identifier.get_full_name(), [change], False)
        self.lake.recipe.append(what)

    def done(self, what: str) -> None:
        """Write down the step and what the table must hold after it; pypaimon's own reader has to agree."""
        number = self.lake.table.latest().id
        assert number is not None
        tag = f"v{number}" if self.rng.random() < 0.4 else None
        if tag:
            self.lake.table.tag(tag)
        self.lake.recipe.append(f"snapshot {number}: {what}")
        held = sorted(_pypaimon_rows(self.lake.table.paimon, self.schema), key=lambda row: row[ROW_ID])
        assert sorted(row["k"] for row in held) == sorted(self.rows), self.lake.recipe
        for row in held:
            assert self.ids.setdefault(row["k"], row[ROW_ID]) == row[ROW_ID], self.lake.recipe
            for name, value in self.rows[row["k"]].items():
                got = row[name]
                if kind_of(name).family == "blob":
                    got = None if got is None else _bytes_at(got)
                assert frozen(got) == frozen(value), (self.lake.recipe, row["k"], name, got, value)
        self.lake.states.append(
            State(
                snapshot=number,
                tag=tag,
                schema=self.schema,
                row_ids=tuple(row[ROW_ID] for row in held),
                rows=tuple(dict(self.rows[row["k"]]) for row in held),
                descriptors={n: [row[n] for row in held] for n in self.schema.names if kind_of(n).family == "blob"},
            )
        )


def _pypaimon_rows(paimon: Any, schema: pa.Schema) -> Iterator[Row]:
    """All rows by pypaimon's own reader, without filter; BLOBs as descriptors."""
    builder = paimon.copy({"blob-as-descriptor": "true"}).new_read_builder().with_projection([*schema.names, ROW_ID])
    data = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    columns = {name: plain(data.column(name)) for name in data.column_names}
    for i in range(data.num_rows):
        row = {name: values[i] for name, values in columns.items()}
        for item in schema:
            if pa.types.is_large_binary(item.type) and row[item.name] is not None:
                row[item.name] = BlobDescriptor.deserialize(row[item.name])
        yield row


def _bytes_at(descriptor: BlobDescriptor) -> bytes:
    data = place.content(descriptor.uri)
    return data[descriptor.offset : descriptor.offset + descriptor.length]
