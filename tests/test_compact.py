"""Compaction: what becomes of files, row ids, indexes and memory."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
import pytest
from pypaimon.manifest.index_manifest_file import IndexManifestFile

import lakehouse as lh
from lakehouse.compaction import blobcopy
from tests.rest import RestServer
from tests.stores import place
from tests.stores.place import connect, on_stores
from tests.upstream.plain import few_files, plain

pytestmark = on_stores

SCHEMA = pa.schema(
    [("id", pa.int64()), ("p", pa.string()), ("v", pa.string()), ("img", pa.large_binary()), ("thumb", pa.large_binary())]
)


def row(i: int, **changes: Any) -> dict[str, Any]:
    """Row ``i``: null, empty and other BLOBs in turn."""
    img = None if i % 7 == 3 else b"" if i % 7 == 5 else b"image %d " % i * (1 + i % 5)
    return {"id": i, "p": f"P{i % 3}", "v": f"v{i}", "img": img, "thumb": b"t%d" % i if i % 4 else None, **changes}


def made(warehouse: Path, commits: int = 12, rows: int = 6, by: Sequence[str] = ("p",), name: str = "default.t") -> lh.Table:
    """A table of many small commits."""
    table = connect(warehouse).create_table(name, SCHEMA, partition_by=by)
    for commit in range(commits):
        table.append([row(commit * rows + i) for i in range(rows)])
    return table


def held(snapshot: lh.Snapshot) -> list[dict[str, Any]]:
    """All rows with their bytes, by id."""
    return sorted(snapshot.arrow(blobs="bytes").to_pylist(), key=lambda found: found["id"])


def listed(table: lh.Table, pattern: str = "*") -> dict[str, int]:
    """Files below the table's folder and when each was written."""
    root = place.path(table.paimon.table_path)
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob(pattern) if path.is_file()}


def change(table: lh.Table, work: Callable[[Any], Any]) -> None:
    """One commit of pypaimon's own update or delete."""
    builder = table.paimon.new_batch_write_builder()
    commit = builder.new_commit()
    commit.commit(work(builder.new_update()))
    commit.close()


def row_id(table: lh.Table, i: int) -> int:
    return int(table.latest().query().where(f"id = {i}").index().row_ids[0])


def delete(table: lh.Table, *ids: int) -> None:
    found = [row_id(table, i) for i in ids]
    change(table, lambda update: update.delete_by_row_id(found))


@pytest.mark.s3
def test_many_small_commits_become_a_file_a_column(warehouse: Path) -> None:
    table = made(warehouse)
    before = held(table.latest())
    report = table.compact()
    assert held(table.latest()) == before
    assert (report.files_before, report.files_after) == (12 * 3 * 3, 3 * 3)
    assert (report.partitions, report.rows, report.renumbered) == (3, 72, 72)
    assert (report.manifests_before, report.manifests_after) == (12, 1)
    assert report.snapshots == (13, 14)
    assert [info.kind for info in table.snapshots()[-2:]] == ["COMPACT", "COMPACT"]
    assert sum(listed(table, name) != {} for name in ("*.parquet", "*.blob")) == 2
    assert str(report).startswith("default.t: rewrote 72 rows of 3 partitions")
    index = table.latest().query().index()
    assert len(set(index.row_ids.tolist())) == 72
    again = table.compact()
    assert (again.snapshots, again.rows, again.files_after) == ((), 0, 9)
    table.append([row(100)])
    assert held(table.latest()) == [*before, row(100)]


def test_rows_keep_their_ids_where_they_follow_each_other(warehouse: Path) -> None:
    table = made(warehouse, by=())
    delete(table, 20)
    change(table, lambda update: update.update_by_predicate(None, {"v": "new"}))
    ids = {
        found["id"]: table.latest().query().where(f"id = {found['id']}").index().row_ids[0] for found in held(table.latest())
    }
    before = held(table.latest())
    report = table.compact()
    assert (report.renumbered, report.dropped, report.files_after) == (0, 1, 6)  # a gap at row 20, so two groups
    assert held(table.latest()) == before
    index = table.latest().query().index()
    assert dict(zip(index.column("id").to_pylist(), index.row_ids.tolist(), strict=True)) == ids
    assert table.latest().query().index().row_ids.tolist() == sorted(ids.values())


