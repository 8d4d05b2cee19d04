"""What differs between two versions: against a plain model of random tables, and at a cost of what changed."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

import lakehouse as lh
from lakehouse.history.values import differing
from tests.lake_files import folder_of
from tests.lake_tables import State, build
from tests.lake_values import Row, frozen, plain
from tests.stores.place import connect, on_stores

pytestmark = on_stores


TABLES = int(os.environ.get("LAKEHOUSE_STRESS", "0")) * 60 or 6
FIRST_SEED = 5000 + int(os.environ.get("LAKEHOUSE_FUZZ_SEED", "0")) * TABLES
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.float64()), ("frame", pa.large_binary())])


# --- random tables against their models --------------------------------------------------------------------------------------


def model_value(state: State, at: int, name: str) -> Any:
    """What is compared of a column: of a reference, where it points; 0.0 equals -0.0."""
    if name == "ref":
        ref = state.descriptors[name][at]
        return None if ref is None else (ref.uri, ref.offset, ref.length)
    return _unsigned(frozen(state.rows[at][name]))


def _unsigned(value: Any) -> Any:
    if isinstance(value, tuple):
        if len(value) == 3 and value[0] == "float" and value[1] == 0:
            return ("float", 0.0, 1.0)
        return tuple(map(_unsigned, value))
    return value


def by(state: State, key: str | None) -> dict[Any, int]:
    """Row positions of a state, by key or row id."""
    return {(state.rows[i][key] if key else state.row_ids[i]): i for i in range(len(state.rows))}


def expected(old: State, new: State, key: str | None) -> tuple[set[int], set[int], dict[int, set[str]]]:
    """k of the rows added and deleted; for each k of a changed row, the columns."""
    before, after = by(old, key), by(new, key)
    names = [name for name in new.schema.names if name in old.schema.names and not re_added(old, new, name) and name != key]
    changed: dict[int, set[str]] = {}
    for which in before.keys() & after.keys():
        i, j = before[which], after[which]
        found = {name for name in names if model_value(old, i, name) != model_value(new, j, name)}
        if found:
            changed[new.rows[j]["k"]] = found
    added = {new.rows[after[which]]["k"] for which in after.keys() - before.keys()}
    deleted = {old.rows[before[which]]["k"] for which in before.keys() - after.keys()}
    return added, deleted, changed


RE_ADDED: dict[tuple[int, int], set[str]] = {}


def re_added(old: State, new: State, name: str) -> bool:
    """Whether the column of the new state is another one than that of the old."""
    return name in RE_ADDED.get((old.snapshot, new.snapshot), set())


def note_re_added(table: lh.Table, states: list[State]) -> None:
    """Columns whose name came back with another identity, by the engine's own schemas."""
    RE_ADDED.clear()
    ids = {s.snapshot: {f.name: f.id for f in table.at(snapshot=s.snapshot).version.paimon.fields} for s in states}
    for old, new in itertools.permutations(ids, 2):
        RE_ADDED[old, new] = {name for name in ids[old].keys() & ids[new].keys() if ids[old][name] != ids[new][name]}


def ks(table: pa.Table) -> list[int]:
    return [int(value) for value in table.column("k").to_pylist()]


