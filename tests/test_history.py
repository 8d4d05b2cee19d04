"""Snapshots, tags and time travel: a version stays what it was, whatever happens to the table."""

from __future__ import annotations

import os
import pickle
import time as clock
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

import lakehouse as lh
from tests.lake_files import BAD_NAMES, everything_in, folder_of
from tests.numbered import SCHEMA, ids, rows
from tests.stores.place import connect, on_stores

pytestmark = on_stores

UTC = timezone.utc


@pytest.fixture
def table(catalog: lh.Catalog) -> lh.Table:
    """Four snapshots: n rows in snapshot n."""
    table = catalog.create_table("default.t", SCHEMA, partition_by=["p"])
    for i in range(4):
        table.append(rows(i))
    return table


@pytest.fixture
def empty(catalog: lh.Catalog) -> lh.Table:
    return catalog.create_table("default.empty", SCHEMA)


def expire(table: lh.Table, *numbers: int) -> None:
    """What an engine's expiry does to snapshots that a tag still needs: only their own files go."""
    for number in numbers:
        (folder_of(table) / "snapshot" / f"snapshot-{number}").unlink()


def add_column(catalog: lh.Catalog, name: str) -> None:
    catalog.paimon.alter_table("default.t", [SchemaChange.add_column(name, AtomicType("DOUBLE"))], False)


# --- snapshots ---------------------------------------------------------------------------------------------------------------


def test_a_snapshot_stays_what_it_was(table: lh.Table) -> None:
    first, latest = table.at(snapshot=1), table.latest()
    index = latest.query().index()
    table.append([{"id": 9, "p": "p0", "frame": b"frame 9"}])
    assert (first.id, latest.id, table.latest().id) == (1, 4, 5)
    assert ids(first) == [0]
    assert ids(latest) == [0, 1, 2, 3]
    assert latest.query().index().fingerprint == index.fingerprint
    assert ids(table.latest()) == [0, 1, 2, 3, 9]


def test_snapshots_compare_by_what_they_are(table: lh.Table, empty: lh.Table) -> None:
    table.tag("v1", snapshot=2)
    assert table.at(tag="v1") == table.at(snapshot=2)
    assert len({table.at(tag="v1"), table.at(snapshot=2), table.latest()}) == 2
    assert table.latest() != table.at(snapshot=2)
    assert table.latest() != empty.latest()
    assert table.latest() != "default.t@4"


def test_snapshots_are_listed_oldest_first(table: lh.Table, empty: lh.Table) -> None:
    infos = table.snapshots()
    assert [info.id for info in infos] == [1, 2, 3, 4]
    assert [info.time for info in infos] == sorted(info.time for info in infos)
    assert empty.snapshots() == []


@pytest.mark.parametrize("number", [2, np.int64(2), np.uint8(2)])
def test_a_snapshot_by_number(table: lh.Table, number: int) -> None:
    assert ids(table.at(snapshot=number)) == [0, 1]


@pytest.mark.parametrize("number", [0, 5, 99, 2**70])
def test_a_missing_snapshot_says_which_there_are(table: lh.Table, number: int) -> None:
    for ask in (lambda: table.at(snapshot=number), lambda: table.tag("v", snapshot=number)):
        with pytest.raises(lh.NotFoundError, match=f"default.t has no snapshot {number}; snapshots: 1 to 4"):
            ask()
    assert table.tags() == {}


@pytest.mark.parametrize("number", ["2", 2.0, True, -1, b"2", [2], "v1"])
def test_what_is_no_snapshot_number(table: lh.Table, number: Any) -> None:
    for ask in (lambda: table.at(snapshot=number), lambda: table.tag("v", snapshot=number)):
        with pytest.raises(lh.ConfigError, match="snapshot is a number, got"):
            ask()


def test_the_latest_of_an_empty_table(empty: lh.Table) -> None:
    snapshot = empty.latest()
    assert snapshot.id is None
    assert ids(snapshot) == []
    assert snapshot.schema.equals(SCHEMA)
    assert snapshot.arrow().schema.names == SCHEMA.names
    assert snapshot.daft().column_names == SCHEMA.names
    assert len(snapshot.query().index()) == 0
    assert snapshot.query().explain().rows == 0
    empty.append([{"id": 1, "p": "a", "frame": b"frame 1"}])
    assert ids(snapshot) == []  # for ever
    assert ids(empty.latest()) == [1]


