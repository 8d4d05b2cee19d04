"""Columns that are added, dropped and widened: every row and every old version stays right on every path."""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from daft import col
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

import lakehouse as lh
from tests.stores.place import connect, on_stores
from tests.test_changes_conflicts import run_together, start
from tests.upstream.plain import SCHEMA, row

pytestmark = on_stores

NAME = "default.t"


def made(warehouse: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> lh.Table:
    table = connect(warehouse).create_table(NAME, schema, partition_by=["p"])
    if rows:
        table.append(rows)
    return table


def values(table: lh.Table, column: str) -> list[Any]:
    found: list[Any] = table.latest().arrow(blobs="bytes").sort_by("id").column(column).to_pylist()
    return found


def all_files(warehouse: Path) -> set[Path]:
    return {path for path in warehouse.rglob("*") if path.is_file()}


@pytest.mark.s3
def test_an_added_column_is_null_on_every_path(warehouse: Path) -> None:
    """T3."""
    table = made(warehouse, [row(i) for i in range(9)])
    table.tag("before")
    data = {path: path.stat().st_mtime_ns for path in warehouse.rglob("*") if path.suffix in (".blob", ".parquet")}
    commit = table.add_column("score", pa.float64())
    assert (commit.snapshot_id, commit.rows) == (2, 0)
    assert table.add_column(pa.field("thumb", pa.large_binary())).snapshot_id == 3
    assert table.snapshots()[-1].operation == "add_column"
    assert {path: path.stat().st_mtime_ns for path in warehouse.rglob("*") if path.suffix in (".blob", ".parquet")} == data

    snapshot = table.latest()
    assert snapshot.schema.names == table.schema.names == [*SCHEMA.names, "score", "thumb"]
    query = snapshot.query().select("score", "thumb")
    nothing = {"score": [None] * 9, "thumb": [None] * 9}
    assert query.count_rows() == snapshot.count_rows() == snapshot.daft(columns=["score"]).count_rows() == 9
    assert query.arrow(blobs="bytes").to_pydict() == nothing
    assert snapshot.daft(columns=["score", "thumb"]).to_pydict() == nothing
    index = query.index()
    assert index.column("score").to_pylist() == [None] * 9
    assert [index.row(i)["thumb"] for i in range(9)] == [None] * 9
    (batch,) = lh.Dataset(index, batch_size=9, shuffle=None, fill={"score": -1.0})
    assert batch["score"].tolist() == [-1.0] * 9
    assert batch["thumb"] == [None] * 9
    for where, rows in (("score IS NULL", 9), ("score > 0", 0), ("thumb IS NULL", 9), ("thumb IS NOT NULL AND id > 1", 0)):
        assert snapshot.query().where(where).count_rows() == rows
        assert snapshot.daft().where(where).count_rows() == rows
    assert table.at(tag="before").schema.names == SCHEMA.names
    assert table.at(tag="before").arrow(blobs="bytes").sort_by("id").to_pylist() == [row(i) for i in range(9)]


def test_an_added_column_is_filled_by_updates_and_appends(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(9)])
    table.add_column("score", pa.float64())
    table.add_column("thumb", lh.Image(codec="jpeg"))
    blobs = set(warehouse.rglob("*.blob"))
    assert table.update("id < 6", {"score": col("a") / 10}).rows == 6
    assert set(warehouse.rglob("*.blob")) == blobs
    assert (
        table.update("id = 4 OR id = 5", {"thumb": lambda rows: [b"small %d" % i for i in rows.column("id").to_pylist()]}).rows
        == 2
    )
    table.append([row(9, score=9.5, thumb=b"nine"), row(10)])
    assert values(table, "score") == [*map(float, range(6)), None, None, None, 9.5, None]
    thumbs = [None, None, None, None, b"small 4", b"small 5", None, None, None, b"nine", None]
    assert values(table, "thumb") == thumbs
    snapshot = table.latest()
    assert snapshot.daft().with_column("t", snapshot.bytes("thumb")).sort("id").to_pydict()["t"] == thumbs
    assert snapshot.query().where("score >= 4").count_rows() == 3
    assert snapshot.query().where("thumb IS NULL").count_rows() == 8
    assert table.upsert([{"id": 1, "thumb": b"one", "p": "P2"}], key=["id"]).rows == 1  # moves, with its score
    assert values(table, "thumb")[1] == b"one"
    assert values(table, "score")[1] == 1.0