def test_random_tables_against_their_models(tmp_path: Path) -> None:
    """Every pair of states of every table, by row id and by key; rows on both sides, with their bytes."""
    outside = tmp_path / "outside"
    outside.mkdir()
    catalog = connect(tmp_path / "lake", blob_roots=[str(outside)])
    pairs = rows = 0
    for seed in range(FIRST_SEED, FIRST_SEED + TABLES):
        lake = build(seed, catalog, outside)
        note_re_added(lake.table, lake.states)
        couples = list(itertools.permutations(lake.states, 2))
        for (old, new), key in itertools.product(couples[:: max(1, len(couples) // 8)], (None, "k")):
            diff = lake.table.diff(lake.snapshot(old), lake.snapshot(new), key=key)
            where = (seed, old.snapshot, new.snapshot, key, lake.recipe)
            added, deleted, changed = expected(old, new, key)
            assert (diff.added, diff.deleted, diff.changed_rows) == (len(added), len(deleted), len(changed)), where
            counts = {n: sum(n in names for names in changed.values()) for n in new.schema.names}
            assert diff.changed == {name: count for name, count in counts.items() if count}, where
            assert set(ks(diff.rows("added"))) == added, where
            assert set(ks(diff.rows("deleted"))) == deleted, where
            sides = [diff.rows("changed", side=side, blobs="bytes") for side in ("old", "new")]
            assert dict(zip(ks(sides[1]), map(set, sides[1].column("_changed").to_pylist()), strict=True)) == changed, where
            check_values(sides, (old, new), diff, key)
            pairs += 1
            rows += len(added) + len(deleted) + len(changed)
    assert pairs >= 8 * TABLES
    assert rows >= 100 * TABLES


def check_values(sides: list[pa.Table], states: tuple[State, State], diff: Any, key: str | None) -> None:
    """Both sides hold the same rows in the same order, with the values of their states."""
    for table, state, side in zip(sides, states, ("old", "new"), strict=True):
        places = {row_id: i for i, row_id in enumerate(state.row_ids)}
        ids = diff.row_ids("changed", side=side).tolist()
        for name in state.schema.names:
            held: list[Row] = [state.rows[places[i]] for i in ids]
            if name != "ref":
                assert [frozen(v) for v in plain(table.column(name))] == [frozen(row[name]) for row in held]
    if key:
        assert ks(sides[0]) == ks(sides[1])
    else:
        assert diff.row_ids("changed", side="old").tolist() == diff.row_ids("changed").tolist()


# --- a table by hand ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(catalog: lh.Catalog) -> lh.Table:
    """Snapshot 1: ids 0 to 9 in two partitions; 2: 10 to 13 added."""
    table = catalog.create_table("default.t", SCHEMA, partition_by=["p"])
    table.append(rows(range(10)))
    table.append(rows(range(10, 14)))
    return table


def rows(ids: Any, frame: Callable[[int], bytes] = lambda i: b"frame %d" % i) -> list[dict[str, Any]]:
    return [{"id": i, "p": f"p{i % 2}", "v": float(i), "frame": frame(i)} for i in ids]


def engine(table: lh.Table, change: Callable[[Any], Any]) -> None:
    builder = table.paimon.new_batch_write_builder()
    commit = builder.new_commit()
    commit.commit(change(builder.new_update()))
    commit.close()


def set_v(table: lh.Table, row_id: int, value: float) -> None:
    new = pa.table({"_ROW_ID": pa.array([row_id], pa.int64()), "v": pa.array([value], pa.float64())})
    engine(table, lambda update: update.with_update_type(["v"]).update_by_arrow_with_row_id(new))


def rewrite(table: lh.Table, ids: Any, frame: Callable[[int], bytes] = lambda i: b"frame %d" % i) -> None:
    """Write whole partitions anew, with other row ids and moved bytes."""
    builder = table.paimon.new_batch_write_builder().overwrite()
    write = builder.new_write()
    write.write_arrow(pa.Table.from_pylist(rows(ids, frame), schema=SCHEMA))
    commit = builder.new_commit()
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def data_files(table: lh.Table) -> list[Path]:
    return [path for path in folder_of(table).rglob("data-*") if path.is_file()]


@pytest.mark.s3
def test_it_is_lazy_and_takes_versions_in_any_form(table: lh.Table) -> None:
    table.tag("one", snapshot=1)
    for old, new in (("one", 2), (1, table.latest()), (table.at(tag="one"), 2)):
        diff = table.diff(old, new)
        assert (diff.added, diff.deleted, diff.changed, diff.changed_rows) == (4, 0, {}, 0)
        assert sorted(diff.rows("added").column("id").to_pylist()) == [10, 11, 12, 13]
    back = table.diff(2, "one")
    assert (back.added, back.deleted) == (0, 4)
    assert str(back) == "default.t@2 to default.t@1: 0 rows added; 4 deleted; 0 changed"
    assert table.diff(2, 2).is_empty
    for path in data_files(table):
        path.unlink()
    assert repr(table.diff(1, 2, key="id")) == "Diff(default.t@1, default.t@2, key=['id'])"


def test_counts_by_row_id_of_what_came_whole_read_no_data_file(table: lh.Table) -> None:
    for path in data_files(table):
        path.unlink()
    diff = table.diff(1, 2)
    assert (diff.added, diff.deleted, diff.changed) == (4, 0, {})
    assert diff.row_ids("added").tolist() == [10, 11, 12, 13]


def test_only_files_that_differ_are_read(table: lh.Table) -> None:
    """Of 20 more commits one row of one file changes: all other data files can be gone."""
    for i in range(20, 40):
        table.append(rows([i]))
    before = table.latest()
    row_id = int(before.query().where("id = 30").index().row_ids[0])
    touched = {file.file_name for group in _groups(before) if group.first_row_id == row_id for file in group.split.files}
    known = {path.name for path in data_files(table)}
    set_v(table, row_id, -1.0)
    new = {path.name for path in data_files(table)} - known
    for path in data_files(table):
        if path.name not in touched | new:
            path.unlink()
    for key in (None, "id"):
        diff = table.diff(before, table.latest(), key=key)
        assert (diff.added, diff.deleted, diff.changed) == (0, 0, {"v": 1})
        assert diff.files_shared == len(known) - len(touched)
        assert diff.rows("changed", blobs="bytes").to_pylist() == [{**rows([30])[0], "v": -1.0, "_changed": ["v"]}]
        assert diff.rows("changed", side="old", columns=["v", "id"]).to_pylist() == [{"v": 30.0, "id": 30, "_changed": ["v"]}]


def _groups(snapshot: lh.Snapshot) -> Any:
    from lakehouse.scan import plan

    return plan(snapshot.version).groups


def test_only_columns_that_differ_are_read(table: lh.Table) -> None:
    """An update of a scalar leaves BLOB files as they are: by row id they are not even opened."""
    set_v(table, 0, 5.5)
    for path in folder_of(table).rglob("*.blob"):
        path.unlink()
    assert table.diff(2, 3).changed == {"v": 1}
    with pytest.raises(lh.FetchError):
        assert table.diff(2, 3, key="id").changed


@pytest.mark.s3
def test_blobs_are_compared_without_their_payloads(table: lh.Table) -> None:
    """Bytes that were written anew elsewhere are the same by length and checksum: payloads may be garbage."""
    rewrite(table, range(14), lambda i: b"frame %d" % i if i != 3 else b"FRAME 3")
    for path in folder_of(table).rglob("*.blob"):
        whole = bytearray(path.read_bytes())
        for i in range(14):
            for text in (b"frame %d" % i, b"FRAME 3"):
                at = whole.find(b"\xcf\x11\x4e\x58" + text)
                if at >= 0:
                    whole[at + 4 : at + 4 + len(text)] = b"#" * len(text)
        path.write_bytes(whole)
    diff = table.diff(2, 3, key="id")
    assert (diff.added, diff.deleted, diff.changed) == (0, 0, {"frame": 1})
    assert diff.rows("changed", columns=["id"]).to_pylist() == [{"id": 3, "_changed": ["frame"]}]
    by_row_id = table.diff(2, 3)
    assert (by_row_id.added, by_row_id.deleted, by_row_id.changed) == (14, 14, {})


def test_blobs_null_empty_and_of_other_length(table: lh.Table) -> None:
    frames: list[bytes | None] = [None, b"", b"x", b"longer", None, b""]
    later: list[bytes | None] = [None, b"", b"y", b"long", b"", None]
    for snapshot, values in enumerate((frames, later)):
        rewrite(table, range(6), lambda i, values=values: values[i])  # type: ignore[misc]
        assert table.latest().id == snapshot + 3
    diff = table.diff(3, 4, key=["id"])
    assert sorted(diff.rows("changed", columns=["id"]).column("id").to_pylist()) == [2, 3, 4, 5]
    assert diff.changed == {"frame": 4}


def test_an_end_that_is_gone_is_an_error_not_a_difference(table: lh.Table) -> None:
    rewrite(table, range(14))
    for path in folder_of(table).rglob("*.blob"):
        path.unlink()
    with pytest.raises(lh.FetchError):
        assert table.diff(2, 3, key="id").changed


@pytest.mark.s3
def test_by_key_upserts_and_overwrites_are_what_they_mean(table: lh.Table) -> None:
    rewrite(table, [0, 2, 4, 100])  # of partition p0: 6, 8, 10 and 12 are gone, 100 is new
    diff = table.diff(2, 3, key="id")
    assert (diff.added, diff.deleted, diff.changed) == (1, 4, {})
    assert diff.rows("added", columns=["id", "v"]).to_pylist() == [{"id": 100, "v": 100.0}]
    assert sorted(diff.rows("deleted").column("id").to_pylist()) == [6, 8, 10, 12]


def test_keys_of_several_columns_with_nulls_and_nan(catalog: lh.Catalog) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.float64()), ("c", pa.int32())])
    table = catalog.create_table("default.k", schema)
    first = [("x", 1.0, 1), ("x", None, 2), (None, 1.0, 3), (None, None, 4), ("x", math.nan, 5), ("y", 1.0, 6)]
    second = [("x", 1.0, 1), ("x", None, 20), (None, 1.0, 3), (None, None, 40), ("x", math.nan, 50), ("z", 1.0, 6)]
    builder = table.paimon.copy({"dynamic-partition-overwrite": "false"}).new_batch_write_builder
    for held in (first, second):
        writer = builder().overwrite()
        write = writer.new_write()
        write.write_arrow(pa.Table.from_pylist([dict(zip("abc", row, strict=True)) for row in held], schema=schema))
        commit = writer.new_commit()
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()
    diff = table.diff(1, 2, key=["b", "a"])
    assert (diff.added, diff.deleted, diff.changed) == (1, 1, {"c": 3})
    assert diff.rows("added").to_pylist() == [{"a": "z", "b": 1.0, "c": 6}]
    assert sorted(diff.rows("changed", side="old").column("c").to_pylist()) == [2, 4, 5]
    with pytest.raises(lh.SchemaError, match=r"default.k@1: a is no key: 2 values are those of several rows, such as \{'a'"):
        assert table.diff(1, 2, key="a").added


