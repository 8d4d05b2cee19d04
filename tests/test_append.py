"""Every kind of input that `Table.append` takes, what it stores, and what it refuses."""

from __future__ import annotations

import math
import os
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypaimon.table.row.blob import BlobDescriptor, BlobViewStruct, VideoFrameDescriptor

import lakehouse as lh
from lakehouse.write import rows as rows_module
from lakehouse.write import writer as write_module
from lakehouse.write.values import exact
from tests.stores.place import connect, on_stores
from tests.test_schema import TYPES, VECTORS, same

pytestmark = on_stores


UTC = timezone.utc
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("speed", pa.float64()), ("frame", pa.large_binary())])
ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a", "speed": 1.5, "frame": b"one"},
    {"id": 2, "name": None, "speed": math.inf, "frame": b""},
    {"id": 3, "name": "é", "speed": None, "frame": None},
]


@pytest.fixture
def table(catalog: lh.Catalog) -> lh.Table:
    return catalog.create_table("default.t", SCHEMA)


def contents(table: lh.Table, *columns: str) -> list[dict[str, Any]]:
    rows = table.latest().arrow(blobs="bytes").sort_by("id")
    return list((rows.select(columns) if columns else rows).to_pylist())


def files(warehouse: Path) -> set[Path]:
    """Data and manifest files; a table's schema is there before its first row."""
    return {path for path in warehouse.rglob("*") if path.is_file() and path.parent.name != "schema"}


def of_one_column(catalog: lh.Catalog, kind: pa.DataType, *, nullable: bool = True) -> lh.Table:
    return catalog.create_table("default.one", pa.schema([("id", pa.int64()), pa.field("v", kind, nullable=nullable)]))


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


# --- nulls -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TYPES, "blob"])
def test_a_first_batch_of_nulls_fixes_no_type(catalog: lh.Catalog, name: str) -> None:
    kind = pa.large_binary() if name == "blob" else TYPES[name][0]
    table = of_one_column(catalog, kind)
    table.append(pa.table({"id": [1, 2], "v": pa.nulls(2)}))
    table.append([{"id": 3, "v": None}, {"id": 4}])
    table.append(pd.DataFrame({"id": [5], "v": [None]}))
    assert [row["v"] for row in contents(table)] == [None] * 5


def test_nested_nulls_without_a_type(catalog: lh.Catalog) -> None:
    table = of_one_column(catalog, pa.struct([("a", pa.list_(pa.string())), ("b", pa.map_(pa.string(), pa.int64()))]))
    table.append(pa.table({"id": [1], "v": pa.array([{"a": [None], "b": None}])}))
    table.append([{"id": 2, "v": {"a": [], "b": {}}}, {"id": 3, "v": {"a": ["x", None], "b": {"k": None}}}])
    assert [row["v"] for row in contents(table)] == [
        {"a": [None], "b": None},
        {"a": [], "b": []},
        {"a": ["x", None], "b": [("k", None)]},
    ]


def test_null_lists_that_hide_values(catalog: lh.Catalog) -> None:
    """Arrow allows them, the Parquet writer does not."""
    table = of_one_column(catalog, pa.list_(pa.int64()))
    hiding = pa.ListArray.from_buffers(
        pa.list_(pa.int64()),
        3,
        [pa.py_buffer(b"\x05"), pa.array([0, 1, 2, 3], pa.int32()).buffers()[1]],
        children=[pa.array([7, 8, 9])],
    )
    assert hiding.to_pylist() == [[7], None, [9]]
    table.append(pa.table({"id": [1, 2, 3], "v": hiding}))
    assert [row["v"] for row in contents(table)] == [[7], None, [9]]


@pytest.mark.parametrize("blob", [False, True])
def test_a_null_in_a_not_null_column_is_refused(catalog: lh.Catalog, warehouse: Path, blob: bool) -> None:
    kind = pa.large_binary() if blob else pa.string()
    table = of_one_column(catalog, kind, nullable=False)
    good = b"x" if blob else "x"
    for data in (
        [{"id": 1, "v": good}, {"id": 2, "v": None}],
        [{"id": 1, "v": good}, {"id": 2}],
        [{"id": 1}],
        pa.table({"id": [1, 2], "v": pa.array([good, None], kind)}),
        pa.table({"id": [1, 2], "v": pa.nulls(2)}),
        pa.table({"id": [1]}),
        pd.DataFrame({"id": [1], "v": [None]}),
    ):
        with pytest.raises(lh.SchemaError, match="column v may not be null"):
            table.append(data)
    assert files(warehouse) == set()
    table.append([{"id": 1, "v": good}])
    assert [row["v"] for row in contents(table)] == [good]


