"""Expiry, orphans and check on a local warehouse and on a real S3 server alike."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from tests.stores.fixtures import Lake

SCHEMA = pa.schema([("id", pa.int64()), ("scene", pa.string()), ("frame", pa.large_binary())])
# Folder names that clients, servers and URLs each have their own ideas about.
SCENES = ["night drive", "a/b", "100%", "é图", "x=1&y?#"]


@pytest.fixture
def table(lake: Lake) -> lh.Table:
    """Three commits of 10 rows in five partitions, then one that deletes scene ``a/b``."""
    table = lake.connect().create_table("default.frames", SCHEMA, partition_by=["scene"])
    for start in (0, 10, 20):
        table.append(rows(start, start + 10), commit_id=f"from-{start}")
    table.delete("scene = 'a/b'")
    return table


def rows(start: int, stop: int) -> list[dict[str, Any]]:
    return [{"id": i, "scene": SCENES[i % len(SCENES)], "frame": b"frame %d" % i * 50} for i in range(start, stop)]


def held(snapshot: lh.Snapshot) -> list[int]:
    found = snapshot.arrow(blobs="bytes").sort_by("id").to_pylist()
    assert all(row == rows(row["id"], row["id"] + 1)[0] for row in found)
    return [row["id"] for row in found]


def paths(table: lh.Table, folder: str = "") -> set[str]:
    """All files below the table's folder, by the catalog's own client."""
    io, root = table.paimon.file_io, str(table.paimon.table_path)
    found: set[str] = set()
    for item in io.list_status(f"{root}/{folder}" if folder else root):
        name = f"{folder}/{item.base_name}" if folder else str(item.base_name)
        found |= {name} if item.size is not None else paths(table, name)
    return found


LIVE = [i for i in range(30) if SCENES[i % 5] != "a/b"]


def test_expire(table: lh.Table) -> None:
    number = table.compact().snapshots[-1]
    table.tag("v1", snapshot=1, description="first", keep_for=timedelta(days=1))
    table.tag("over", snapshot=2, keep_for=timedelta(microseconds=1))
    before = paths(table)
    planned = table.expire(keep_last=1, dry_run=True)
    assert paths(table) == before
    done = table.expire(keep_last=1)
    assert done == planned
    assert (done.snapshots, done.tags, done.left) == (tuple(range(1, number)), ("over",), ())
    gone = before - paths(table)
    assert sum(done.files.values()) == len([path for path in gone if not path.startswith(("snapshot/", "tag/"))])
    assert done.files["blob"] >= 10  # of the second and third commit, merged by the compaction
    assert held(table.latest()) == LIVE
    assert held(table.at(tag="v1")) == list(range(10))
    assert table.tag_info("v1").description == "first"
    with pytest.raises(lh.NotFoundError, match="it has expired"):
        table.at(snapshot=2)
    assert table.append(rows(0, 10), commit_id="from-0").snapshot_id == 1
    assert table.remove_orphans(timedelta(0)).paths == ()


def test_orphans(table: lh.Table) -> None:
    builder = table.paimon.new_batch_write_builder()
    write = builder.new_write()
    write.write_arrow(pa.Table.from_pylist(rows(50, 60), SCHEMA))
    write.prepare_commit()
    write.close()
    foreign = f"scene=night drive/bucket-0/notes-{uuid.uuid4()}.txt"
    table.paimon.file_io.write_file(f"{table.paimon.table_path}/{foreign}", "x", True)
    before = paths(table)
    assert table.remove_orphans().spared == 10
    planned = table.remove_orphans(timedelta(0), dry_run=True)
    done = table.remove_orphans(timedelta(0))
    assert done == planned
    assert done.files == {"blob": 5, "data": 5}
    assert set(done.paths) == before - paths(table)
    assert foreign in paths(table)
    assert held(table.latest()) == LIVE


def test_check(table: lh.Table) -> None:
    report = table.check(verify="crc", progress=False)
    assert report.ok, str(report)
    assert report.blobs == 30  # the deleted ones are in their files still
    io = table.paimon.file_io
    ref = table.latest().query().index().blobs("frame")[3]
    assert ref is not None
    with io.new_input_stream(ref.uri) as stream:
        data = bytearray(stream.read())
    whole = bytes(data)
    data[ref.offset + 5] ^= 1
    with io.new_output_stream(ref.uri) as stream:
        stream.write(bytes(data))
    assert table.check(progress=False).ok
    (damaged,) = table.check(verify="crc", progress=False).damaged
    assert (damaged.uri, damaged.offset, damaged.column) == (ref.uri, ref.offset, "frame")
    with io.new_output_stream(ref.uri) as stream:
        stream.write(whole[:-7])
    assert [found.uri for found in table.check(progress=False).damaged_files] == [ref.uri]
    io.delete(ref.uri)
    (finding,) = table.check(progress=False).damaged_files
    assert (finding.uri, "the file is missing" in finding.cause) == (ref.uri, True)
