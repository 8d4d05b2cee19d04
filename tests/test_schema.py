"""Which columns a table takes, in which type it holds them, and that every value comes back by every way of reading."""

from __future__ import annotations

import math
import pickle
import struct
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import lakehouse as lh
from lakehouse.schema import stored_schema

UTC = timezone.utc
NO_SHRINKING = (Phase.explicit, Phase.generate)  # an example makes tables and runs Daft: minutes of shrinking
D = Decimal


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> lh.Catalog:
    return lh.connect(warehouse=str(tmp_path_factory.mktemp("lake")))


def same(values: list[Any]) -> list[Any]:
    """Values in a form in which equal ones are the same: NaN equals NaN, 0.0 differs from -0.0, True from 1."""
    return [_same(value) for value in values]


def _same(value: Any) -> Any:
    if isinstance(value, float):
        return ("nan",) if math.isnan(value) else struct.pack("<d", value)
    if isinstance(value, dict):
        return {key: _same(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_same(item) for item in value]
    return type(value).__name__, value


# --- every accepted type -----------------------------------------------------------------------------------------------------

days = st.dates()
instants = st.datetimes()
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
float32s = st.floats(width=32)


def ints(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0]))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    unscaled = st.one_of(st.integers(-most, most), st.sampled_from([most, -most, 0, 1]))
    return unscaled.map(lambda number: D(number).scaleb(-scale, context=_WIDE))


_WIDE = Context(prec=80)


def cut(unit: str) -> st.SearchStrategy[datetime]:
    step = {"s": 1_000_000, "ms": 1000, "us": 1}[unit]
    return instants.map(lambda value: value.replace(microsecond=value.microsecond - value.microsecond % step))


def in_zone(zone: str) -> st.SearchStrategy[datetime]:
    # Not the first and last days, which have no instant of their own in UTC.
    middle = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31))
    return middle.map(lambda value: value.replace(tzinfo=UTC).astimezone(ZoneInfo(zone)))


nanos = st.one_of(st.integers(-(2**63) + 1, 2**63 - 1), st.sampled_from([-1, 0, 1, 1_000, 2**63 - 1, -(2**63) + 1]))
milliseconds = st.integers(0, 86_399_999)

