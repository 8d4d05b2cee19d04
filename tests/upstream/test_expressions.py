"""Faults of Daft's expressions on plain Arrow data: what the differential test of queries leaves out, and why.

`lakehouse.query.evaluate` and `lakehouse.query.daft_types` remedy those of them that a query can be kept from.
"""

from __future__ import annotations

import math
import struct
from datetime import date, datetime
from typing import Any

import daft
import pyarrow as pa
import pytest
from daft import col, lit
from daft.exceptions import DaftCoreException
from daft.expressions.visitor import _ColumnVisitor
from daft.recordbatch import RecordBatch

from tests.upstream.plain import hangs

NEGATIVE_NAN: float = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0000))[0]


def answers(values: pa.Array, expression: Any) -> list[Any]:
    """An expression over a column ``x`` of these values."""
    frame = daft.from_arrow(pa.table({"x": values}))
    return list(frame.select(expression.alias("answer")).to_pydict()["answer"])


def floats(*values: float | None) -> pa.Array:
    return pa.array(values, pa.float64())


# ---- floats


def test_minus_zero_is_less_than_zero() -> None:
    """Remedy: `_comparable` in evaluate.py. Left out of frames: comparisons that meet zeros of both signs, such keys of groups."""
    assert answers(floats(-0.0, 0.0), col("x") == 0.0) == [False, True]
    assert answers(floats(-0.0, 0.0), col("x") < 0.0) == [True, False]
    frame = daft.from_arrow(pa.table({"x": floats(-0.0, 0.0)}))
    assert frame.distinct().count_rows() == 2


def test_nan_with_its_sign_set_is_less_than_every_number() -> None:
    """It is what x86 makes of 0.0 / 0.0, and numpy with it. Remedy: `for_daft` gives every NaN the same bits."""
    assert answers(floats(NEGATIVE_NAN), col("x") < -math.inf) == [True]
    assert answers(floats(NEGATIVE_NAN), col("x") == lit(math.nan)) == [False]
    assert daft.from_arrow(pa.table({"x": floats(NEGATIVE_NAN, math.nan)})).distinct().count_rows() == 2


def test_arithmetic_makes_such_nan() -> None:
    """Left out: arithmetic whose NaN was none before."""
    assert answers(floats(math.inf), col("x") - col("x") < 0.0) == [True]


def test_the_greatest_of_a_group_leaves_nan_out() -> None:
    """Left out: least and greatest of values with NaN."""
    frame = daft.from_arrow(pa.table({"k": [0, 0], "x": floats(math.nan, 1.0)}))
    assert frame.groupby("k").agg(col("x").max()).to_pydict()["x"] == [1.0]
    assert math.isnan(frame.agg(col("x").max()).to_pydict()["x"][0])


def test_a_select_of_nan_in_two_expressions_panics() -> None:
    """Left out: more than one expression with NaN in a select."""
    frame = daft.from_arrow(pa.table({"x": floats(1.0)}))
    parts = [(col("x") == lit(math.nan)).alias("a"), (col("x") < 5).alias("b"), col("x").is_in([math.nan]).alias("c")]
    with pytest.raises(BaseException, match="unmaterialized stats"):  # a panic of Rust is no Exception
        frame.select(*parts).to_pydict()


# ---- IN


def test_a_long_list_takes_null_for_false() -> None:
    """Remedy: `_Truth` in evaluate.py. Left out of filters on frames."""
    values = pa.array(["z"])
    assert answers(values, col("x").is_in(["a", "b", None])) == [None]
    assert answers(values, col("x").is_in(["a", "b", "c", "d", "e", "f", None])) == [False]  # right: None


def test_a_long_list_with_nan_misses_values() -> None:
    """Remedy: `_Truth` in evaluate.py. Left out of filters on frames."""
    assert answers(floats(math.nan), col("x").is_in([2.0, 1.0, math.nan])) == [True]
    assert answers(floats(math.nan), col("x").is_in([5.0, 4.0, 3.0, 2.0, 1.0, math.nan])) == [False]  # right: True


def test_kernels_take_null_in_any_list_for_false() -> None:
    """Remedy: `_Truth` in evaluate.py."""
    batch = pa.table({"x": [1]})
    rows = RecordBatch.from_arrow_record_batches(batch.to_batches(), batch.schema)
    assert rows.eval_expression_list([col("x").is_in([2, None])]).to_pydict() == {"x": [False]}  # right: None


