"""What `Table.snapshots` says of each snapshot, against the rows themselves; whoever wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakehouse as lh
from lakehouse.history.counts import Change, FileChange, counted
from tests.stores import place
from tests.stores.place import connect, on_stores

pytestmark = on_stores

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("a", pa.large_binary()), ("b", pa.large_binary())])


def rows(*ids: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": i, "p": f"p{i % 2}", "a": b"a", "b": b"b"} for i in ids], schema=SCHEMA)


def commit(table: lh.Table, messages: Any, builder: Any) -> None:
    done = builder.new_commit()
    done.commit(messages)
    done.close()


def write(table: lh.Table, *ids: int, replace: bool = False) -> None:
    """By pypaimon's own writer."""
    builder = table.paimon.new_batch_write_builder()
    builder = builder.overwrite() if replace else builder
    writer = builder.new_write()
    writer.write_arrow(rows(*ids))
    commit(table, writer.prepare_commit(), builder)
    writer.close()


def update(table: lh.Table, change: Any) -> None:
    builder = table.paimon.new_batch_write_builder()
    commit(table, change(builder.new_update()), builder)


def row_ids(table: lh.Table, number: int) -> set[int]:
    return set(table.at(snapshot=number).query().select("id").index().row_ids.tolist())


@pytest.fixture
def table(warehouse: Path) -> lh.Table:
    """Snapshots of this package and of the engine's own API."""
    table = connect(warehouse).create_table("default.t", SCHEMA, partition_by=["p"])
    table.append(rows(*range(10)))
    write(table, *range(10, 16))
    update(table, lambda u: u.delete_by_row_id([0, 1, 11]))
    update(table, lambda u: u.delete_by_row_id([2, 3]))
    values = {"_ROW_ID": pa.array([4, 12], pa.int64()), "a": pa.array([b"x", b"y"], pa.large_binary())}
    update(table, lambda u: u.with_update_type(["a"]).update_by_arrow_with_row_id(pa.table(values)))
    write(table, 20, 22, replace=True)
    table.append(rows(30), commit_id="mine")
    builder = table.paimon.new_read_builder().new_predicate_builder()
    update(table, lambda u: u.delete_by_predicate(builder.equal("p", "p1")))
    return table


@pytest.mark.s3
def test_counts_are_those_of_the_rows(table: lh.Table) -> None:
    infos = table.snapshots()
    assert [info.id for info in infos] == list(range(1, 9))
    before: set[int] = set()
    for info in infos:
        after = row_ids(table, info.id)
        assert (info.rows_added, info.rows_deleted) == (len(after - before), len(before - after)), info
        before = after


def test_who_did_what(table: lh.Table) -> None:
    infos = table.snapshots()
    assert [info.operation for info in infos] == ["append", *[None] * 5, "append", None]
    assert [info.commit_id for info in infos if info.commit_id and not info.commit_id.startswith("auto-")] == ["mine"]
    assert [info.kind for info in infos][:2] == ["APPEND", "APPEND"]
    folder = place.path(table.paimon.table_path)
    files = [path for path in folder.rglob("data-*") if "snapshot" not in str(path)]
    first = infos[0].bytes_added
    assert first is not None
    assert 0 < first < sum(path.stat().st_size for path in files)
    assert infos[1].bytes_added is None


@pytest.mark.s3
def test_what_has_expired_is_not_guessed(table: lh.Table) -> None:
    exact = table.snapshots()
    folder = place.path(table.paimon.table_path) / "snapshot"
    for number in (1, 2, 3):
        (folder / f"snapshot-{number}").unlink()
    left = table.snapshots()
    assert [info.id for info in left] == [4, 5, 6, 7, 8]
    assert (left[0].rows_added, left[0].rows_deleted) == (0, None)
    assert left[1:] == exact[4:]


def test_a_rollback_leaves_counting_to_diff(table: lh.Table) -> None:
    table.rollback(snapshot=2)
    info = table.snapshots()[-1]
    assert (info.operation, info.rows_added, info.rows_deleted) == ("rollback", None, None)


# --- the arithmetic ----------------------------------------------------------------------------------------------------------


@given(st.data())
def test_counting_equals_sets_of_rows(data: st.DataObject) -> None:
    """Random files of random ranges; a snapshot removes some, writes some anew with the same ids, adds some, marks rows."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    next_row_id = sum(sizes)
    files = {f"old{i}": (start, size) for i, (start, size) in enumerate(zip(starts, sizes, strict=True))}
    marked = {name: data.draw(st.integers(0, size)) for name, (_, size) in files.items()}
    alive_before = {row for name, (start, size) in files.items() for row in range(start + marked[name], start + size)}
    changes, after, alive_after = [], {}, set()
    for name, (start, size) in files.items():
        what = data.draw(st.sampled_from(["keep", "remove", "rewrite"]))
        if what == "keep":
            after[name] = data.draw(st.integers(marked[name], size))
            alive_after |= set(range(start + after[name], start + size))
            continue
        changes.append(FileChange(name, False, start, size))
        if what == "rewrite":
            changes.append(FileChange(f"new-{name}", True, start, size))
            after[f"new-{name}"] = marked[name]
            alive_after |= set(range(start + marked[name], start + size))
    added = data.draw(st.integers(0, 4))
    if added:
        changes.append(FileChange("added", True, next_row_id, added))
        alive_after |= set(range(next_row_id, next_row_id + added))
    known = counted(changes, next_row_id, marked, {name: count for name, count in after.items() if count})
    assert known == Change(len(alive_after - alive_before), len(alive_before - alive_after))


def test_marks_without_a_count_are_unknown() -> None:
    assert counted([], 5, {}, {"f": None}) == Change(0, None)
    assert counted([FileChange("f", False, 0, 5)], 5, {"f": None}, {}) == Change(0, None)
    assert counted([FileChange("f", True, 5, 5)], None, {}, {}) == Change(None, 0)