# name -> (declared type, stored type, strategy of values)
TYPES: dict[str, tuple[pa.DataType, pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), pa.bool_(), st.booleans()),
    "int8": (pa.int8(), pa.int8(), ints(8)),
    "int16": (pa.int16(), pa.int16(), ints(16)),
    "int32": (pa.int32(), pa.int32(), ints(32)),
    "int64": (pa.int64(), pa.int64(), ints(64)),
    "uint8": (pa.uint8(), pa.int16(), ints(8, signed=False)),
    "uint16": (pa.uint16(), pa.int32(), ints(16, signed=False)),
    "uint32": (pa.uint32(), pa.int64(), ints(32, signed=False)),
    "float16": (pa.float16(), pa.float32(), st.floats(width=16).map(np.float16)),
    "float32": (pa.float32(), pa.float32(), float32s),
    "float64": (pa.float64(), pa.float64(), st.floats()),
    "string": (pa.string(), pa.string(), texts),
    "large_string": (pa.large_string(), pa.string(), texts),
    "string_view": (pa.string_view(), pa.string(), texts),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), pa.string(), texts),
    "binary": (pa.binary(), pa.binary(), st.binary(max_size=12)),
    "binary_view": (pa.binary_view(), pa.binary(), st.binary(max_size=30)),
    "fixed_size_binary": (pa.binary(3), pa.binary(), st.binary(min_size=3, max_size=3)),
    "decimal_38_0": (pa.decimal128(38, 0), pa.decimal128(38, 0), decimals(38, 0)),
    "decimal_38_38": (pa.decimal128(38, 38), pa.decimal128(38, 38), decimals(38, 38)),
    "decimal_38_18": (pa.decimal128(38, 18), pa.decimal128(38, 18), decimals(38, 18)),
    "decimal_1_0": (pa.decimal128(1, 0), pa.decimal128(1, 0), decimals(1, 0)),
    "decimal256": (pa.decimal256(38, 4), pa.decimal128(38, 4), decimals(38, 4)),
    "date32": (pa.date32(), pa.date32(), days),
    "date64": (pa.date64(), pa.date32(), days),
    "timestamp_s": (pa.timestamp("s"), pa.timestamp("s"), cut("s")),
    "timestamp_ms": (pa.timestamp("ms"), pa.timestamp("ms"), cut("ms")),
    "timestamp_us": (pa.timestamp("us"), pa.timestamp("us"), cut("us")),
    "timestamp_ns": (pa.timestamp("ns"), pa.timestamp("ns"), nanos),
    "instant_s": (pa.timestamp("s", "UTC"), pa.timestamp("s", "UTC"), cut("s").map(lambda v: v.replace(tzinfo=UTC))),
    "instant_ms": (
        pa.timestamp("ms", "Asia/Shanghai"),
        pa.timestamp("ms", "UTC"),
        cut("ms").map(lambda v: v.replace(tzinfo=UTC)),
    ),
    "instant_us": (pa.timestamp("us", "+08:00"), pa.timestamp("us", "UTC"), in_zone("Asia/Shanghai")),
    "instant_ns": (pa.timestamp("ns", "America/New_York"), pa.timestamp("ns", "UTC"), nanos),
    "time32_s": (pa.time32("s"), pa.time32("ms"), st.integers(0, 86_399)),
    "time32_ms": (pa.time32("ms"), pa.time32("ms"), milliseconds),
    "time64_us": (pa.time64("us"), pa.time32("ms"), milliseconds.map(lambda v: v * 1000)),
    "time64_ns": (pa.time64("ns"), pa.time32("ms"), milliseconds.map(lambda v: v * 1_000_000)),
    "list": (pa.list_(pa.int32()), pa.list_(pa.int32()), st.lists(st.none() | ints(32), max_size=4)),
    "large_list": (pa.large_list(pa.large_string()), pa.list_(pa.string()), st.lists(st.none() | texts, max_size=4)),
    "list_of_list": (
        pa.list_(pa.list_(pa.float64())),
        pa.list_(pa.list_(pa.float64())),
        st.lists(st.none() | st.lists(st.none() | st.floats(), max_size=3), max_size=3),
    ),
    "list_of_uint8": (pa.list_(pa.uint8()), pa.list_(pa.int16()), st.lists(ints(8, signed=False), max_size=4)),
    "fixed_list_of_string": (pa.list_(pa.string(), 2), pa.list_(pa.string()), st.lists(texts, min_size=2, max_size=2)),
    "struct": (
        pa.struct([("x", pa.float32()), ("at", pa.struct([("a b.c`é", pa.date64())]))]),
        pa.struct([("x", pa.float32()), ("at", pa.struct([("a b.c`é", pa.date32())]))]),
        st.fixed_dictionaries(
            {"x": st.none() | float32s, "at": st.none() | st.fixed_dictionaries({"a b.c`é": st.none() | days})}
        ),
    ),
    "map": (
        pa.map_(pa.string(), pa.decimal128(38, 10)),
        pa.map_(pa.string(), pa.decimal128(38, 10)),
        st.dictionaries(texts, st.none() | decimals(38, 10), max_size=3).map(lambda value: list(value.items())),
    ),
    "map_of_lists": (
        pa.map_(pa.int16(), pa.list_(pa.timestamp("us"))),
        pa.map_(pa.int16(), pa.list_(pa.timestamp("us"))),
        st.dictionaries(ints(16), st.none() | st.lists(instants, max_size=2), max_size=2).map(
            lambda value: list(value.items())
        ),
    ),
}
# A vector holds no null.
VECTORS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "float32": (pa.list_(pa.float32(), 3), st.lists(float32s, min_size=3, max_size=3)),
    "float64": (pa.list_(pa.float64(), 2), st.lists(st.floats(), min_size=2, max_size=2)),
    "int8": (pa.list_(pa.int8(), 2), st.lists(ints(8), min_size=2, max_size=2)),
    "int64": (pa.list_(pa.int64(), 1), st.lists(ints(64), min_size=1, max_size=1)),
    "bool": (pa.list_(pa.bool_(), 2), st.lists(st.booleans(), min_size=2, max_size=2)),
}


