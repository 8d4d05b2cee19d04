"""Each fault of tests/upstream, met through lakehouse: the answer is right, or it is refused.

What lakehouse does not offer yet is asserted to be absent: whoever adds it replaces that line by tests of what it does.
"""

from __future__ import annotations

import itertools
import os
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from daft import col
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange
from pypaimon.snapshot.renaming_snapshot_commit import RenamingSnapshotCommit
from pypaimon.table.row.blob import BlobDescriptor

import lakehouse as lh
from lakehouse import query
from lakehouse.query.walk import columns_of
from tests.upstream.plain import SCHEMA, few_files, hangs, row
from tests.upstream.test_daft import SECRET, calls_of
from tests.upstream.test_tables import replace_blobs_by_shard

NAME = "default.t"
ROWS = [
    row(i, v=None if i % 7 == 5 else f"v{i}", img=None if i % 5 == 3 else b"" if i % 5 == 4 else b"image %d" % i)
    for i in range(30)
]


def made(warehouse: Path, rows: Any = (), *, schema: pa.Schema = SCHEMA, **options: Any) -> lh.Table:
    """A table of ours with ``rows`` in one commit."""
    table = lh.connect(warehouse=str(warehouse)).create_table(NAME, schema, partition_by=["p"], **options)
    if rows:
        table.append(rows)
    return table


def alter(warehouse: Path, change: Any) -> None:
    """As another engine would."""
    lh.connect(warehouse=str(warehouse)).paimon.alter_table(NAME, [change], False)


def ids(snapshot: lh.Snapshot) -> list[int]:
    return sorted(snapshot.query().select("id").arrow().column("id").to_pylist())


def found_or_refused(read: Callable[[], Any]) -> Any:
    """What a call gives, or the text with which it is refused."""
    try:
        return read()
    except lh.SchemaError as refusal:
        return str(refusal)


def files_of(warehouse: Path) -> set[Path]:
    return {path for path in warehouse.rglob("*") if path.is_file() and "schema" not in path.parts}


# ---- T1: columns, rows and types of Daft frames

# (what Daft filters by, the same in Python); a comparison with null is not true
FILTERS: list[tuple[Any, Callable[[dict[str, Any]], bool]]] = [
    (col("p").startswith("P0"), lambda r: r["p"].startswith("P0")),
    ((col("p") == "P0") | (col("id") < 6), lambda r: r["p"] == "P0" or r["id"] < 6),
    ((col("p") < "P1") | (col("v") < "v2"), lambda r: r["p"] < "P1" or (r["v"] is not None and r["v"] < "v2")),
    (col("a") + col("id") > 100, lambda r: r["a"] + r["id"] > 100),
    ((col("a") + 1).is_in([11, 51]), lambda r: r["a"] in (10, 50)),
    (col("v").is_null() | (col("a") == 20), lambda r: r["v"] is None or r["a"] == 20),
    (col("img").is_null(), lambda r: r["img"] is None),
    (col("img").not_null() & (col("p") != "P2"), lambda r: r["img"] is not None and r["p"] != "P2"),
]


@pytest.mark.parametrize("order", [("id", "p", "v", "a"), ("p", "v", "a", "id"), ("a", "v", "id", "p")])
def test_t01_every_query_gives_its_own_columns_and_rows(warehouse: Path, order: tuple[str, ...]) -> None:
    table = made(warehouse, ROWS, schema=pa.schema([SCHEMA.field(name) for name in (*order, "img")]))
    snapshot = table.latest()
    chooser = random.Random(0)
    for predicate, keep in FILTERS:
        expected = [r for r in ROWS if keep(r)]
        assert 0 < len(expected) < len(ROWS)
        assert snapshot.query().where(predicate).count_rows() == len(expected)
        selections = list(itertools.permutations(order, 1)) + list(itertools.permutations(order, 2))
        for columns in [*chooser.sample(selections, 5), ("v",), ("v", "id")]:
            found = snapshot.daft().where(predicate).sort("id").select(*columns).to_pydict()
            assert list(found) == list(columns)
            assert found == {name: [r[name] for r in expected] for name in columns}


