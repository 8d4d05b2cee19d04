"""RowIndex: contents, take, split, saving, mapping, sharing, from_daft, and damaged files."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakehouse as lh
from lakehouse.fetch import BlobRefs
from lakehouse.index import Source
from lakehouse.index.split import assign
from lakehouse.index.storage import IndexFile, IndexWriter
from tests.stores import place
from tests.stores.place import connect, on_stores

pytestmark = on_stores

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("scene", pa.string()),
        ("speed", pa.float64()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("price", pa.decimal128(10, 2)),
        ("box", pa.list_(pa.float32(), 4)),
        ("tags", pa.list_(pa.string())),
        ("pose", pa.struct([("x", pa.float64()), ("name", pa.string())])),
        ("extra", pa.map_(pa.string(), pa.int32())),
        ("frame", pa.large_binary()),
        ("thumb", pa.large_binary()),
    ]
)


def row(i: int) -> dict[str, Any]:
    gone = i % 11 == 3
    return {
        "id": i,
        "scene": None if gone else f"scene_{i // 8}",
        "speed": None if gone else i * 1.5,
        "flag": i % 3 == 0,
        "day": date(2026, 1, 1 + i % 28),
        "at": datetime(2026, 1, 1, 0, 0, i % 60, i),
        "price": Decimal(i) / 4 if not gone else None,
        "box": [float(i), 1.0, 2.0, 3.0],
        "tags": None if gone else [f"t{k}" for k in range(i % 4)],
        "pose": None if gone else {"x": i / 2, "name": f"n{i}"},
        "extra": [("a", i)] if i % 2 else [],
        "frame": None if i % 7 == 5 else b"f" * (i * 3) + bytes([i % 256]),
        "thumb": b"" if i % 5 == 0 else b"%d" % i,
    }


@pytest.fixture(scope="module")
def lake(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lake")
    table = connect(path).create_table("default.t", SCHEMA, partition_by=["flag"])
    table.append([row(i) for i in range(60)])
    table.append([row(i) for i in range(60, 103)])
    return path


@pytest.fixture(scope="module")
def table(lake: Path) -> lh.Table:
    return connect(lake).table("default.t")


@pytest.fixture(scope="module")
def index(table: lh.Table) -> lh.RowIndex:
    return table.latest().query().index()


def contents(index: lh.RowIndex, table: lh.Table) -> list[dict[str, Any]]:
    """Every row with its BLOBs' bytes."""
    rows = []
    for got in index:
        rows.append({k: v.read(table) if isinstance(v, lh.BlobRef) else v for k, v in got.items()})
    return rows


@pytest.mark.s3
def test_rows_come_in_ascending_row_id_and_equal_what_was_written(index: lh.RowIndex, table: lh.Table) -> None:
    assert len(index) == 103
    assert (np.diff(index.row_ids) > 0).all()
    assert sorted(contents(index, table), key=lambda r: r["id"]) == [row(i) for i in range(103)]


def test_blobs_are_arrays_and_null_is_minus_one(index: lh.RowIndex) -> None:
    refs = index.blobs("frame")
    ids = np.array(index.column("id").to_pylist())
    assert ((refs.uri_ids == -1) == (ids % 7 == 5)).all()
    for uri_id, offset, length, i in zip(refs.uri_ids, refs.offsets, refs.lengths, ids, strict=True):
        if uri_id >= 0:
            data = place.path(refs.uris[uri_id]).read_bytes()
            assert data[offset : offset + length] == row(int(i))["frame"]


def test_asking_for_a_column_of_the_other_kind_or_none_says_what_to_do(index: lh.RowIndex) -> None:
    with pytest.raises(lh.SchemaError, match=r"index\.blobs\('frame'\)"):
        index.column("frame")
    with pytest.raises(lh.SchemaError, match=r"index\.column\('id'\)"):
        index.blobs("id")
    with pytest.raises(lh.NotFoundError, match="did you mean 'speed'"):
        index.column("sped")
    with pytest.raises(lh.NotFoundError, match="its columns"):
        index.blobs("nope")


