"""Expiry: what goes is what nobody needs, and nothing else, whenever it is stopped and whatever happens meanwhile."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.upkeep.expire import Rule, old_snapshots
from lakehouse.upkeep.expire import _drop as drop
from lakehouse.upkeep.roots import Root
from lakehouse.upstream import write_tag
from tests.lake_files import files_of, folder_of, needed_of
from tests.lake_tables import build
from tests.stores.place import connect, on_stores

pytestmark = on_stores


UTC = timezone.utc
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("frame", pa.large_binary())])


@pytest.fixture
def table(catalog: lh.Catalog) -> lh.Table:
    """Six snapshots: rows 0 to n - 1 in snapshot n; the fifth deletes rows of p0, the sixth brings one back."""
    table = catalog.create_table("default.t", SCHEMA, partition_by=["p"])
    for i in range(4):
        table.append([row(i)], commit_id=f"part-{i}")
    predicate = table.paimon.new_read_builder().new_predicate_builder().equal("p", "p0")
    builder = table.paimon.new_batch_write_builder()
    builder.new_commit().commit(builder.new_update().delete_by_predicate(predicate))
    table.append([row(0)])
    return table


def row(i: int) -> dict[str, Any]:
    return {"id": i, "p": f"p{i % 2}", "frame": b"frame %d" % i * 50}


def ids(snapshot: lh.Snapshot) -> list[int]:
    """With the bytes."""
    rows = snapshot.arrow(blobs="bytes").to_pylist()
    assert all(found == row(found["id"]) for found in rows)
    return sorted(found["id"] for found in rows)


def content(snapshot: lh.Snapshot) -> str:
    """All rows, with the bytes; as text, in which NaN equals itself."""
    return repr(snapshot.arrow(blobs="bytes").to_pylist())


def live_of(table: lh.Table) -> set[str]:
    """The data files of the latest snapshot."""
    splits = table.paimon.new_read_builder().new_scan().plan().splits()
    return {path.removeprefix(f"{table.paimon.table_path}/") for split in splits for path in split.file_paths}


# --- exactness ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_random_tables_keep_all_that_is_needed_and_nothing_else(seed: int, warehouse: Path, tmp_path: Path) -> None:
    catalog = connect(warehouse, blob_roots=[str(tmp_path)])
    lake = build(1000 + seed, catalog, tmp_path)
    table = lake.table
    if seed % 3 == 0 and any(state.tag for state in lake.states):
        table.paimon.branch_manager().create_branch("dev", next(state.tag for state in lake.states if state.tag))
    table.remove_orphans(timedelta(0))  # a later overwrite of another engine may have left some
    before = files_of(table)
    assert before == needed_of(table)
    held = {state.snapshot: content(lake.snapshot(state)) for state in lake.states}
    keep = 1 + seed % 3
    planned = table.expire(keep_last=keep, dry_run=True)
    assert files_of(table) == before
    done = table.expire(keep_last=keep)
    assert done == planned
    assert done.left == ()
    numbers = [state.snapshot for state in lake.states]
    assert done.snapshots == tuple(range(1, numbers[-1] + 1)[:-keep])
    assert files_of(table) == needed_of(table), lake.recipe
    assert sum(done.files.values()) == len(before - files_of(table))
    gone = set(done.snapshots)
    for state in lake.states:
        if state.snapshot in gone and state.tag is None:
            with pytest.raises(lh.NotFoundError, match=f"no snapshot {state.snapshot}; .*; it has expired"):
                table.at(snapshot=state.snapshot)
            continue
        assert content(lake.snapshot(state)) == held[state.snapshot], lake.recipe
    assert table.remove_orphans(timedelta(0)).paths == ()


def test_files_of_a_branch_stay(table: lh.Table) -> None:
    table.tag("start", snapshot=2)
    table.paimon.branch_manager().create_branch("dev", "start")
    table.delete_tag("start")
    report = table.expire(keep_last=1)
    assert report.snapshots == (1, 2, 3, 4, 5)
    assert ids(table.at(branch="dev")) == [0, 1]
    assert ids(table.at(branch="dev", tag="start")) == [0, 1]
    assert ids(table.latest()) == [0, 1, 3]
    assert files_of(table) == needed_of(table)


@pytest.mark.s3
def test_report(table: lh.Table) -> None:
    sizes = {path: (folder_of(table) / path).stat().st_size for path in files_of(table)}
    told: list[tuple[int, int]] = []
    report = table.expire(keep_last=1, progress=lambda done, total: told.append((done, total)))
    gone = set(sizes) - files_of(table)
    assert report.bytes == sum(sizes[path] for path in gone)
    assert report.files == {"blob": 2, "data": 2, "manifest": len([p for p in gone if p.startswith("manifest/")])}
    assert told == [(n + 1, len(gone)) for n in range(len(gone))]
    assert str(report).startswith("default.t: removed 5 snapshots (1 to 5), ")
    assert str(table.expire(keep_last=1)) == "default.t: removed 0 snapshots, 0 files, 0 bytes"


@pytest.mark.s3
def test_a_tag_keeps_its_snapshot_readable(table: lh.Table) -> None:
    table.tag("v3", snapshot=3)
    table.expire(keep_last=1)
    assert ids(table.at(tag="v3")) == [0, 1, 2]
    with pytest.raises(lh.NotFoundError, match=r"no snapshot 3; snapshots: 6 to 6; it has expired: at\(tag='v3'\) still"):
        table.at(snapshot=3)
    table.delete_tag("v3")
    assert table.expire(keep_last=1).files == {}  # its files are orphans now
    assert table.remove_orphans(timedelta(0)).files["blob"] == 2
    assert files_of(table) == needed_of(table)


# --- which snapshots ---------------------------------------------------------------------------------------------------------


def history(*times: int) -> list[Root]:
    return [Root("", i + 1, "", None, {"timeMillis": time}) for i, time in enumerate(times)]


@pytest.mark.parametrize(
    ("rule", "consumed", "old"),
    [
        (Rule(None, 1), None, [1, 2, 3, 4]),
        (Rule(None, 3), None, [1, 2]),
        (Rule(None, 9), None, []),
        (Rule(25, 1), None, [1, 2]),
        (Rule(20, 1), None, [1]),
        (Rule(99, 1), None, [1, 2, 3, 4]),
        (Rule(99, 4), None, [1]),
        (Rule(5, 1), None, []),
        (Rule(99, 1), 3, [1, 2]),
        (Rule(99, 1), 1, []),
    ],
)
def test_rule(rule: Rule, consumed: int | None, old: list[int]) -> None:
    assert [root.id for root in old_snapshots(history(10, 20, 30, 40, 50), rule, consumed)] == old


def test_history_stays_in_one_piece_when_a_clock_went_back() -> None:
    assert [root.id for root in old_snapshots(history(10, 90, 30, 40, 50), Rule(60, 1))] == [1]


def test_no_snapshots() -> None:
    assert old_snapshots([], Rule(None, 1)) == []


@pytest.mark.s3
def test_by_time(table: lh.Table) -> None:
    times = [info.time for info in table.snapshots()]
    assert table.expire(times[2]).snapshots == (1, 2)
    assert table.expire(timedelta(days=1)).snapshots == ()
    assert table.expire(timedelta(0), keep_last=3).snapshots == (3,)
    assert table.expire(timedelta(0)).snapshots == (4, 5)


def test_what_a_streaming_reader_still_needs_stays(table: lh.Table) -> None:
    folder = folder_of(table) / "consumer"
    folder.mkdir()
    (folder / "consumer-flink").write_text('{"nextSnapshot": 3}')
    assert table.expire(keep_last=1).snapshots == (1, 2)


def test_an_empty_table(catalog: lh.Catalog) -> None:
    empty = catalog.create_table("default.empty", SCHEMA)
    assert empty.expire(keep_last=1).snapshots == ()
    assert empty.remove_orphans().paths == ()


BAD_ARGUMENTS: list[Callable[[Any], Any]] = [
    lambda table: table.expire(),
    lambda table: table.expire(keep_last=0),
    lambda table: table.expire(keep_last=-1),
    lambda table: table.expire(keep_last=True),
    lambda table: table.expire(keep_last=1.5),
    lambda table: table.expire(datetime(2020, 1, 1)),
    lambda table: table.expire(timedelta(days=-1)),
    lambda table: table.expire("30 days"),
    lambda table: table.expire(30),
    lambda table: table.remove_orphans(timedelta(seconds=-1)),
    lambda table: table.remove_orphans(30),
    lambda table: table.tag("x", keep_for=timedelta(0)),
    lambda table: table.tag("x", keep_for=30),
    lambda table: table.tag("x", keep_for=timedelta.max),
    lambda table: table.tag("x", description="x" * 5000),
]


@pytest.mark.parametrize("call", BAD_ARGUMENTS)
def test_bad_arguments(call: Callable[[Any], Any], table: lh.Table) -> None:
    before = files_of(table)
    with pytest.raises(lh.ConfigError):
        call(table)
    assert files_of(table) == before
    assert len(table.snapshots()) == 6
    assert table.tags() == {}


# --- what goes on ------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_commit_ids_are_carried_forward(table: lh.Table) -> None:
    first = table.append([row(7)], commit_id="again")
    table.append([row(9)])
    table.expire(keep_last=1)
    table.append([row(11)])
    table.expire(keep_last=1)
    assert table.append([row(7)], commit_id="again") == first
    assert table.append([row(0)], commit_id="part-0").snapshot_id == 1
    assert ids(table.latest()) == [0, 1, 3, 7, 9, 11]


def test_time_travel(table: lh.Table) -> None:
    times = {info.id: info.time for info in table.snapshots()}
    table.expire(keep_last=3)
    assert [info.id for info in table.snapshots()] == [4, 5, 6]
    with pytest.raises(lh.NotFoundError, match="no snapshot at or before .*; snapshots: 4 to 6"):
        table.at(time=times[4] - timedelta(milliseconds=1))
    for number in (4, 5, 6):
        assert table.at(time=times[number]).id == number
    assert table.at(time=datetime.now(UTC)).id == 6
    manager = table.paimon.snapshot_manager()
    assert manager.try_get_earliest_snapshot().id == 4
    assert manager.earlier_or_equal_time_mills(int(times[5].timestamp() * 1000)).id == 5
    assert (folder_of(table) / "snapshot" / "EARLIEST").read_text() == "4"


def test_a_snapshot_pinned_before(table: lh.Table) -> None:
    pinned = table.at(snapshot=2)
    table.expire(keep_last=1)
    for read in (pinned.arrow, pinned.count_rows, lambda: pinned.query().index(), lambda: pinned.daft().to_pydict()):
        with pytest.raises(lh.NotFoundError, match="default.t@2: this snapshot can no longer be read"):
            read()


def test_deleted_rows_never_come_back_in_a_snapshot_pinned_before(table: lh.Table) -> None:
    """Upstream takes an index manifest that is gone for one that deletes nothing."""
    table.append([row(i) for i in (21, 23, 25)])
    predicate = table.paimon.new_read_builder().new_predicate_builder().equal("id", 23)
    builder = table.paimon.new_batch_write_builder()
    builder.new_commit().commit(builder.new_update().delete_by_predicate(predicate))
    pinned = table.latest()
    assert ids(pinned) == [0, 1, 3, 21, 25]
    (manifest,) = (folder_of(table) / "manifest").glob("index-manifest-*")
    manifest.unlink()  # as an expiry that is under way does
    with pytest.raises(lh.NotFoundError, match="can no longer be read"):
        pinned.arrow()


def test_a_tag_made_after_its_snapshot_expired(table: lh.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read before, and expiry has looked at the tags already."""

    def late(*arguments: Any, **named: Any) -> bool:
        table.expire(keep_last=1)
        return write_tag(*arguments, **named)

    monkeypatch.setattr("lakehouse.table.versions.write_tag", late)
    with pytest.raises(lh.NotFoundError, match="no snapshot 2; .* it has expired"):
        table.tag("v", snapshot=2)
    assert table.tags() == {}
    assert files_of(table) == needed_of(table)


