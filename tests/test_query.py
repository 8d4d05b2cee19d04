"""What the differential test once found, each by name."""

from __future__ import annotations

import math
import pickle
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakehouse as lh
from tests.stores.place import connect, on_stores

pytestmark = on_stores


@pytest.fixture
def snap(warehouse: Path) -> lh.Snapshot:
    schema = pa.schema([("id", pa.int64()), ("s", pa.string()), ("img", pa.large_binary())])
    table = connect(warehouse).create_table("t", schema)
    table.append([{"id": i, "s": s, "img": b"x"} for i, s in ((0, "a"), (5, "a"), (None, "a"), (1, "b"))])
    return table.latest()


def ids(query: lh.Query) -> list[Any]:
    return list(query.select("id").arrow()["id"].to_pylist())


def test_a_null_in_a_list_makes_what_is_not_found_unknown(snap: lh.Snapshot) -> None:
    from daft import col

    found = col("id").is_in([0, 1, None])
    assert ids(snap.query().where(found)) == [0, 1]
    assert ids(snap.query().where(~found)) == []
    assert ids(snap.query().where((col("s") == "a") ^ found)) == [1]
    assert ids(snap.query().where("id not in (0, null)")) == []


def test_two_conditions_that_call_python_functions_both_hold(snap: lh.Snapshot) -> None:
    import daft
    from daft import col

    @daft.func
    def even(x: int | None) -> bool | None:
        return None if x is None else x % 2 == 0

    @daft.func
    def positive(x: int | None) -> bool | None:
        return None if x is None else x > 0

    both = even(col("id")) & ~positive(col("id"))
    assert ids(snap.query().where(both)) == [0]
    assert snap.query().where(both).daft().select("id").to_pydict() == {"id": [0]}


def test_a_frame_inside_a_query_does_not_wait_for_itself(snap: lh.Snapshot) -> None:
    """A plan that is run inside a task of another plan waits for ever: predicates are evaluated without a plan."""
    query = snap.query().where("id >= 1 or s = 'b'").sample(1.0)
    assert sorted(query.daft().select("id").to_pydict()["id"]) == [1, 5]


@pytest.mark.s3
def test_a_filter_alone_decides_although_nothing_of_it_is_selected(snap: lh.Snapshot) -> None:
    from daft import col

    frame = snap.daft().where(col("s") == "b").select("img", "id").to_pydict()
    assert frame["id"] == [1]
    assert snap.daft().where(col("s") == "b").count_rows() == 1


def test_a_long_list_finds_nan_and_takes_null_for_unknown(warehouse: Path) -> None:
    from daft import col

    table = connect(warehouse).create_table("t", pa.schema([("id", pa.int64()), ("x", pa.float64())]))
    table.append([{"id": i, "x": x} for i, x in enumerate((math.nan, 1.0, 9.0, None))])
    query = table.latest().query()
    assert ids(query.where(col("x").is_in([5.0, 4.0, 3.0, 2.0, 1.0, math.nan]))) == [0, 1]
    assert ids(query.where(~col("x").is_in([5.0, 4.0, 3.0, 2.0, 1.0, math.nan]))) == [2]
    assert ids(query.where(~col("x").is_in([5.0, 4.0, 3.0, 2.0, 7.0, 8.0, None]))) == []


def test_nan_is_one_value_whatever_its_bits(warehouse: Path) -> None:
    """Daft takes a NaN whose sign is set, which numpy's 0.0 / 0.0 is, for less than every number."""
    from daft import col, lit

    with np.errstate(invalid="ignore"):
        speeds = np.array([0.0, 1.0, 60.0]) / np.array([0.0, 1.0, 1.0])
    assert np.signbit(speeds[0])
    for kind in (pa.float64(), pa.float32()):
        table = connect(warehouse).create_table(f"t{kind}", pa.schema([("id", pa.int64()), ("speed", kind)]))
        table.append(pa.table({"id": [0, 1, 2], "speed": pa.array(speeds).cast(kind)}))
        snap = table.latest()
        for predicate, expected in (
            (col("speed") < 50, [1]),
            (col("speed") > 50, [0, 2]),
            (col("speed") == lit(math.nan), [0]),
        ):
            assert ids(snap.query().where(predicate)) == expected
            assert sorted(snap.daft().where(predicate).to_pydict()["id"]) == expected
        assert snap.daft().agg(col("speed").min()).to_pydict()["speed"] == [1.0]