def test_a_null_in_a_not_null_place_is_refused(catalog: lh.Catalog) -> None:
    inner = pa.struct(
        [pa.field("x", pa.int64(), nullable=False), pa.field("tags", pa.list_(pa.field("item", pa.string(), nullable=False)))]
    )
    table = of_one_column(catalog, inner)
    loose = pa.struct([("x", pa.int64()), ("tags", pa.list_(pa.string()))])
    for value, place in (({"x": None, "tags": []}, r"v\.x"), ({"x": 1, "tags": ["a", None]}, r"v\.tags\[\]")):
        inputs: list[Any] = [[{"id": 1, "v": value}], pa.table({"id": [1], "v": pa.array([value], loose)})]
        for data in inputs:
            with pytest.raises(lh.SchemaError, match=f"column {place} may not be null"):
                table.append(data)
    table.append(pa.table({"id": [1, 2], "v": pa.array([None, {"x": 1, "tags": None}], loose)}))  # a null struct has no x
    assert [row["v"] for row in contents(table)] == [None, {"x": 1, "tags": None}]


@pytest.mark.parametrize("name", VECTORS)
def test_a_null_in_a_vector_is_refused(catalog: lh.Catalog, name: str) -> None:
    kind = VECTORS[name][0]
    table = of_one_column(catalog, kind)
    null_item = [None] * kind.list_size
    for data in (
        [{"id": 1, "v": None}],
        [{"id": 1}],
        [{"id": 1, "v": null_item}],
        pa.table({"id": [1]}),
        pa.table({"id": [1], "v": pa.array([None], kind)}),
        pa.table({"id": [1], "v": pa.array([null_item], kind)}),
    ):
        with pytest.raises(lh.SchemaError, match="column v"):
            table.append(data)
    assert table.snapshots() == []


def test_what_pandas_marks_as_absent_is_null(catalog: lh.Catalog) -> None:
    fields = [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("at", pa.timestamp("us")),
        ("ok", pa.bool_()),
        ("tags", pa.list_(pa.int64())),
    ]
    table = catalog.create_table("default.absent", pa.schema(fields))
    frame = pd.DataFrame(
        {
            "id": [1, 2, 3],
            "n": [5.0, np.nan, 7.0],  # what pandas makes of an integer column with a gap
            "at": [pd.Timestamp("1969-12-31 23:59:59.999999"), pd.NaT, pd.Timestamp("2026-01-01")],
            "ok": [True, None, np.nan],
            "tags": [[1], None, np.array([2, 3])],
        }
    )
    want: list[dict[str, Any]] = [
        {"id": 1, "n": 5, "at": datetime(1969, 12, 31, 23, 59, 59, 999_999), "ok": True, "tags": [1]},
        {"id": 2, "n": None, "at": None, "ok": None, "tags": None},
        {"id": 3, "n": 7, "at": datetime(2026, 1, 1), "ok": None, "tags": [2, 3]},
    ]
    table.append(frame)
    table.append(frame.astype({"n": "Int64", "ok": "boolean"}))
    table.append([{**row, "at": pd.NaT if row["at"] is None else row["at"]} for row in want])
    assert contents(table) == [row for row in want for _ in range(3)]


def test_nan_in_a_float_column_stays_nan(catalog: lh.Catalog) -> None:
    table = of_one_column(catalog, pa.float64())
    table.append(pa.table({"id": [1, 2], "v": [math.nan, None]}))
    table.append([{"id": 3, "v": math.nan}, {"id": 4, "v": -0.0}])
    assert same([row["v"] for row in contents(table)]) == same([math.nan, None, math.nan, -0.0])


