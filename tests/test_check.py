"""Table.check: whole tables are ok, and each kind of damage is found where it is."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.blobfile import BlobIndex, read_blob_index
from lakehouse.check import records
from lakehouse.check.held import Held
from lakehouse.check.rows import groups_of, row_id_problems
from tests.lake_files import files_of, folder_of, needed_of
from tests.lake_tables import build
from tests.stores.place import connect, location, on_stores

pytestmark = on_stores

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.string()), ("frame", pa.large_binary())])
ROWS = 20
MODES: tuple[Literal["size", "crc"], ...] = ("size", "crc")


@pytest.fixture
def table(warehouse: Path) -> lh.Table:
    """20 rows in two partitions, BLOBs of 0 to 1,900 bytes; one is null."""
    table = connect(warehouse).create_table("default.t", SCHEMA, partition_by=["p"])
    table.append([row(i) for i in range(ROWS)])
    return table


def row(i: int) -> dict[str, Any]:
    return {"id": i, "p": f"p{i % 2}", "v": "x" * i, "frame": None if i == 4 else bytes([i % 251]) * 100 * i}


def paimon_update(table: lh.Table, change: Callable[[Any, Any], Any]) -> None:
    builder = table.paimon.new_batch_write_builder()
    predicates = table.paimon.new_read_builder().new_predicate_builder()
    builder.new_commit().commit(change(builder.new_update(), predicates))


def blob_file(table: lh.Table, partition: str = "p0") -> Path:
    """The oldest .blob file of a partition."""
    return min((folder_of(table) / f"p={partition}").rglob("*.blob"), key=lambda path: path.stat().st_mtime_ns)


def index_of(path: Path, rows: int = ROWS // 2) -> BlobIndex:
    data = path.read_bytes()
    return read_blob_index(lambda at, n: data[at : at + n], len(data), rows, location(path))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(bytes(data))


def row_ids(table: lh.Table) -> dict[int, int]:
    """id -> row id."""
    index = table.latest().query().select("id").index()
    return dict(zip(index.column("id").to_pylist(), index.row_ids.tolist(), strict=True))


# --- whole tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(14))
def test_random_tables_are_ok_at_every_snapshot(seed: int, warehouse: Path, tmp_path: Path) -> None:
    lake = build(2000 + seed, connect(warehouse, blob_roots=[str(tmp_path)]), tmp_path)
    for state in lake.states:
        for verify in MODES:
            report = lake.table.check(snapshot=state.snapshot, verify=verify, progress=False)
            assert report.ok, (str(report), lake.recipe)
            assert not report.findings
    if lake.states[-1].tag:
        assert lake.table.check(tag=lake.states[-1].tag, progress=False).ok


@pytest.mark.s3
def test_report_of_a_whole_table(table: lh.Table) -> None:
    told: list[tuple[int, int]] = []
    report = table.check(verify="crc", progress=lambda done, total: told.append((done, total)))
    sizes = {path: (folder_of(table) / path).stat().st_size for path in files_of(table)}
    assert report.ok
    assert report.files == len(sizes)
    assert report.blobs == ROWS - 1
    data = sum(size for path, size in sizes.items() if path.startswith("p="))
    assert report.bytes == data
    assert report.bytes_read == sum(size for path, size in sizes.items() if path.endswith(".blob"))
    assert told[-1][1] == data
    assert 0 < told[-1][0] <= data
    assert str(report).startswith(f"default.t@1: ok, {len(sizes)} files, 19 blobs, 0.0 MB checked by crc in ")


def test_an_empty_table(warehouse: Path) -> None:
    empty = connect(warehouse).create_table("default.empty", SCHEMA)
    assert empty.check(verify="crc").ok
    assert empty.check().files == 0


@pytest.mark.parametrize(
    "arguments",
    [{"verify": "md5"}, {"verify": None}, {"threads": 0}, {"threads": True}, {"threads": 1.5}, {"tag": "v", "snapshot": 1}],
)
def test_bad_arguments(arguments: dict[str, Any], table: lh.Table) -> None:
    with pytest.raises(lh.ConfigError):
        table.check(**arguments)


def test_absent_version(table: lh.Table) -> None:
    with pytest.raises(lh.NotFoundError, match="no tag 'v'"):
        table.check(tag="v")


# --- BLOB files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        ("payload", records.BAD_CRC),
        ("last payload byte", records.BAD_CRC),
        ("crc", records.BAD_CRC),
        ("length", records.BAD_LENGTH),
        ("magic", records.BAD_MAGIC),
    ],
)
@pytest.mark.s3
def test_a_flipped_byte_in_a_record(place: str, cause: str, table: lh.Table) -> None:
    path = blob_file(table)
    index = index_of(path)
    position = 6  # of id 12
    offset, length = int(index.offsets[position]), int(index.lengths[position])
    at = {
        "payload": offset + 77,
        "last payload byte": offset + length - 1,
        "length": offset + length + 1,
        "crc": offset + length + 10,
        "magic": offset - 3,
    }[place]
    flip(path, at)
    assert table.check(progress=False).ok  # what sizes can't show
    report = table.check(verify="crc", progress=False)
    assert not report.ok
    (damaged,) = report.damaged
    assert (damaged.row_id, damaged.column) == (row_ids(table)[12], "frame")
    assert (damaged.uri, damaged.offset, damaged.cause) == (location(path), offset, cause)
    assert report.damaged_files == ()
    assert str(damaged) in str(report)
    assert "default.t@1: DAMAGED" in str(report)


@pytest.mark.parametrize("from_end", [1, 2, 4, 5, 6, 12])
@pytest.mark.parametrize("verify", MODES)
def test_a_flipped_byte_in_the_footer_or_index(from_end: int, verify: Literal["size", "crc"], table: lh.Table) -> None:
    path = blob_file(table)
    flip(path, path.stat().st_size - from_end)
    report = table.check(verify=verify, progress=False)
    assert not report.ok
    (finding,) = report.damaged_files
    assert (finding.uri, finding.kind, finding.column) == (location(path), "blob", "frame")
    assert "not a whole .blob file" in finding.cause
    ids = row_ids(table)
    assert [(found.row_id, found.column, found.offset) for found in report.damaged] == [
        (ids[i], "frame", None) for i in range(0, ROWS, 2)
    ]


@pytest.mark.parametrize("verify", MODES)
@pytest.mark.parametrize("suffix", [".blob", ".parquet"])
@pytest.mark.parametrize("damage", ["missing", "short", "long", "empty"])
def test_a_missing_or_short_data_file(verify: Literal["size", "crc"], suffix: str, damage: str, table: lh.Table) -> None:
    ids = row_ids(table)
    (path,) = (folder_of(table) / "p=p1").rglob(f"*{suffix}")
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes({"short": data[:-1], "long": data + b"x", "empty": b""}[damage])
    report = table.check(verify=verify, progress=False)
    assert not report.ok
    (finding,) = report.damaged_files
    assert finding.uri == location(path)
    assert ("the file is missing" in finding.cause) == (damage == "missing")
    if damage == "short":
        assert finding.cause == f"the file has {len(data) - 1} bytes, expected {len(data)}"
    column = "frame" if suffix == ".blob" else None
    assert [(found.row_id, found.column) for found in report.damaged] == [(ids[i], column) for i in range(1, ROWS, 2)]


def test_records_larger_than_the_buffer(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "CHUNK_BYTES", 1000)
    table = connect(warehouse).create_table("default.t", SCHEMA)
    sizes = [0, 1, 983, 984, 985, 999, 1000, 1001, 1990, 2984, 2988, 3000, 5001, 10, 20]
    table.append([{"id": i, "p": "", "v": "", "frame": os.urandom(size)} for i, size in enumerate(sizes)])
    assert table.check(verify="crc", progress=False).blobs == len(sizes)
    assert table.check(verify="crc", progress=False).ok
    (path,) = folder_of(table).rglob("*.blob")
    index = index_of(path, len(sizes))
    for position, size in enumerate(sizes):
        for at, cause in (
            (-4, records.BAD_MAGIC),
            (size // 2, records.BAD_CRC if size else records.BAD_LENGTH),
            (size - 1, records.BAD_CRC if size else records.BAD_MAGIC),
            (size, records.BAD_LENGTH),
            (size + 7, records.BAD_LENGTH),
            (size + 8, records.BAD_CRC),
            (size + 11, records.BAD_CRC),
        ):
            flip(path, int(index.offsets[position]) + at)
            report = table.check(verify="crc", progress=False)
            assert [(found.row_id, found.cause) for found in report.damaged] == [(position, cause)], (size, at)
            flip(path, int(index.offsets[position]) + at)
    assert table.check(verify="crc", progress=False).ok


def test_many_damaged_rows_are_all_listed(table: lh.Table) -> None:
    path = blob_file(table, "p1")
    index = index_of(path)
    for position in range(10):
        flip(path, int(index.offsets[position]) + 5)
    report = table.check(verify="crc", progress=False)
    ids = row_ids(table)
    assert [found.row_id for found in report.damaged] == [ids[i] for i in range(1, ROWS, 2)]
    flip(blob_file(table, "p0"), int(index_of(blob_file(table, "p0")).offsets[9]))
    assert len(table.check(verify="crc", progress=False).damaged) == 11
    assert "and 1 more rows" in str(table.check(verify="crc", progress=False))


def test_what_nothing_reads_need_not_be_whole(table: lh.Table) -> None:
    """Values of deleted rows, and values that were replaced: told, but the snapshot is ok."""
    path = blob_file(table)
    index = index_of(path)
    ids = row_ids(table)
    paimon_update(table, lambda update, by: update.delete_by_predicate(by.equal("id", 12)))
    new = pa.table({"_ROW_ID": pa.array([ids[14]], pa.int64()), "frame": pa.array([b"new"], pa.large_binary())})
    paimon_update(table, lambda update, by: update.with_update_type(["frame"]).update_by_arrow_with_row_id(new))
    for position in (6, 7):
        flip(path, int(index.offsets[position]) + 9)
    report = table.check(verify="crc", progress=False)
    assert report.ok
    assert report.damaged == []
    assert [(found.row_id, found.state) for found in report.unneeded] == [(ids[12], "deleted"), (ids[14], "replaced")]
    assert "2 damaged values that this snapshot does not need" in str(report)
    before = table.check(snapshot=1, verify="crc", progress=False)  # in which both rows are live
    assert [found.row_id for found in before.damaged] == [ids[12], ids[14]]
    flip(path, int(index.offsets[8]) + 9)
    assert [found.row_id for found in table.check(verify="crc", progress=False).damaged] == [ids[16]]


# --- other files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage"])
def test_manifests(damage: str, table: lh.Table) -> None:
    paimon_update(table, lambda update, by: update.delete_by_predicate(by.equal("id", 12)))
    for path in sorted((folder_of(table) / "manifest").iterdir()):
        if path.name in (folder_of(table) / "snapshot" / "snapshot-1").read_text():
            continue  # lists of the first snapshot only
        data = path.read_bytes()
        path.unlink()
        if damage != "missing":
            path.write_bytes(data[:-20] if damage == "cut" else bytes(len(data)))
        report = table.check(progress=False)
        assert not report.ok
        assert [(found.uri, found.kind) for found in report.damaged_files] == [(location(path), "manifest")]
        path.write_bytes(data)
    assert table.check(progress=False).ok


def test_index_files(table: lh.Table) -> None:
    paimon_update(table, lambda update, by: update.delete_by_predicate(by.is_in("id", [12, 3])))
    for path in sorted((folder_of(table) / "index").iterdir()):
        data = path.read_bytes()
        for at in range(1, len(data)):
            flip(path, at)
            report = table.check(progress=False)
            assert [(found.uri, found.kind) for found in report.damaged_files] == [(location(path), "index")], at
            flip(path, at)
        path.unlink()
        assert "the file is missing" in str(table.check(progress=False))
        path.write_bytes(data)
    assert table.check(progress=False).ok


def test_row_files(table: lh.Table) -> None:
    (path,) = (folder_of(table) / "p=p0").rglob("*.parquet")
    data = path.read_bytes()
    (footer,) = struct.unpack("<I", data[-8:-4])
    for at in (len(data) - 1, len(data) - 6, len(data) - 8 - footer + 2):
        flip(path, at)
        report = table.check(progress=False)
        assert [found.uri for found in report.damaged_files] == [location(path)], at
        flip(path, at)
    flip(path, 10)  # a page: only decoding it shows that
    assert table.check(progress=False).ok
    assert [found.uri for found in table.check(verify="crc", progress=False).damaged_files] == [location(path)]


# --- row ids -----------------------------------------------------------------------------------------------------------------


def held(first: int, rows: int, *columns: str, kind: str = "data", bucket: bytes = b"") -> Held:
    return Held(f"f{first}", f"{kind}{first}+{rows}{bucket!r}{columns}", kind, 1, first, rows, 0, columns, (bucket, 0), ())


@pytest.mark.parametrize(
    ("files", "next_row_id", "problem"),
    [
        ([held(0, 10), held(10, 5)], 15, None),
        ([held(0, 10), held(0, 10, "v"), held(0, 4, "b", kind="blob"), held(4, 6, "b", kind="blob")], 10, None),
        ([held(0, 10), held(20, 5, bucket=b"2"), held(10, 5)], 25, None),
        ([held(0, 10), held(5, 5, bucket=b"2")], 20, "row ids 5 to 9 belong to two rows each"),
        ([held(0, 10), held(2, 1, bucket=b"2"), held(4, 20, bucket=b"3")], 24, "row ids 4 to 9 belong to two rows each"),
        ([held(0, 10)], 9, "row ids up to 9 are in use"),
        ([held(-1, 10)], None, "has no row ids"),
        ([held(0, 10), held(0, 4, "b", kind="blob")], 10, "rows 4 to 9 have no file for BLOB column b"),
        ([held(0, 10), held(6, 4, "b", kind="blob")], 10, "rows 0 to 5 have no file for BLOB column b"),
        ([held(0, 10, "b", kind="blob"), held(0, 8)], 10, "rows 8 to 9 have BLOBs in f0, but no file holds"),
    ],
)
def test_row_ids(files: list[Held], next_row_id: int | None, problem: str | None) -> None:
    found = list(row_id_problems(groups_of(files), next_row_id))
    assert bool(found) == bool(problem), found
    assert problem is None or any(problem in text for text in found)


# --- references --------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_references(warehouse: Path, tmp_path: Path) -> None:
    catalog = connect(warehouse, blob_roots=[str(tmp_path)])
    schema = lh.Schema({"id": pa.int64(), "ref": lh.Blob(reference=True)})
    table = catalog.create_table("default.r", schema)
    paths = [tmp_path / f"{n}.bin" for n in range(3)]
    for path in paths:
        path.write_bytes(bytes(100))
    refs = [lh.BlobRef(str(paths[n % 3]), 10 * (n // 3), 20) for n in range(24)]
    table.append([{"id": i, "ref": ref} for i, ref in enumerate(refs)] + [{"id": 99, "ref": None}])
    assert table.check(progress=False).ok
    paths[1].unlink()
    paths[2].write_bytes(bytes(60))
    report = table.check(progress=False)
    gone = [i for i, ref in enumerate(refs) if ref.uri == str(paths[1]) or (ref.uri == str(paths[2]) and ref.offset + 20 > 60)]
    assert [(found.row_id, found.column, found.uri, found.offset) for found in report.damaged] == [
        (i, "ref", refs[i].uri, refs[i].offset) for i in gone
    ]
    assert not report.ok
    stranger = connect(warehouse).table("default.r")
    assert "blob_roots" in stranger.check(progress=False).damaged[0].cause


# --- resume ------------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_resume(table: lh.Table, store: str, tmp_path: Path) -> None:
    path = tmp_path / "check.jsonl"
    table.append([row(i) for i in range(ROWS)])
    first = table.check(verify="crc", resume=path, progress=False)
    assert (first.ok, first.resumed) == (True, 0)
    second = table.check(verify="crc", resume=path, progress=False)
    assert (second.ok, second.resumed, second.bytes_read) == (True, 8, 0)
    assert table.check(resume=path, progress=False).resumed == 8  # what was read by crc has its size
    damaged = blob_file(table)
    if store == "s3":
        time.sleep(1.1)  # a store tells when a file was written in seconds
    flip(damaged, 20)  # which writes to it
    third = table.check(verify="crc", resume=path, progress=False)
    assert (third.ok, third.resumed) == (False, 7)
    fourth = table.check(verify="crc", resume=path, progress=False)
    assert (fourth.ok, fourth.resumed) == (False, 7)  # damage is never noted
    flip(damaged, 20)
    damaged.unlink()
    assert [found.uri for found in table.check(verify="crc", resume=path, progress=False).damaged_files] == [location(damaged)]


@pytest.mark.local("stops a process")
def test_resume_after_a_stop(table: lh.Table, tmp_path: Path) -> None:
    path = tmp_path / "check.jsonl"
    for _ in range(5):
        table.append([row(i) for i in range(ROWS)])
    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.check(verify="crc", resume=path, threads=1, progress=stop)
    whole = len(path.read_text().splitlines()) - 1
    assert 0 < whole < 24
    with path.open("ab") as file:
        file.write(b'{"file": "da')  # killed while it wrote
    report = table.check(verify="crc", resume=path, progress=False)
    assert (report.ok, report.resumed) == (True, whole)
    assert table.check(verify="crc", resume=path, progress=False).resumed == 24
    assert all(json.loads(line) for line in path.read_text().splitlines() if not line.startswith('{"file": "da'))


def test_size_does_not_count_as_crc(table: lh.Table, tmp_path: Path) -> None:
    path = tmp_path / "check.jsonl"
    assert table.check(verify="size", resume=path, progress=False).ok
    assert table.check(verify="size", resume=path, progress=False).resumed == 4
    assert table.check(verify="crc", resume=path, progress=False).resumed == 0


def test_resume_of_another_table(table: lh.Table, tmp_path: Path, warehouse: Path) -> None:
    path = tmp_path / "check.jsonl"
    table.check(resume=path, progress=False)
    other = connect(warehouse).create_table("default.other", SCHEMA)
    other.append([row(1)])
    with pytest.raises(lh.ConfigError, match="not from a check of this table"):
        other.check(resume=path, progress=False)
    path.write_text("something else\n")
    with pytest.raises(lh.ConfigError, match="not from a check of this table"):
        table.check(resume=path, progress=False)
    with pytest.raises(lh.ConfigError, match="can't be used"):
        table.check(resume=tmp_path / "absent" / "check.jsonl", progress=False)


def test_after_expiry(table: lh.Table) -> None:
    table.tag("v1")
    table.append([row(i) for i in range(ROWS)])
    table.append([row(i) for i in range(ROWS)])
    table.expire(keep_last=1)
    table.remove_orphans(timedelta(0))
    assert table.check(verify="crc", progress=False).ok
    assert table.check(tag="v1", verify="crc", progress=False).ok


@pytest.mark.parametrize("keep", ["any", "keep"])
def test_after_changes_and_compaction(keep: Literal["any", "keep"], table: lh.Table) -> None:
    for start in (100, 200, 300):
        table.append([row(start + i) for i in range(6)])
    table.update("id >= 300", {"v": "new"})
    table.update("id = 101", {"frame": b"other"})
    table.delete("id = 102 or id = 3")
    table.upsert([row(200), row(900)], key=["id"])
    table.tag("before")
    held = table.at(tag="before").arrow(blobs="bytes").sort_by("id")
    assert table.compact(row_ids=keep).snapshots
    for verify in MODES:
        assert table.check(verify=verify, progress=False).ok
        assert table.check(tag="before", verify=verify, progress=False).ok
    report = table.expire(keep_last=1)
    table.delete_tag("before")
    orphans = table.remove_orphans(timedelta(0))
    assert report.snapshots
    assert orphans.files["data"] > 0
    assert files_of(table) == needed_of(table)
    assert table.check(verify="crc", progress=False).ok
    assert table.latest().arrow(blobs="bytes").sort_by("id").equals(held)
