"""What a commit promises: ids, outcomes, order on disk, and what is left when it fails."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse import durable
from lakehouse.schema import Columns
from lakehouse.upstream import ExpiredError, LinkingSnapshotCommit, latest_of, snapshot_of, snapshot_under, tag_of
from lakehouse.write import COMMIT_ID, Describer, Published, Writer, publish, remember, to_batches
from tests.lake_files import folder_of
from tests.stress.lake import held, made, named_files, orphans, row, rows

NAME = "default.t"


@pytest.fixture
def table(warehouse: Path) -> lh.Table:
    return made(warehouse, NAME)


def prepared(paimon: Any, numbers: range) -> list[Any]:
    """Messages of rows that are written and not committed."""
    columns = Columns.of(paimon)
    writer = Writer(paimon, columns)
    for batch in to_batches(rows(numbers), columns, Describer(paimon)):
        writer.write(batch)
    return writer.finish()


def with_store(paimon: Any, store: Callable[[Any], Any]) -> Any:
    """The handle, its snapshots published by another store."""
    plain = paimon.catalog_environment

    class Environment(type(plain)):  # type: ignore[misc]
        def snapshot_commit(self, snapshot_manager: Any) -> Any:
            return store(super().snapshot_commit(snapshot_manager))

    paimon.catalog_environment = Environment(plain.identifier, plain.uuid, plain.catalog_loader)
    return paimon


class Far:
    """A store that is not a local disk: it may do what it is asked to and lose the answer, or do it later."""

    def __init__(self, inner: LinkingSnapshotCommit, behave: Callable[[Callable[[], bool]], bool]) -> None:
        self.inner = inner
        self.behave = behave

    def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: list[Any]) -> bool:
        return self.behave(lambda: self.inner.commit(base_snapshot_uuid, snapshot, statistics))

    def close(self) -> None:
        self.inner.close()


# --- ids ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit_id", ["", "  ", "a\nb", "a\0", "x" * 257, "auto-1", 5, b"x", True])
def test_ids_that_are_none(table: lh.Table, commit_id: Any) -> None:
    with pytest.raises(lh.ConfigError, match="commit_id"):
        table.append(rows(range(3)), commit_id=commit_id)
    assert table.snapshots() == []
    assert orphans(table) == set()


@pytest.mark.parametrize("commit_id", ["x", "drive-0412/part-7", "é中文 'quoted' \\", "x" * 256, "..", "1"])
def test_a_repeated_append_is_no_other_one(table: lh.Table, commit_id: str) -> None:
    table.append(rows(range(3)))
    commit = table.append(rows(range(3, 7)), commit_id=commit_id)
    assert (commit.snapshot_id, commit.rows, commit.commit_id) == (2, 4, commit_id)
    assert commit.bytes > 0

    def not_read() -> Iterator[Any]:
        yield from ()
        raise AssertionError("the data of a repeated append is not read")

    assert table.append(not_read(), commit_id=commit_id) == commit
    assert table.append(rows(range(90, 95)), commit_id=commit_id) == commit
    assert held(table) == rows(range(7))
    info = table.find_commit(commit_id)
    assert info is not None
    assert (info.id, info.commit_id, info.kind) == (2, commit_id, "APPEND")
    assert table.find_commit(f"{commit_id}?") is None


def test_appends_without_an_id_are_always_new(table: lh.Table) -> None:
    first, second = table.append([row(0)]), table.append([row(0)])
    assert first.commit_id != second.commit_id
    for commit in (first, second):
        assert commit.commit_id is not None
        found = table.find_commit(commit.commit_id)
        assert found is not None
        assert found.id == commit.snapshot_id


def test_no_rows_make_no_commit_and_take_no_id(table: lh.Table) -> None:
    assert table.append([], commit_id="x") == lh.Commit(None, 0, 0, "x")
    assert table.find_commit("x") is None
    assert table.append([row(0)], commit_id="x").rows == 1


def test_an_id_outlives_its_snapshot(table: lh.Table) -> None:
    commits = [table.append([row(number)], commit_id=f"part-{number}") for number in range(4)]
    unnamed = table.append([row(4)]).commit_id
    table.append([row(5)])
    table.expire(keep_last=1)
    table.remove_orphans(timedelta(0))
    assert [info.id for info in table.snapshots()] == [6]
    for number, commit in enumerate(commits):
        assert table.append([row(number)], commit_id=f"part-{number}") == commit
        info = table.find_commit(f"part-{number}")
        assert info is not None
        assert info.id == number + 1
    assert table.find_commit(str(unnamed)) is None  # no one chose it, so no one repeats it
    assert held(table) == rows(range(6))


def test_ids_of_expiries_at_the_same_moment(table: lh.Table) -> None:
    ids = {f"part-{number}": number + 1 for number in range(8)}
    for number, commit_id in enumerate(ids):
        table.append([row(number)], commit_id=commit_id)
    paimon = table.paimon
    commits = [Published.of(snapshot) for snapshot in paimon.snapshot_manager().list_snapshots()]
    expiries = [threading.Thread(target=remember, args=(paimon, [commit])) for commit in commits]
    for expiry in expiries:
        expiry.start()
    for expiry in expiries:
        expiry.join()
    for name in range(1, 8):
        (folder_of(table) / "snapshot" / f"snapshot-{name}").unlink()
    assert {commit_id: table.append([row(0)], commit_id=commit_id).snapshot_id for commit_id in ids} == ids


def test_ids_carried_forward_that_can_not_be_read(table: lh.Table) -> None:
    table.append([row(0)], commit_id="x")
    table.append([row(1)])
    table.expire(keep_last=1)
    (folder_of(table) / "lakehouse" / "commits.json").write_text("{")
    with pytest.raises(lh.CommitError, match=r"commits\.json, which holds the commit ids of expired snapshots, can't be read"):
        table.append([row(0)], commit_id="x")  # not knowing is no reason to add rows twice
    assert held(table) == rows(range(2))
    assert table.append([row(2)]).snapshot_id == 3


def test_an_id_that_was_rolled_back_is_free(table: lh.Table) -> None:
    table.append([row(0)], commit_id="kept")
    table.append([row(1)], commit_id="undone")
    table.rollback(snapshot=1)
    assert table.find_commit("undone") is None
    assert table.append([row(0)], commit_id="kept").snapshot_id == 1
    assert table.append([row(1)], commit_id="undone").snapshot_id == 4
    assert held(table) == rows(range(2))


def test_ids_are_known_to_whoever_opens_the_table(table: lh.Table, warehouse: Path) -> None:
    """What was read of the history before is used again only as far as it still holds."""
    table.append([row(0)], commit_id="a")
    assert table.find_commit("b") is None
    other = made(warehouse, NAME)
    other.append([row(1)], commit_id="b")
    assert table.append([row(1)], commit_id="b").snapshot_id == 2
    (folder_of(table) / "snapshot" / "snapshot-2").unlink()  # as another engine's rollback does
    (folder_of(table) / "snapshot" / "LATEST").write_text("1")
    assert table.find_commit("b") is None
    assert table.append([row(2)], commit_id="c").snapshot_id == 2
    assert table.find_commit("b") is None
    assert table.append([row(1)], commit_id="b").snapshot_id == 3


# --- how it ended ------------------------------------------------------------------------------------------------------------


def test_a_conflict_says_so_and_leaves_nothing(table: lh.Table) -> None:
    table.append(rows(range(6)))
    before = orphans(table)
    updates = [table.paimon, table.paimon]
    messages = []
    for value, paimon in enumerate(updates):
        update = paimon.new_batch_write_builder().new_update().with_update_type(["frame"])
        change = pa.table({"_ROW_ID": pa.array([0], pa.int64()), "frame": pa.array([b"new %d" % value], pa.large_binary())})
        messages.append(update.update_by_arrow_with_row_id(change))
    assert publish(updates[0], messages[0], operation="update") == 2
    with pytest.raises(lh.CommitError, match="another writer changed the same rows meanwhile; nothing was committed") as caught:
        publish(updates[1], messages[1], operation="update")
    assert not isinstance(caught.value, lh.CommitUnknownError)
    assert orphans(table) == before
    assert [info.operation for info in table.snapshots()] == ["append", "update"]


def test_an_answer_that_is_lost_is_looked_up(table: lh.Table) -> None:
    def lose(commit: Callable[[], bool]) -> bool:
        commit()
        raise OSError("no answer")

    table.append([row(0)])
    paimon = with_store(table.paimon, lambda inner: Far(inner, lose))
    assert publish(paimon, prepared(paimon, range(1, 4)), commit_id="x") == 2
    assert held(table) == rows(range(4))
    assert orphans(table) == set()


def test_a_store_that_says_no_after_it_did(table: lh.Table) -> None:
    """Its client asked twice: the second answer is about the first request."""
    paimon = with_store(table.paimon, lambda inner: Far(inner, lambda commit: commit() and commit()))
    assert publish(paimon, prepared(paimon, range(3))) == 1
    assert held(table) == rows(range(3))
    assert orphans(table) == set()


def test_what_may_still_come_keeps_its_files(table: lh.Table) -> None:
    late: list[Callable[[], bool]] = []

    def silent(commit: Callable[[], bool]) -> bool:
        late.append(commit)
        raise OSError("no answer")

    table.append([row(0)])
    paimon = with_store(table.paimon, lambda inner: Far(inner, silent))
    with pytest.raises(lh.CommitUnknownError, match=r"not known .*find_commit\('x'\).*append again with the same commit_id"):
        publish(paimon, prepared(paimon, range(1, 4)), commit_id="x")
    assert held(table) == rows(range(1))
    assert table.find_commit("x") is None
    assert late[0]()  # now it comes
    assert [commit() for commit in late[1:]] == [False] * (len(late) - 1)
    assert held(table) == rows(range(4))
    assert table.append(rows(range(1, 4)), commit_id="x").snapshot_id == 2
    assert held(table) == rows(range(4))


def test_what_expired_before_it_was_looked_up_is_not_taken_for_anothers(table: lh.Table) -> None:
    """Later snapshots name the manifests of a commit whose answer was lost: they stay, although its own snapshot is gone."""

    def lose(commit: Callable[[], bool]) -> bool:
        assert commit()
        table.append([row(9)])
        table.expire(keep_last=1)
        raise OSError("no answer")

    table.append([row(0)])
    paimon = with_store(table.paimon, lambda inner: Far(inner, lose))
    with pytest.raises(
        lh.CommitUnknownError, match=r"snapshot 2 was published, by this writer or another, and has expired since"
    ):
        publish(paimon, prepared(paimon, range(1, 4)), commit_id="x")
    assert held(table) == rows((0, 1, 2, 3, 9))
    assert table.append(rows(range(1, 4)), commit_id="x").snapshot_id == 2


class Vanishing:
    """A store on which, just after it said that a file is there, others commit and let the file's snapshot expire."""

    def __init__(self, inner: Any, name: str, happens: Callable[[], object]) -> None:
        self.inner, self.name, self.happens = inner, name, [happens]

    def exists(self, path: str) -> bool:
        there = bool(self.inner.exists(path))
        if there and self.happens and path.endswith(self.name):
            self.happens.pop()()
        return there

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def between(table: lh.Table) -> Callable[[], object]:
    return lambda: (table.append([row(9)]), table.expire(keep_last=1))