def test_t01_other_plans(warehouse: Path) -> None:
    snapshot = made(warehouse, ROWS).latest()
    frame = snapshot.daft()
    assert frame.sort("id").select("a").to_pydict() == {"a": [r["a"] for r in ROWS]}
    groups = frame.groupby("p").agg(col("a").sum().alias("sum")).sort("p").select("sum", "p").to_pydict()
    assert groups == {"sum": [sum(r["a"] for r in ROWS if r["p"] == p) for p in ("P0", "P1", "P2")], "p": ["P0", "P1", "P2"]}
    assert frame.with_column("b", col("a") + 1).select("b", "v", "p").sort("b").to_pydict()["b"] == [r["a"] + 1 for r in ROWS]
    read = frame.select(snapshot.bytes("img").alias("bytes"), "a", "p").sort("a").to_pydict()
    assert read == {"bytes": [r["img"] for r in ROWS], "a": [r["a"] for r in ROWS], "p": [r["p"] for r in ROWS]}


def test_t01_joins_end_and_pair_the_right_rows(warehouse: Path) -> None:
    made(warehouse, ROWS)
    join = """
import os
import sys
import daft
import lakehouse as lh
frame = lh.connect(warehouse=sys.argv[1]).table("default.t").latest().daft()
keys = daft.from_pydict({"a": [0, 10]})
print(1, flush=True)
for columns in (("a", "p"), ("p", "a"), ("a", "id"), ("v", "a")):
    joined = frame.select(*columns).join(keys, on="a").sort("a").to_pydict()
    assert joined["a"] == [0, 10], joined
    other, = set(columns) - {"a"}
    assert joined[other] == {"p": ["P0", "P1"], "id": [0, 1], "v": ["v0", "v1"]}[other], joined
os._exit(0)
"""
    assert not hangs(join, str(warehouse), after_s=60)


def test_columns_of_a_membership_test(warehouse: Path) -> None:
    assert columns_of((col("a") + 1).is_in([2, 3]), made(warehouse, []).latest().version.columns) == {"a"}


# ---- T2, T6, T9, T10, T15, T18, T20: commits