def test_an_added_column_by_reference(warehouse: Path, tmp_path: Path) -> None:
    (tmp_path / "far").write_bytes(b"far away")
    table = connect(warehouse, blob_roots=[str(tmp_path)]).create_table(NAME, SCHEMA, partition_by=["p"])
    table.append([row(0), row(1)])
    table.add_column("lidar", lh.Blob(reference=True, comment="point clouds"))
    assert values(table, "lidar") == [None, None]
    table.update("id = 1", {"lidar": lh.BlobRef(str(tmp_path / "far"), 4, 4)})
    table.append([row(2, lidar=lh.BlobRef(str(tmp_path / "far")))])
    assert values(table, "lidar") == [None, b"away", b"far away"]
    assert table.latest().query().where("lidar IS NULL").count_rows() == 1
    with pytest.raises(lh.SchemaError, match="declared by reference"):
        table.append([row(3, lidar=b"bytes")])


@pytest.mark.s3
def test_a_dropped_column_stays_in_older_versions(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(6)])
    table.update("id = 1", {"v": "updated"})
    table.tag("before")
    old = values(table, "v")
    assert table.drop_column("v").snapshot_id == 3
    rest = [name for name in SCHEMA.names if name != "v"]
    assert table.schema.names == table.latest().schema.names == rest
    expected = [{name: r[name] for name in rest} for r in (row(i) for i in range(6))]
    assert table.latest().arrow(blobs="bytes").sort_by("id").to_pylist() == expected
    assert table.latest().daft().sort("id").select("id", "a").to_pydict() == {
        "id": [*range(6)],
        "a": [10 * i for i in range(6)],
    }
    with pytest.raises(lh.NotFoundError, match="no column 'v'"):
        table.latest().query().where("v = 'v1'")
    assert table.at(tag="before").arrow().sort_by("id").column("v").to_pylist() == old
    assert table.at(tag="before").query().where("v = 'updated'").count_rows() == 1
    assert table.at(snapshot=1).query().where("v = 'v1'").count_rows() == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.int64()])
def test_values_of_a_dropped_column_stay_gone_when_its_name_comes_back(warehouse: Path, kind: pa.DataType) -> None:
    table = made(warehouse, [row(i) for i in range(6)])
    table.update("id = 1", {"v": "updated"})
    table.drop_column("v")
    table.append([{"id": 6, "p": "P0"}])
    table.add_column("v", kind)
    new = 7 if kind == pa.int64() else "new"
    table.append([{"id": 7, "p": "P1", "v": new}])
    assert values(table, "v") == [None] * 7 + [new]
    table.update("id = 2", {"v": new})
    assert values(table, "v") == [None, None, new, None, None, None, None, new]
    snapshot = table.latest()
    assert snapshot.query().where("v IS NULL").count_rows() == snapshot.daft().where("v IS NULL").count_rows() == 6
    assert snapshot.query().where(col("v") == new).count_rows() == snapshot.daft().where(col("v") == new).count_rows() == 2


WIDER: list[tuple[pa.DataType, pa.DataType, list[Any], Any]] = [
    (pa.int8(), pa.int16(), [-128, 0, 127, None], 300),
    (pa.int32(), pa.int64(), [-(2**31), -1, 2**31 - 1, None], 2**40),
    (pa.int16(), pa.int64(), [-(2**15), 0, 7, None], -(2**62)),
    (pa.float32(), pa.float64(), [-1.5, 0.25, 3.4028234663852886e38, None], 1e300),
    (
        pa.decimal128(5, 2),
        pa.decimal128(15, 2),
        [Decimal("-999.99"), Decimal("0.01"), Decimal("12.50"), None],
        Decimal("12345678.90"),
    ),
]


@pytest.mark.parametrize("case", range(len(WIDER)), ids=[f"{old}-{new}" for old, new, _, _ in WIDER])
@pytest.mark.s3
def test_a_widened_column_holds_and_finds_what_it_held(warehouse: Path, case: int) -> None:
    old_type, new_type, old, larger = WIDER[case]
    schema = SCHEMA.append(pa.field("w", old_type))
    table = made(warehouse, [row(i, p=f"P{i % 2}", w=value) for i, value in enumerate(old)], schema)
    table.tag("before")
    assert table.widen_column("w", new_type).snapshot_id == 2
    assert table.widen_column("w", new_type).snapshot_id == 2  # it has it already
    held = list(old)
    assert values(table, "w") == held
    table.append([row(len(old), w=larger)])
    held.append(larger)
    table.update("id = 1", {"w": larger})
    held[1] = larger
    assert values(table, "w") == held
    snapshot = table.latest()
    assert snapshot.schema.field("w").type == new_type
    assert snapshot.daft().sort("id").to_pydict()["w"] == held
    assert snapshot.query().select("w", "id").index().column("w").type == new_type
    for literal in [value for value in {*old, larger} if value is not None]:
        known = [value for value in held if value is not None]
        for found, expected in (
            (col("w") == literal, sum(value == literal for value in known)),
            (col("w") > literal, sum(value > literal for value in known)),
            (col("w") <= literal, sum(value <= literal for value in known)),
            (col("w").is_in([literal]), known.count(literal)),
        ):
            assert snapshot.query().where(found).count_rows() == expected, (found, held)
            assert snapshot.daft().where(found).count_rows() == expected, (found, held)
    assert table.at(tag="before").schema.field("w").type == old_type
    assert table.at(tag="before").arrow().sort_by("id").column("w").to_pylist() == old