@pytest.mark.parametrize(
    "selectors",
    [
        {},
        {"tag": "v", "snapshot": 1},
        {"tag": "v", "time": datetime.now(UTC)},
        {"snapshot": 1, "time": datetime.now(UTC)},
        {"tag": "v", "snapshot": 1, "time": datetime.now(UTC), "branch": "b"},
    ],
    ids=lambda selectors: "+".join(selectors) or "none",
)
def test_exactly_one_selector(table: lh.Table, selectors: dict[str, Any]) -> None:
    with pytest.raises(lh.ConfigError, match="exactly one of tag, snapshot and time, got"):
        table.at(**selectors)


# --- tags --------------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_tags_name_snapshots(table: lh.Table, warehouse: Path) -> None:
    assert table.tags() == {}
    assert table.tag("latest") == 4
    assert table.tag("v1.0-rc_1", snapshot=2) == 2
    assert table.tag("0", snapshot=np.int32(1)) == 1  # type: ignore[arg-type]
    assert list(table.tags().items()) == [("0", 1), ("latest", 4), ("v1.0-rc_1", 2)]
    assert ids(table.at(tag="v1.0-rc_1")) == [0, 1]
    table.append([{"id": 4, "p": "p0", "frame": b"frame 4"}])
    assert ids(table.at(tag="latest")) == [0, 1, 2, 3]
    other = connect(warehouse).table("default.t")
    assert other.tags() == table.tags()
    assert other.paimon.tag_manager().get("latest").id == 4  # as the engine itself reads it


def test_a_tag_moves_only_when_asked(table: lh.Table) -> None:
    table.tag("v1", snapshot=2)
    with pytest.raises(lh.ConfigError, match="tag 'v1' exists and names snapshot 2; replace=True moves it"):
        table.tag("v1")
    assert table.tags() == {"v1": 2}
    assert table.tag("v1", replace=True) == 4
    assert table.tag("new", snapshot=1, replace=True) == 1
    assert table.tags() == {"new": 1, "v1": 4}
    table.delete_tag("v1")
    assert table.tags() == {"new": 1}
    assert ids(table.latest()) == [0, 1, 2, 3]


def test_a_missing_tag_says_which_there_are(table: lh.Table, empty: lh.Table) -> None:
    table.tag("b")
    table.tag("a")
    for ask in (lambda: table.at(tag="v9"), lambda: table.delete_tag("v9")):
        with pytest.raises(lh.NotFoundError, match="default.t has no tag 'v9'; tags: a, b"):
            ask()
    with pytest.raises(lh.NotFoundError, match="tags: none"):
        empty.at(tag="a")
    with pytest.raises(lh.NotFoundError, match="default.empty has no snapshot to tag yet; append rows first"):
        empty.tag("a")
    assert empty.tags() == {}


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_names_that_are_paths_touch_nothing(table: lh.Table, warehouse: Path, name: Any) -> None:
    table.tag("good")
    before = everything_in(warehouse.parent)
    calls: list[Callable[[], Any]] = [
        lambda: table.tag(name),
        lambda: table.tag(name, replace=True),
        lambda: table.delete_tag(name),
    ]
    if name is not None:
        calls += [lambda: table.at(tag=name), lambda: table.at(branch=name)]
    for call in calls:
        with pytest.raises(lh.ConfigError, match="can't name a (tag|branch): use 1 to 128 letters"):
            call()
    assert everything_in(warehouse.parent) == before
    assert table.tags() == {"good": 4}


@pytest.mark.local("a folder in the place of a file")
def test_a_stray_file_among_the_tags_hides_none(table: lh.Table) -> None:
    """The engine's own list fails for good once such a file is there."""
    table.tag("good")
    tags = folder_of(table) / "tag"
    (tags / "README").write_text("what is this")
    (tags / ".tag-good.tmp").write_text("half")
    (tags / "tag-of").mkdir()
    (tags / "tag-of" / "x").write_text("{}")
    assert table.tags() == {"good": 4}
    assert table.tag("other", snapshot=1) == 1
    with pytest.raises(lh.NotFoundError, match="tags: good, other"):
        table.at(tag="of")


@pytest.mark.s3
def test_a_damaged_tag_says_so_and_can_be_removed(table: lh.Table) -> None:
    (folder_of(table) / "tag").mkdir()
    (folder_of(table) / "tag" / "tag-half").write_text('{"id": 4')
    asks: list[Callable[[], Any]] = [lambda: table.at(tag="half"), table.tags]
    for ask in asks:
        with pytest.raises(lh.NotFoundError, match=r"tag 'half' can't be read .*delete_tag\('half'\) removes it"):
            ask()
    table.delete_tag("half")
    assert table.tags() == {}


