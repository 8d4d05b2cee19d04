"""Random sequences of everything that changes a table, against a plain list of rows.

After each step the latest version is compared through Arrow, Daft and Dataset, and so is every tag: the rows, their order of
columns, and the bytes of every BLOB. ``LAKEHOUSE_MACHINE_EXAMPLES`` asks for more sequences than the default.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from daft import col
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

import lakehouse as lh
from tests.stores.place import connect, on_stores

EXAMPLES = int(os.environ.get("LAKEHOUSE_MACHINE_EXAMPLES", "6"))
STEPS = int(os.environ.get("LAKEHOUSE_MACHINE_STEPS", "14"))
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("p", pa.string()),
        ("v", pa.int64()),
        ("s", pa.string()),
        ("img", pa.large_binary()),
        ("mask", pa.large_binary()),
    ]
)
PARTS = ("a", "b/c", "")
Row = dict[str, Any]

parts = st.sampled_from(PARTS)
numbers = st.none() | st.integers(-5, 5)
texts = st.none() | st.sampled_from(["", "x", "day", "ñ" * 40])
blobs = st.none() | st.binary(max_size=40)


@dataclass(frozen=True)
class State:
    """What a version holds."""

    columns: tuple[str, ...] = tuple(SCHEMA.names)
    rows: tuple[tuple[tuple[str, Any], ...], ...] = field(default=())

    @staticmethod
    def of(columns: tuple[str, ...], rows: list[Row]) -> State:
        ordered = sorted(rows, key=lambda row: row["id"])
        return State(columns, tuple(tuple((name, row.get(name)) for name in columns) for row in ordered))

    def dicts(self) -> list[Row]:
        return [dict(row) for row in self.rows]


def through_arrow(snapshot: lh.Snapshot) -> State:
    table = snapshot.arrow(blobs="bytes")
    return State.of(tuple(table.column_names), table.to_pylist())


def through_daft(snapshot: lh.Snapshot) -> State:
    frame = snapshot.daft()
    names = tuple(frame.column_names)
    shown = [snapshot.bytes(name).alias(name) if name in ("img", "mask") else col(name) for name in names]
    return State.of(names, frame.select(*shown).to_pylist())


def through_dataset(snapshot: lh.Snapshot) -> State:
    index = snapshot.query().index()
    scalars = [name for name in index.columns if name not in index.blob_columns]
    rows = {i: {name: index.column(name)[i].as_py() for name in scalars} for i in range(len(index))}
    if rows:
        fill = {name: 0 for name in index.columns if pa.types.is_integer(index.schema.field(name).type)}
        ids = [row["id"] for row in rows.values()]
        seen: list[int] = []
        for batch in lh.Loader(lh.Dataset(index, batch_size=4, tail="pad", seed=1, shuffle="rows", fill=fill, threads=2)):
            for place, row_id in enumerate(batch["id"].tolist()):
                if batch["valid"][place]:
                    seen.append(row_id)
                    rows[ids.index(row_id)].update({name: batch[name][place] for name in index.blob_columns})
        if sorted(seen) != sorted(ids):
            raise AssertionError(f"an epoch gave ids {sorted(seen)}, the index has {sorted(ids)}")
    return State.of(index.columns, list(rows.values()))


class Lake(RuleBasedStateMachine):
    """One table and what it should hold."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="lake-machine-")
        self.state = State()
        self.tags: dict[str, State] = {}
        self.next_id = 0
        self.added = 0
        self.steps = 0

    @initialize()
    def create(self) -> None:
        catalog = connect(self.folder)
        self.table = catalog.create_table("default.t", SCHEMA, partition_by=["p"])

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- drawing -------------------------------------------------------------------------------------------------------

    def new_rows(self, data: st.DataObject, count: int, part: str | None = None) -> list[Row]:
        rows = []
        for _ in range(count):
            row = {"id": self.next_id, "p": data.draw(parts) if part is None else part}
            rows.append(row | self.values(data))
            self.next_id += 1
        return rows

    def values(self, data: st.DataObject) -> Row:
        drawn: Row = {}
        for name in self.state.columns:
            if name in ("img", "mask"):
                drawn[name] = data.draw(blobs)
            elif name == "s":
                drawn[name] = data.draw(texts)
            elif name not in ("id", "p"):
                drawn[name] = data.draw(numbers)
        return drawn

    def chosen(self, data: st.DataObject) -> set[int]:
        ids = [row["id"] for row in self.state.dicts()]
        return set(data.draw(st.lists(st.sampled_from(ids), max_size=5))) if ids else set()

    def becomes(self, rows: list[Row], columns: tuple[str, ...] | None = None) -> None:
        self.state = State.of(self.state.columns if columns is None else columns, rows)

    # --- changing rows -------------------------------------------------------------------------------------------------

    @rule(data=st.data(), count=st.integers(0, 6))
    def append(self, data: st.DataObject, count: int) -> None:
        rows = self.new_rows(data, count)
        assert self.table.append(rows).rows == count
        self.becomes([*self.state.dicts(), *rows])

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        ids = self.chosen(data)
        assert self.table.delete(col("id").is_in([-1, *ids])).rows == len(ids)
        self.becomes([row for row in self.state.dicts() if row["id"] not in ids])

    @rule(data=st.data(), part=parts)
    def delete_partition(self, data: st.DataObject, part: str) -> None:
        self.table.delete(col("p") == part)
        self.becomes([row for row in self.state.dicts() if row["p"] != part])

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        ids = self.chosen(data)
        values = self.values(data)
        names = data.draw(st.lists(st.sampled_from(sorted(values)), min_size=1, unique=True))
        new = {name: values[name] for name in names}
        self.table.update(col("id").is_in([-1, *ids]), new)
        self.becomes([row | new if row["id"] in ids else row for row in self.state.dicts()])

    @rule(data=st.data(), count=st.integers(0, 3))
    def upsert(self, data: st.DataObject, count: int) -> None:
        ids = self.chosen(data)
        known = [{"id": i, "p": data.draw(parts)} | self.values(data) for i in sorted(ids)]
        rows = known + self.new_rows(data, count)
        self.table.upsert(rows, key=["id"])
        self.becomes([*(row for row in self.state.dicts() if row["id"] not in ids), *rows])

    @rule(data=st.data(), count=st.integers(0, 4), part=parts)
    def overwrite_partition(self, data: st.DataObject, count: int, part: str) -> None:
        rows = self.new_rows(data, count, part)
        self.table.overwrite(rows, partition={"p": part})
        self.becomes([*(row for row in self.state.dicts() if row["p"] != part), *rows])

    @rule(data=st.data(), count=st.integers(0, 4))
    def overwrite(self, data: st.DataObject, count: int) -> None:
        rows = self.new_rows(data, count)
        self.table.overwrite(rows)
        self.becomes(rows)

    # --- changing columns ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.added < 4)
    @rule()
    def add_column(self) -> None:
        self.added += 1
        name = f"n{self.added}"
        self.table.add_column(pa.field(name, pa.int64()))
        self.becomes(self.state.dicts(), (*self.state.columns, name))

    @rule(data=st.data())
    def drop_column(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.state.columns[1:]))
        try:
            self.table.drop_column(name)
        except lh.SchemaError as refusal:
            note(str(refusal))
            assert name in ("p", "img", "mask")
        else:
            self.becomes(self.state.dicts(), tuple(kept for kept in self.state.columns if kept != name))

    @rule(data=st.data())
    def rename_column(self, data: st.DataObject) -> None:
        with pytest.raises(lh.SchemaError):  # and changes nothing
            self.table.rename_column(data.draw(st.sampled_from(self.state.columns)), "renamed")

    # --- history -------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(["one", "two", "v1.0"]))
    def tag(self, name: str) -> None:
        if self.table.latest().id is not None:
            self.table.tag(name, replace=name in self.tags)
            self.tags[name] = self.state

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def delete_tag(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tags)))
        self.table.delete_tag(name)
        del self.tags[name]

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tags)))
        try:
            self.table.rollback(tag=name)
        except lh.SchemaError as refusal:
            note(str(refusal))
            assert set(self.tags[name].columns) != set(self.state.columns)
        else:
            self.becomes(self.tags[name].dicts(), self.state.columns)

    # --- upkeep --------------------------------------------------------------------------------------------------------

    @rule()
    def compact(self) -> None:
        self.table.compact()

    @rule(keep=st.integers(1, 3))
    def expire(self, keep: int) -> None:
        self.table.expire(keep_last=keep)

    @rule()
    def remove_orphans(self) -> None:
        self.table.remove_orphans(older_than=timedelta(0))

    # --- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def latest_is_right(self) -> None:
        if not hasattr(self, "table"):
            return
        snapshot = self.table.latest()
        assert tuple(self.table.schema.names) == self.state.columns
        if snapshot.id is None:
            assert self.state.rows == ()
            return
        assert through_arrow(snapshot) == self.state
        assert through_daft(snapshot) == self.state
        assert through_dataset(snapshot) == self.state
        assert snapshot.count_rows() == len(self.state.rows)

    @invariant()
    def tags_are_right(self) -> None:
        if not hasattr(self, "table"):
            return
        self.steps += 1
        assert set(self.table.tags()) == set(self.tags)
        for name, expected in self.tags.items():
            snapshot = self.table.at(tag=name)
            assert through_arrow(snapshot) == expected
            if self.steps % 3 == 0:
                assert through_dataset(snapshot) == expected


SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking sequences of commits takes longer than reading one
    derandomize="LAKEHOUSE_MACHINE_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)


@on_stores
@pytest.mark.s3
@pytest.mark.timeout(600)
def test_the_table_is_what_the_model_says(store: str) -> None:
    few = settings(SETTINGS, max_examples=max(6, EXAMPLES // 8)) if store == "s3" else SETTINGS
    run_state_machine_as_test(Lake, settings=few)