# Several types a table: a table costs more time than a column.
GROUPS = [sorted(TYPES)[start::6] for start in range(6)]


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
@settings(max_examples=5, phases=NO_SHRINKING)
@given(data=st.data())
def test_every_value_comes_back(names: list[str], catalog: lh.Catalog, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    columns = {name: data.draw(st.lists(st.none() | TYPES[name][2], min_size=n, max_size=n), label=name) for name in names}
    values = {name: pa.array([None, *rows, None], TYPES[name][0]) for name, rows in columns.items()}
    check_round_trip(catalog, values, {name: TYPES[name][1] for name in names})


@settings(max_examples=5, phases=NO_SHRINKING)
@given(data=st.data())
def test_every_vector_comes_back(catalog: lh.Catalog, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    values = {
        name: pa.array(data.draw(st.lists(strategy, min_size=n, max_size=n), label=name), kind)
        for name, (kind, strategy) in VECTORS.items()
    }
    check_round_trip(catalog, values, {name: kind for name, (kind, _) in VECTORS.items()})


def check_round_trip(catalog: lh.Catalog, values: dict[str, pa.Array], stored: dict[str, pa.DataType]) -> None:
    fields = [("id", pa.int64()), *((name, array.type) for name, array in values.items()), ("blob", pa.large_binary())]
    table = catalog.create_table("default.t", pa.schema(fields))
    try:
        assert {name: table.schema.field(name).type for name in values} == stored
        data = pa.table({**values, "id": range(len(next(iter(values.values()))))})
        half = data.num_rows // 2
        table.append(data.slice(0, half))  # two commits of sliced arrays
        table.append(data.slice(half))
        snapshot = table.latest()
        rows = snapshot.arrow().sort_by("id")
        index = snapshot.query().index()
        order = pa.array(np.argsort(index.column("id").to_numpy()))
        frame = snapshot.daft(columns=["id", *values]).sort("id").to_arrow()
        for name, kind in stored.items():
            want = same(as_python(values[name]))
            assert rows.schema.field(name).type == index.column(name).type == kind
            assert same(rows.column(name).to_pylist()) == want, f"{name} by arrow()"
            assert same(index.column(name).take(order).to_pylist()) == want, f"{name} by an index"
            # Daft knows only large strings, binaries and lists, and times of microseconds: the same values.
            assert same(frame.column(name).combine_chunks().cast(kind).to_pylist()) == want, f"{name} by Daft"
    finally:
        catalog.drop_table("default.t")


def as_python(values: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(values.type) and values.type.tz is not None:  # in UTC, where the first and last day are
        values = values.cast(pa.int64()).cast(pa.timestamp(values.type.unit, "UTC"))
    return [float(value) if isinstance(value, np.float16) else value for value in values.to_pylist()]


def test_run_end_encoding_is_decoded(catalog: lh.Catalog) -> None:
    table = catalog.create_table(
        "default.runs", pa.schema([("id", pa.int64()), ("v", pa.run_end_encoded(pa.int32(), pa.int8()))])
    )
    values = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([5, None], pa.int8()))
    table.append(pa.table({"id": [0, 1, 2], "v": values}))
    assert table.latest().arrow().column("v").to_pylist() == [5, 5, None]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.timestamp("us"), [2**63 - 1]),
        (pa.timestamp("us"), [-62_135_596_800_000_001]),
        (pa.timestamp("ms"), [253_402_300_800_000]),
        (pa.timestamp("s"), [2**40]),
        (pa.timestamp("ns"), [-(2**63)]),  # numpy's and pandas' mark of an absent time
        (pa.timestamp("us", "UTC"), [2**62]),
        (pa.date32(), [2_932_897]),
        (pa.date32(), [-719_163]),
        (pa.list_(pa.date32()), [[0, 2_932_897]]),
        (pa.struct([("t", pa.timestamp("ms"))]), [{"t": 2**60}]),
    ],
)
def test_times_that_no_calendar_has_are_refused(catalog: lh.Catalog, kind: pa.DataType, values: list[Any]) -> None:
    table = catalog.create_table("default.beyond", pa.schema([("id", pa.int64()), ("v", kind)]))
    try:
        if pa.types.is_nested(kind):
            given_values = pa.array(values, _with_numbers(kind)).cast(kind)
        else:
            given_values = pa.array(values, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
        with pytest.raises(lh.SchemaError, match="column v.* beyond the years"):
            table.append(pa.table({"id": [1] * len(values), "v": given_values}))
        assert table.snapshots() == []
    finally:
        catalog.drop_table("default.beyond")


def _with_numbers(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.int32()) if pa.types.is_list(kind) else pa.struct([("t", pa.int64())])


# --- what is refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (pa.uint64(), "v"),
        (pa.null(), "v"),
        (pa.duration("us"), "v"),
        (pa.month_day_nano_interval(), "v"),
        (pa.decimal256(39, 2), "v"),
        (pa.decimal128(10, -2), "v"),
        (pa.list_view(pa.int32()), "v"),
        (pa.struct([]), "v"),
        (pa.struct([("x", pa.int64()), ("x", pa.int64())]), "v"),
        (pa.struct([("value", pa.binary()), ("metadata", pa.binary())]), "v"),
        (pa.dense_union([pa.field("a", pa.int64())]), "v"),
        (pa.list_(pa.large_binary()), r"v\[\]"),
        (pa.struct([("x", pa.large_binary())]), r"v\.x"),
        (pa.map_(pa.string(), pa.large_binary()), r"v\{value\}"),
        (pa.map_(pa.uint64(), pa.string()), r"v\{key\}"),
        (pa.list_(pa.struct([("deep", pa.list_(pa.null()))])), r"v\[\]\.deep\[\]"),
        (pa.dictionary(pa.int8(), pa.uint64()), "v"),
    ],
    ids=str,
)
def test_a_type_that_paimon_lacks_is_refused_by_name(catalog: lh.Catalog, kind: pa.DataType, place: str) -> None:
    with pytest.raises(lh.SchemaError, match=rf"^column {place}: a Paimon table can't hold "):
        catalog.create_table("default.refused", pa.schema([("id", pa.int64()), ("v", kind)]))
    assert "default.refused" not in catalog.tables()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "at least one column"),
        ([("b", pa.large_binary())], "at least one column beside"),
        ([("id", pa.int64()), ("", pa.int64())], "blank"),
        ([("id", pa.int64()), (" \n", pa.int64())], "blank"),
        ([("id", pa.int64()), ("id", pa.string())], "column id is declared twice"),
        ([("id", pa.int64()), ("_ROW_ID", pa.int64())], "column _ROW_ID: Paimon keeps"),
        ([("id", pa.int64()), ("_SEQUENCE_NUMBER", pa.int64())], "column _SEQUENCE_NUMBER: Paimon keeps"),
        ([("id", pa.int64()), ("_KEY_x", pa.int64())], "column _KEY_x: Paimon keeps"),
    ],
)
def test_names_that_no_column_can_have(catalog: lh.Catalog, fields: list[Any], message: str) -> None:
    with pytest.raises(lh.SchemaError, match=message):
        catalog.create_table("default.refused", pa.schema(fields))


