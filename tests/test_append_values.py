"""Values and the types that `Table.append` stores them as: exactly, or not at all."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakehouse as lh
from lakehouse.write.values import exact
from tests.appending import UTC, contents, of_one_column, table
from tests.stores.place import on_stores
from tests.test_schema import TYPES, VECTORS, same

__all__ = ["table"]  # a fixture

pytestmark = on_stores


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