@pytest.mark.parametrize(
    ("values", "items"),
    [
        (pa.array([1, 2], pa.timestamp("us")), [datetime(2020, 1, 1), None]),
        (pa.array([1, 2], pa.timestamp("us")), []),
        (pa.array([1, 2], pa.date32()), [date(2020, 1, 1), None]),
        (pa.array([True]), [None, True, True, True, False, True, True, False]),
        (pa.array([1, 2]), [None, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_lists_that_are_refused(values: pa.Array, items: list[Any]) -> None:
    """Left out."""
    with pytest.raises(DaftCoreException):
        answers(values, col("x").is_in(items))


# ---- BETWEEN


def test_kernels_have_no_between_of_strings() -> None:
    """Plans rewrite it. Remedy: `_Truth` in evaluate.py."""
    assert answers(pa.array(["b"]), col("x").between("a", "c")) == [True]
    batch = pa.table({"x": ["b"]})
    rows = RecordBatch.from_arrow_record_batches(batch.to_batches(), batch.schema)
    with pytest.raises(DaftCoreException, match="between"):
        rows.eval_expression_list([col("x").between("a", "c")])


# ---- times


def test_nanoseconds_are_cut_off() -> None:
    """Left out: comparisons of instants less than a microsecond apart."""
    values = pa.array([1_000_000_001], pa.timestamp("ns"))
    assert answers(values, col("x") == datetime(1970, 1, 1, 0, 0, 1)) == [True]


def test_a_literal_is_cut_to_the_unit_of_the_column() -> None:
    """Remedy: `_comparable` in evaluate.py. Left out of filters on frames."""
    values = pa.array([1], pa.timestamp("ms"))
    assert answers(values, col("x").is_in([datetime(1970, 1, 1, 0, 0, 0, 1999)])) == [True]


def test_a_date_beside_a_timestamp_makes_both_dates() -> None:
    """Left out."""
    noon = pa.array([43_200], pa.timestamp("s"))
    assert answers(noon, col("x") <= date(1970, 1, 1)) == [True]
    assert answers(pa.array([0], pa.date32()), col("x") == datetime(1970, 1, 1, 12)) == [True]


# ---- filters


def test_filters_that_call_two_python_functions_are_lost() -> None:
    """Two conditions that hold a Python function inside share one column. Remedy: a query's conditions are evaluated by our
    source, one by one (`_Truth`). Left out of filters on frames."""

    @daft.func
    def even(x: int) -> bool:
        return x % 2 == 0

    @daft.func
    def threefold(x: int) -> bool:
        return x % 3 == 0

    frame = daft.from_arrow(pa.table({"x": list(range(12))}))
    kept = frame.where(even(col("x")) | (col("x") == 3)).where(threefold(col("x"))).to_pydict()
    assert kept == {"x": [0, 3, 6, 9]}  # right: [0, 3, 6]
    assert frame.where(~even(col("x")) & threefold(col("x"))).count_rows() == 0  # right: 2


def test_the_walk_does_not_open_structs() -> None:
    """So pypaimon's source fails at a filter on a struct's field. Remedy: `Walk.closed` in walk.py."""
    with pytest.raises(ValueError, match="does not support function expressions"):
        _ColumnVisitor().visit(col("x").get("y") > 1)


def test_quoted_names_are_not_found_in_sql() -> None:
    """Loud, so not remedied: an expression can name any column."""
    frame = daft.from_arrow(pa.table({"a b": [1]}))
    with pytest.raises(DaftCoreException, match="not found"):
        frame.where('"a b" = 1')


# ---- keys


def test_a_join_on_binary_hangs() -> None:
    """Left out."""
    assert hangs(
        "import daft\n"
        "left = daft.from_pydict({'k': [b'a', b'b'], 'v': [1, 2]})\n"
        "right = daft.from_pydict({'k': [b'a', b'a'], 'w': [1, 2]})\n"
        "print('ready', flush=True)\n"
        "left.join(right, on='k').collect()\n"
    )


@pytest.mark.parametrize("ask", [lambda f: f.distinct(), lambda f: f.groupby("x").agg(col("x").count().alias("n"))])
def test_lists_with_nulls_are_no_keys(ask: Any) -> None:
    """Left out."""
    frame = daft.from_arrow(pa.table({"x": pa.array([[1], None, [1]])}))
    with pytest.raises(DaftCoreException, match="can not contain nulls"):
        ask(frame).collect()


def test_binary_can_not_be_sorted() -> None:
    """Left out."""
    with pytest.raises(DaftCoreException, match="Cannot sort"):
        daft.from_arrow(pa.table({"x": [b"b", b"a"]})).sort("x").collect()


def test_small_integers_and_float32_make_float32() -> None:
    """Left out: 0.1 of float32 plus a small integer, compared with a number of float64."""
    frame = daft.from_arrow(pa.table({"x": pa.array([0.1], pa.float32()), "y": pa.array([1], pa.int8())}))
    assert frame.select(col("x") + col("y")).to_arrow().schema.field(0).type == pa.float32()
    assert frame.select(col("x") + lit(1)).to_arrow().schema.field(0).type == pa.float64()


def test_sql_behind_a_whole_expression_is_dropped() -> None:
    """``lakehouse.query.predicate`` reads it in parentheses for that."""
    for text in ("id = 1, v = 2", "id = 1; v = 2", "id = 1 WHERE v = 2"):
        assert str(daft.sql_expr(text)) == str(daft.sql_expr("id = 1"))
