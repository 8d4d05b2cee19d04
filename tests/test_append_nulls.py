"""Nulls that `Table.append` stores, and those that it refuses."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lakehouse as lh
from tests.appending import contents, files, of_one_column, table
from tests.stores.place import on_stores
from tests.test_schema import TYPES, VECTORS, same

__all__ = ["table"]  # a fixture

pytestmark = on_stores


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