@pytest.mark.parametrize(
    "name", ["a.b", "a b", "é图", "a/b", "a=b", "A", "0", "select", "rowkind", "_LEVEL", "_row_id", "'\"`", "a,b", "a\0b"]
)
def test_names_that_a_column_can_have(catalog: lh.Catalog, name: str) -> None:
    fields = [
        ("id", pa.int64()),
        ("a", pa.string()),
        (name, pa.string()),
        ("p" + name, pa.string()),
        ("blob", pa.large_binary()),
    ]
    table = catalog.create_table("default.names", pa.schema(fields), partition_by=["p" + name])
    try:
        row = {"id": 1, "a": "a", name: "v", "p" + name: "p"}
        table.append([{**row, "blob": b"x"}])
        snapshot = table.latest()
        assert snapshot.query().select(*row).arrow().to_pylist() == [row]
        assert snapshot.query().index().row(0) | {"blob": None} == {**row, "blob": None}
        assert snapshot.daft(columns=list(row)).to_pylist() == [row]
    finally:
        catalog.drop_table("default.names")


@pytest.mark.parametrize(
    ("partition_by", "message"),
    [
        (["nope"], "partition_by names 'nope', which is not a column; columns: id, p"),
        (["p", "p"], "repeats"),
        (["tags"], "column tags: .* can't be a partition key"),
        (["blob"], "column blob: .* can't be a partition key"),
        (["nano"], "column nano: Paimon cuts partition keys to microseconds"),
        ([3], "names 3"),
        (3, "partition_by is a list"),
    ],
)
def test_partition_keys_that_are_refused(catalog: lh.Catalog, partition_by: Any, message: str) -> None:
    fields = [("id", pa.int64()), ("p", pa.string()), ("tags", pa.list_(pa.string())), ("nano", pa.timestamp("ns"))]
    with pytest.raises(lh.SchemaError, match=message):
        catalog.create_table("default.refused", pa.schema([*fields, ("blob", pa.large_binary())]), partition_by=partition_by)
    with pytest.raises(lh.SchemaError, match="every column is a partition key"):
        catalog.create_table("default.refused", pa.schema([("p", pa.string())]), partition_by="p")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bucket": 4}, "bucket=4"),
        ({"row-tracking.enabled": False}, "row-tracking.enabled=false"),
        ({"file.format": "orc"}, "file.format=orc"),
        ([("bucket", "-1")], "options is a mapping"),
        ({"blob-descriptor-field": "nope"}, "nope"),
    ],
)
def test_options_that_no_blob_table_can_have(catalog: lh.Catalog, options: Any, message: str) -> None:
    with pytest.raises(lh.SchemaError, match=message):
        catalog.create_table("default.refused", pa.schema([("id", pa.int64()), ("b", pa.large_binary())]), options=options)