# --- one value, one type -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=20)
@given(data=st.data())
def test_python_values_become_the_same_arrow_values(name: str, data: st.DataObject) -> None:
    _, stored, values = TYPES[name]
    rows = data.draw(st.lists(st.none() | values, max_size=6))
    if pa.types.is_timestamp(stored) and stored.unit == "ns":
        rows = [None if value is None else pd.Timestamp(value, tz=stored.tz) for value in rows]
    if pa.types.is_time(stored):
        rows = [None if value is None else time.min.replace(microsecond=value % 1000 * 1000) for value in rows]
    array = exact(rows, pa.field("v", stored))
    assert array.type == stored
    array.validate(full=True)
    want = [float(value) if isinstance(value, np.floating) else value for value in rows]
    assert same(array.to_pylist()) == same(want)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), True),
        (pa.int64(), np.True_),
        (pa.int64(), 1.5),
        (pa.int64(), math.nan),
        (pa.int64(), 1e19),
        (pa.int64(), Decimal("1.1")),
        (pa.int64(), "1"),
        (pa.int64(), 2**63),
        (pa.int8(), 128),
        (pa.int16(), -32_769),
        (pa.bool_(), 1),
        (pa.bool_(), "true"),
        (pa.float64(), True),
        (pa.float64(), 2**53 + 1),
        (pa.float64(), "1.0"),
        (pa.float64(), Decimal("1.1")),
        (pa.float32(), 1e39),
        (pa.float32(), 2**24 + 1),
        (pa.string(), b"bytes"),
        (pa.string(), 1),
        (pa.string(), "\ud800"),
        (pa.binary(), "text"),
        (pa.binary(), 5),
        (pa.decimal128(4, 2), 1.25),
        (pa.decimal128(4, 2), Decimal("1.125")),
        (pa.decimal128(4, 2), 100),
        (pa.decimal128(4, 2), True),
        (pa.decimal128(4, 2), Decimal("NaN")),
        (pa.date32(), datetime(2026, 1, 1, 5)),
        (pa.date32(), 20_000),
        (pa.date32(), "2026-01-01"),
        (pa.timestamp("us"), date(2026, 1, 1)),
        (pa.timestamp("us"), 5),
        (pa.timestamp("us"), "2026-01-01"),
        (pa.timestamp("us"), datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1)),
        (pa.timestamp("us", "UTC"), np.datetime64("2026-01-01")),
        (pa.timestamp("s"), datetime(2026, 1, 1, 0, 0, 0, 1)),
        (pa.timestamp("ms"), datetime(2026, 1, 1, 0, 0, 0, 999)),
        (pa.timestamp("us"), pd.Timestamp("2026-01-01 00:00:00.000000001")),
        (pa.timestamp("ns"), datetime(1, 1, 1)),
        (pa.timestamp("us", "UTC"), datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=8)))),  # in year 0 in UTC
        (pa.time32("ms"), time(1, 2, 3, 456_789)),
        (pa.time32("ms"), time(1, 2, 3, tzinfo=UTC)),
        (pa.time32("ms"), 5),
        (pa.list_(pa.int64()), [1.5]),
        (pa.list_(pa.int64()), [True]),
        (pa.list_(pa.int64()), b"ab"),
        (pa.list_(pa.int64()), {1, 2}),
        (pa.list_(pa.int64()), {"a": 1}),
        (pa.list_(pa.int64()), np.array([1.5])),
        (pa.list_(pa.string()), "ab"),
        (pa.list_(pa.timestamp("ms")), [datetime(2026, 1, 1, 0, 0, 0, 1)]),
        (pa.list_(pa.float32()), [1e39]),
        (pa.list_(pa.float32(), 2), [1.0]),
        (pa.list_(pa.float32(), 2), [1.0, 2.0, 3.0]),
        (pa.struct([("x", pa.int64())]), {"x": 1, "y": 2}),
        (pa.struct([("x", pa.int64())]), (1,)),
        (pa.struct([("x", pa.int64())]), [("x", 1)]),
        (pa.struct([("x", pa.int64())]), {"x": 1.5}),
        (pa.map_(pa.string(), pa.int64()), {"a": 1.5}),
        (pa.map_(pa.string(), pa.int64()), {1: 1}),
        (pa.map_(pa.string(), pa.int64()), [("a", 1, 2)]),
        (pa.map_(pa.string(), pa.int64()), [(None, 1)]),
        (pa.map_(pa.string(), pa.int64()), ["ab"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_python_value_that_would_change_is_refused(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(lh.SchemaError, match=r"^column v"):
        exact([None, value], pa.field("v", kind))


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        (pa.int64(), 3.0, 3),
        (pa.int64(), np.uint8(255), 255),
        (pa.int32(), np.float32(-4.0), -4),
        (pa.float64(), 3, 3.0),
        (pa.float64(), np.float32(0.1), float(np.float32(0.1))),
        (pa.float32(), 0.1, float(np.float32(0.1))),  # Python has no narrower float: rounded
        (pa.float32(), -math.inf, -math.inf),
        (pa.decimal128(4, 2), 5, Decimal("5.00")),
        (pa.decimal128(8, 2), Decimal("1E+5"), Decimal("100000.00")),
        (pa.binary(), memoryview(b"ab"), b"ab"),
        (pa.list_(pa.int64()), (1, None), [1, None]),
        (pa.list_(pa.float32()), np.array([0.5, math.inf]), [0.5, math.inf]),
        (pa.list_(pa.list_(pa.int64())), np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (pa.list_(pa.float32(), 2), np.array([1, 2], np.int8), [1.0, 2.0]),
        (pa.map_(pa.string(), pa.int64()), {"a": None}, [("a", None)]),
        (pa.map_(pa.string(), pa.int64()), [["a", 1], ("b", 2)], [("a", 1), ("b", 2)]),
        (pa.struct([("x", pa.int64()), ("y", pa.string())]), {"y": "b"}, {"x": None, "y": "b"}),
        (
            pa.timestamp("us", "UTC"),
            datetime(2026, 1, 1, 8, tzinfo=timezone(timedelta(hours=8))),
            datetime(2026, 1, 1, tzinfo=UTC),
        ),
        (pa.timestamp("us"), pd.NaT, None),
        (pa.int64(), pd.NA, None),
        (pa.list_(pa.int64()), [pd.NA, 1], [None, 1]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_python_value_that_stays_the_same_is_taken(kind: pa.DataType, value: Any, held: Any) -> None:
    assert exact([value, None] if not pa.types.is_fixed_size_list(kind) else [value], pa.field("v", kind))[0].as_py() == held


@pytest.mark.parametrize(
    ("given_values", "kind"),
    [
        (pa.array([300]), pa.int8()),
        (pa.array([2**63], pa.uint64()), pa.int64()),
        (pa.array([1.5]), pa.int64()),
        (pa.array([math.nan]), pa.int64()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([0.1]), pa.float32()),
        (pa.array([1e300]), pa.float32()),
        (pa.array([[0.5, 0.1]]), pa.list_(pa.float32())),
        (pa.array([{"x": 0.1}]), pa.struct([("x", pa.float32())])),
        (pa.array([[("k", 0.1)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.float32())),
        (pa.array([True]), pa.int64()),
        (pa.array([1]), pa.bool_()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.string()),
        (pa.array([b"a"]), pa.string()),
        (pa.array(["a"]), pa.binary()),
        (pa.array([1.5]), pa.decimal128(4, 2)),
        (pa.array([Decimal("1.125")]), pa.decimal128(4, 2)),
        (pa.array([100]), pa.decimal128(4, 2)),
        (pa.array([Decimal("1.5")]), pa.int64()),
        (pa.array([Decimal("1.5")]), pa.float64()),
        (pa.array([date(2026, 1, 1)]), pa.timestamp("us")),
        (pa.array([datetime(2026, 1, 1)], pa.timestamp("us")), pa.date32()),
        (pa.array([datetime(2026, 1, 1)], pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (pa.array([datetime(2026, 1, 1)], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([2**40], pa.timestamp("s")), pa.timestamp("ns")),
        (pa.array([1], pa.time64("us")), pa.time32("ms")),
        (pa.array([1], pa.int64()), pa.timestamp("us")),
        (pa.array([[1, 2]]), pa.list_(pa.int64(), 3)),
        (pa.array([[1, 2]]), pa.int64()),
        (pa.array([{"x": 1, "y": 2}]), pa.struct([("x", pa.int64())])),
        (
            pa.array([(2, 1)], pa.struct([("y", pa.int64()), ("x", pa.int64())])),
            pa.struct([("x", pa.int64()), ("y", pa.int64())]),
        ),
        (pa.array(["a"]).dictionary_encode(), pa.int64()),
        (pa.array([1], pa.duration("s")), pa.int64()),
        (pa.array([86_400_000], pa.int32()).view(pa.time32("ms")), pa.time32("ms")),
        (pa.StringArray.from_buffers(1, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")), pa.string()),
        (pa.array([10**10], pa.decimal128(11, 0)).view(pa.decimal128(4, 0)), pa.decimal128(4, 0)),
    ],
    ids=str,
)
def test_an_arrow_value_that_would_change_is_refused(given_values: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(lh.SchemaError, match=r"^column v"):
        exact(given_values, pa.field("v", kind))


@pytest.mark.parametrize(
    ("given_values", "kind"),
    [
        (pa.array([3.0, None]), pa.int64()),
        (pa.array([2**53, -5]), pa.float64()),
        (pa.array([0.5, math.nan, -math.inf, None]), pa.float32()),
        (pa.array([[0.5, math.nan], None, []]), pa.list_(pa.float32())),
        (pa.array([Decimal("1.10")], pa.decimal256(40, 2)), pa.decimal128(4, 1)),
        (pa.array([5, -99], pa.int64()), pa.decimal128(4, 2)),
        (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0)),
        (pa.array([datetime(2026, 1, 1)], pa.timestamp("ns")), pa.timestamp("s")),
        (
            pa.array([[{"a": "x"}]], pa.large_list(pa.struct([("a", pa.large_string())]))),
            pa.list_(pa.struct([("a", pa.string())])),
        ),
        (pa.array([["a", None]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), pa.list_(pa.string())),
        (pa.array([[("k", 1)], None], pa.map_(pa.large_string(), pa.int8())), pa.map_(pa.string(), pa.int64())),
        (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), pa.list_(pa.int64())),
        (pa.array([[1, 2]]), pa.list_(pa.int64(), 2)),
        (pa.chunked_array([["a"], ["b", None]]), pa.string()),
        (pa.chunked_array([], pa.string()), pa.string()),
    ],
    ids=str,
)
def test_an_arrow_value_that_stays_the_same_is_taken(given_values: Any, kind: pa.DataType) -> None:
    array = exact(given_values, pa.field("v", kind))
    assert array.type == kind
    assert as_numbers(array.to_pylist()) == as_numbers(given_values.to_pylist())


def as_numbers(value: Any) -> Any:
    """Numbers as fractions, whatever their type."""
    if isinstance(value, (list, tuple)):
        return [as_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: as_numbers(item) for key, item in value.items()}
    if isinstance(value, (float, np.float16)) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, np.float16):
        value = float(value)
    return Fraction(value) if isinstance(value, (int, float, Decimal)) else value


STORED = [stored for _, stored, _ in TYPES.values()] + [kind for kind, _ in VECTORS.values()]
ANYTHING = st.recursive(
    st.one_of(
        *(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=4),
            st.binary(max_size=4),
            st.dates(),
            st.times(),
        ),
        *(
            st.datetimes(),
            st.datetimes(timezones=st.timezones()),
            st.timedeltas(),
            st.decimals(),
            st.complex_numbers(),
            st.uuids(),
        ),
        st.sampled_from(
            [pd.NaT, pd.NA, object(), np.datetime64("2026"), np.zeros((2, 2)), np.array(5), pa.scalar(5), int, ...]
        ),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=400)
@given(kind=st.sampled_from(STORED), values=st.lists(ANYTHING, max_size=3))
def test_any_python_value_is_taken_or_refused_by_our_own_error(kind: pa.DataType, values: list[Any]) -> None:
    try:
        array = exact(values, pa.field("v", kind))
    except lh.SchemaError as error:
        assert str(error).startswith("column v")  # noqa: PT017
    else:
        array.validate(full=True)
        assert (array.type, len(array)) == (kind, len(values))


@settings(max_examples=400)
@given(name=st.sampled_from(sorted(TYPES)), kind=st.sampled_from(STORED), data=st.data())
def test_any_arrow_value_stays_the_same_or_is_refused(name: str, kind: pa.DataType, data: st.DataObject) -> None:
    declared, stored, values = TYPES[name]
    given_values = pa.array(data.draw(st.lists(st.none() | values, max_size=4)), declared).slice(data.draw(st.integers(0, 2)))
    try:
        array = exact(given_values, pa.field("v", kind))
    except lh.SchemaError as error:
        assert str(error).startswith("column v")  # noqa: PT017
        assert kind != stored
    else:
        array.validate(full=True)
        assert array.type == kind
        if not pa.types.is_timestamp(declared):  # the first and last days have no instant in some zones
            assert as_numbers(array.to_pylist()) == as_numbers(given_values.to_pylist())


def test_nullability_inside_is_a_matter_of_values(catalog: lh.Catalog) -> None:
    """Deep types of other nullability, in slices: Arrow itself casts no nullable field to one that is not."""
    pose = pa.struct([pa.field("x", pa.float32(), nullable=False)])
    poses = pa.field("value", pa.list_(pa.field("item", pose, nullable=False)), nullable=False)
    strict = pa.field("v", pa.map_(pa.string(), poses))
    loose = pa.map_(pa.large_string(), pa.large_list(pa.struct([("x", pa.float64())])))
    rows = [None, [("a", [{"x": 1.5}])], [], [("b", []), ("c", [{"x": 2.0}, {"x": -0.0}])]]
    array = pa.array(rows, loose)
    for start in range(5):
        for stop in range(start, 5):
            held = exact(array.slice(start, stop - start), strict)
            assert held.type == strict.type
            assert (
                held.to_pylist()
                == exact(held, strict).to_pylist()
                == exact(rows[start:stop], strict).to_pylist()
                == rows[start:stop]
            )
    for bad, place in (
        ([("a", None)], r"v\{value\}"),
        ([("a", [None])], r"v\{value\}\[\]"),
        ([("a", [{"x": None}])], r"v\{value\}\[\]\.x"),
    ):
        for values in (pa.array([bad], loose), [bad]):
            with pytest.raises(lh.SchemaError, match=f"^column {place} may not be null"):
                exact(values, strict)


def test_tensors_and_embeddings_are_their_values() -> None:
    import daft
    from daft import DataType, col

    frame = daft.from_pydict({"v": [[1.0, 2.0], [3.0, 4.0]]})
    vector = pa.field("v", pa.list_(pa.float32(), 2))
    for kind in (DataType.embedding(DataType.float32(), 2), DataType.tensor(DataType.float32(), (2,))):
        array = frame.select(col("v").cast(kind)).to_arrow().column("v")
        assert isinstance(array.type, pa.BaseExtensionType)
        assert exact(array, vector).to_pylist() == [[1.0, 2.0], [3.0, 4.0]]


def test_labels_and_depths_keep_their_values(catalog: lh.Catalog) -> None:
    """The first batch would fit int8, a later one does not."""
    table = catalog.create_table(
        "default.labels", pa.schema([("id", pa.int64()), ("label", pa.uint8()), ("depth", pa.uint16())])
    )
    table.append([{"id": 0, "label": 0, "depth": 0}])
    table.append(pa.table({"id": [1], "label": pa.array([170], pa.uint8()), "depth": pa.array([65_535], pa.uint16())}))
    table.append(pd.DataFrame({"id": [2], "label": np.array([255], np.uint8), "depth": np.array([40_000], np.uint16)}))
    assert [(row["label"], row["depth"]) for row in contents(table)] == [(0, 0), (170, 65_535), (255, 40_000)]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"id": [1], "v": pd.to_timedelta([1], unit="s")}),
        pd.DataFrame({"id": [1], "v": pd.period_range("2026", periods=1)}),
        pd.DataFrame({"id": [1], "v": [1 + 2j]}),
        pd.DataFrame({"id": [1], "v": pd.arrays.SparseArray([1.0])}),
        pd.DataFrame({"id": [1], "v": [object()]}),
        pd.DataFrame({"id": [1], "v": ["text"]}),
        pd.DataFrame({"id": [1], "v": pd.Categorical(["text"])}),
    ],
)
def test_pandas_columns_that_are_no_numbers_are_refused(catalog: lh.Catalog, frame: pd.DataFrame) -> None:
    table = of_one_column(catalog, pa.int64())
    with pytest.raises(lh.SchemaError, match="column v"):
        table.append(frame)


# --- BLOBs -------------------------------------------------------------------------------------------------------------------


def lookalikes(path: str) -> list[bytes]:
    whole = [
        BlobDescriptor(path, 0, -1).serialize(),
        VideoFrameDescriptor(path, 0, 10, 0, -1, 0).serialize(),
        BlobViewStruct("default.t", 1, 1).serialize(),
    ]
    return [*whole, *(data[:9] for data in whole), b"\x00" + whole[0][1:], whole[0] + b"more"]


@pytest.mark.parametrize("number", range(8))
def test_bytes_that_look_like_a_descriptor_are_never_followed(
    table: lh.Table, warehouse: Path, tmp_path: Path, number: int
) -> None:
    import daft

    (tmp_path / "secret").write_bytes(b"secret")
    data = lookalikes(str(tmp_path / "secret"))[number]
    inputs = [
        [{"id": 1, "frame": data}],
        [{"id": 1, "frame": bytearray(data)}],
        [{"id": 1, "frame": memoryview(data)}],
        iter([{"id": 1, "frame": b"fine"}, {"id": 1, "frame": data}]),
        pa.table({"id": [1, 2], "frame": [b"fine", data]}),
        pa.table({"id": [1], "frame": pa.array([data], pa.large_binary())}).to_reader(),
        pa.table({"id": [1], "frame": pa.array([data], pa.binary_view())}),
        pa.table({"id": [1], "frame": pa.array([data], pa.binary(len(data)))}),
        pa.table({"id": [1], "frame": pa.array([data]).dictionary_encode()}),
        pa.table({"id": [0, 1], "frame": [b"", data]}).slice(1),
        pd.DataFrame({"id": [1], "frame": [data]}),
        daft.from_pydict({"id": [1], "frame": [data]}),
    ]
    for rows in inputs:
        with pytest.raises(lh.SchemaError, match="column frame: a value begins like a serialised blob descriptor"):
            table.append(rows)
    assert files(warehouse) == set()


def test_bytes_that_only_resemble_one_are_stored(table: lh.Table) -> None:
    near = [b"CSEDBOLB", b"\x02CSEDBOL", b"\x02CSEDBOL\0", b"\x02" * 9, bytes(9)]
    table.append([{"id": i, "frame": data} for i, data in enumerate(near)])
    table.append(pa.table({"id": range(10, 10 + len(near)), "frame": near}))
    assert [row["frame"] for row in contents(table)] == near * 2


@pytest.mark.parametrize("value", ["text", 5, 1.5, [1], {"uri": "x"}, Path("x"), np.zeros(3, np.uint8), object()])
def test_what_is_no_blob_is_refused(table: lh.Table, value: Any) -> None:
    with pytest.raises(lh.SchemaError, match="column frame: a BLOB takes bytes, or lh.BlobRef"):
        table.append([{"id": 1, "frame": value}])


@pytest.mark.parametrize("array", [pa.array(["text"]), pa.array([5]), pa.array([{"x": 1}]), pa.array([[b"a"]])], ids=str)
def test_what_is_no_blob_in_arrow_is_refused(table: lh.Table, array: pa.Array) -> None:
    with pytest.raises(lh.SchemaError, match="column frame"):
        table.append(pa.table({"id": [1], "frame": array}))


ODD_NAMES = [
    "plain.bin",
    "with space.bin",
    "50%.bin",
    "a%20b.bin",
    "hash#tag?x=1.bin",
    "é图🚗.bin",
    "new\nline.bin",
    "colon:x.bin",
    "~.bin",
    "-",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_references_are_copied_from_files_of_any_name(
    table: lh.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "in put"
    folder.mkdir()
    (folder / name).write_bytes(b"0123456789")
    monkeypatch.chdir(folder)
    path = str(folder / name)
    refs = [
        lh.BlobRef(path),
        lh.BlobRef(path, 2),
        lh.BlobRef(path, 2, 5),
        lh.BlobRef(path, 10),
        lh.BlobRef(path, 4, 0),
        lh.BlobRef(f"file://{path}", 0, 1),  # as Daft and Paimon write it
        lh.BlobRef((folder / name).as_uri(), 9, 1),  # encoded, as pathlib writes it
        lh.BlobRef(f"file://localhost{path}", 1, 1),
        lh.BlobRef(f"./{name}", 3, 1),
        lh.BlobRef(path, np.int64(5), np.int32(1)),  # type: ignore[arg-type]
    ]
    table.append([{"id": i, "frame": ref} for i, ref in enumerate(refs)])
    want = [b"0123456789", b"23456789", b"23456", b"", b"", b"0", b"9", b"1", b"3", b"5"]
    assert [row["frame"] for row in contents(table)] == want


def test_what_exists_decides_how_a_file_url_is_read(table: lh.Table, tmp_path: Path) -> None:
    (tmp_path / "a%20b").write_bytes(b"as it stands")
    (tmp_path / "a b").write_bytes(b"decoded")
    table.append(
        [{"id": 1, "frame": lh.BlobRef(f"file://{tmp_path}/a%20b")}, {"id": 2, "frame": lh.BlobRef(f"file://{tmp_path}/a b")}]
    )
    assert [row["frame"] for row in contents(table)] == [b"as it stands", b"decoded"]


@pytest.mark.local("names of files")
def test_a_file_whose_name_is_no_utf8_is_refused(table: lh.Table, tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"\xff.bin")
    with open(path, "wb") as file:
        file.write(b"x")
    with pytest.raises(lh.SchemaError, match="column frame: .* is no UTF-8"):
        table.append([{"id": 1, "frame": lh.BlobRef(os.fsdecode(path))}])


def bad_references(tmp_path: Path) -> dict[str, lh.BlobRef]:
    path = str(tmp_path / "three")
    return {
        "missing": lh.BlobRef(str(tmp_path / "nope")),
        "a folder": lh.BlobRef(str(tmp_path)),
        "a pipe": lh.BlobRef(str(tmp_path / "pipe")),
        "a device": lh.BlobRef("/dev/zero", 0, 10),
        "short": lh.BlobRef(path, 0, 10),
        "beyond": lh.BlobRef(path, 4),
        "negative offset": lh.BlobRef(path, -1),
        "negative length": lh.BlobRef(path, 0, -2),
        "another host": lh.BlobRef("file://host/x"),
        "no scheme we know": lh.BlobRef("nope://x/y"),
        "the web": lh.BlobRef("https://localhost:1/x"),
    }


@pytest.mark.parametrize("kind", list(bad_references(Path())))
@pytest.mark.parametrize("reference", [False, True])
def test_a_reference_whose_bytes_are_not_there_is_refused(
    catalog: lh.Catalog, warehouse: Path, tmp_path: Path, kind: str, reference: bool
) -> None:
    (tmp_path / "three").write_bytes(b"abc")
    os.mkfifo(tmp_path / "pipe")
    table = catalog.create_table("default.t", lh.Schema({"id": pa.int64(), "frame": lh.Blob(reference=reference)}))
    good = {"id": 1, "frame": lh.BlobRef(str(tmp_path / "three"))}
    bad = bad_references(tmp_path)[kind]
    struct = pa.table({"id": [1], "frame": pa.array([{"uri": bad.uri, "offset": bad.offset, "length": bad.length}])})
    for rows in ([good, {"id": 2, "frame": bad}], [[good], struct]):
        with pytest.raises(lh.FetchError, match="column frame: .*nothing was written"):
            table.append(rows)
    assert files(warehouse) == set()
    assert table.append([good]).snapshot_id == 1


@pytest.mark.parametrize("parts", [("",), ("a\0b",), (5,), (None,), (b"x",), ("x", "0"), ("x", 0, 1.5), ("x", None)])
def test_what_is_no_reference_is_refused(table: lh.Table, parts: tuple[Any, ...]) -> None:
    with pytest.raises(lh.SchemaError, match="column frame: BlobRef"):
        table.append([{"id": 1, "frame": lh.BlobRef(*parts)}])


@pytest.mark.s3
def test_a_column_declared_by_reference(catalog: lh.Catalog, warehouse: Path, tmp_path: Path) -> None:
    schema = lh.Schema({"id": pa.int64(), "copied": lh.Blob(), "lidar": lh.Blob(reference=True)})
    table = catalog.create_table("default.t", schema)
    source = tmp_path / "raw" / "50% #1.bin"
    source.parent.mkdir()
    source.write_bytes(b"0123456789")
    ref = lh.BlobRef(str(source), 2, 5)
    table.append([{"id": 1, "copied": ref, "lidar": ref}, {"id": 2, "lidar": lh.BlobRef(f"file://{source}", 8)}, {"id": 3}])
    structs = pa.array([{"uri": str(source), "offset": 0, "length": 1}, None])
    table.append(pa.table({"id": [4, 5], "lidar": structs}))
    stored = table.latest().query().select("id", "lidar").index()
    assert [stored[i]["lidar"] for i in np.argsort(stored.column("id").to_numpy())] == [
        ref,
        lh.BlobRef(str(source), 8, 2),  # the length is resolved when it is written
        None,
        lh.BlobRef(str(source), 0, 1),
        None,
    ]
    assert b"0123456789" not in b"".join(path.read_bytes() for path in files(warehouse))
    # Outside the table's folder: read only where the catalog says so.
    with pytest.raises(lh.FetchError, match="blob_roots"):
        table.latest().arrow(blobs="bytes")
    trusting = connect(warehouse, blob_roots=[str(source.parent)]).table("default.t")
    assert [row["lidar"] for row in contents(trusting)] == [b"23456", b"89", None, b"0", None]
    for value in (b"bytes", bytearray(b"bytes")):
        with pytest.raises(lh.SchemaError, match="column lidar is declared by reference: it takes lh.BlobRef"):
            table.append([{"id": 6, "lidar": value}])
    with pytest.raises(lh.SchemaError, match="column lidar is declared by reference"):
        table.append(pa.table({"id": [6], "lidar": [b"bytes"]}))
    with pytest.raises(lh.SchemaError, match="column lidar is declared by reference"):
        table.append(pa.table({"id": [6], "lidar": [BlobDescriptor(str(source), 0, 1).serialize()]}))


# --- bounded memory ----------------------------------------------------------------------------------------------------------


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
