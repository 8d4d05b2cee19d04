"""What the differential test once found, each by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh


@pytest.fixture
def snap(warehouse: Path) -> lh.Snapshot:
    schema = pa.schema([("id", pa.int64()), ("s", pa.string()), ("img", pa.large_binary())])
    table = lh.connect(warehouse=str(warehouse)).create_table("t", schema)
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


def test_a_filter_alone_decides_although_nothing_of_it_is_selected(snap: lh.Snapshot) -> None:
    from daft import col

    frame = snap.daft().where(col("s") == "b").select("img", "id").to_pydict()
    assert frame["id"] == [1]
    assert snap.daft().where(col("s") == "b").count_rows() == 1