def test_row_ids_kept_at_any_price(warehouse: Path) -> None:
    """Partitions that share commits have ids in turns: nothing can be joined without new ones."""
    table = made(warehouse)
    index = table.latest().query().index()
    report = table.compact(row_ids="keep")
    assert (report.rows, report.files_after, report.manifests_after) == (0, report.files_before, 1)
    delete(table, 5)
    report = table.compact(row_ids="keep")
    assert (report.rows, report.dropped, report.renumbered) == (1, 1, 0)
    expected = {i: r for i, r in zip(index.column("id").to_pylist(), index.row_ids.tolist(), strict=True) if i != 5}
    index = table.latest().query().index()
    assert dict(zip(index.column("id").to_pylist(), index.row_ids.tolist(), strict=True)) == expected


def test_folding_an_update_copies_no_blob(warehouse: Path) -> None:
    table = made(warehouse, commits=1)
    blobs = listed(table, "*.blob")
    change(table, lambda update: update.update_by_predicate(None, {"v": "new"}))
    before = held(table.latest())
    report = table.compact()
    assert listed(table, "*.blob") == blobs
    assert (report.rows, report.files_before, report.files_after) == (6, 12, 9)
    assert held(table.latest()) == before
    assert {found["v"] for found in before} == {"new"}


def test_partitions_are_chosen_by_a_condition(warehouse: Path) -> None:
    table = made(warehouse)
    before = held(table.latest())
    report = table.compact("p in ('P0', 'P2')")
    assert (report.partitions, report.files_before, report.files_after) == (2, 12 * 2 * 3, 6)
    assert held(table.latest()) == before
    assert table.compact(daft.col("p") == "nowhere").partitions == 0
    for wrong in ("id > 3", "p = 'P0' and v = 'v1'", "img is null"):
        with pytest.raises(lh.SchemaError, match=r"chooses whole partitions.*partition columns: p"):
            table.compact(wrong)
    with pytest.raises(lh.NotFoundError, match="nope"):
        table.compact("nope = 1")
    for size in (0, -1, True, 2.5, "1"):
        with pytest.raises(lh.ConfigError, match="number of bytes"):
            table.compact(target_size=size)  # type: ignore[arg-type]
    with pytest.raises(lh.ConfigError, match="row_ids"):
        table.compact(row_ids="some")  # type: ignore[arg-type]
    assert table.compact("p = 'P1'").partitions == 1


def test_a_dry_run_changes_nothing(warehouse: Path) -> None:
    table = made(warehouse)
    before = listed(table)
    report = table.compact(dry_run=True)
    assert report.dry_run
    assert (report.rows, report.files_after, report.snapshots) == (72, 9, ())
    assert "would rewrite 72 rows" in str(report)
    assert listed(table) == before


def test_large_files_are_left_alone(warehouse: Path) -> None:
    table = made(warehouse, commits=1, by=())
    table.append([row(i, img=bytes(5000)) for i in range(10, 20)])
    for i in range(20, 26):
        table.append([row(i)])
    large = {name for name in listed(table, "*.blob") if (place.path(table.paimon.table_path) / name).stat().st_size > 50_000}
    assert len(large) == 1
    table.compact(target_size=60_000)
    names = {file.file_name for split in table.paimon.new_read_builder().new_scan().plan().splits() for file in split.files}
    assert {Path(name).name for name in large} <= names
    assert len(names) == 9


def test_target_size_cuts_blob_files(warehouse: Path) -> None:
    table = connect(warehouse).create_table("default.t", SCHEMA)
    for i in range(20):
        table.append([row(i, img=bytes([i]) * 1000)])
    before = held(table.latest())
    report = table.compact(target_size=8_000, row_ids="keep")
    sizes = [(place.path(table.paimon.table_path) / name).stat().st_size for name in listed(table, "*.blob")]
    assert held(table.latest()) == before
    assert report.renumbered == 0
    assert max(sizes) < 9_500