def test_files_that_hold_nan_are_read_for_what_is_greater(warehouse: Path) -> None:
    """A file's statistics leave NaN out, which is greater than every number."""
    from daft import col, lit

    table = connect(warehouse).create_table("t", pa.schema([("id", pa.int64()), ("x", pa.float64())]))
    table.append([{"id": 0, "x": math.nan}, {"id": 1, "x": 1.0}])
    table.append([{"id": 2, "x": 7.0}])
    query = table.latest().query()
    x = col("x")
    for predicate in (x > 5, x >= 5.0, x.between(5.0, math.nan), x.between(5.0, x), lit(5.0) < x, ~(x <= 5.0)):
        assert ids(query.where(predicate)) == [0, 2]
    assert query.where(x.between(5.0, 8.0)).explain().files == 1
    assert ids(query.where(x.between(5.0, 8.0))) == ids(query.where(x.is_in([7.0]))) == [2]


def test_minus_zero_is_zero(warehouse: Path) -> None:
    """Daft takes it for less than zero."""
    from daft import col

    for kind in (pa.float64(), pa.float32()):
        table = connect(warehouse).create_table(f"t{kind}", pa.schema([("id", pa.int64()), ("x", kind)]))
        table.append(pa.table({"id": [0, 1, 2], "x": pa.array([-0.0, 0.0, None], kind)}))
        query, x = table.latest().query(), col("x")
        for predicate in (x == 0, x >= 0.0, x.between(0, 1), x.is_in([0.0, 5.0]), ~(x < 0)):
            assert ids(query.where(predicate)) == query.where(predicate).daft().to_pydict()["id"] == [0, 1]
        assert [math.copysign(1, v) for v in query.where(x == 0).arrow()["x"].to_pylist()] == [-1, 1]


def test_an_instant_finer_than_its_column_is_not_cut(warehouse: Path) -> None:
    from daft import col

    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms")), ("utc", pa.timestamp("ms", "UTC"))])
    table = connect(warehouse).create_table("t", schema)
    table.append(
        pa.table({"id": [0, 1], "at": pa.array([1, 2]).cast(pa.timestamp("ms")), "utc": pa.array([1, 2]).cast(schema[2].type)})
    )
    query = table.latest().query()
    for name, zone in (("at", None), ("utc", timezone.utc)):
        between = datetime(1970, 1, 1, 0, 0, 0, 1999, zone)
        assert ids(query.where(col(name) == between)) == ids(query.where(col(name).is_in([between]))) == []
        assert ids(query.where(col(name) < between)) == ids(query.where(~(col(name) > between))) == [0]
        assert ids(query.where(col(name) == datetime(1970, 1, 1, 0, 0, 0, 2000, zone))) == [1]


@pytest.mark.s3
def test_a_field_of_a_struct_can_be_filtered_by(warehouse: Path) -> None:
    """Daft's walk over expressions does not open structs: it does not say which column a field is of."""
    from daft import col

    schema = pa.schema(
        [("id", pa.int64()), ("pose", pa.struct([("x", pa.float64())])), ("place", pa.string()), ("img", pa.large_binary())]
    )
    table = connect(warehouse).create_table("t", schema, partition_by=["place"])
    table.append([{"id": i, "pose": None if i == 3 else {"x": i / 2}, "place": "ab"[i % 2], "img": b"x"} for i in range(8)])
    snap = table.latest()
    predicate = (col("pose").get("x") > 1) & (col("place") == "a")
    query = snap.query().where(predicate)
    assert ids(query) == [4, 6]
    assert query.count_rows() == snap.daft().where(predicate).count_rows() == 2
    assert snap.daft().where(predicate).select("img", "id").to_pydict()["id"] == [4, 6]
    assert query.explain().partitions == 1
    with pytest.raises(lh.SchemaError, match="does not fit the columns"):
        snap.query().where(col("pose").get("y") > 1)


