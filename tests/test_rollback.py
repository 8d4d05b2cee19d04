"""Rollback: the table shows what it held before, and nothing that was saved of any snapshot becomes another thing."""

from __future__ import annotations

import multiprocessing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

import lakehouse as lh
from tests.stores import place
from tests.stores.place import on_stores

pytestmark = on_stores


SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.int32()), ("frame", pa.large_binary())])
Held = list[tuple[int, int, bytes]]


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "p": f"p{i % 2}", "v": i, "frame": b"frame %d" % i} for i in ids]


def held(snapshot: lh.Snapshot) -> Held:
    """By three readers."""
    found = sorted((row["id"], row["v"], row["frame"]) for row in snapshot.arrow(blobs="bytes").to_pylist())
    assert sorted(snapshot.daft().to_pydict()["id"]) == [row[0] for row in found]
    index = snapshot.query().index()
    assert sorted(row["frame"].read(snapshot) for row in index) == sorted(row[2] for row in found)
    assert snapshot.count_rows() == len(found)
    return found


def engine(table: lh.Table, change: Any) -> None:
    """A change by pypaimon's own API."""
    builder = table.paimon.new_batch_write_builder()
    commit = builder.new_commit()
    commit.commit(change(builder.new_update()))
    commit.close()


def delete(table: lh.Table, *row_ids: int) -> None:
    engine(table, lambda update: update.delete_by_row_id(list(row_ids)))


def change_frame(table: lh.Table, row_id: int, value: bytes) -> None:
    new = pa.table({"_ROW_ID": pa.array([row_id], pa.int64()), "frame": pa.array([value], pa.large_binary())})
    engine(table, lambda update: update.with_update_type(["frame"]).update_by_arrow_with_row_id(new))


def overwrite(table: lh.Table, *ids: int) -> None:
    builder = table.paimon.new_batch_write_builder().overwrite()
    write = builder.new_write()
    write.write_arrow(pa.Table.from_pylist(rows(*ids), schema=SCHEMA))
    commit = builder.new_commit()
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


@pytest.fixture
def table(catalog: lh.Catalog) -> lh.Table:
    """Snapshots: 1 and 2 append, 3 deletes, 4 replaces a BLOB, 5 replaces a partition."""
    table = catalog.create_table("default.t", SCHEMA, partition_by=["p"])
    table.append(rows(0, 1, 2, 3))
    table.append(rows(4, 5, 6, 7))
    delete(table, 0)
    change_frame(table, 1, b"another")
    overwrite(table, 10)
    return table


def by_hand(table: lh.Table) -> dict[int, Held]:
    return {info.id: held(table.at(snapshot=info.id)) for info in table.snapshots()}


def test_every_snapshot_can_be_gone_back_to_and_forth(table: lh.Table) -> None:
    before = by_hand(table)
    assert len({str(rows) for rows in before.values()}) == 5
    expected = dict(before)
    for number, target in enumerate((1, 5, 2, 3, 4, 1, 6), 6):
        done = table.rollback(snapshot=target)
        assert (done.snapshot_id, done.target) == (number, target)
        assert (done.rows, done.rows_before) == (len(expected[target]), len(expected[number - 1]))
        assert done.undone == tuple(range(target + 1, number))
        assert held(table.latest()) == expected[target]
        expected[number] = expected[target]
    assert by_hand(table) == expected


def test_the_engine_itself_reads_it_alike(table: lh.Table) -> None:
    table.rollback(snapshot=4)
    builder = table.paimon.new_read_builder()
    data = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    found = sorted(zip(*(data.column(name).to_pylist() for name in ("id", "v", "frame")), strict=True))
    assert found == held(table.at(snapshot=4))


def test_writing_goes_on_where_ids_were_never_used(table: lh.Table) -> None:
    used = {int(i) for info in table.snapshots() for i in table.at(snapshot=info.id).query().index().row_ids}
    table.rollback(snapshot=2)
    table.append(rows(20, 21))
    new = {int(i) for i in table.latest().query().where("id >= 20").index().row_ids}
    assert len(new) == 2
    assert min(new) > max(used)
    delete(table, 4)
    change_frame(table, 0, b"newest")
    after = held(table.latest())
    assert (0, 0, b"newest") in after
    assert {row[0] for row in after} == {0, 1, 2, 3, 5, 6, 7, 20, 21}
    table.rollback(snapshot=2)
    assert held(table.latest()) == held(table.at(snapshot=2))