def test_empty_tables_and_partitions(warehouse: Path) -> None:
    table = connect(warehouse).create_table("default.t", SCHEMA, partition_by=["p"])
    assert table.compact().snapshots == ()
    table.append([row(0), row(1)])
    delete(table, 0, 1)
    report = table.compact()
    assert (report.dropped, report.files_after, report.rows) == (2, 0, 0)
    assert table.latest().count_rows() == 0
    table.append([row(3)])
    assert held(table.latest()) == [row(3)]


def test_saved_indexes_and_tags_from_before_read_the_same(warehouse: Path, tmp_path: Path) -> None:
    table = made(warehouse)
    table.tag("train")
    index = table.at(tag="train").query().where("id % 2 = 0").index()
    index.save(tmp_path / "train.idx")
    before = held(table.latest())
    expected = {int(i): list(ds_bytes(index, "img")) for i in [0]}
    delete(table, 4)
    table.compact()
    catalog = connect(warehouse)
    loaded = lh.RowIndex.load(tmp_path / "train.idx", catalog)
    assert loaded.fingerprint == index.fingerprint
    assert list(ds_bytes(loaded, "img")) == expected[0]
    assert held(catalog.table("default.t").at(tag="train")) == before
    # Once the old files are gone, the index says so instead of reading what now lies elsewhere.
    names = {file.file_name for split in table.paimon.new_read_builder().new_scan().plan().splits() for file in split.files}
    for path in place.path(table.paimon.table_path).rglob("*.blob"):
        if path.name not in names:
            path.unlink()
    with pytest.raises(lh.FetchError, match="No such file|404"):
        list(ds_bytes(lh.RowIndex.load(tmp_path / "train.idx", catalog), "img"))


def ds_bytes(index: lh.RowIndex, column: str) -> Iterator[tuple[int, bytes | None]]:
    """Every row's id and bytes, as training reads them."""
    for batch in lh.Dataset(index, batch_size=5, shuffle=None, tail="pad", columns=["id", column], fill={"id": -1}):
        yield from zip(batch["id"].tolist(), batch[column], strict=True)


@pytest.mark.s3
def test_training_reads_the_same(warehouse: Path) -> None:
    table = made(warehouse)
    before = sorted(ds_bytes(table.latest().query().index(), "img"), key=str)
    table.compact(target_size=500)
    assert sorted(ds_bytes(table.latest().query().index(), "img"), key=str) == before


def test_records_are_copied_as_they_are(warehouse: Path) -> None:
    """Checksums hold in the new files, and a record that was damaged still shows it."""
    table = made(warehouse, commits=6, by=())
    source = next(
        path for path in sorted(place.path(table.paimon.table_path).rglob("*.blob")) if b"image 1 " in path.read_bytes()
    )
    source.write_bytes(source.read_bytes().replace(b"image 1 ", b"imagf 1 ", 1))
    table.compact()
    wrong = 0
    index = table.latest().query().index()
    for name in ("img", "thumb"):
        refs = index.blobs(name)
        for uri, offset, length in zip(refs.uri_ids.tolist(), refs.offsets.tolist(), refs.lengths.tolist(), strict=True):
            if uri >= 0:
                data = place.path(refs.uris[uri]).read_bytes()[offset - 4 : offset + length + 12]
                assert data[:4] == struct.pack("<I", 1481511375)
                assert struct.unpack("<Q", data[-12:-4])[0] == length + 16
                wrong += zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]
    assert wrong == 1