def test_snapshots_that_expire_between_the_look_and_the_read(table: lh.Table) -> None:
    table.append([row(0)])
    manager = table.paimon.snapshot_manager()
    manager.file_io = Vanishing(manager.file_io, "snapshot-1", between(table))
    assert latest_of(manager).id == 2
    manager.file_io = Vanishing(manager.file_io, "snapshot-2", between(table))
    assert snapshot_of(manager, 2) is None
    paimon = table.paimon
    messages = prepared(paimon, range(1, 3))
    number = latest_of(paimon.snapshot_manager()).id
    paimon.file_io = Vanishing(paimon.file_io, f"snapshot-{number}", between(table))
    assert publish(paimon, messages, commit_id="x") == number + 2
    assert paimon.file_io.happens == []


def test_a_tag_that_is_deleted_between_the_look_and_the_read(table: lh.Table) -> None:
    table.append([row(0)])
    for name in ("a", "b", "c"):
        table.tag(name)
    paimon = table.paimon
    paimon.file_io = Vanishing(paimon.file_io, "tag-b", lambda: table.delete_tag("b"))
    assert [tag_of(paimon, name) is not None for name in ("a", "b", "c", "d")] == [True, False, True, False]


def test_whose_a_number_is(table: lh.Table) -> None:
    table.append([row(0)])
    table.append([row(1)])
    table.expire(keep_last=1)
    manager = table.paimon.snapshot_manager()
    assert snapshot_under(manager, 2).id == 2
    assert snapshot_under(manager, 3) is None
    with pytest.raises(ExpiredError, match="snapshot 1 was published"):
        snapshot_under(manager, 1)