@pytest.mark.s3
def test_tags_and_saved_indexes_stay(table: lh.Table, catalog: lh.Catalog, tmp_path: Path) -> None:
    table.tag("v4", snapshot=4)
    table.tag("v5")
    indexes = {name: table.at(tag=name).query().index() for name in ("v4", "v5")}
    for name, index in indexes.items():
        index.save(tmp_path / name)
    expected = {name: held(table.at(tag=name)) for name in indexes}
    table.rollback(snapshot=2)
    table.append(rows(30))
    assert table.tags() == {"v4": 4, "v5": 5}
    for name, index in indexes.items():
        assert held(table.at(tag=name)) == expected[name]
        loaded = lh.RowIndex.load(tmp_path / name, catalog)
        assert loaded.fingerprint == index.fingerprint
        assert sorted(row["frame"].read(table) for row in loaded) == sorted(row[2] for row in expected[name])


def test_by_tag_and_time(table: lh.Table) -> None:
    table.tag("two", snapshot=2)
    infos = table.snapshots()
    assert table.rollback(tag="two").target == 2
    assert held(table.latest()) == held(table.at(snapshot=2))
    assert table.rollback(time=infos[4].time).target == 5
    assert held(table.latest()) == held(table.at(snapshot=5))


@pytest.mark.s3
def test_to_a_tag_whose_snapshot_has_expired(table: lh.Table) -> None:
    expected = held(table.at(snapshot=2))
    table.tag("two", snapshot=2)
    for number in (1, 2):
        (place.path(table.paimon.table_path) / "snapshot" / f"snapshot-{number}").unlink()
    assert table.rollback(tag="two").snapshot_id == 6
    assert held(table.latest()) == expected == held(table.at(tag="two"))


def test_a_dry_run_does_nothing(table: lh.Table) -> None:
    before = sorted(str(path) for path in place.path(table.paimon.table_path).rglob("*"))
    done = table.rollback(snapshot=3, dry_run=True)
    assert (done.snapshot_id, done.target, done.undone) == (None, 3, (4, 5))
    assert (done.rows, done.rows_before) == (7, table.latest().count_rows())
    assert sorted(str(path) for path in place.path(table.paimon.table_path).rglob("*")) == before


def test_to_the_latest_is_nothing_to_do(table: lh.Table) -> None:
    assert table.rollback(snapshot=5).snapshot_id is None
    assert [info.id for info in table.snapshots()] == [1, 2, 3, 4, 5]


def test_what_is_no_version_is_refused(table: lh.Table, catalog: lh.Catalog) -> None:
    for wrong in ({}, {"tag": "a", "snapshot": 1}):
        with pytest.raises(lh.ConfigError, match="exactly one of tag, snapshot and time"):
            table.rollback(**wrong)  # type: ignore[arg-type]
    with pytest.raises(lh.NotFoundError, match="no snapshot 9; snapshots: 1 to 5"):
        table.rollback(snapshot=9)
    with pytest.raises(lh.NotFoundError, match="no tag 'x'"):
        table.rollback(tag="x")
    with pytest.raises(lh.ConfigError, match="can't name a tag"):
        table.rollback(tag="../x")
    empty = catalog.create_table("default.empty", SCHEMA)
    with pytest.raises(lh.NotFoundError, match="no snapshot at or before"):
        empty.rollback(time=datetime.now(timezone.utc) - timedelta(days=1))


# --- columns that changed in between -----------------------------------------------------------------------------------------


def alter(catalog: lh.Catalog, *changes: Any) -> None:
    catalog.paimon.alter_table("default.t", list(changes), False)


def test_columns_added_since_stay_and_are_null(table: lh.Table, catalog: lh.Catalog) -> None:
    expected = held(table.at(snapshot=4))
    alter(catalog, SchemaChange.add_column("score", AtomicType("DOUBLE")))
    table.append([{**row, "score": 0.5} for row in rows(40)])
    done = table.rollback(snapshot=4)
    assert done.null_columns == ("score",)
    assert held(table.latest()) == expected
    assert table.latest().schema.names == [*SCHEMA.names, "score"]
    assert table.latest().arrow().column("score").null_count == len(expected)
    assert table.latest().query().where("score is null").count_rows() == len(expected)
    table.append([{**row, "score": 0.25} for row in rows(41)])
    assert table.latest().query().where("score > 0").arrow().column("id").to_pylist() == [41]
    assert table.at(snapshot=4).schema.names == SCHEMA.names
    assert table.rollback(snapshot=6).null_columns == ()
    assert table.latest().query().where("score > 0").arrow().column("id").to_pylist() == [40]


def test_a_column_added_without_a_commit_since(table: lh.Table, catalog: lh.Catalog) -> None:
    alter(catalog, SchemaChange.add_column("score", AtomicType("DOUBLE")))
    assert table.rollback(snapshot=4).null_columns == ("score",)
    assert table.latest().schema.names == [*SCHEMA.names, "score"]