def test_rows_by_position(index: lh.RowIndex) -> None:
    assert index.row(-1) == index[102]
    with pytest.raises(IndexError, match="row 103 of an index of 103 rows"):
        index.row(103)
    with pytest.raises(TypeError, match="position"):
        index.row("1")  # type: ignore[arg-type]


def test_take_follows_the_given_order_and_repeats(index: lh.RowIndex, table: lh.Table) -> None:
    taken = index.take([5, 2, 2, -1])
    whole = contents(index, table)
    assert contents(taken, table) == [whole[5], whole[2], whole[2], whole[102]]
    assert taken.fingerprint != index.fingerprint
    assert index.take(np.arange(103)).fingerprint == index.fingerprint
    assert len(index.take([])) == 0
    assert len(index.take(np.zeros(103, np.bool_))) == 0
    with pytest.raises(IndexError, match="positions 0 to 103"):
        index.take([0, 103])
    with pytest.raises(TypeError, match="row positions"):
        index.take(np.array([0.5]))


def test_the_fingerprint_tells_rows_columns_and_snapshots_apart(table: lh.Table, index: lh.RowIndex) -> None:
    query = table.latest().query()
    assert query.index().fingerprint == index.fingerprint
    others = [
        query.select("id", "frame").index(),
        query.select("frame", "id").index(),
        query.where("id > 3").index(),
        table.at(snapshot=1).query().index(),
        query.limit(5).index(),
    ]
    prints = {index.fingerprint, *(other.fingerprint for other in others)}
    assert len(prints) == 6
    assert all(text.startswith("sha256:") and len(text) == 71 for text in prints)


# --- split -----------------------------------------------------------------------------------------------------------------


def test_split_keeps_groups_together_and_loses_none(index: lh.RowIndex) -> None:
    parts = index.split({"train": 0.7, "val": 0.2, "test": 0.1}, by="scene", seed=3)
    scenes = {name: set(part.column("scene").to_pylist()) for name, part in parts.items()}
    assert sum(len(part) for part in parts.values()) == len(index)
    assert not scenes["train"] & scenes["val"]
    assert not (scenes["train"] | scenes["val"]) & scenes["test"]
    assert {name: part.fingerprint for name, part in parts.items()} == {
        name: part.fingerprint
        for name, part in index.split({"train": 0.7, "val": 0.2, "test": 0.1}, by="scene", seed=3).items()
    }


def test_rows_appended_later_move_no_row(tmp_path: Path) -> None:
    table = connect(tmp_path).create_table("t", SCHEMA)
    table.append([row(i) for i in range(40)])
    before = {by: table.latest().query().index().split({"a": 0.5, "b": 0.5}, by=by) for by in (None, "scene", "id")}
    table.append([row(i) for i in range(40, 90)])
    for by, parts in before.items():
        after = table.latest().query().index().split({"a": 0.5, "b": 0.5}, by=by)
        for name, part in parts.items():
            assert set(part.row_ids.tolist()) <= set(after[name].row_ids.tolist())


@given(st.integers(0, 2000), st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(0, 2**40))
@settings(max_examples=50)
def test_shares_are_kept_and_parts_are_disjoint(n: int, weights: list[float], seed: int) -> None:
    total = sum(weights) or 1.0
    shares = {f"p{i}": w / total * 0.999 for i, w in enumerate(weights)}
    parts = assign(shares, np.arange(n), seed)
    joined = np.concatenate(list(parts.values()))
    assert len(np.unique(joined)) == len(joined) <= n
    for name, share in shares.items():
        assert abs(len(parts[name]) - share * n) <= 6 * np.sqrt(n * share * (1 - share)) + 3


def test_a_whole_split_leaves_nothing_out() -> None:
    parts = assign({"a": 0.1, "b": 0.2, "c": 0.7}, np.arange(100_000), 0)
    assert sum(map(len, parts.values())) == 100_000


@pytest.mark.parametrize("parts", [{}, {"a": 1.5}, {"a": -0.1}, {"a": 0.6, "b": 0.6}, {"a": "x"}, [0.8, 0.2], {"a": True}])
def test_bad_shares_are_refused(index: lh.RowIndex, parts: Any) -> None:
    with pytest.raises(lh.ConfigError, match="split"):
        index.split(parts)


