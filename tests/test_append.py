"""Every kind of input that `Table.append` takes, what it stores, and what it refuses."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.write import rows as rows_module
from lakehouse.write import writer as write_module
from tests.appending import ROWS, SCHEMA, contents, files, table
from tests.stores.place import on_stores

__all__ = ["table"]  # a fixture

pytestmark = on_stores


# --- kinds of input ----------------------------------------------------------------------------------------------------------


def as_table() -> pa.Table:
    return pa.Table.from_pylist(ROWS, SCHEMA)


INPUTS: dict[str, Callable[[], Any]] = {
    "arrow table": as_table,
    "chunked table": lambda: pa.concat_tables([as_table().slice(0, 1), as_table().slice(1)]),
    "arrow batch": lambda: as_table().to_batches()[0],
    "reader": lambda: as_table().to_reader(max_chunksize=2),
    "list of dicts": lambda: ROWS,
    "tuple of dicts": lambda: tuple(ROWS),
    "generator of dicts": lambda: (row for row in ROWS),
    "dicts without nulls": lambda: [{key: value for key, value in row.items() if value is not None} for row in ROWS],
    "iterator of batches": lambda: iter(as_table().to_batches(max_chunksize=1)),
    "list of lists": lambda: [ROWS[:1], [ROWS[1:]]],
    "mixed": lambda: iter([ROWS[0], as_table().slice(1, 1), as_table().slice(2).to_batches()[0].to_pylist()]),
    "reordered": lambda: as_table().select(["frame", "speed", "id", "name"]),
    "large types": lambda: as_table().cast(
        pa.schema([("id", pa.int32()), ("name", pa.large_string()), ("speed", pa.float32()), ("frame", pa.binary())])
    ),
    "dictionary": lambda: as_table().set_column(1, "name", as_table()["name"].dictionary_encode()),
    "pandas": lambda: pd.DataFrame({key: [row[key] for row in ROWS] for key in SCHEMA.names}),
    "pandas of new types": lambda: pd.DataFrame(
        {
            "id": pd.array([1, 2, 3], "Int32"),
            "name": pd.Categorical(["a", None, "é"]),
            "speed": pd.array([1.5, math.inf, None], "Float64"),
            "frame": pd.Series([b"one", b"", None], dtype=object),
        }
    ),
    "pandas of arrow types": lambda: as_table().to_pandas(types_mapper=pd.ArrowDtype),
    "bytearrays": lambda: [{**row, "frame": None if row["frame"] is None else bytearray(row["frame"])} for row in ROWS],
    "numpy scalars": lambda: [{**row, "id": np.int16(row["id"]), "name": row["name"] and np.str_(row["name"])} for row in ROWS],
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.s3
def test_every_kind_of_input_stores_the_same_rows(table: lh.Table, kind: str) -> None:
    commit = table.append(INPUTS[kind]())
    assert (commit.snapshot_id, commit.rows) == (1, 3)
    assert commit.bytes > 0
    assert contents(table) == ROWS


def test_daft_frames(catalog: lh.Catalog, table: lh.Table) -> None:
    import daft
    from daft import col

    table.append(daft.from_arrow(as_table()))
    assert contents(table) == ROWS
    # File columns are references; the bytes that they name are copied.
    copy = catalog.create_table("default.copy", SCHEMA, partition_by=["name"])
    copy.append(table.latest().daft().where(col("id") > 1).with_column("speed", col("speed") * 2))
    assert contents(copy) == [{**ROWS[1], "speed": math.inf}, ROWS[2]]
    own = {refs.uri for refs in copy.latest().query().index().blobs("frame") if refs is not None}
    assert own
    assert all("/copy/" in uri for uri in own)
    copy.append(daft.from_pydict({"id": [4], "frame": [b"four"]}))
    assert contents(copy)[-1] == {"id": 4, "name": None, "speed": None, "frame": b"four"}
    with pytest.raises(lh.SchemaError, match="columns that the table lacks: nope"):
        copy.append(daft.from_pydict({"id": [4], "nope": [1]}).where(col("id") > 9))


@pytest.mark.s3
def test_references_of_query_results_are_copied(catalog: lh.Catalog, table: lh.Table) -> None:
    table.append(ROWS)
    copy = catalog.create_table("default.copy", SCHEMA)
    copy.append(table.latest().arrow())  # struct<uri, offset, length>
    copy.append(list(table.latest().query().index()))  # rows with lazy BlobRefs
    assert contents(copy) == [row for row in ROWS for _ in range(2)]


def test_values_of_daft_files_are_copied(catalog: lh.Catalog, table: lh.Table) -> None:
    table.append(ROWS)
    copy = catalog.create_table("default.copy", SCHEMA)
    copy.append(table.latest().daft(columns=["id", "frame"]).to_pylist())
    assert contents(copy, "id", "frame") == [{"id": row["id"], "frame": row["frame"]} for row in ROWS]


@pytest.mark.parametrize(
    "empty",
    [
        [],
        (),
        iter(()),
        as_table().slice(0, 0),
        as_table().to_batches()[0].slice(0, 0),
        SCHEMA.empty_table().to_reader(),
        pd.DataFrame({"id": pd.Series([], dtype="int64")}),
        pd.DataFrame(),
        [[], as_table().slice(0, 0)],
        pa.table({}),
    ],
    ids=lambda empty: type(empty).__name__,
)
def test_zero_rows_make_no_commit(table: lh.Table, warehouse: Path, empty: Any) -> None:
    assert table.append(empty) == lh.Commit(None, 0, 0)
    assert files(warehouse) == set()
    table.append(ROWS)
    assert table.append([]) == lh.Commit(1, 0, 0)
    assert [info.id for info in table.snapshots()] == [1]


@pytest.mark.parametrize(
    "data",
    [
        None,
        5,
        "rows",
        b"rows",
        ROWS[0],
        [1, 2],
        ["a"],
        [ROWS[0], None],
        [("id", 1)],
        np.zeros(3),
        pa.array([1]),
        SCHEMA,
        iter([ROWS[0], "a"]),
        object(),
    ],
    ids=lambda data: type(data).__name__,
)
def test_what_is_no_rows_is_refused(table: lh.Table, warehouse: Path, data: Any) -> None:
    with pytest.raises(lh.SchemaError, match="append takes"):
        table.append(data)
    assert files(warehouse) == set()


@pytest.mark.parametrize(
    "data",
    [
        [{"id": 1, "nope": 1}],
        [{"id": 1, 5: 1}],
        pa.table({"id": [1], "nope": [1]}),
        pa.table({"id": pa.array([], pa.int64()), "nope": pa.array([], pa.int64())}),
        pa.table({"id": pa.array([], pa.int64()), "nope": pa.array([], pa.int64())}).to_reader(),
        pd.DataFrame({"id": [1], "nope": [1]}),
        pd.DataFrame({"id": [], "nope": []}),
        [{"id": 1}, pa.table({"nope": [1]})],
    ],
)
def test_an_unknown_column_is_refused_even_without_rows(table: lh.Table, warehouse: Path, data: Any) -> None:
    with pytest.raises(
        lh.SchemaError, match="columns that the table lacks: (nope|5); the table's columns: id, name, speed, frame"
    ):
        table.append(data)
    assert files(warehouse) == set()


def test_columns_of_one_name_are_refused(table: lh.Table) -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
    for data in (twice, twice.to_batches()[0], twice.to_reader(), twice.to_pandas(), [twice]):
        with pytest.raises(lh.SchemaError, match="columns of one name: id"):
            table.append(data)


# --- bounded memory --------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_iterators_are_read_in_chunks_of_bounded_rows_and_bytes(table: lh.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CHUNK_ROWS", 100)
    monkeypatch.setattr(rows_module, "CHUNK_BYTES", 10_000)
    taken = 0
    written = 0
    most = 0

    def endless(size: int) -> Iterator[dict[str, Any]]:
        nonlocal taken, most
        for i in range(1000):
            taken += 1
            most = max(most, taken - written)
            yield {"id": i, "name": "n" * size}

    write = write_module.Writer.write

    def counted(self: write_module.Writer, batch: pa.RecordBatch) -> None:
        nonlocal written
        written += batch.num_rows
        assert batch.nbytes <= 2 * 10_000
        write(self, batch)

    monkeypatch.setattr(write_module.Writer, "write", counted)
    table.append(endless(1))
    assert most == 100
    taken = written = most = 0
    table.append(endless(1000))
    assert most <= 11
    taken = written = most = 0
    table.append(pd.DataFrame({"id": range(300), "name": ["n" * 1000] * 300, "frame": [bytes(1000)] * 300}))
    table.append(pa.table({"id": range(300), "name": ["n" * 1000] * 300}))
    assert table.latest().count_rows() == 2600


@pytest.mark.parametrize("value", [["x" * 100] * 5, {"a": "x" * 500}, ("x" * 500,), np.zeros(63), b"x" * 500, "x" * 500])
def test_nested_values_count(value: Any) -> None:
    assert 500 <= rows_module._size(value) <= 600


def test_scalars_that_the_engine_buffers_are_bounded(table: lh.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine looks at its own limit only when its row count is a multiple of 1,000."""
    monkeypatch.setattr(write_module, "_BUFFERED_BYTES", 100_000)
    batch = pa.table({"id": range(777), "name": ["n" * 100] * 777})
    commit = table.append(batch for _ in range(20))
    assert commit.rows == 20 * 777
    groups = table.latest().version.paimon.new_read_builder().new_scan().plan().splits()
    assert sum(len(split.files) for split in groups) >= 10
    ids = table.latest().arrow().column("id").to_pylist()
    assert ids == list(range(777)) * 20  # in the order of input