def test_t02_two_writers_in_the_gap_both_keep_their_rows(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(warehouse, [row(0)])
    link = os.link
    between: list[lh.Commit] = []

    def link_later(source: Any, target: Any) -> None:
        if Path(target).name == "snapshot-2" and not between:
            between.append(lh.Commit(None, 0, 0))
            between[0] = lh.connect(warehouse=str(warehouse)).table(NAME).append([row(1)])
        link(source, target)

    monkeypatch.setattr(os, "link", link_later)
    mine = table.append([row(2)])
    assert (between[0].snapshot_id, mine.snapshot_id) == (2, 3)
    assert ids(table.latest()) == [0, 1, 2]
    assert ids(table.at(snapshot=2)) == [0, 1]


def test_remedies_are_looked_for(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(warehouse)
    monkeypatch.delattr(RenamingSnapshotCommit, "_commit_latest_hint")
    with pytest.raises(lh.ConfigError, match=r"RenamingSnapshotCommit\._commit_latest_hint, .*install pypaimon"):
        table.latest()


def test_t09_nothing_of_a_failed_append_is_committed(warehouse: Path, tmp_path: Path) -> None:
    table = made(warehouse, [row(0)])
    before = files_of(warehouse)
    source = tmp_path / "source"

    def missing() -> Iterator[Any]:
        yield pa.Table.from_pylist([row(1), row(2), row(3)], schema=SCHEMA)
        yield row(4, img=lh.BlobRef(str(source)))

    def vanishing() -> Iterator[Any]:  # after the reference was checked: the engine's own write fails
        yield row(5, img=lh.BlobRef(str(source)))
        yield pa.Table.from_pylist([row(6)], schema=SCHEMA)
        source.unlink()
        yield row(7, img=lh.BlobRef(str(source)))

    def interrupted() -> Iterator[Any]:
        yield pa.Table.from_pylist([row(8), row(9)], schema=SCHEMA)
        raise KeyboardInterrupt

    with pytest.raises(lh.FetchError, match=r"column img: can't read .*source.*nothing was written"):
        table.append(missing())
    source.write_bytes(b"abc")
    with pytest.raises(lh.CommitError, match="source does not exist.*nothing was committed"):
        table.append(vanishing())
    with pytest.raises(KeyboardInterrupt):
        table.append(interrupted())
    assert [info.id for info in table.snapshots()] == [1]
    assert files_of(warehouse) == before


def test_t06_an_overwrite_replaces_its_partition_and_no_row_that_came_meanwhile(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(6)])

    def rows() -> Iterator[Any]:
        yield row(30)
        lh.connect(warehouse=str(warehouse)).table(NAME).append([row(60), row(61)])

    table.overwrite(rows(), partition={"p": "P0"})
    assert ids(table.latest()) == [1, 2, 4, 5, 30, 60, 61]
    table.overwrite([], partition={"p": "P0"})
    assert ids(table.latest()) == [1, 2, 4, 5, 61]
    with pytest.raises(lh.SchemaError, match="outside of the partition p='P0'"):
        table.overwrite([row(0), row(1)], partition={"p": "P0"})
    assert ids(table.latest()) == [1, 2, 4, 5, 61]


def test_t14_updated_blobs_go_into_blob_files(warehouse: Path) -> None:
    table = made(warehouse, [row(0), row(3)])
    table.update("id = 3", {"img": b"new", "v": "new"})
    assert table.latest().arrow(blobs="bytes").column("img").to_pylist() == [b"image 0", b"new"]
    written = [path for path in files_of(warehouse) if path.suffix == ".parquet"]
    assert all("img" not in pq.read_schema(path).names for path in written)


def test_t15_an_upsert_finds_its_key_in_every_partition(warehouse: Path) -> None:
    table = made(warehouse, [row(0), row(1), row(3)])
    table.upsert([row(1, p="P2"), row(0, v="new")], key=["id"])
    assert ids(table.latest()) == [0, 1, 3]
    with pytest.raises(lh.SchemaError, match="column id is in the key and null"):
        table.upsert([row(0, id=None)], key=["id"])


def test_not_offered() -> None:
    """T12, T18. Operations that upstream has and that go wrong there.

    A later issue that adds one replaces its line here by a test that the fault does not come with it.
    """
    assert not hasattr(lh.Table, "create_index")  # T12
    assert not hasattr(lh.Table, "changes")  # incremental-between


def test_t19_counts_are_of_rows(warehouse: Path) -> None:
    schema = SCHEMA.append(pa.field("more", pa.large_binary()))
    table = made(warehouse, [row(i, more=b"x") for i in range(10)], schema=schema)
    update = table.paimon.new_batch_write_builder()
    by_id = table.paimon.new_read_builder().new_predicate_builder().equal("id", 4)
    update.new_commit().commit(update.new_update().delete_by_predicate(by_id))
    snapshot = table.latest()
    found = (
        snapshot.count_rows(),
        snapshot.query().count_rows(),
        snapshot.query().explain().rows,
        snapshot.daft().count_rows(),
    )
    assert found == (9, 9, 9, 9)
    assert table.append([row(10), row(11)]).rows == 2


def test_t20_more_partitions_than_files_may_be_open(warehouse: Path) -> None:
    table = made(warehouse)
    rows = [row(i, p=f"P{i % 60}") for i in range(180)]
    with few_files(more=90):
        table.append(rows)
    assert [info.id for info in table.snapshots()] == [1]
    assert ids(table.latest()) == list(range(180))


# ---- T3, T4, T5, T11, T12, T14: columns


def test_t03_a_column_added_later(warehouse: Path) -> None:
    table = made(warehouse, ROWS)
    alter(warehouse, SchemaChange.add_column("score", AtomicType("DOUBLE")))
    alter(warehouse, SchemaChange.add_column("thumb", AtomicType("BLOB")))
    table.append([row(50, score=1.5, thumb=b"small")])
    snapshot = table.latest()
    scores = [None] * 30 + [1.5]
    assert snapshot.daft(columns=["score"]).to_pydict() == {"score": scores}
    assert snapshot.daft().select("score", "id").count_rows() == 31
    assert snapshot.daft().where(col("score").is_null()).count_rows() == 30
    assert snapshot.daft().where(col("thumb").is_null()).select("a").count_rows() == 30
    query_ = snapshot.query().select("score", "thumb")
    assert query_.arrow(blobs="bytes").to_pydict() == {"score": scores, "thumb": [None] * 30 + [b"small"]}
    assert query_.index().column("score").to_pylist() == scores
    assert query_.where("score is null").count_rows() == 30
    assert query_.where("score is null").explain().rows >= 30
    assert query_.where(col("thumb").not_null()).arrow(blobs="bytes").num_rows == 1
    assert query_.where("score = 1.5").count_rows() == 1


def test_t03_t11_a_column_added_by_us(warehouse: Path) -> None:
    table = made(warehouse, ROWS)
    table.add_column("score", pa.float64())
    assert table.latest().query().select("score").count_rows() == 30
    assert table.latest().query().select("score").arrow().num_rows == 30
    assert table.latest().daft(columns=["score"]).count_rows() == 30
    with pytest.raises(lh.SchemaError, match="column e: .* can't hold nulls"):
        table.add_column("e", pa.list_(pa.float32(), 3))


def test_t04_t05_columns_are_not_renamed_and_blobs_not_dropped(warehouse: Path) -> None:
    table = made(warehouse, [row(0)])
    before = set(warehouse.rglob("*"))
    with pytest.raises(lh.SchemaError, match="column v can't be renamed.*add_column"):
        table.rename_column("v", "w")
    with pytest.raises(lh.SchemaError, match="column img holds BLOBs"):
        table.drop_column("img")
    assert set(warehouse.rglob("*")) == before
    assert table.latest().arrow(blobs="bytes").to_pylist() == [row(0)]


def test_t04_a_column_that_another_engine_renamed(warehouse: Path) -> None:
    table = made(warehouse, [row(0)])
    alter(warehouse, SchemaChange.rename_column("v", "w"))
    table.append([{"id": 1, "p": "P1", "w": "v1"}])
    found = found_or_refused(lambda: table.latest().arrow().column("w").to_pylist())
    assert found == ["v0", "v1"] or "renamed" in found


def test_t14_blobs_that_another_engine_put_into_a_row_file(warehouse: Path) -> None:
    table = made(warehouse, [row(0), row(3)], options={"deletion-vectors.enabled": False})
    replace_blobs_by_shard(table.paimon)
    found = found_or_refused(lambda: table.latest().arrow(blobs="bytes").column("img").to_pylist())
    assert found == [b"new", b"new"] or "column img" in found


def test_t05_what_was_before_another_engine_dropped_a_blob(warehouse: Path) -> None:
    table = made(warehouse, [row(0)])
    table.tag("before")
    alter(warehouse, SchemaChange.drop_column("img"))
    assert table.at(tag="before").arrow(blobs="bytes").column("img").to_pylist() == [b"image 0"]
    assert table.latest().schema.names == SCHEMA.names


def test_t11_no_null_gets_into_a_vector(warehouse: Path) -> None:
    table = made(warehouse, schema=SCHEMA.insert(1, pa.field("e", pa.list_(pa.float32(), 3))))
    for vector in (None, [1.0, None, 3.0]):
        with pytest.raises(lh.SchemaError, match=r"column e: (.* can't hold nulls|got null)"):
            table.append([row(0, e=[1.0, 2.0, 3.0]), row(1, e=vector)])
    table.append([row(0, e=[1.0, 2.0, 3.0])])
    assert table.latest().arrow().column("e").to_pylist() == [[1.0, 2.0, 3.0]]


def test_no_null_gets_into_a_column_that_may_not_be_null(warehouse: Path) -> None:
    table = made(warehouse, schema=SCHEMA.set(0, pa.field("id", pa.int64(), nullable=False)))
    for data in ([row(0, id=None)], pa.Table.from_pylist([row(0, id=None)], schema=SCHEMA), [{"p": "P0"}]):
        with pytest.raises(lh.SchemaError, match="column id may not be null"):
            table.append(data)
    assert table.latest().id is None


def test_t12_rows_that_a_global_index_does_not_know(warehouse: Path) -> None:
    table = made(warehouse, [row(i) for i in range(6)], options={"deletion-vectors.enabled": False})
    table.paimon.create_global_index("id", "btree")
    table.append([row(100)])
    snapshot = table.latest()
    assert snapshot.query().where("id = 100").count_rows() == 1
    assert snapshot.query().where("id >= 5").select("v").arrow().column("v").to_pylist() == ["v5", "v100"]
    assert snapshot.daft().where(col("id") == 100).select("v").to_pydict() == {"v": ["v100"]}


# ---- T7, T8, T23: names and references


@pytest.mark.parametrize("name", ["../x", "../../x", "x/y", "", " ", "x y", ".", "..", "a\nb", "a" * 129, "x\0", "é"])
def test_t07_names_that_are_paths(warehouse: Path, name: str) -> None:
    table = made(warehouse, [row(0)])
    catalog = lh.connect(warehouse=str(warehouse))
    before = set(warehouse.parent.rglob("*"))
    calls: list[Callable[[], Any]] = [
        lambda: table.tag(name),
        lambda: table.delete_tag(name),
        lambda: table.at(tag=name),
        lambda: table.at(branch=name),
        lambda: catalog.create_database(name),
        lambda: catalog.create_table(f"default.{name}", SCHEMA),
        lambda: catalog.table(f"{name}.t"),
        lambda: catalog.drop_table(f"default.{name}", missing_ok=True),
    ]
    for call in calls:
        with pytest.raises(lh.ConfigError, match="can't name a"):
            call()
    assert set(warehouse.parent.rglob("*")) == before
    table.tag("fine-1.0_x")
    assert table.tags() == {"fine-1.0_x": 1}


def test_t08_bytes_that_look_like_a_descriptor(warehouse: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_bytes(b"secret")
    value = BlobDescriptor(str(tmp_path / "private"), 0, -1).serialize()
    table = made(warehouse)
    arrow = pa.Table.from_pylist([row(0), row(1, img=value)], schema=SCHEMA)
    inputs: list[Any] = [
        [row(0, img=value)],
        [row(0, img=bytearray(value)), row(1)],
        [row(0, img=memoryview(value))],
        arrow,
        arrow.to_pandas(),
        daft.from_arrow(arrow),
        iter([arrow]),
    ]
    for data in inputs:
        with pytest.raises(lh.SchemaError, match="column img: a value begins like a serialised blob descriptor"):
            table.append(data)
    assert table.latest().id is None
    table.append([row(0, img=b"x" + value), row(1, img=value[:8])])
    assert table.latest().arrow(blobs="bytes").column("img").to_pylist() == [b"x" + value, value[:8]]


def test_t23_references_outside_the_roots(warehouse: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "frame").write_bytes(b"frame")
    (tmp_path / "private").write_bytes(b"secret")
    schema = lh.Schema({"id": pa.int64(), "p": pa.string(), "img": lh.Blob(reference=True)})
    catalog = lh.connect(warehouse=str(warehouse))
    table = catalog.create_table(NAME, schema, partition_by=["p"])
    outside = [str(tmp_path / "private"), str(tmp_path / "raw" / ".." / "private"), (tmp_path / "private").as_uri()]
    table.append([{"id": i, "p": "A", "img": lh.BlobRef(uri)} for i, uri in enumerate(outside)])
    table.append([{"id": 9, "p": "B", "img": lh.BlobRef(str(tmp_path / "raw" / "frame"), 1, 3)}])
    with pytest.raises(lh.SchemaError, match=r"takes lh\.BlobRef, not bytes"):
        table.append([{"id": 0, "p": "A", "img": b"bytes"}])

    rooted = lh.connect(warehouse=str(warehouse), blob_roots=[str(tmp_path / "raw")]).table(NAME).latest()
    assert rooted.query().where("id = 9").arrow(blobs="bytes").column("img").to_pylist() == [b"ram"]
    for snapshot, number in [(table.latest(), 9), *[(rooted, i) for i in range(len(outside))]]:
        chosen = snapshot.query().where(f"id = {number}")
        with pytest.raises(lh.FetchError, match="blob_roots"):
            chosen.arrow(blobs="bytes")
        with pytest.raises(Exception, match="blob_roots"):
            chosen.daft().select(snapshot.bytes("img")).collect()
        (ref,) = chosen.index().blobs("img")
        with pytest.raises(lh.FetchError, match="blob_roots"):
            lh.fetch_blob(ref, snapshot)


def test_a_source_shorter_than_its_reference(warehouse: Path, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"abc")
    table = made(warehouse)
    with pytest.raises(lh.FetchError, match=r"column img: .* holds 3 bytes, the reference wants 0\+10; nothing was written"):
        table.append([row(0, img=lh.BlobRef(str(tmp_path / "source"), 0, 10))])
    assert table.latest().id is None


# ---- T13, T16, T17, T21, T22: Files, memory, processes, telemetry, credentials


def test_t13_null_and_empty_blobs(warehouse: Path) -> None:
    table = made(warehouse, [row(0), row(1, img=None), row(2, img=b"")])
    snapshot = table.latest()
    assert snapshot.daft().where(col("img").is_null()).to_pydict()["id"] == [1]
    assert sorted(snapshot.daft().where(col("img").not_null()).to_pydict()["id"]) == [0, 2]
    assert snapshot.query().where("img is null").count_rows() == 1
    assert snapshot.query().where("img is not null").index().row_ids.tolist() == [0, 2]
    assert snapshot.daft().sort("id").select(snapshot.bytes("img")).to_pydict()["img"] == [b"image 0", None, b""]
    lengths = snapshot.arrow().sort_by("id").column("img").combine_chunks().field("length").to_pylist()
    assert (lengths[0], lengths[2]) == (7, 0)


def test_t16_few_blobs_are_held_at_once(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = made(warehouse, [row(i) for i in range(2000)]).latest()
    held: list[int] = []
    fetched = query.fetched

    def counted(fetcher: Any, refs: lh.BlobRefs, where: str) -> list[bytes | None]:
        held.append(len(refs))
        return fetched(fetcher, refs, where)

    monkeypatch.setattr(query, "fetched", counted)
    assert len(snapshot.daft().select(snapshot.bytes("img")).collect()) == 2000
    assert (sum(held), max(held)) == (2000, 64)


def test_t17_reading_by_an_index_needs_no_daft(warehouse: Path, tmp_path: Path) -> None:
    """So it works in worker processes, and in a forked child of a parent that used Daft."""
    index = made(warehouse, ROWS).latest().query().where("id < 3").select("img", "v").index()
    assert pickle.loads(pickle.dumps(index)).fingerprint == index.fingerprint
    (tmp_path / "index").write_bytes(pickle.dumps(index))
    program = """
import os, pickle, sys
with open(sys.argv[1], "rb") as file:
    index = pickle.load(file)
def check():
    values = index.fetcher().fetch(index.blobs("img")).values
    assert [bytes(value) for value in values] == [b"image 0", b"image 1", b"image 2"], values
check()
assert not {"daft", "torch"} & set(sys.modules)
import daft
daft.from_pydict({"a": [1, 2]}).where(daft.col("a") > 1).collect()
child = os.fork()
if not child:
    check()
    os._exit(0)
print(1, flush=True)
os._exit(os.waitpid(child, 0)[1] != 0)
"""
    assert not hangs(program, str(tmp_path / "index"), after_s=60)


def test_t21_daft_reports_nothing() -> None:
    assert calls_of("import lakehouse.query.engine") == []


def test_t22_no_value_carries_the_secret_key(warehouse: Path, tmp_path: Path) -> None:
    options = {"fs.s3.accessKeyId": "someone", "fs.s3.accessKeySecret": SECRET, "fs.s3.endpoint": "http://localhost:1"}
    table = lh.connect(warehouse=str(warehouse), **options).create_table(NAME, SCHEMA, partition_by=["p"])
    table.append([row(0), row(1, img=None)])
    snapshot = table.latest()
    files = snapshot.daft().select("id", "img").sort("id").to_arrow().column("img").combine_chunks()
    assert files.storage.field("io_config").to_pylist() == [None, None]
    snapshot.daft().select("id", "img").write_parquet(str(tmp_path / "out"))
    (written,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(written).num_rows == 2
    assert SECRET.encode() not in written.read_bytes()
    index = snapshot.query().select("id", "img").index()
    assert SECRET.encode() not in pickle.dumps(index)
    assert SECRET not in repr(snapshot) + repr(table) + repr(snapshot.query()) + str(snapshot.daft().explain)


def test_t22_pickles_carry_no_secret_key(warehouse: Path) -> None:
    options = {"fs.s3.accessKeyId": "someone", "fs.s3.accessKeySecret": SECRET, "fs.s3.endpoint": "http://localhost:1"}
    catalog = lh.connect(warehouse=str(warehouse), **options)
    catalog.create_table(NAME, SCHEMA, partition_by=["p"]).append([row(0)])
    latest = catalog.table(NAME).latest()
    for value in (catalog, catalog.table(NAME), latest, latest.query(), latest.query().index()):
        assert SECRET.encode() not in pickle.dumps(value)


# ---- found beside the list


def test_snapshots_are_pinned(warehouse: Path) -> None:
    table = made(warehouse, [row(0)])
    snapshot = table.latest()
    frame, query_ = snapshot.daft(), snapshot.query()
    table.append([row(1)])
    assert (frame.count_rows(), query_.count_rows(), snapshot.count_rows(), len(query_.index())) == (1, 1, 1, 1)
    assert table.latest().count_rows() == 2


def test_unknown_columns_are_refused(warehouse: Path) -> None:
    snapshot = made(warehouse, [row(0)]).latest()
    for call in (lambda: snapshot.query().select("idd"), lambda: snapshot.daft(columns=["idd"])):
        with pytest.raises(lh.NotFoundError, match=r"no column 'idd', did you mean 'id'\? columns: id"):
            call()


@pytest.mark.parametrize("text", ["channel = CAM_FRONT", 'channel = "CAM_FRONT"'])
def test_text_without_single_quotes_is_told_as_such(warehouse: Path, text: str) -> None:
    snapshot = made(warehouse, [row(0)]).latest()
    with pytest.raises(
        lh.NotFoundError, match=r"no column .*CAM_FRONT.* \(SQL writes text in single quotes: .*\); columns: id"
    ):
        snapshot.query().where(text)