def test_every_table_gets_what_blob_tables_need_and_what_the_user_adds(catalog: lh.Catalog) -> None:
    table = catalog.create_table(
        "default.options", pa.schema([("id", pa.int64())]), options={"read.batch-size": 7, "bucket": -1}
    )
    options = table.paimon.options.options.to_map()
    assert options["metadata.stats-mode"] == "full"  # or nothing could be skipped
    assert (options["bucket"], options["row-tracking.enabled"], options["data-evolution.enabled"]) == ("-1", "true", "true")
    assert options["read.batch-size"] == "7"


# --- declarations ------------------------------------------------------------------------------------------------------------


def test_a_schema_declares_columns_in_order() -> None:
    schema = lh.Schema(
        {
            "id": pa.int64(),
            "kind": pa.field("ignored", pa.string(), nullable=False),
            "frame": lh.Image(),
            "raw": lh.Blob(comment="as it came"),
            "lidar": lh.Blob(reference=True),
        }
    )
    assert schema.arrow.names == ["id", "kind", "frame", "raw", "lidar"]
    assert not schema.arrow.field("kind").nullable
    assert [schema.arrow.field(name).type for name in ("frame", "raw", "lidar")] == [pa.large_binary()] * 3
    assert schema.arrow.field("raw").metadata == {b"description": b"as it came"}
    with pytest.raises(AttributeError):
        schema.fields = {}  # type: ignore[misc]
    with pytest.raises(TypeError):
        schema.fields["id"] = pa.int8()  # type: ignore[index]


