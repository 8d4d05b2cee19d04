"""What delete, update, upsert and overwrite do to rows, files and blobs, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
import pytest
from daft import col
from pypaimon.schema.schema_change import SchemaChange

import lakehouse as lh
from tests.stores.place import connect, on_stores
from tests.upstream.plain import SCHEMA, bytes_read, row

pytestmark = on_stores

NAME = "default.t"


def made(warehouse: Path, rows: list[dict[str, Any]], **options: Any) -> lh.Table:
    table = connect(warehouse).create_table(NAME, SCHEMA, partition_by=["p"], **options)
    if rows:
        table.append(rows)
    return table


def state(table: lh.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.latest().arrow(blobs="bytes").sort_by("id").to_pylist()
    return rows


def ids(table: lh.Table) -> list[int]:
    return [r["id"] for r in state(table)]


def blob_files(warehouse: Path) -> dict[Path, int]:
    """Every .blob file, with the time of its last change in ns."""
    return {path: path.stat().st_mtime_ns for path in warehouse.rglob("*.blob")}


def all_files(warehouse: Path) -> set[Path]:
    return {path for path in warehouse.rglob("*") if path.is_file()}


def row_ids(table: lh.Table) -> dict[int, int]:
    """Row id by id."""
    index = table.latest().query().select("id").index()
    return dict(zip(index.column("id").to_pylist(), index.row_ids.tolist(), strict=True))


# ---- update


@pytest.mark.s3
def test_updating_scalars_writes_no_blob_and_keeps_row_ids(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(30)])
    table.append([row(i) for i in range(30, 40)])
    before, old_ids = blob_files(warehouse), row_ids(table)
    assert len(before) == 6
    assert table.update("a >= 0", {"v": "new", "a": col("a") + col("id")}).rows == 40
    assert blob_files(warehouse) == before
    assert row_ids(table) == old_ids
    assert state(table) == [row(i, v="new", a=11 * i) for i in range(40)]


@pytest.mark.s3
def test_a_blob_of_one_row_writes_its_bytes_only(warehouse: Path) -> None:
    table = made(warehouse, [row(i, p="P0", img=b"%d" % i * 1000) for i in range(30)])
    before = blob_files(warehouse)
    commit = table.update("id = 29", {"img": b"NEW"})
    assert (commit.rows, commit.bytes < 100) == (1, True)
    after = blob_files(warehouse)
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) + 1
    assert state(table)[29]["img"] == b"NEW"
    assert table.at(snapshot=1).arrow(blobs="bytes").column("img").to_pylist()[29] == b"29" * 1000


def every_path(table: lh.Table, column: str) -> list[list[bytes | None]]:
    """A BLOB column in ascending id, read in each way there is."""
    snapshot = table.latest()
    index = snapshot.query().select("id", column).index()
    order = sorted(range(len(index)), key=lambda i: index.column("id")[i].as_py())
    found: list[list[bytes | None]] = [snapshot.arrow(blobs="bytes").sort_by("id").column(column).to_pylist()]
    frame = snapshot.daft(columns=["id", column]).with_column(column, snapshot.bytes(column)).sort("id")
    found.append(frame.to_pydict()[column])
    refs = [index.row(i)[column] for i in order]
    found.append([None if ref is None else ref.read(snapshot) for ref in refs])
    found.append([None if ref is None else lh.fetch_blob(ref, table) for ref in refs])
    batches = list(lh.Dataset(index, batch_size=len(index), shuffle=None))
    by_id = dict(zip(batches[0]["id"].tolist(), batches[0][column], strict=True))
    found.append([by_id[i] for i in sorted(by_id)])
    files = snapshot.daft(columns=["id", column]).sort("id").to_pydict()[column]
    found.append([None if file is None else lh.fetch_blob(file, table) for file in files])
    return found


def test_replaced_blobs_read_back_on_every_path(warehouse: Path, tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("more", pa.large_binary()))
    table = connect(warehouse).create_table(NAME, schema, partition_by=["p"], options={"blob.target-file-size": "1 kb"})
    rows = [row(i, img=b"%d" % i * 100, more=b"more %d" % i) for i in range(24)]
    table.append(rows)
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    steps: list[tuple[str, Any, bytes | None, list[int]]] = [
        ("id = 23", b"replaced", b"replaced", [23]),
        ("id = 0", b"", b"", [0]),
        ("id = 5 OR id = 6", None, None, [5, 6]),
        ("id = 23", b"replaced again", b"replaced again", [23]),
        ("id = 5", lh.BlobRef(str(source), 2, 5), b"23456", [5]),
        ("id = 0", None, None, [0]),
    ]
    for where, value, held, changed in steps:
        assert table.update(where, {"img": value}).rows == len(changed)
        for i in changed:
            rows[i]["img"] = held
        for found in every_path(table, "img"):
            assert found == [r["img"] for r in rows]
    for found in every_path(table, "more"):
        assert found == [r["more"] for r in rows]


def test_columns_by_reference(warehouse: Path, tmp_path: Path) -> None:
    sources = []
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode() * 3)
        sources.append(str(tmp_path / name))
    catalog = connect(warehouse, blob_roots=[str(tmp_path)])
    schema = lh.Schema({"id": pa.int64(), "p": pa.string(), "far": lh.Blob(reference=True), "img": lh.Blob()})
    table = catalog.create_table(NAME, schema, partition_by=["p"])
    one, two = (lh.BlobRef(source, 0, 9) for source in sources)
    table.append([{"id": i, "p": f"P{i % 2}", "far": one, "img": b"img %d" % i} for i in range(4)])
    before = blob_files(warehouse)
    table.update("id = 1", {"far": two})
    table.update("id = 2", {"far": None})
    table.upsert([{"id": 3, "far": two, "p": "P7"}], key=["id"])  # moved: a new row, with a copy of its other blob
    assert len(blob_files(warehouse)) == len(before) + 1
    for found in every_path(table, "far"):
        assert found == [b"oneoneone", b"twotwotwo", None, b"twotwotwo"]
    assert [r["img"] for r in state(table)] == [b"img 0", b"img 1", b"img 2", b"img 3"]
    table.upsert([{"id": 0, "p": "P7"}], key=["id"])  # moved with its reference
    assert every_path(table, "far")[0] == [b"oneoneone", b"twotwotwo", None, b"twotwotwo"]
    assert table.latest().arrow().sort_by("id").column("far")[0].as_py()["uri"] == sources[0]
    with pytest.raises(lh.SchemaError, match="column far is declared by reference: it takes lh.BlobRef, not bytes"):
        table.update("id = 1", {"far": b"bytes"})


def test_values_are_expressions_and_functions_of_the_row_as_it_was(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(6)])
    seen: list[pa.Table] = []

    def lengths(rows: pa.Table) -> pa.Array:
        seen.append(rows)
        return pa.array([ref["length"] for ref in rows.column("img").to_pylist()], pa.int64())

    assert table.update("id > 1", {"v": col("v") + "!", "a": lengths}).rows == 4
    assert state(table) == [row(0), row(1), *(row(i, v=f"v{i}!", a=7) for i in range(2, 6))]
    assert seen[0].column_names == ["id", "p", "v", "a", "img"]
    assert seen[0].column("v").to_pylist()[0] in {"v2", "v3", "v4", "v5"}  # not yet the new one
    table.update("id = 0", {"a": col("id"), "id": col("a") + 100})
    assert state(table)[-1] == row(0, v="v0", a=0, id=100)
    assert table.update(None, {"a": daft.lit(1)}).rows == 6
    assert {r["a"] for r in state(table)} == {1}


def test_nulls_are_not_true_as_in_queries(warehouse: Path) -> None:
    table = made(warehouse, [row(0, a=None), row(1, a=1), row(2, a=2)])
    assert table.update("a <> 1", {"v": "other"}).rows == 1
    assert table.delete("NOT (a = 1)").rows == 1
    assert table.delete("a NOT IN (1, NULL)").rows == 0
    assert [(r["id"], r["v"]) for r in state(table)] == [(0, "v0"), (1, "v1")]


REFUSED: list[tuple[str, Callable[[lh.Table], Any], type[Exception], str]] = [
    ("partition", lambda t: t.update("id = 1", {"p": "P9"}), lh.SchemaError, r"column p says in which partition.*upsert"),
    ("unknown", lambda t: t.update("id = 1", {"w": 1}), lh.NotFoundError, "no column 'w'"),
    ("row id", lambda t: t.update("id = 1", {"_ROW_ID": 1}), lh.NotFoundError, "no column '_ROW_ID'"),
    ("empty", lambda t: t.update("id = 1", {}), lh.SchemaError, "mapping of one or more columns"),
    ("type", lambda t: t.update("id = 1", {"a": "one"}), lh.SchemaError, "column a: 'one' is no int64"),
    ("cut", lambda t: t.update("id = 1", {"a": 1.5}), lh.SchemaError, "column a: 1.5 would not stay"),
    ("blob", lambda t: t.update("id = 1", {"img": "text"}), lh.SchemaError, "column img: a BLOB takes bytes"),
    ("fraction", lambda t: t.update("id > 0", {"a": col("a") / 3}), lh.SchemaError, "column a: .* would change a value"),
    ("reads a blob", lambda t: t.update("id = 1", {"a": col("img").length()}), lh.SchemaError, "reads the BLOB column img"),
    ("reads nothing", lambda t: t.update("id = 1", {"a": col("w")}), lh.NotFoundError, "no column 'w'"),
    ("mismatch", lambda t: t.update("id = 1", {"a": col("a") + col("p").length().cast("binary")}), lh.SchemaError, "column a"),
    ("too few", lambda t: t.update(None, {"a": lambda rows: [1]}), lh.SchemaError, "one value for each of"),
    ("no list", lambda t: t.update(None, {"a": lambda rows: 1}), lh.SchemaError, "one value for each of .* got int"),
    ("no source", lambda t: t.update("id = 1", {"img": lh.BlobRef("/no/such")}), lh.FetchError, "can't read /no/such"),
    ("where none", lambda t: t.delete(None), lh.SchemaError, "where"),
    ("where column", lambda t: t.delete("w = 1"), lh.NotFoundError, "no column 'w'"),
    ("where blob", lambda t: t.delete(col("img") == b"x"), lh.SchemaError, "only for null"),
    (
        "key absent",
        lambda t: t.upsert([{"v": "x"}], key=["id"]),
        lh.SchemaError,
        "column id is in the key, and the data lacks it",
    ),
    ("key unknown", lambda t: t.upsert([row(1)], key=["w"]), lh.NotFoundError, "no column 'w'"),
    ("key none", lambda t: t.upsert([row(1)], key=[]), lh.SchemaError, "one or more different columns"),
    ("key twice", lambda t: t.upsert([row(1)], key=["id", "id"]), lh.SchemaError, "one or more different columns"),
    ("key blob", lambda t: t.upsert([row(1)], key=["img"]), lh.SchemaError, "column img: large_binary can't be a key"),
    ("key null", lambda t: t.upsert([row(1), row(2, id=None)], key=["id"]), lh.SchemaError, "column id .* null in 1 rows"),
    ("key repeated", lambda t: t.upsert([row(1), row(4), row(1)], key=["id"]), lh.SchemaError, "key id=1 more than once"),
    ("uneven", lambda t: t.upsert([{"id": 1, "v": "x"}, {"id": 2}], key=["id"]), lh.SchemaError, "some rows have v and others"),
    ("extra", lambda t: t.upsert([{"id": 1, "w": "x"}], key=["id"]), lh.SchemaError, "columns that the table lacks: w"),
    ("outside", lambda t: t.overwrite([row(0), row(1)], partition={"p": "P0"}), lh.SchemaError, "row with p='P1', outside"),
    ("no partition", lambda t: t.overwrite([], partition={"v": "x"}), lh.SchemaError, "v is no partition column"),
    ("partition unknown", lambda t: t.overwrite([], partition={"w": 1}), lh.NotFoundError, "no column 'w'"),
    ("partition empty", lambda t: t.overwrite([], partition={}), lh.SchemaError, "leave it out for all rows"),
    ("partition type", lambda t: t.overwrite([], partition={"p": 1}), lh.SchemaError, "column p: 1 is no string"),
    ("bad row", lambda t: t.overwrite([row(0), row(1, a="x")]), lh.SchemaError, "column a"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)), ids=[name for name, *_ in REFUSED])
def test_what_can_not_be_served_is_refused_and_leaves_nothing(warehouse: Path, case: int) -> None:
    _, change, error, text = REFUSED[case]
    table = made(warehouse, [row(i) for i in range(6)])
    before = all_files(warehouse)
    with pytest.raises(error, match=text):
        change(table)
    assert all_files(warehouse) == before
    assert state(table) == [row(i) for i in range(6)]


def test_the_table_has_a_key_twice(warehouse: Path) -> None:
    table = made(warehouse, [row(1), row(1, p="P2"), row(2)])
    before = all_files(warehouse)
    with pytest.raises(lh.SchemaError, match=r"default\.t@1 has the key id=1 in more than one row"):
        table.upsert([row(2), row(1)], key=["id"])
    assert all_files(warehouse) == before
    assert table.upsert([row(2, v="fine")], key=["id"]).rows == 1


# ---- upsert


@pytest.mark.s3
def test_a_key_that_changes_its_partition_moves_in_one_snapshot(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(6)])
    commit = table.upsert([{"id": 1, "p": "P2", "v": "moved"}, {"id": 4, "p": "P1", "v": "stays"}], key=["id"])
    assert (commit.snapshot_id, commit.rows) == (2, 2)
    assert state(table) == [
        row(0),
        row(1, p="P2", v="moved"),
        row(2),
        row(3),
        row(4, v="stays"),
        row(5),
    ]
    assert table.at(snapshot=1).arrow(blobs="bytes").sort_by("id").to_pylist() == [row(i) for i in range(6)]


def test_keys_of_several_columns_and_types(warehouse: Path) -> None:
    schema = pa.schema([("scene", pa.string()), ("n", pa.int32()), ("day", pa.date32()), ("v", pa.string()), ("p", pa.int64())])
    table = connect(warehouse).create_table(NAME, schema, partition_by=["p"])

    def of(scene: str, n: int, day: int, v: str) -> dict[str, Any]:
        return {"scene": scene, "n": n, "day": date(2024, 1, day), "v": v, "p": n % 2}

    old = [of(scene, n, day, "old") for scene in "abc" for n in range(4) for day in (1, 2)]
    table.append(old)
    new = [of("a", 1, 1, "new"), of("c", 3, 2, "new"), of("a", 1, 3, "new"), of("d", 0, 1, "new"), of("b", 9, 9, "new")]
    assert table.upsert(pa.Table.from_pylist(new, schema=schema), key=["scene", "n", "day"]).rows == 5
    expected = {(r["scene"], r["n"], r["day"]): r for r in [*old, *new]}
    found = table.latest().arrow().to_pylist()
    assert {(r["scene"], r["n"], r["day"]): r for r in found} == expected
    assert table.latest().count_rows() == len(expected) == 27


def test_added_rows_need_columns_that_may_not_be_null(warehouse: Path) -> None:
    schema = SCHEMA.set(3, pa.field("a", pa.int64(), nullable=False))
    table = connect(warehouse).create_table(NAME, schema, partition_by=["p"])
    table.append([row(1)])
    assert table.upsert([{"id": 1, "v": "new"}], key=["id"]).rows == 1
    with pytest.raises(lh.SchemaError, match="column a may not be null, and the data, which has rows to add, lacks it"):
        table.upsert([{"id": 1, "v": "new"}, {"id": 2, "v": "new"}], key=["id"])
    with pytest.raises(lh.SchemaError, match="column a may not be null"):
        table.update("id = 1", {"a": None})
    assert state(table) == [row(1, v="new")]


def test_the_first_rows_of_a_table_can_be_upserted_or_overwritten(warehouse: Path) -> None:
    table = made(warehouse, [])
    assert table.delete("id = 1").snapshot_id is None
    assert table.update("id = 1", {"a": 1}).snapshot_id is None
    assert table.overwrite([]).snapshot_id is None
    assert table.upsert([], key=["id"]).snapshot_id is None
    assert table.upsert([row(0)], key=["id"]).snapshot_id == 1
    assert table.overwrite([row(1)]).snapshot_id == 2
    assert state(table) == [row(1)]


# ---- delete and overwrite


def test_tables_without_deletion_vectors(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(6)], options={"deletion-vectors.enabled": False})
    with pytest.raises(lh.SchemaError, match="delete needs deletion vectors.*overwrite.*set_option"):
        table.delete("id = 1")
    with pytest.raises(lh.SchemaError, match="moving rows to another partition needs deletion vectors"):
        table.upsert([{"id": 1, "p": "P0"}], key=["id"])
    assert table.update("id = 1", {"v": "new"}).rows == 1
    assert table.upsert([row(2, v="new"), row(9)], key=["id"]).rows == 2
    assert table.overwrite([row(30)], partition={"p": "P0"}).rows == 1
    alter = SchemaChange.set_option("deletion-vectors.enabled", "true")
    connect(warehouse).paimon.alter_table(NAME, [alter], False)
    assert table.delete("id = 1 OR id = 30").rows == 2
    assert ids(table) == [2, 4, 5]


@pytest.mark.s3
def test_delete_writes_no_data_file(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(30)])
    data = {path for path in all_files(warehouse) if path.suffix in (".blob", ".parquet")}
    assert table.delete("a < 100").rows == 10
    assert {path for path in all_files(warehouse) if path.suffix in (".blob", ".parquet")} == data
    assert ids(table) == list(range(10, 30))
    assert table.latest().count_rows() == table.latest().daft().count_rows() == 20
    assert table.delete("a < 120").rows == 2
    assert ids(table) == list(range(12, 30))


@pytest.mark.s3
def test_overwrite_by_some_of_several_partition_columns(warehouse: Path) -> None:
    schema = SCHEMA.append(pa.field("q", pa.int32()))
    table = connect(warehouse).create_table(NAME, schema, partition_by=["p", "q"])
    table.append([row(i, q=i % 2) for i in range(12)])
    assert table.overwrite([row(100, p="P0", q=7)], partition={"p": "P0"}).rows == 1
    assert ids(table) == [i for i in range(12) if i % 3] + [100]
    assert table.overwrite([], partition={"q": 1, "p": "P1"}).rows == 2
    assert ids(table) == [i for i in range(12) if i % 3 and not (i % 3 == 1 and i % 2)] + [100]
    assert table.overwrite([], partition={"q": 5}).snapshot_id == 3


@pytest.mark.s3
def test_a_failed_overwrite_and_update_leave_all_as_it_was(warehouse: Path, tmp_path: Path) -> None:
    """T9: nothing of the partitions that were written already is committed."""
    table = made(warehouse, [row(i) for i in range(6)])
    before = all_files(warehouse)

    def interrupted() -> Any:
        yield pa.Table.from_pylist([row(8), row(9)], schema=SCHEMA)
        raise KeyboardInterrupt

    def broken(rows: pa.Table) -> list[str]:
        if rows.column("p")[0].as_py() == "P2":
            raise ZeroDivisionError("in the second group")
        return ["x"] * rows.num_rows

    with pytest.raises(KeyboardInterrupt):
        table.overwrite(interrupted())
    with pytest.raises(ZeroDivisionError):
        table.update(None, {"v": broken})
    assert all_files(warehouse) == before
    assert state(table) == [row(i) for i in range(6)]


def test_an_update_of_a_blob_reads_no_blob(warehouse: Path) -> None:
    """Upstream's reads all of the file group into memory: tests/upstream/test_updates.py."""
    table = made(warehouse, [row(i, p="P0", img=bytes(100_000)) for i in range(50)])
    table.update("id = 1", {"img": b"new"})  # what is read once only
    before = bytes_read()
    assert table.update("id = 3", {"img": b"new", "v": "new"}).rows == 1
    assert bytes_read() - before < 1_000_000


def test_changes_of_a_branch_stay_there(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(6)])
    dev = table.create_branch("dev")
    dev.update("id = 1", {"img": b"dev"})
    dev.delete("id = 2")
    dev.upsert([{"id": 4, "p": "P9"}], key=["id"])
    dev.overwrite([row(30)], partition={"p": "P0"})
    dev.add_column("score", pa.float64())
    assert [(r["id"], r["p"], r["img"]) for r in state(dev)] == [
        (1, "P1", b"dev"),
        (4, "P9", b"image 4"),
        (5, "P2", b"image 5"),
        (30, "P0", b"image 30"),
    ]
    assert state(table) == [row(i) for i in range(6)]
    table.delete("id = 5")
    assert (ids(table), ids(dev)) == ([0, 1, 2, 3, 4], [1, 4, 5, 30])