REFUSED: list[tuple[str, Callable[[lh.Table], Any], type[Exception], str]] = [
    ("taken", lambda t: t.add_column("v", pa.int64()), lh.SchemaError, "column v is there already, as string"),
    ("reserved", lambda t: t.add_column("_ROW_ID", pa.int64()), lh.SchemaError, "Paimon keeps this name"),
    ("blank", lambda t: t.add_column(" ", pa.int64()), lh.SchemaError, "blank"),
    ("not null", lambda t: t.add_column(pa.field("w", pa.int64(), nullable=False)), lh.SchemaError, "declare it nullable"),
    ("vector", lambda t: t.add_column("w", pa.list_(pa.float32(), 3)), lh.SchemaError, r"can't hold nulls.*pa.list_\(float\)"),
    ("uint64", lambda t: t.add_column("w", pa.uint64()), lh.SchemaError, "no unsigned integers"),
    ("no type", lambda t: t.add_column("w"), lh.SchemaError, "a pyarrow.Field, or a name and a type"),
    ("two types", lambda t: t.add_column(pa.field("w", pa.int8()), pa.int8()), lh.SchemaError, "a pyarrow.Field, or a name"),
    ("comment", lambda t: t.add_column("w", lh.Blob(comment="__BLOB_X")), lh.SchemaError, "takes the comment"),
    ("drop blob", lambda t: t.drop_column("img"), lh.SchemaError, r"holds BLOBs.*update\(None, \{'img': None\}\) empties it"),
    ("drop partition", lambda t: t.drop_column("p"), lh.SchemaError, "says in which partition"),
    ("drop unknown", lambda t: t.drop_column("w"), lh.NotFoundError, "no column 'w'"),
    ("rename", lambda t: t.rename_column("v", "w"), lh.SchemaError, r"add_column\('w'.*update.*drop_column\('v'\)"),
    ("rename blob", lambda t: t.rename_column("img", "w"), lh.SchemaError, "holds BLOBs, which can't be renamed"),
    ("rename partition", lambda t: t.rename_column("p", "w"), lh.SchemaError, "says in which partition"),
    ("rename unknown", lambda t: t.rename_column("w", "x"), lh.NotFoundError, "no column 'w'"),
    ("rename taken", lambda t: t.rename_column("v", "a"), lh.SchemaError, "column a is there already"),
    ("narrow", lambda t: t.widen_column("a", pa.int32()), lh.SchemaError, "int32 does not hold every value of int64"),
    ("other", lambda t: t.widen_column("a", pa.string()), lh.SchemaError, "string does not hold every value of int64"),
    ("float", lambda t: t.widen_column("a", pa.float64()), lh.SchemaError, "double does not hold every value of int64"),
    ("to blob", lambda t: t.widen_column("v", pa.large_binary()), lh.SchemaError, "does not hold every value of string"),
    ("widen partition", lambda t: t.widen_column("p", pa.int64()), lh.SchemaError, "says in which partition"),
    ("widen unknown", lambda t: t.widen_column("w", pa.int64()), lh.NotFoundError, "no column 'w'"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)), ids=[name for name, *_ in REFUSED])
def test_what_would_make_something_unreadable_is_refused(warehouse: Path, case: int) -> None:
    _, change, error, text = REFUSED[case]
    table = made(warehouse, [row(i) for i in range(3)])
    before = all_files(warehouse)
    with pytest.raises(error, match=text):
        change(table)
    assert all_files(warehouse) == before


def test_the_advice_of_rename_does_it(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(6)])
    table.add_column("w", table.schema.field("v").type)
    table.update(None, {"w": col("v")})
    table.drop_column("v")
    assert values(table, "w") == [f"v{i}" for i in range(6)]
    assert table.schema.names == ["id", "p", "a", "img", "w"]


def test_the_last_column_of_its_kind_stays(warehouse: Path) -> None:
    schema = pa.schema([("p", pa.string()), ("id", pa.int64()), ("img", pa.large_binary())])
    table = made(warehouse, [{"p": "P0", "id": 1, "img": b"x"}], schema)
    with pytest.raises(lh.SchemaError, match="column id is the last one that is neither"):
        table.drop_column("id")