@pytest.mark.parametrize(("key", "error", "said"), [
    ("nope", lh.NotFoundError, "no column 'nope'"),
    ("frame", lh.SchemaError, "key column frame is no plain value"),
    (["id", "id"], lh.ConfigError, "key names a column twice"),
    ([], lh.ConfigError, "key names no column"),
])  # fmt: skip
def test_what_is_no_key_is_refused(table: lh.Table, key: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        table.diff(1, 2, key=key)


def test_what_is_no_version_or_kind_is_refused(table: lh.Table, catalog: lh.Catalog) -> None:
    with pytest.raises(lh.NotFoundError, match="no tag 'x'"):
        table.diff("x", 2)
    with pytest.raises(lh.NotFoundError, match="no snapshot 9"):
        table.diff(1, 9)
    with pytest.raises(lh.ConfigError, match="can't name a tag"):
        table.diff("../x", 2)
    other = catalog.create_table("default.other", SCHEMA)
    with pytest.raises(lh.ConfigError, match="two versions of one table"):
        table.diff(1, other.latest())
    for kind, side in (("gone", "new"), ("changed", "left")):
        with pytest.raises(lh.ConfigError, match="a diff has rows of kind"):
            table.diff(1, 2).rows(kind, side=side)  # type: ignore[arg-type]
    with pytest.raises(lh.NotFoundError, match="no column 'x'"):
        table.diff(1, 2).rows("added", columns=["x"])


def test_other_columns_are_named(table: lh.Table, catalog: lh.Catalog) -> None:
    def alter(*changes: Any) -> None:
        catalog.paimon.alter_table("default.t", list(changes), False)

    alter(SchemaChange.add_column("score", AtomicType("DOUBLE")), SchemaChange.add_column("n", AtomicType("INT")))
    table.append([{**rows([20])[0], "score": 0.5, "n": 1}])
    added = table.diff(2, 3)
    assert (added.columns_added, added.columns_dropped) == (("score", "n"), ())
    assert (added.added, added.changed) == (1, {})
    assert str(added).endswith("1 rows added; 0 deleted; 0 changed; columns added: score, n")
    alter(SchemaChange.drop_column("score"), SchemaChange.update_column_type("n", AtomicType("BIGINT")))
    table.append([{**rows([21])[0], "n": 2}])
    changed = table.diff(3, 4)
    assert changed.columns_dropped == ("score",)
    assert changed.columns_retyped == {"n": (pa.int32(), pa.int64())}
    assert (changed.added, changed.changed) == (1, {})
    alter(SchemaChange.add_column("score", AtomicType("DOUBLE")))
    table.append([{**rows([22])[0], "n": 3, "score": 1.0}])
    again = table.diff(3, 5)  # another column of the same name
    assert (again.columns_added, again.columns_dropped) == (("score",), ("score",))
    assert again.changed == {}


def test_after_a_rollback(table: lh.Table) -> None:
    set_v(table, 0, 7.5)
    table.rollback(snapshot=1)
    assert table.diff(1, 4).is_empty
    undone = table.diff(3, 4)
    assert (undone.added, undone.deleted, undone.changed) == (0, 4, {"v": 1})


def test_across_a_compaction_that_renumbers_rows_the_key_tells(table: lh.Table) -> None:
    """Its rows are others by row id, the same ones by key; what was changed before and after it shows as it is."""
    table.tag("before")
    table.delete("id = 3")
    table.update("id = 4", {"v": 40.0})
    report = table.compact()
    assert report.renumbered > 0
    table.update("id = 6", {"frame": b"another frame"})
    table.append(rows([20]))
    table.compact()
    diff = table.diff("before", table.latest(), key="id")
    assert (diff.added, diff.deleted, diff.changed) == (1, 1, {"v": 1, "frame": 1})
    found = {kind: diff.rows(kind)["id"].to_pylist() for kind in ("added", "deleted")}
    assert found == {"added": [20], "deleted": [3]}
    old, new = (diff.rows("changed", side="old").sort_by("id"), diff.rows("changed", side="new").sort_by("id"))
    assert (old["id"].to_pylist(), old["v"].to_pylist()) == ([4, 6], [4.0, 6.0])
    assert (new["id"].to_pylist(), new["v"].to_pylist()) == ([4, 6], [40.0, 6.0])
    assert new["_changed"].to_pylist() == [["v"], ["frame"]]
    by_row_id = table.diff("before", table.latest())
    assert (by_row_id.added, by_row_id.deleted) == (14, 14)


def test_a_compaction_that_keeps_row_ids_is_no_difference(table: lh.Table) -> None:
    table.tag("before")
    report = table.compact(row_ids="keep")
    assert report.renumbered == 0
    assert table.diff("before", table.latest()).is_empty


def test_branches_by_row_id_only_where_that_means_something(table: lh.Table) -> None:
    dev = table.create_branch("dev")
    set_v(dev, 0, 9.0)
    dev.append(rows([50]))
    for diff in (table.diff(2, dev.latest()), dev.diff(table.latest(), 4)):
        assert (diff.added, diff.deleted, diff.changed) == (1, 0, {"v": 1})
    table.append(rows([60]))
    with pytest.raises(lh.ConfigError, match="both written since they parted.*pass key="):
        table.diff(table.latest(), dev.latest())
    diff = table.diff(table.latest(), dev.latest(), key="id")
    assert (diff.added, diff.deleted, diff.changed) == (1, 1, {"v": 1})


def test_an_empty_table(catalog: lh.Catalog) -> None:
    empty = catalog.create_table("default.empty", SCHEMA)
    nothing = empty.latest()
    empty.append(rows(range(3)))
    assert empty.diff(nothing, 1).added == 3
    assert empty.diff(1, nothing, key="id").deleted == 3
    assert empty.diff(nothing, nothing).is_empty
    assert empty.diff(nothing, nothing).rows("changed").num_rows == 0


@pytest.mark.s3
def test_as_daft_with_files(table: lh.Table) -> None:
    set_v(table, 1, 3.25)
    diff = table.diff(1, 3)
    frame = diff.daft("added")
    latest = table.latest()
    got = frame.with_column("bytes", latest.bytes("frame")).select("id", "bytes").sort("id").to_pydict()
    assert got == {"id": [10, 11, 12, 13], "bytes": [b"frame %d" % i for i in range(10, 14)]}
    changed = diff.daft("changed", side="old", columns=["v"]).to_pydict()
    assert changed == {"v": diff.rows("changed", side="old", columns=["v"]).column("v").to_pylist()}
    assert changed != diff.daft("changed", columns=["v"]).to_pydict() == {"v": [3.25]}


# --- values ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "one", "other", "differ"), [
    (pa.float64(), [1.0, math.nan, math.nan, None, 0.0, None], [1.0, math.nan, 1.0, None, -0.0, math.nan], [2, 5]),
    (pa.string(), ["a", "", None], ["a", None, ""], [1, 2]),
    (pa.bool_(), [True, False, None], [True, True, False], [1, 2]),
    (pa.list_(pa.float32()), [[1.0], [math.nan], [], None], [[1.0], [math.nan], None, None], [2]),
    (pa.struct([("a", pa.int32())]), [{"a": 1}, {"a": None}, None], [{"a": 1}, None, None], [1]),
    (pa.map_(pa.string(), pa.float64()), [[("k", 1.0)], [("k", math.nan)]], [[("k", 2.0)], [("k", math.nan)]], [0]),
], ids=str)  # fmt: skip
def test_values(kind: pa.DataType, one: list[Any], other: list[Any], differ: list[int]) -> None:
    assert np.flatnonzero(differing(pa.array(one, kind), pa.array(other, kind))).tolist() == differ