def test_what_another_writer_ruled_out_is_tried_again(table: lh.Table) -> None:
    lost: list[Callable[[], bool]] = []

    def silent_once(commit: Callable[[], bool]) -> bool:
        if lost:
            return commit()
        lost.append(commit)
        table.append([row(9)])
        raise OSError("no answer")

    paimon = with_store(table.paimon, lambda inner: Far(inner, silent_once))
    assert publish(paimon, prepared(paimon, range(3))) == 2
    assert not lost[0]()
    assert [one["id"] for one in held(table)] == [0, 1, 2, 9]
    assert orphans(table) == set()


@pytest.mark.parametrize(("verdict", "asked", "happens"), [("refused", 1, False), ("unsent", 3, True), ("unsent", 99, False)])
def test_errors_that_the_store_is_sure_of(table: lh.Table, verdict: str, asked: int, happens: bool) -> None:
    """What did not happen is not looked up; asking again is tried where it may help, and not for ever."""
    times = []

    class Sure(Far):
        def verdict(self, error: Exception) -> str:
            assert str(error) == "no"
            return verdict

    def refuse(commit: Callable[[], bool]) -> bool:
        times.append(1)
        if len(times) < asked or not happens:
            raise OSError("no")
        return commit()

    paimon = with_store(table.paimon, lambda inner: Sure(inner, refuse))
    messages = prepared(paimon, range(3))
    if happens:
        assert publish(paimon, messages) == 1
    else:
        with pytest.raises(lh.CommitError, match=r"nothing was committed \(OSError: no\)") as caught:
            publish(paimon, messages)
        assert not isinstance(caught.value, lh.CommitUnknownError)
    assert len(times) == asked if asked < 99 else 1 < len(times) < 20
    assert held(table) == (rows(range(3)) if happens else [])
    assert orphans(table) == set()