@pytest.mark.s3
def test_a_tag_made_before_its_snapshot_goes(table: lh.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expiry has looked at the tags once, and looks again."""

    def after_a_tag(*arguments: Any) -> None:
        table.tag("v", snapshot=2)
        drop(*arguments)

    monkeypatch.setattr(sys.modules[drop.__module__], "_drop", after_a_tag)
    planned = table.expire(keep_last=1, dry_run=True)
    done = table.expire(keep_last=1)
    assert done.snapshots == planned.snapshots
    assert sum(done.files.values()) < sum(planned.files.values())
    assert ids(table.at(tag="v")) == [0, 1]
    assert files_of(table) == needed_of(table)


def test_files_that_went_before_are_not_told_again(table: lh.Table) -> None:
    first = table.expire(keep_last=2)
    assert first.files["blob"] == 2
    planned = table.expire(keep_last=1, dry_run=True)
    done = table.expire(keep_last=1)
    assert done == planned
    assert "blob" not in done.files


def test_what_cannot_be_read_stops_it(table: lh.Table) -> None:
    table.tag("v", snapshot=2)
    manifests = folder_of(table) / "manifest"
    needed = json.loads((folder_of(table) / "snapshot" / "snapshot-6").read_text())["baseManifestList"]
    content = (manifests / needed).read_bytes()
    for damaged in (None, content[:-40]):
        (manifests / needed).unlink()
        if damaged is not None:
            (manifests / needed).write_bytes(damaged)
        before = files_of(table)
        for call in (table.expire, table.remove_orphans):
            with pytest.raises(lh.FetchError, match=f"manifest/{needed} can't be read .*nothing was deleted"):
                call(timedelta(0))
        assert files_of(table) == before
        assert len(table.snapshots()) == 6
        (manifests / needed).write_bytes(content)
    (folder_of(table) / "tag" / "tag-v").write_text("{")
    with pytest.raises(lh.FetchError, match="tag/tag-v can't be read"):
        table.expire(keep_last=1)
    table.delete_tag("v")
    assert table.expire(keep_last=1).snapshots == (1, 2, 3, 4, 5)


def test_a_tag_in_a_folder_of_upstream_keeps_its_files(table: lh.Table) -> None:
    table.paimon.create_tag("x/y", 2)
    table.expire(keep_last=1)
    tag = json.loads((folder_of(table) / "tag" / "tag-x" / "y").read_text())
    assert (folder_of(table) / "manifest" / tag["deltaManifestList"]).exists()
    (folder_of(table) / "tag" / "tag-x" / "y").rename(folder_of(table) / "tag" / "tag-y")
    (folder_of(table) / "tag" / "tag-x").rmdir()
    assert ids(table.at(tag="y")) == [0, 1]


def test_decoupled_changelogs_are_refused(table: lh.Table) -> None:
    folder = folder_of(table) / "changelog"
    folder.mkdir()
    (folder / "changelog-1").write_text("{}")
    with pytest.raises(lh.ConfigError, match="changelogs apart from snapshots"):
        table.expire(keep_last=1)


@pytest.mark.local("a folder in the place of a file")
def test_a_hint_that_cannot_be_written(table: lh.Table) -> None:
    hint = folder_of(table) / "snapshot" / "EARLIEST"
    hint.mkdir()
    before = files_of(table)
    with pytest.raises(lh.CommitError, match="EARLIEST can't be written .*; nothing was removed"):
        table.expire(keep_last=1)
    assert files_of(table) == before
    assert len(table.snapshots()) == 6
    hint.rmdir()
    assert table.expire(keep_last=1).snapshots == (1, 2, 3, 4, 5)


@pytest.mark.local("a folder in the place of a file")
def test_files_that_cannot_be_deleted_are_told(table: lh.Table) -> None:
    planned = {path for path in files_of(table) if path.startswith("p=p0")} - live_of(table)
    path = min(path for path in planned if path.endswith(".blob"))
    stuck = folder_of(table) / path
    stuck.unlink()
    stuck.mkdir()  # which root can't delete as a file either
    report = table.expire(keep_last=1)
    assert [left.path for left in report.left] == [path]
    assert "IsADirectoryError" in report.left[0].why
    assert f"left: {path} (" in str(report)
    assert report.files["blob"] == 1
    stuck.rmdir()
    assert files_of(table) == needed_of(table)


# --- tags with a time to live ------------------------------------------------------------------------------------------------


def test_tag_info(table: lh.Table) -> None:
    before = datetime.now(UTC)
    table.tag("v1", snapshot=2, description='what night 7 saw: \n"é"', keep_for=timedelta(days=14))
    info = table.tag_info("v1")
    assert (info.name, info.snapshot, info.description) == ("v1", 2, 'what night 7 saw: \n"é"')
    assert info.created is not None
    assert before <= info.created <= datetime.now(UTC)
    assert info.keep_until == info.created + timedelta(days=14)
    assert table.tags() == {"v1": 2}
    table.tag("v1", replace=True)
    assert table.tag_info("v1").keep_until is None
    assert table.tag_info("v1").description is None
    assert str(table.tag_info("v1")) == "v1 -> snapshot 6"
    with pytest.raises(lh.NotFoundError, match="no tag 'v2'; tags: v1"):
        table.tag_info("v2")


def test_other_readers_understand_the_tag(table: lh.Table) -> None:
    """pypaimon reads it; Java's field names and shapes are those of its Tag class, which ignores keys it does not know."""
    table.tag("v1", snapshot=2, description="x", keep_for=timedelta(hours=1))
    read = table.paimon.tag_manager().get("v1")
    assert (read.id, read.tag_time_retained) == (2, timedelta(hours=1))
    assert abs(read.tag_create_time - datetime.now()) < timedelta(minutes=1)
    assert table.paimon.copy({"scan.tag-name": "v1"}).new_read_builder().new_scan().plan().splits()
    content = json.loads((folder_of(table) / "tag" / "tag-v1").read_text())
    assert content["tagTimeRetained"] == 3600.0
    assert len(content["tagCreateTime"]) == 7


def test_tags_whose_time_is_over_go(table: lh.Table) -> None:
    table.tag("long", snapshot=1, keep_for=timedelta(days=1))
    table.tag("short", snapshot=2, keep_for=timedelta(microseconds=1))
    table.tag("for_good", snapshot=3)
    table.paimon.create_tag("theirs", 4, time_retained="1 ms")
    time.sleep(0.01)
    planned = table.expire(keep_last=1, dry_run=True)
    assert table.tags() == {"for_good": 3, "long": 1, "short": 2, "theirs": 4}
    done = table.expire(keep_last=1)
    assert done == planned
    assert done.tags == ("short", "theirs")
    assert table.tags() == {"for_good": 3, "long": 1}
    assert files_of(table) == needed_of(table)
    assert ids(table.at(tag="for_good")) == [0, 1, 2]


def test_a_tag_alone_that_is_over_frees_its_files(table: lh.Table) -> None:
    table.tag("short", snapshot=2, keep_for=timedelta(microseconds=1))
    assert table.expire(timedelta(days=9)).tags == ("short",)
    assert table.at(snapshot=2).count_rows() == 2
    table.tag("v", snapshot=4)
    table.expire(keep_last=1)
    table.delete_tag("v")
    table.tag("w", keep_for=timedelta(microseconds=1))
    assert table.expire(keep_last=1).tags == ("w",)
    assert ids(table.latest()) == [0, 1, 3]


@pytest.mark.local("writes a tag's file by itself")
def test_a_tag_that_came_too_late_is_taken_back_meanwhile(table: lh.Table) -> None:
    """Its writer finds its snapshot gone; until it has removed the tag again, what the tag needs is missing."""
    table.tag("late", snapshot=1)
    file = Path(table.paimon.table_path) / "tag" / "tag-late"
    written = file.read_bytes()
    table.delete_tag("late")
    table.expire(keep_last=2)
    file.write_bytes(written)
    taken_back = threading.Timer(0.5, file.unlink)
    taken_back.start()
    assert table.expire(keep_last=1).snapshots == (5,)
    taken_back.join()
    file.write_bytes(written)
    with pytest.raises(lh.FetchError, match="nothing was deleted"):  # it stays: damage
        table.expire(keep_last=1)
