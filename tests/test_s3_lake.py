"""What users do with tables, queries and training, on a local warehouse and on a real S3 server alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from daft import col

import lakehouse as lh
from lakehouse.testing import assert_elastic, assert_resumable
from tests.stores.fixtures import Lake
from tests.training import jpeg, payload
from udfs.media import content_type

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("scene", pa.string()),
        ("speed", pa.float64()),
        ("frame", pa.large_binary()),
        ("thumb", pa.large_binary()),
    ]
)
# Folder names that clients, servers and URLs each have their own ideas about.
SCENES = ["night drive", "a/b", "100%", "é图", "x=1&y?#"]


def rows(start: int, stop: int) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "scene": SCENES[i % len(SCENES)],
            "speed": i / 2,
            "frame": None if i % 11 == 7 else payload(i),
            "thumb": jpeg(i),
        }
        for i in range(start, stop)
    ]


def frames_of(start: int, stop: int) -> dict[int, bytes | None]:
    return {row["id"]: row["frame"] for row in rows(start, stop)}


@pytest.fixture
def table(lake: Lake) -> lh.Table:
    """Two commits, 60 rows, five partitions; the tag `v1` names the first commit."""
    table = lake.connect().create_table("default.drive_frames", SCHEMA, partition_by=["scene"])
    table.append(rows(0, 40))
    table.tag("v1")
    table.append(pa.Table.from_pylist(rows(40, 60), SCHEMA))
    return table


def bytes_by_id(snapshot: lh.Snapshot) -> dict[int, bytes | None]:
    arrow = snapshot.arrow(blobs="bytes")
    return dict(zip(arrow["id"].to_pylist(), arrow["frame"].to_pylist(), strict=True))


def test_tables_are_made_listed_opened_and_dropped(lake: Lake, table: lh.Table) -> None:
    catalog = lake.connect()
    assert catalog.tables() == ["default.drive_frames"]
    assert catalog.databases() == ["default"]
    opened = catalog.table("default.drive_frames")
    assert opened.schema == table.schema
    assert opened.partition_by == ("scene",)
    with pytest.raises(lh.ConfigError, match="exists"):
        catalog.create_table("default.drive_frames", SCHEMA, partition_by=["scene"])
    catalog.drop_table("default.drive_frames")
    assert lake.connect().tables() == []
    with pytest.raises(lh.NotFoundError):
        catalog.table("default.drive_frames")


def test_every_byte_comes_back_on_every_way(table: lh.Table) -> None:
    snap, expected = table.latest(), frames_of(0, 60)
    assert bytes_by_id(snap) == expected
    index = snap.query().select("id", "frame").index()
    by_row = {row["id"]: None if row["frame"] is None else row["frame"].read(table) for row in index}
    assert by_row == expected
    frame = snap.daft().with_column("data", snap.bytes("frame")).select("id", "data").to_pydict()
    assert dict(zip(frame["id"], frame["data"], strict=True)) == expected
    files = snap.daft().where(col("id") < 5).select("id", "frame").to_pydict()
    assert {i: lh.fetch_blob(file, table) for i, file in zip(files["id"], files["frame"], strict=True)} == frames_of(0, 5)


def test_tags_and_time_travel(table: lh.Table) -> None:
    assert table.tags() == {"v1": 1}
    assert [info.id for info in table.snapshots()] == [1, 2]
    assert bytes_by_id(table.at(tag="v1")) == frames_of(0, 40)
    assert bytes_by_id(table.at(time=table.snapshots()[0].time)) == frames_of(0, 40)
    with pytest.raises(lh.ConfigError, match="names snapshot 1"):
        table.tag("v1")
    assert table.tag("v1", replace=True) == 2
    assert bytes_by_id(table.at(tag="v1")) == frames_of(0, 60)
    table.delete_tag("v1")
    assert table.tags() == {}
    with pytest.raises(lh.NotFoundError, match="tags: none"):
        table.at(tag="v1")


@pytest.mark.parametrize("scene", SCENES)
def test_filters_on_partitions_and_values(table: lh.Table, scene: str) -> None:
    query = table.latest().query().where((col("scene") == scene) & (col("speed") >= 10)).select("id", "frame")
    expected = [row["id"] for row in rows(0, 60) if row["scene"] == scene and row["speed"] >= 10]
    assert query.count_rows() == len(expected)
    index = query.index()
    assert sorted(index.column("id").to_pylist()) == expected
    assert sorted(query.arrow()["id"].to_pylist()) == expected
    plan = query.explain()
    assert (plan.partitions, plan.partitions_total) == (1, len(SCENES))
    loader = lh.Loader(lh.Dataset(index, batch_size=1))
    assert {int(b["id"][0]): b["frame"][0] for b in loader} == {i: frames_of(0, 60)[i] for i in expected}


def test_daft_plans_and_udfs_over_bytes(table: lh.Table) -> None:
    snap = table.latest()
    frame = snap.daft().with_column("jpg", snap.bytes("thumb")).with_column("kind", content_type(col("jpg")))
    grouped = frame.groupby("scene", "kind").agg(col("id").count().alias("n")).sort("scene").to_pydict()
    assert grouped == {"scene": sorted(SCENES), "kind": ["image/jpeg"] * 5, "n": [12] * 5}
    joined = snap.daft().join(snap.daft().select("id", col("speed").alias("again")), on="id").where(col("id") == 17)
    assert joined.select("id", "speed", "again").to_pydict() == {"id": [17], "speed": [8.5], "again": [8.5]}


def test_images_are_trained_from_and_resumed(table: lh.Table) -> None:
    index = table.latest().query().select("thumb", "id").index()
    options: dict[str, Any] = {"batch_size": 12, "seed": 7, "decode": {"thumb": lh.Image()}}
    whole = [batch["id"].tolist() for batch in lh.Loader(lh.Dataset(index, **options))]
    assert sorted(i for batch in whole for i in batch) == list(range(60))
    loader = lh.Loader(lh.Dataset(index, **options))
    batches: Iterator[Any] = iter(loader)
    for _ in range(2):
        batch = next(batches)
        assert batch["thumb"].shape == (12, 24, 32, 3)
        for i, picture in zip(batch["id"].tolist(), batch["thumb"], strict=True):
            assert np.array_equal(picture.numpy(), lh.Image()(jpeg(i), None))
    state = loader.state_dict()
    again = lh.Loader(lh.Dataset(index, **options))
    again.load_state_dict(state)
    assert [batch["id"].tolist() for batch in again] == whole[2:]


def test_training_is_exact_on_any_topology(table: lh.Table) -> None:
    index = table.latest().query().select("frame", "id").index()

    def make_loader(**overrides: Any) -> lh.Loader:
        workers = overrides.pop("workers", 0)
        return lh.Loader(lh.Dataset(index, **{"batch_size": 12, "seed": 3, **overrides}), workers=workers)

    assert_elastic(make_loader, worlds=(1, 2, 3), epochs=1)
    assert_resumable(make_loader, topologies=((1, 0), (3, 0)), epochs=1, every=2)


def test_a_saved_index_is_the_same_in_a_new_catalog(lake: Lake, table: lh.Table, tmp_path: Path) -> None:
    index = table.at(tag="v1").query().select("frame", "id").index()
    index.save(tmp_path / "train.idx")
    text = (tmp_path / "train.idx").read_bytes()
    assert lake.warehouse.encode() not in text
    for key, value in lake.options.items():
        assert key == "warehouse" or "key" not in key or value.encode() not in text
    loaded = lh.RowIndex.load(tmp_path / "train.idx", lake.connect())
    assert loaded.fingerprint == index.fingerprint
    got = {
        int(i): data
        for batch in lh.Loader(lh.Dataset(loaded, batch_size=8))
        for i, data in zip(batch["id"], batch["frame"], strict=True)
    }
    assert got == frames_of(0, 40)
    mapped = lh.MapDataset(loaded)
    assert mapped.__getitems__([3, 1])[0]["frame"] == loaded.row(3)["frame"].read(table)


def test_references_are_copied_in_and_kept(lake: Lake, tmp_path: Path) -> None:
    source = tmp_path / "outside.bin"
    source.write_bytes(bytes(range(200)))
    table = lake.connect(blob_roots=[str(tmp_path)]).create_table(
        "default.refs", lh.Schema({"id": pa.int64(), "copied": lh.Blob(), "kept": lh.Blob(reference=True)})
    )
    ref = lh.BlobRef(str(source), 10, 20)
    table.append([{"id": 1, "copied": ref, "kept": ref}])
    arrow = table.latest().arrow(blobs="bytes").to_pylist()
    assert arrow == [{"id": 1, "copied": bytes(range(10, 30)), "kept": bytes(range(10, 30))}]
    held = table.latest().arrow().to_pylist()[0]
    assert held["copied"]["uri"] != held["kept"]["uri"]
    stranger = lake.connect().table("default.refs")
    with pytest.raises(lh.FetchError, match="blob_roots"):
        stranger.latest().arrow(blobs="bytes")


def test_an_overwritten_blob_reads_as_the_new_one(table: lh.Table) -> None:
    paimon = table.paimon
    index = table.latest().query().select("id").index()
    row_id = int(index.row_ids[index.column("id").to_pylist().index(5)])
    builder = paimon.new_batch_write_builder()
    update = builder.new_update().with_update_type(["frame"])
    messages = update.update_by_arrow_with_row_id(
        pa.table({"_ROW_ID": [row_id], "frame": pa.array([b"new"], pa.large_binary())})
    )
    commit = builder.new_commit()
    commit.commit(messages)
    commit.close()
    assert bytes_by_id(table.latest()) == {**frames_of(0, 60), 5: b"new"}
    assert bytes_by_id(table.at(snapshot=2)) == frames_of(0, 60)


def test_a_reader_and_frames_are_written(lake: Lake) -> None:
    table = lake.connect().create_table("default.plain", pa.schema([("id", pa.int64()), ("data", pa.large_binary())]))
    batches = [pa.record_batch({"id": [i], "data": pa.array([payload(i)], pa.large_binary())}) for i in range(5)]
    assert table.append(pa.RecordBatchReader.from_batches(batches[0].schema, batches)).rows == 5
    assert table.append(table.latest().daft().select("id").to_pandas()).rows == 5
    assert table.latest().count_rows() == 10
    data = table.latest().arrow(blobs="bytes")["data"].to_pylist()
    assert data == [payload(i) for i in range(5)] + [None] * 5


def test_a_table_that_a_wrong_secret_keeps_shut_says_so(s3_lake: Lake) -> None:
    s3_lake.connect().create_table("default.frames", pa.schema([("id", pa.int64())]))
    with pytest.raises(lh.NotFoundError, match=r"can't be read: .*\(from OSError: .*(ACCESS_DENIED|SIGNATURE)"):
        s3_lake.connect(**{"s3.secret-key": "wrong"}).table("default.frames")


def test_a_store_that_a_wrong_secret_keeps_shut_is_told_with_the_catalog(s3_lake: Lake) -> None:
    shut = s3_lake.connect(**{"s3.secret-key": "wrong"})
    for listing in (shut.tables, shut.databases, lambda: shut.tables("default"), lambda: shut.drop_table("default.frames")):
        with pytest.raises(
            lh.FetchError, match=r"catalog '.*' at s3://.* can't be listed: OSError: .*(ACCESS_DENIED|SIGNATURE)"
        ):
            listing()