def test_a_blob_does_not_take_the_name_of_a_dropped_column(warehouse: Path) -> None:
    table = made(warehouse, [row(0)])
    table.drop_column("v")
    with pytest.raises(lh.SchemaError, match="column v: a column of this name was dropped"):
        table.add_column("v", lh.Blob())


def test_a_table_without_rows_yet(warehouse: Path) -> None:
    table = made(warehouse, [])
    assert table.add_column("score", pa.float64()).snapshot_id is None
    assert table.drop_column("v").snapshot_id is None
    assert table.latest().schema.names == table.schema.names == ["id", "p", "a", "img", "score"]
    table.append([{"id": 1, "p": "P0", "score": 1.5}])
    assert values(table, "score") == [1.5]


def test_a_writer_that_began_before_a_column_was_added_does_not_hide_it(warehouse: Path) -> None:
    """Upstream's snapshot is read with the columns that its writer began with."""
    table = made(warehouse, [row(0)])

    def rows() -> Any:
        yield row(1)
        other = connect(warehouse).table(NAME)
        other.add_column("score", pa.float64())
        other.update("id = 0", {"score": 0.5})
        yield row(2)

    table.append(rows())
    assert table.latest().schema.names == [*SCHEMA.names, "score"]
    assert values(table, "score") == [0.5, None, None]


def test_a_change_of_columns_that_another_engine_made_shows_with_the_next_change(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(3)])
    connect(warehouse).paimon.alter_table(NAME, [SchemaChange.add_column("score", AtomicType("DOUBLE"))], False)
    assert table.update("score IS NULL AND id > 0", {"score": 1.5}).rows == 2
    assert values(table, "score") == [None, 1.5, 1.5]


def test_processes_that_change_columns_at_once(warehouse: Path) -> None:
    """Each adds, widens and drops columns of its own, while another appends; no schema is overwritten and no row is lost."""
    table = made(warehouse, [row(i) for i in range(3)])
    code = """
import pyarrow as pa
for i in range(3):
    table.add_column(f"c{args[0]}_{i}", pa.int32())
    table.widen_column(f"c{args[0]}_{i}", pa.int64())
table.drop_column(f"c{args[0]}_0")
"""
    append = "for i in range(6): table.append([row(100 + i)])"
    run_together(start(warehouse, code, 0), start(warehouse, code, 1), start(warehouse, append))
    names = {f"c{k}_{i}" for k in (0, 1) for i in (1, 2)}
    assert set(table.schema.names) == set(table.latest().schema.names) == {*SCHEMA.names, *names}
    assert all(table.schema.field(name).type == pa.int64() for name in names)
    ids = [int(path.name.removeprefix("schema-")) for path in warehouse.rglob("schema-*")]
    assert sorted(ids) == list(range(15))
    assert values(table, "id") == [0, 1, 2, *range(100, 106)]


@pytest.mark.local("replaces a call of the operating system")
def test_another_schema_in_the_last_moment(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(warehouse, [row(0)])
    link = os.link
    raced: list[int] = []

    def link_later(source: Any, target: Any, **kwargs: Any) -> None:
        if Path(target).name == "schema-1" and not raced:
            raced.append(1)
            connect(warehouse).table(NAME).add_column("theirs", pa.int64())
        link(source, target, **kwargs)

    monkeypatch.setattr(os, "link", link_later)
    table.add_column("mine", pa.int64())
    assert raced
    assert table.latest().schema.names == [*SCHEMA.names, "theirs", "mine"]


@pytest.mark.local("replaces a call of the operating system")
def test_a_store_that_refuses_a_schema(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(warehouse, [row(0)])
    before = all_files(warehouse)
    link = os.link

    def full(source: Any, target: Any, **kwargs: Any) -> None:
        if Path(target).name == name:
            raise OSError(28, "No space left on device")
        link(source, target, **kwargs)

    monkeypatch.setattr(os, "link", full)
    name = "schema-1"
    with pytest.raises(lh.CommitError, match="columns can't be changed .*No space left.*nothing was changed"):
        table.add_column("score", pa.float64())
    assert all_files(warehouse) == before
    name = "snapshot-2"
    with pytest.raises(lh.CommitError, match="columns are changed, which only the next commit will show: .*No space left"):
        table.add_column("score", pa.float64())
    monkeypatch.undo()
    assert table.schema.names == [*SCHEMA.names, "score"]
    assert table.latest().schema.names == SCHEMA.names
    table.append([row(1)])
    assert values(table, "score") == [None, None]