def test_split_by_an_absent_column_is_refused(index: lh.RowIndex) -> None:
    with pytest.raises(lh.NotFoundError, match="nope"):
        index.split({"a": 1.0}, by="nope")


# --- saving ----------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_a_saved_index_is_the_same_index(index: lh.RowIndex, table: lh.Table, lake: Path, tmp_path: Path) -> None:
    index.save(tmp_path / "train.idx")
    loaded = lh.RowIndex.load(tmp_path / "train.idx", connect(lake))
    assert loaded.fingerprint == index.fingerprint
    assert loaded.columns == index.columns
    assert loaded.schema.equals(index.schema)
    assert loaded.blob_columns == index.blob_columns == ("frame", "thumb")
    assert contents(loaded, table) == contents(index, table)
    for name in index.columns:
        if name not in index.blob_columns:
            assert loaded.column(name).equals(index.column(name))
            loaded.column(name).validate(full=True)


def test_taken_and_empty_indexes_are_saved_too(index: lh.RowIndex, lake: Path, tmp_path: Path, table: lh.Table) -> None:
    catalog = connect(lake)
    for number, part in enumerate([index.take([7, 3]), index.take([]), index.take(range(50, 103))]):
        part.save(tmp_path / f"{number}.idx")
        loaded = lh.RowIndex.load(tmp_path / f"{number}.idx", catalog)
        assert loaded.fingerprint == part.fingerprint
        assert contents(loaded, table) == contents(part, table)


def test_a_sliced_column_is_saved_whole(tmp_path: Path) -> None:
    values = pa.array([{"a": [1, 2], "b": {"k": "v"}}, None, {"a": None, "b": None}, {"a": [], "b": {"k": "w"}}] * 3).slice(
        2, 7
    )
    kind = values.type
    writer = IndexWriter(tmp_path / "x")
    node = writer.array(values)
    writer.finish({"format": 1, "node": node})
    file = IndexFile(tmp_path / "x")
    assert file.array(file.header["node"], kind).equals(values)


@pytest.mark.s3
def test_a_moved_warehouse_keeps_its_indexes(tmp_path: Path) -> None:
    table = connect(tmp_path / "one").create_table("t", SCHEMA)
    table.append([row(i) for i in range(20)])
    table.latest().query().index().save(tmp_path / "i.idx")
    place.path(tmp_path / "one").rename(place.path(tmp_path / "two"))
    moved = connect(tmp_path / "two")
    loaded = lh.RowIndex.load(tmp_path / "i.idx", moved)
    assert contents(loaded, moved.table("t")) == [row(i) for i in range(20)]
    assert str(tmp_path).encode() not in (tmp_path / "i.idx").read_bytes()


@pytest.mark.s3
def test_a_recreated_table_is_not_the_same_table(tmp_path: Path) -> None:
    catalog = connect(tmp_path / "lake")
    for _ in range(2):
        table = catalog.create_table("t", SCHEMA)
        table.append([row(1)])
        if not (tmp_path / "i.idx").exists():
            table.latest().query().index().save(tmp_path / "i.idx")
            catalog.drop_table("t")
    with pytest.raises(lh.ResumeError, match="another table of the name default.t"):
        lh.RowIndex.load(tmp_path / "i.idx", catalog)


@pytest.mark.s3
def test_an_expired_snapshot_fails_by_number_unless_a_tag_keeps_it(tmp_path: Path) -> None:
    catalog = connect(tmp_path / "lake")
    table = catalog.create_table("t", SCHEMA)
    table.append([row(1)])
    table.latest().query().index().save(tmp_path / "i.idx")
    table.append([row(2)])
    table.tag("keep", snapshot=1)
    place.path(tmp_path / "lake/default.db/t/snapshot/snapshot-1").unlink()
    assert contents(lh.RowIndex.load(tmp_path / "i.idx", catalog), table) == [row(1)]
    table.delete_tag("keep")
    with pytest.raises(lh.NotFoundError, match="snapshot 1 of default.t, which has expired"):
        lh.RowIndex.load(tmp_path / "i.idx", catalog)