@pytest.mark.s3
def test_widened_columns_read_as_before(table: lh.Table, catalog: lh.Catalog) -> None:
    expected = held(table.at(snapshot=2))
    alter(catalog, SchemaChange.update_column_type("v", AtomicType("BIGINT")))
    table.append([{**row, "v": 2**40} for row in rows(40)])
    table.rollback(snapshot=2)
    assert held(table.latest()) == expected
    assert table.latest().schema.field("v").type == pa.int64()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (SchemaChange.drop_column("v"), "column v was dropped"),
        (SchemaChange.rename_column("v", "w"), "column v was renamed to w"),
        (SchemaChange.update_column_type("v", AtomicType("STRING")), "column v was int32 and is string"),
    ],
    ids=lambda value: value.split()[-2] if isinstance(value, str) else "",
)
def test_a_schema_that_would_show_other_values_is_refused_before_anything(
    table: lh.Table, catalog: lh.Catalog, change: Any, said: str
) -> None:
    alter(catalog, change)
    before = {path: path.stat().st_mtime_ns for path in place.path(table.paimon.table_path).rglob("*")}
    with pytest.raises(lh.SchemaError, match=f"can't go back to snapshot 2: since then {said}"):
        table.rollback(snapshot=2)
    assert {path: path.stat().st_mtime_ns for path in place.path(table.paimon.table_path).rglob("*")} == before


def test_a_column_dropped_and_added_again_is_another_one(table: lh.Table, catalog: lh.Catalog) -> None:
    alter(catalog, SchemaChange.drop_column("v"))
    alter(catalog, SchemaChange.add_column("v", AtomicType("INT")))
    with pytest.raises(lh.SchemaError, match="column v was dropped"):
        table.rollback(snapshot=2)


# --- commit ids, numbers given out twice, other writers ----------------------------------------------------------------------


def test_ids_of_undone_commits_are_free_again(table: lh.Table) -> None:
    first = table.append(rows(50), commit_id="import-1")
    assert table.append(rows(50), commit_id="import-1") == first
    table.rollback(snapshot=5)
    again = table.append(rows(50), commit_id="import-1")
    assert again.snapshot_id == 8
    assert table.append(rows(50), commit_id="import-1") == again
    assert [row[0] for row in held(table.latest())].count(50) == 1
    table.rollback(snapshot=6)  # the first import is back
    assert table.append(rows(50), commit_id="import-1").snapshot_id == 6
    assert [row[0] for row in held(table.latest())].count(50) == 1


def test_an_index_of_a_number_given_out_again_is_noticed(catalog: lh.Catalog, tmp_path: Path) -> None:
    """Upstream's own rollback deletes snapshots; the next commits get their numbers and row ids."""
    table = catalog.create_table("default.n", pa.schema([("id", pa.int64()), ("v", pa.int64())]))
    for i in range(3):
        table.append([{"id": i, "v": i}])
    index = table.latest().query().index()
    index.save(tmp_path / "train.idx")
    table.paimon.rollback_to(2)
    table.append([{"id": 99, "v": 99}])
    assert table.latest().id == 3
    other = table.latest().query().index()
    assert other.row_ids.tolist() == index.row_ids.tolist()
    assert other.fingerprint != index.fingerprint
    with pytest.raises(lh.ResumeError, match="another snapshot 3 of default.n.*given out again"):
        lh.RowIndex.load(tmp_path / "train.idx", catalog)


def _append(options: dict[str, Any], start: int, count: int) -> None:
    table = lh.connect(options).table("default.t")
    for i in range(start, start + count):
        table.append(rows(i))


def test_writers_beside_a_rollback_lose_nothing(table: lh.Table, warehouse: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append, args=(place.options(warehouse), 100 * n, 10)) for n in (1, 2)]
    for writer in writers:
        writer.start()
    done = [table.rollback(snapshot=2) for _ in range(5)]
    for writer in writers:
        writer.join(100)
        assert writer.exitcode == 0
    numbers = [info.id for info in table.snapshots()]
    assert numbers == list(range(1, 5 + 20 + 5 + 1))
    last = done[-1].snapshot_id
    assert last is not None
    after = [row[0] for row in held(table.latest()) if row[0] >= 100]
    assert len(after) == numbers[-1] - last  # each append after the last rollback, once
    appended = {info.id: info for info in table.snapshots() if info.operation == "append"}
    assert sum(info.rows_added or 0 for info in appended.values()) == 8 + 20
    for rolled in done:
        assert held(table.at(snapshot=rolled.snapshot_id)) == held(table.at(snapshot=2))