@pytest.mark.parametrize(
    "fields", [{"id": "int64"}, {"id": int}, {"id": lh.Blob}, {3: pa.int64()}, [("id", pa.int64())], pa.schema([])]
)
def test_what_declares_no_column(fields: Any) -> None:
    with pytest.raises(lh.SchemaError):
        lh.Schema(fields)


def test_a_schema_can_be_pickled() -> None:
    schema = lh.Schema({"id": pa.int64(), "frame": lh.Image(size=(8, 8)), "lidar": lh.Blob(reference=True)})
    copy = pickle.loads(pickle.dumps(schema))
    assert copy == schema
    assert copy.arrow.equals(schema.arrow, check_metadata=True)


@pytest.mark.parametrize("schema", [None, {"id": pa.int64()}, [("id", pa.int64())], "id bigint"])
def test_what_is_no_schema(catalog: lh.Catalog, schema: Any) -> None:
    with pytest.raises(lh.SchemaError, match=r"a schema must be a pyarrow\.Schema or lh\.Schema"):
        catalog.create_table("default.refused", schema)


def test_nullability_is_kept_at_every_level(catalog: lh.Catalog) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("tags", pa.list_(pa.field("item", pa.string(), nullable=False))),
            pa.field("pose", pa.struct([pa.field("x", pa.float64(), nullable=False), pa.field("y", pa.float64())])),
            pa.field("blob", pa.large_binary(), nullable=False),
        ]
    )
    assert catalog.create_table("default.nulls", schema).schema.equals(schema)


@settings(max_examples=200)
@given(st.sampled_from([declared for declared, _, _ in TYPES.values()]))
def test_what_is_stored_is_stored_as_itself(declared: pa.DataType) -> None:
    once = stored_schema(pa.schema([("id", pa.int64()), ("v", declared)]))
    assert stored_schema(once).equals(once)


def test_instants_are_the_same_in_every_zone(catalog: lh.Catalog) -> None:
    table = catalog.create_table("default.zones", pa.schema([("id", pa.int64()), ("v", pa.timestamp("us", "Asia/Shanghai"))]))
    noon = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=timezone(timedelta(hours=8)))
    table.append(pa.table({"id": [1], "v": pa.array([noon], pa.timestamp("ns", "America/New_York"))}))
    table.append([{"id": 2, "v": noon.astimezone(ZoneInfo("Pacific/Apia"))}])
    assert table.latest().arrow().column("v").to_pylist() == [noon, noon]
    assert table.schema.field("v").type == pa.timestamp("us", "UTC")


def test_a_time_of_day_with_microseconds_is_refused(catalog: lh.Catalog) -> None:
    table = catalog.create_table("default.times", pa.schema([("id", pa.int64()), ("v", pa.time64("us"))]))
    with pytest.raises(lh.SchemaError, match="column v: .* would change a value"):
        table.append(pa.table({"id": [1], "v": pa.array([time(1, 2, 3, 456_789)], pa.time64("us"))}))
    table.append(pa.table({"id": [1], "v": pa.array([time(12, 34, 56, 789_000)], pa.time64("us"))}))
    assert table.latest().arrow().column("v").to_pylist() == [time(12, 34, 56, 789_000)]


def test_a_date_is_no_instant(tmp_path: Path) -> None:
    table = lh.connect(warehouse=str(tmp_path)).create_table("default.t", pa.schema([("id", pa.int64()), ("v", pa.date64())]))
    with pytest.raises(lh.SchemaError, match="column v"):
        table.append(pa.table({"id": [1], "v": pa.array([datetime(2026, 1, 1, 5)], pa.timestamp("us"))}))
    with pytest.raises(lh.SchemaError, match="column v"):
        table.append([{"id": 1, "v": datetime(2026, 1, 1, 5)}])
    table.append([{"id": 1, "v": date(2026, 1, 1)}])
    assert table.latest().arrow().column("v").to_pylist() == [date(2026, 1, 1)]