def test_few_open_files_and_little_memory(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 files with 20 descriptors; no read beyond a piece, though one BLOB is 100 pieces long."""
    monkeypatch.setattr(blobcopy, "_PIECE_BYTES", 10_000)
    table = made(warehouse, commits=30, rows=10)
    big = os.urandom(1_000_000)
    table.append([row(1000, img=big)])
    before = held(table.latest())
    largest = 0

    class Watched:
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def read(self, size: int) -> bytes:
            nonlocal largest
            largest = max(largest, size)
            return bytes(self._stream.read(size))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    monkeypatch.setattr(
        blobcopy.Sources, "_stream", lambda self, path, kept=blobcopy.Sources._stream: Watched(kept(self, path))
    )
    with few_files(20):
        table.compact()
    assert 0 < largest <= 10_000
    assert held(table.latest()) == before


@pytest.mark.local("pypaimon's own catalog writes to a folder")
def test_files_that_only_other_engines_write_are_refused(warehouse: Path) -> None:
    lists = pa.schema([("id", pa.int64()), ("parts", pa.list_(pa.large_binary()))])
    plain(warehouse, [{"id": 1, "parts": [b"a"]}], schema=lists, partition_by=())
    table = connect(warehouse).table("default.t")
    with pytest.raises(lh.SchemaError, match="column parts holds BLOB views, or lists or maps of BLOBs"):
        table.compact()
    catalog = connect(warehouse / "b")
    table = catalog.create_table("default.t", SCHEMA, options={"data-evolution.row-sidecar.enabled": "true"})
    table.append([row(1)])
    before = listed(table)
    with pytest.raises(lh.SchemaError, match="sidecar"):
        table.compact()
    assert listed(table) == before


def test_tables_of_a_catalog_server(rest: RestServer) -> None:
    table = lh.connect(**rest.options()).create_table("drives.t", SCHEMA, partition_by=["p"])
    for commit in range(4):
        table.append([row(commit * 6 + i) for i in range(6)])
    before, commits = held(table.latest()), rest.count("POST commit")
    report = table.compact()
    assert rest.count("POST commit") == commits + 2
    assert (report.files_after, report.manifests_after) == (9, 1)
    assert held(table.latest()) == before
    with pytest.raises(lh.ConfigError, match="catalog server keeps the snapshots"):
        table.purge("id = 1")


def test_a_branch_is_compacted_for_itself(warehouse: Path) -> None:
    table = made(warehouse, commits=4)
    dev = table.create_branch("dev")
    for commit in range(4, 8):
        dev.append([row(commit * 6 + i) for i in range(6)])
    before = held(dev.latest()), held(table.latest()), listed(table, "snapshot-*").keys()
    report = dev.compact()
    assert (report.files_before, report.files_after) == (8 * 9, 9)
    assert (held(dev.latest()), held(table.latest())) == before[:2]
    assert {name for name in listed(table, "snapshot-*") if not name.startswith("branch")} == {
        name for name in before[2] if not name.startswith("branch")
    }
    assert table.compact().files_after == 9
    assert held(table.branch("dev").latest()) == before[0]


@pytest.mark.s3
def test_deletions_leave_with_their_files_and_no_others(warehouse: Path) -> None:
    table = made(warehouse, commits=4)
    delete(table, 0, 1, 6)  # two of partition P0, one of P1
    before = held(table.latest())
    table.compact("p = 'P0'")
    names = {file.file_name for split in table.paimon.new_read_builder().new_scan().plan().splits() for file in split.files}
    snapshot = table.latest().version.snapshot
    vectors = [entry.index_file.dv_ranges for entry in IndexManifestFile(table.paimon).read(snapshot.index_manifest)]
    assert {name for ranges in vectors for name in ranges or {}} <= names
    assert len(vectors) == 1
    assert held(table.latest()) == before
    table.compact()
    assert table.latest().version.snapshot.index_manifest is None
    assert held(table.latest()) == before


def test_replaced_blobs_leave_the_files(warehouse: Path) -> None:
    table = made(warehouse, commits=1, by=())
    where = table.paimon.new_read_builder().new_predicate_builder().equal("id", 1)
    change(table, lambda update: update.update_by_predicate(where, {"img": b"new image"}))
    assert table.compact().files_after == 3
    names = {file.file_name for split in table.paimon.new_read_builder().new_scan().plan().splits() for file in split.files}
    root = place.path(table.paimon.table_path)
    kept = [(root / name).read_bytes() for name in listed(table, "*.blob") if Path(name).name in names]
    assert sum(b"new image" in data for data in kept) == 1
    assert not any(b"image 1 " in data for data in kept)