def test_a_saved_index_knows_how_many_bytes_its_blobs_have(index: lh.RowIndex, lake: Path, tmp_path: Path) -> None:
    wanted = sum(index.blobs(name).total_bytes for name in index.blob_columns)
    assert index.blob_bytes == wanted > 0
    index.save(tmp_path / "i.idx")
    again = lh.RowIndex.load(tmp_path / "i.idx", connect(lake))
    assert IndexFile(tmp_path / "i.idx").header["blob_bytes"] == again.blob_bytes == wanted
    half = again.take(np.arange(0, len(again), 2))
    assert half.blob_bytes == sum(half.blobs(name).total_bytes for name in half.blob_columns) < wanted
    assert f"{wanted:,} bytes of BLOBs" in repr(again)


def test_damage_to_a_saved_index_is_noticed(index: lh.RowIndex, lake: Path, tmp_path: Path) -> None:
    catalog = connect(lake)
    index.save(tmp_path / "good")
    good = (tmp_path / "good").read_bytes()

    def load(data: bytes) -> None:
        (tmp_path / "bad").write_bytes(data)
        lh.RowIndex.load(tmp_path / "bad", catalog)

    header_bytes, _ = struct.unpack("<II", good[-16:-8])
    start = len(good) - 16 - header_bytes

    def with_header(change: dict[str, Any]) -> bytes:
        packed = json.dumps({**json.loads(good[start:-16]), **change}).encode()
        return good[:start] + packed + struct.pack("<II8s", len(packed), zlib.crc32(packed), b"LHINDEX1")

    def packed_as(packed: bytes) -> bytes:
        return good[:start] + packed + struct.pack("<II8s", len(packed), zlib.crc32(packed), b"LHINDEX1")

    load(with_header({}))
    load(with_header({"blob_bytes": None}))  # as files of earlier versions
    for text in (b"[]", b"{", b"\xff", b"[" * 100_000, b'{"format": 1}'):
        with pytest.raises(lh.ResumeError, match="not a whole saved index"):
            load(packed_as(text))
    for data in (b"", b"x" * 100, good[:-1], good[: len(good) // 2], good[8:], good[:start] + b"X" + good[start + 1 :]):
        with pytest.raises(lh.ResumeError, match="not a whole saved index"):
            load(data)
    changes: list[dict[str, Any]] = [
        {"rows": 104},
        {"rows": -1},
        {"row_ids": {"dtype": "<i8", "buffer": [10**12, 824]}},
        {"row_ids": {"dtype": "O", "buffer": [0, 824]}},
        {"row_ids": None},
        {"row_ids": {"dtype": "<i8", "buffer": "x"}},
        {"rows": "103"},
        {"table": 1},
        {"snapshot": "1"},
        {"fingerprint": None},
        {"schema": "x"},
        {"types": ""},
        {"scalars": {"none": {}}},
        {"blobs": []},
        {"blob_bytes": "1"},
        {"blob_bytes": True},
        {"blob_bytes": -1},
    ]
    for change in changes:
        with pytest.raises(lh.ResumeError, match="not a whole saved index"):
            load(with_header(change))
    with pytest.raises(lh.ResumeError, match="format 2"):
        load(with_header({"format": 2}))
    with pytest.raises(lh.NotFoundError, match="no saved index"):
        lh.RowIndex.load(tmp_path / "absent", catalog)
    with pytest.raises(lh.ResumeError, match="saved index"):
        lh.RowIndex.load(tmp_path, catalog)


def test_a_failed_save_leaves_no_file(index: lh.RowIndex, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        index.save(tmp_path / "absent" / "x.idx")
    (tmp_path / "folder.idx").mkdir()
    with pytest.raises(OSError, match="directory"):
        index.save(tmp_path / "folder.idx")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.idx"]


def test_opening_costs_the_same_for_any_number_of_rows(index: lh.RowIndex, lake: Path, tmp_path: Path) -> None:
    """No array is read on open: a file of 2 GB of holes opens in a moment, without becoming resident."""
    big = index.take(np.tile(np.arange(103), 20_000))  # 2 M rows
    big.save(tmp_path / "big.idx")
    code = (
        "import json, sys, time, resource, lakehouse as lh\n"
        "catalog = lh.connect(json.loads(sys.argv[1])); catalog.table('default.t')\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "t = time.perf_counter(); index = lh.RowIndex.load(sys.argv[2], catalog); t = time.perf_counter() - t\n"
        "print(len(index), t, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, json.dumps(place.options(lake)), str(tmp_path / "big.idx")],
        capture_output=True,
        text=True,
        check=True,
    )
    rows, seconds, grown_mib = out.stdout.split()
    assert int(rows) == 2_060_000
    assert float(seconds) < 0.5
    assert float(grown_mib) < 30


def test_a_row_and_blob_column_take_at_most_24_bytes(tmp_path: Path) -> None:
    table = connect(tmp_path).create_table("t", pa.schema([("id", pa.int64()), ("frame", pa.large_binary())]))
    table.append([{"id": i, "frame": b"x" * (i % 50)} for i in range(20_000)])
    table.latest().query().select("frame").index().save(tmp_path / "i.idx")
    assert (tmp_path / "i.idx").stat().st_size <= 24 * 20_000


# --- sharing ---------------------------------------------------------------------------------------------------------------


def fingerprint_and_sum(index: lh.RowIndex, queue: Any) -> None:
    queue.put((index.fingerprint, int(index.blobs("frame").lengths.sum()), os.getpid()))


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_share_one_mapped_copy(index: lh.RowIndex, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=fingerprint_and_sum, args=(index, queue))
    process.start()
    fingerprint, total, pid = queue.get(timeout=60)
    process.join(60)
    assert (fingerprint, total) == (index.fingerprint, int(index.blobs("frame").lengths.sum()))
    assert pid != os.getpid()


def test_a_pickle_holds_a_path_and_no_rows(index: lh.RowIndex, table: lh.Table) -> None:
    data = pickle.dumps(index.take(range(100)))
    assert len(data) < 2_000
    assert contents(pickle.loads(data), table) == contents(index.take(range(100)), table)


@pytest.mark.parametrize("files", [4_096, 4_097, 6_000])
def test_an_index_of_as_many_files_as_rows(tmp_path: Path, files: int) -> None:
    """References: with many files their names are mapped as well, and no Python text in every process."""
    folder = tmp_path / "t"
    folder.mkdir()
    names = [str(folder / f"{i}.jpg") if i % 2 else f"{tmp_path}/elsewhere/ñ{i}.jpg" for i in range(files)]
    rows = np.random.default_rng(0).permutation(files)
    refs = BlobRefs(tuple(names), np.where(rows % 10 == 0, -1, rows), np.zeros(files, np.int64), np.full(files, -1))
    source = Source("default.t", "u", 1, str(folder))
    index = lh.RowIndex(source, pa.schema([("frame", pa.large_binary())]), np.arange(files), {}, {"frame": refs})
    index.save(tmp_path / "a.idx")
    mapped = lh.RowIndex._mapped(IndexFile(tmp_path / "a.idx"), source)
    got = mapped.blobs("frame")
    assert isinstance(got.uris, tuple) == (files <= 4_096)
    assert list(got) == list(refs)
    assert (len(got.uris), got.uris[-1], got.uris[5:7], list(got.uris)) == (files, names[-1], tuple(names[5:7]), names)
    assert list(pickle.loads(pickle.dumps(got))) == list(refs)
    assert list(pickle.loads(pickle.dumps(mapped)).blobs("frame")) == list(refs)
    assert list(mapped.take(range(50)).blobs("frame")) == [refs[i] for i in range(50)]
    mapped.save(tmp_path / "b.idx")
    assert (tmp_path / "b.idx").read_bytes() == (tmp_path / "a.idx").read_bytes()
    assert index.take(range(50)).fingerprint == mapped.take(range(50)).fingerprint
    # In another folder, as after a move of the warehouse.
    moved = lh.RowIndex._mapped(IndexFile(tmp_path / "a.idx"), Source("default.t", "u", 1, "/moved"))
    assert [ref.uri for ref in moved.blobs("frame") if ref][:50] == [
        ref.uri.replace(str(folder), "/moved") for ref in refs if ref
    ][:50]
    # Read and trained from, alone and in a mixture.
    for i in rows[:40].tolist():
        Path(names[i]).parent.mkdir(exist_ok=True)
        Path(names[i]).write_bytes(str(i).encode())
    few = lh.RowIndex._mapped(IndexFile(tmp_path / "a.idx"), replace(source, roots=(str(tmp_path),))).take(range(40))
    expected = [None if i % 10 == 0 else str(i).encode() for i in rows[:40].tolist()]
    assert [value for batch in lh.Dataset(few, batch_size=8, shuffle=None) for value in batch["frame"]] == expected
    mixed = lh.Mixture({"a": (few, 1), "b": (few, 1)})
    values = [value for batch in lh.Dataset(mixed, batch_size=8, shuffle=None) for value in batch["frame"]]
    assert set(values) == set(expected)


@pytest.mark.parametrize("how", ["replaced", "deleted", "damaged"])
def test_worker_processes_get_these_rows_whatever_became_of_the_file(
    index: lh.RowIndex, table: lh.Table, lake: Path, tmp_path: Path, how: str
) -> None:
    path = tmp_path / "train.idx"
    rows = index.take(range(0, 100, 2))
    rows.save(path)
    loaded = lh.RowIndex.load(path, connect(lake))
    if how == "replaced":
        index.take(range(1, 100, 2)).save(path)
    elif how == "deleted":
        path.unlink()
    else:
        path.unlink()
        path.write_bytes(b"something else")
    assert contents(pickle.loads(pickle.dumps(loaded)), table) == contents(rows, table)
    expected = lh.Loader(lh.Dataset(rows, batch_size=10, columns=["id"]))
    trained = lh.Loader(lh.Dataset(loaded, batch_size=10, columns=["id"]), workers=1)
    assert [batch["id"].tolist() for batch in trained] == [batch["id"].tolist() for batch in expected]


def test_a_file_replaced_while_a_pickle_travels_is_refused(index: lh.RowIndex, lake: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.idx"
    index.take(range(10)).save(path)
    travels = pickle.dumps(lh.RowIndex.load(path, connect(lake)))
    index.take(range(10, 20)).save(path)
    with pytest.raises(lh.ResumeError, match="another index was saved under this name"):
        pickle.loads(travels)


# --- from Daft -------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_from_daft_keeps_the_frames_order_and_computed_columns(table: lh.Table, store: str) -> None:
    from daft import col

    frame = table.latest().daft().where(col("id") < 20).with_column("twice", col("id") * 2).sort("id", desc=True)
    frame = frame.select("id", "twice", "frame", "scene")
    if store == "s3":
        with pytest.raises(lh.NotFoundError, match="pass table="):  # whose catalog has the keys
            lh.RowIndex.from_daft(frame)
    index = lh.RowIndex.from_daft(frame, table=table if store == "s3" else None)
    assert index.column("id").to_pylist() == list(range(19, -1, -1))
    assert index.column("twice").to_pylist() == list(range(38, -1, -2))
    assert [r["frame"].read(table) if r["frame"] else None for r in index] == [row(i)["frame"] for i in range(19, -1, -1)]
    batch = next(iter(lh.Dataset(index, batch_size=4, shuffle=None)))
    assert batch["twice"].tolist() == [38, 36, 34, 32]


def test_from_daft_refuses_what_it_cant_index(table: lh.Table) -> None:
    with pytest.raises(lh.SchemaError, match="takes a Daft frame"):
        lh.RowIndex.from_daft(pa.table({"a": [1]}))


def test_repr_says_what_it_is(index: lh.RowIndex) -> None:
    text = repr(index)
    assert "default.t@2" in text
    assert "103 rows" in text