@pytest.mark.local("replaces a call of the operating system")
def test_a_tag_appears_whole_or_not_at_all(table: lh.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.tag("v1", snapshot=1)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    calls: list[Callable[[], Any]] = [lambda: table.tag("v2"), lambda: table.tag("v1", replace=True)]
    for call in calls:
        with pytest.raises(lh.CommitError, match="can't be written .*No space left"):
            call()
    monkeypatch.undo()
    assert table.tags() == {"v1": 1}
    assert [path.name for path in (folder_of(table) / "tag").iterdir()] == ["tag-v1"]


@pytest.mark.local("a file in the place of a folder")
def test_a_folder_of_tags_that_can_not_be_made(table: lh.Table) -> None:
    (folder_of(table) / "tag").write_text("in the way")
    with pytest.raises(lh.CommitError, match="default.t: tag 'v1' can't be written"):
        table.tag("v1")
    assert table.tags() == {}


# --- expired snapshots -------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_a_tag_outlives_its_snapshot(table: lh.Table) -> None:
    table.tag("v1", snapshot=2)
    pinned = table.at(snapshot=2)
    expire(table, 1, 2)
    assert table.tags() == {"v1": 2}
    snapshot = table.at(tag="v1")
    assert snapshot.id == 2
    assert ids(snapshot) == [0, 1]
    assert [info.id for info in table.snapshots()] == [3, 4]
    for number in (1, 2):
        with pytest.raises(lh.NotFoundError, match=f"default.t has no snapshot {number}; snapshots: 3 to 4"):
            table.at(snapshot=number)
    assert ids(pinned) == [0, 1]  # it holds what the snapshot's file said, and the tag keeps the rest
    with pytest.raises(
        lh.NotFoundError, match="default.t@2: this snapshot can no longer be read; tag snapshots that must stay"
    ):
        pickle.loads(pickle.dumps(pinned))
    assert ids(table.latest()) == [0, 1, 2, 3]
    assert table.append([{"id": 4, "p": "p0", "frame": b"frame 4"}]).snapshot_id == 5


def test_an_index_of_a_tag_that_outlived_its_snapshot_can_be_loaded(
    table: lh.Table, catalog: lh.Catalog, tmp_path: Path
) -> None:
    table.tag("v1", snapshot=2)
    index = table.at(tag="v1").query().index()
    index.save(tmp_path / "train.idx")
    expire(table, 1, 2)
    loaded = lh.RowIndex.load(tmp_path / "train.idx", catalog)
    assert loaded.fingerprint == index.fingerprint == table.at(tag="v1").query().index().fingerprint
    assert sorted(row["frame"].read(table) for row in loaded) == [b"frame 0", b"frame 1"]


def test_times_when_the_first_snapshots_have_expired(table: lh.Table) -> None:
    infos = table.snapshots()
    expire(table, 1, 2)
    (folder_of(table) / "snapshot" / "EARLIEST").write_text("9")  # a hint that a rollback left
    assert table.at(time=infos[3].time).id == 4
    assert table.at(time=datetime.now(UTC) + timedelta(days=1)).id == 4
    assert table.at(time=infos[3].time - timedelta(milliseconds=1)).id in (3, None)
    with pytest.raises(lh.NotFoundError, match="no snapshot at or before .*snapshots: 3 to 4"):
        table.at(time=infos[0].time - timedelta(seconds=1))


def test_a_hint_that_names_no_snapshot(table: lh.Table) -> None:
    for stale in ("2", "99", "junk", ""):
        (folder_of(table) / "snapshot" / "LATEST").write_text(stale)
        assert table.latest().id == 4
    expire(table, 1, 2, 3, 4)
    (folder_of(table) / "snapshot" / "LATEST").write_text("4")
    with pytest.raises(lh.NotFoundError, match="default.t: its latest snapshot can't be read"):
        table.latest()


def test_what_a_killed_writer_leaves_among_the_snapshots(table: lh.Table) -> None:
    (folder_of(table) / "snapshot" / ".snapshot-5.ab12").write_text('{"id": 5')
    (folder_of(table) / "snapshot" / "snapshot-5.tmp").write_text("{")
    assert [info.id for info in table.snapshots()] == [1, 2, 3, 4]
    assert table.append([{"id": 4, "p": "p0", "frame": b"frame 4"}]).snapshot_id == 5


# --- time --------------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_a_time_means_the_latest_snapshot_at_or_before_it(catalog: lh.Catalog) -> None:
    table = catalog.create_table("default.t", SCHEMA)
    for i in range(3):
        table.append([{"id": i, "frame": b"frame %d" % i}])
        clock.sleep(0.005)
    for number, info in enumerate(table.snapshots(), 1):
        for shown in (
            info.time,
            info.time + timedelta(microseconds=999),
            info.time.astimezone(timezone(timedelta(hours=-11, minutes=-30))),
        ):
            assert table.at(time=shown).id == number
        if number > 1:
            assert table.at(time=info.time - timedelta(microseconds=1)).id == number - 1
    first = table.snapshots()[0].time
    assert table.at(time=datetime.max.replace(tzinfo=UTC)).id == 3
    for early in (
        first - timedelta(microseconds=1),
        datetime.min.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    ):
        with pytest.raises(lh.NotFoundError, match="default.t has no snapshot at or before .*snapshots: 1 to 3"):
            table.at(time=early)


@pytest.fixture
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    clock.tzset()
    yield request.param
    monkeypatch.undo()
    clock.tzset()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/New_York"], indirect=True)
def test_times_mean_the_same_in_every_zone(table: lh.Table, zone: str) -> None:
    third = table.snapshots()[2].time
    assert third.utcoffset() == timedelta(0)
    assert abs(third.timestamp() - clock.time()) < 60
    expected = [info.id for info in table.snapshots() if info.time <= third][-1]
    assert table.at(time=third).id == expected
    assert table.at(time=third.astimezone()).id == expected


@pytest.mark.parametrize(
    "when", [datetime(2026, 1, 1), "2026-01-01", 1_700_000_000_000, "2026-01-01T00:00:00Z", datetime(2026, 1, 1).date(), True]
)
def test_a_time_without_a_zone_is_refused(table: lh.Table, when: Any) -> None:
    with pytest.raises(lh.ConfigError, match="time is a datetime with a time zone"):
        table.at(time=when)


def test_no_time_in_an_empty_table(empty: lh.Table) -> None:
    with pytest.raises(lh.NotFoundError, match="it has no snapshots"):
        empty.at(time=datetime.now(UTC))
    with pytest.raises(lh.NotFoundError, match="it has no snapshots"):
        empty.at(snapshot=1)


# --- schemas of old versions -------------------------------------------------------------------------------------------------


def test_an_old_version_shows_its_own_columns(table: lh.Table, catalog: lh.Catalog) -> None:
    when = table.snapshots()[-1].time
    table.tag("before")
    pinned = table.latest()
    clock.sleep(0.005)
    add_column(catalog, "score")
    table.append([{"id": 4, "p": "p0", "frame": b"frame 4", "score": 0.5}])
    assert table.schema.names == ["id", "p", "frame", "score"]
    assert table.latest().arrow().sort_by("id").column("score").to_pylist() == [None] * 4 + [0.5]
    for snapshot in (table.at(tag="before"), table.at(snapshot=4), table.at(time=when), pinned):
        assert snapshot.schema.equals(SCHEMA)
        assert snapshot.arrow().column_names == snapshot.daft().column_names == SCHEMA.names
        assert ids(snapshot) == [0, 1, 2, 3]
        with pytest.raises(lh.NotFoundError, match="score"):
            snapshot.query().where("score > 0")
    expire(table, 1, 2, 3, 4)
    assert table.at(tag="before").schema.equals(SCHEMA)
    assert ids(table.at(tag="before")) == [0, 1, 2, 3]


def test_a_version_from_before_a_column_was_dropped(table: lh.Table, catalog: lh.Catalog) -> None:
    add_column(catalog, "score")
    table.append([{"id": 4, "p": "p0", "frame": b"frame 4", "score": 0.5}])
    table.tag("with_score")
    catalog.paimon.alter_table("default.t", [SchemaChange.drop_column("score")], False)
    table.append([{"id": 5, "p": "p0", "frame": b"frame 5"}])
    assert table.latest().schema.names == ["id", "p", "frame"]
    old = table.at(tag="with_score")
    assert old.arrow().sort_by("id").column("score").to_pylist() == [None] * 4 + [0.5]
    assert old.query().where("score > 0").arrow().column("id").to_pylist() == [4]
    assert ids(table.latest()) == [0, 1, 2, 3, 4, 5]


# --- branches ----------------------------------------------------------------------------------------------------------------


def test_branches(table: lh.Table) -> None:
    table.tag("v1", snapshot=2)
    table.paimon.branch_manager().create_branch("dev", "v1")
    branch = table.at(branch="dev")
    assert (branch.id, branch.table) == (2, "default.t$branch_dev")
    assert ids(branch) == [0, 1]
    assert ids(table.at(branch="dev", snapshot=2)) == [0, 1]
    assert ids(table.at(branch="dev", tag="v1")) == [0, 1]
    with pytest.raises(lh.NotFoundError, match="no snapshot 4"):
        table.at(branch="dev", snapshot=4)
    assert table.at(branch="main") == table.latest()
    with pytest.raises(lh.NotFoundError, match="default.t has no branch 'nope'; branches: dev"):
        table.at(branch="nope")
    assert ids(table.latest()) == [0, 1, 2, 3]