def test_a_disk_that_does_not_confirm_a_name(table: lh.Table) -> None:
    class Weak(LinkingSnapshotCommit):
        def commit(self, *given: Any) -> bool:
            super().commit(*given)
            raise OSError(errno.EIO, "Input/output error")

    paimon = with_store(table.paimon, lambda inner: Weak(inner.snapshot_manager))
    with pytest.raises(lh.CommitUnknownError, match="snapshot 1 is there, but the disk does not confirm it.*Input/output"):
        publish(paimon, prepared(paimon, range(3)), commit_id="x")
    assert held(table) == rows(range(3))  # nothing was deleted
    assert table.append(rows(range(3)), commit_id="x").snapshot_id == 1


@pytest.mark.parametrize("after", [False, True])
def test_ctrl_c_is_all_or_nothing(table: lh.Table, after: bool) -> None:
    class Interrupted(LinkingSnapshotCommit):
        def commit(self, *given: Any) -> bool:
            if after:
                super().commit(*given)
            raise KeyboardInterrupt

    paimon = with_store(table.paimon, lambda inner: Interrupted(inner.snapshot_manager))
    with pytest.raises(KeyboardInterrupt):
        publish(paimon, prepared(paimon, range(3)))
    assert held(table) == (rows(range(3)) if after else [])
    assert orphans(table) == set()


def test_patience_ends(warehouse: Path) -> None:
    paimon = made(warehouse, NAME).paimon.copy({"commit.timeout": "300 ms"})

    class Taken(LinkingSnapshotCommit):
        def commit(self, *_: Any) -> bool:
            return False

    paimon = with_store(paimon, lambda inner: Taken(inner.snapshot_manager))
    with pytest.raises(lh.CommitError, match=r"nothing was committed: other writers were first \d+ times in \d+ s"):
        publish(paimon, prepared(paimon, range(3)))
    assert orphans(made(warehouse, NAME)) == set()