def test_many_small_rows_from_a_generator_need_little_memory(catalog: lh.Catalog) -> None:
    table = catalog.create_table("default.many", pa.schema([("id", pa.int64()), ("flag", pa.bool_())]))
    tracemalloc.start()
    try:
        commit = table.append({"id": i, "flag": i % 3 == 0} for i in range(100_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert commit.rows == 100_000
    assert peak < 12e6  # all rows at once would be 20 MB and more
    assert table.latest().count_rows() == 100_000


def test_wide_tables_keep_all_rows_whatever_the_sizes_of_batches(catalog: lh.Catalog) -> None:
    names = [f"c{i}" for i in range(200)]
    schema = pa.schema(
        [("id", pa.int64()), ("p", pa.string()), *((name, pa.string()) for name in names), ("b", pa.large_binary())]
    )
    table = catalog.create_table("default.wide", schema, partition_by=["p"])
    n = 10_000
    ids = pa.array(range(n))
    text = pa.array([str(i) for i in range(n)])
    data = pa.table({"id": ids, "p": pa.array([f"p{i % 3}" for i in range(n)]), **dict.fromkeys(names, text)})

    def odd_sizes() -> Iterator[pa.Table]:
        start = 0
        for size in (1, 7, 1023, 1, 4097, 333, 2000, n):
            yield data.slice(start, size)
            start += size

    assert table.append(odd_sizes()).rows == n
    back = table.latest().query().select("id", "c0", "c199", "p").arrow().sort_by("id")
    assert back.column("id").to_pylist() == ids.to_pylist()
    assert back.column("c0").to_pylist() == back.column("c199").to_pylist() == text.to_pylist()
    assert back.column("p").to_pylist() == data.column("p").to_pylist()