@pytest.mark.parametrize("predicate", ["sum(id) > 3", "id + 1", "s > 3"])
def test_what_is_no_condition_is_refused_before_anything_runs(snap: lh.Snapshot, predicate: str) -> None:
    with pytest.raises(lh.SchemaError):
        snap.query().where(predicate)


def test_between_of_strings_and_bytes(warehouse: Path) -> None:
    """Daft's kernels have none; its plans rewrite it."""
    from daft import col

    schema = pa.schema([("id", pa.int64()), ("s", pa.string()), ("raw", pa.binary())])
    table = connect(warehouse).create_table("t", schema)
    table.append([{"id": i, "s": s, "raw": None if s is None else s.encode()} for i, s in enumerate(("a", "b", None, "é"))])
    query = table.latest().query()
    assert ids(query.where(col("s").between("b", "z"))) == ids(query.where(col("raw").between(b"b", b"z"))) == [1]
    assert ids(query.where(~col("s").between("b", "z") ^ (col("id") > 5))) == [0, 3]


@pytest.mark.s3
def test_an_update_of_a_blob_in_a_later_file_is_seen(warehouse: Path) -> None:
    """Upstream numbers the second .blob file of a column so high that updates lose against it."""
    schema = pa.schema([("id", pa.int64()), ("img", pa.large_binary())])
    table = connect(warehouse).create_table("t", schema, options={"blob.target-file-size": "1 kb"})
    table.append([{"id": i, "img": b"%d" % i * 100} for i in range(30)])
    paimon = table.paimon
    builder = paimon.new_batch_write_builder()
    last = paimon.new_read_builder().new_predicate_builder().equal("id", 29)
    commit = builder.new_commit()
    commit.commit(builder.new_update().update_by_predicate(last, {"img": b"new"}))
    commit.close()
    assert table.latest().query().where("id = 29").arrow(blobs="bytes")["img"].to_pylist() == [b"new"]
    assert table.at(snapshot=1).query().where("id = 29").arrow(blobs="bytes")["img"].to_pylist() == [b"29" * 100]


@pytest.mark.s3
def test_a_query_that_samples_and_calls_python_is_the_same_as_a_frame(snap: lh.Snapshot) -> None:
    """Two Python functions in one plan: Daft would lose the first condition."""
    import daft
    from daft import col

    @daft.func
    def even(x: int | None) -> bool | None:
        return None if x is None else x % 2 == 0

    query = snap.query().where(even(col("id")) | (col("id") == 5)).sample(0.999, seed=1)
    assert sorted(query.daft().to_pydict()["id"]) == sorted(ids(query)) == [0, 5]


@pytest.mark.timeout(30)
def test_an_asynchronous_function_does_not_wait_for_the_task_that_calls_it(snap: lh.Snapshot) -> None:
    """Daft has one event loop: a task that blocks it while the loop is to run the function waits for ever."""
    import daft
    from daft import col

    @daft.func
    async def positive(x: int | None) -> bool:
        return x is not None and x > 0

    query = snap.query().where(positive(col("id")))
    assert sorted(query.daft().to_pydict()["id"]) == sorted(ids(query)) == [1, 5]


def test_a_limit_of_a_frame_comes_after_its_filter(snap: lh.Snapshot) -> None:
    from daft import col

    assert snap.daft().where(col("id") > 0).limit(2).count_rows() == 2
    assert snap.daft().limit(3).count_rows() == 3
    assert snap.query().where("id > 0").daft().limit(1).select("s").count_rows() == 1


@pytest.mark.s3
def test_a_frame_of_a_query_travels_to_other_processes(snap: lh.Snapshot) -> None:
    from daft import col

    from lakehouse.query.source import LakeSource

    source = LakeSource(snap.version, [col("id") > 0], [(1.0, 0)])
    assert sorted(pickle.loads(pickle.dumps(source)).read().to_pydict()["id"]) == [1, 5]