def test_nothing_to_publish(table: lh.Table) -> None:
    with pytest.raises(lh.CommitError, match="there is nothing to commit"):
        publish(table.paimon, [])


def test_a_file_that_is_gone_is_not_named(table: lh.Table) -> None:
    paimon = table.paimon
    messages = prepared(paimon, range(3))
    Path(str(messages[0].new_files[0].file_path)).unlink()
    with pytest.raises(lh.CommitError, match=r"nothing was committed \(FileNotFoundError"):
        publish(paimon, messages)
    assert table.snapshots() == []
    assert orphans(table) == set()


def test_what_a_snapshot_says_of_its_commit(table: lh.Table) -> None:
    paimon = table.paimon
    number = publish(paimon, prepared(paimon, range(4)), operation="import", properties={"source": "drive"})
    properties = table.paimon.snapshot_manager().get_snapshot_by_id(number).properties
    assert properties.pop(COMMIT_ID).startswith("auto-")
    assert int(properties.pop("lakehouse.bytes")) > 0
    assert properties == {"source": "drive", "lakehouse.operation": "import", "lakehouse.rows": "4"}


# --- on disk -----------------------------------------------------------------------------------------------------------------


def test_what_a_snapshot_names_is_on_disk_before_it(table: lh.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file, and every folder from it up to the table's: data, BLOBs, manifests, deletions, column files."""
    synced: set[Path] = set()
    missing: list[Path] = []
    flush, link = os.fsync, os.link

    def recorded(handle: int) -> None:
        flush(handle)
        synced.add(Path(f"/proc/self/fd/{handle}").readlink())

    def checked(source: str, target: str) -> None:
        link(source, target)
        if Path(target).name.startswith("snapshot-"):
            if Path(source) not in synced:
                missing.append(Path(source))
            for path in named_files(table) - {folder_of(table) / "snapshot" / "LATEST"}:
                wanted = [path, *(folder for folder in path.parents if folder_of(table) in (folder, *folder.parents))]
                if "snapshot" not in path.parts:
                    missing.extend(place for place in wanted if place not in synced)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(os, "link", checked)
    table.append(rows(range(9)))
    table.append(rows(range(9, 12)))
    table.delete("id = 4")
    table.update("id = 5", {"frame": b"new"})
    monkeypatch.undo()
    assert len(table.snapshots()) == 4
    assert folder_of(table) / "snapshot" in synced  # the last snapshot's own name
    assert missing == []


@pytest.mark.parametrize("claim", [durable.claim_name, durable.rename_exclusively])
def test_a_name_is_claimed_by_one(tmp_path: Path, claim: durable.Claim) -> None:
    target = tmp_path / "target"
    start = threading.Barrier(8)
    won: list[int] = []

    def write(number: int) -> None:
        start.wait()
        if durable.publish_file(target, f"text {number}", claim=claim):
            won.append(number)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(won) == 1
    assert target.read_text() == f"text {won[0]}"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_a_filesystem_without_hard_links(table: lh.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    assert table.append(rows(range(3))).snapshot_id == 1
    table.tag("t")
    with pytest.raises(lh.ConfigError, match="exists"):
        table.tag("t")
    assert not durable.publish_file(folder_of(table) / "snapshot" / "snapshot-1", "{}")
    assert held(table) == rows(range(3))
    monkeypatch.setattr(durable, "_renameat2", lambda: None)  # nor exclusive renames
    with pytest.raises(lh.CommitError, match="neither hard links nor exclusive renames"):
        table.append(rows(range(3, 6)))
    assert held(table) == rows(range(3))
    assert orphans(table) == set()


def test_an_answer_that_a_network_filesystem_lost(tmp_path: Path) -> None:
    def twice(source: str, target: str) -> None:
        os.link(source, target)
        os.link(source, target)  # the client's repetition of a request whose answer was lost

    assert durable.publish_file(tmp_path / "a", "text", claim=twice)
    assert not durable.publish_file(tmp_path / "a", "other", claim=twice)
    assert (tmp_path / "a").read_text() == "text"
