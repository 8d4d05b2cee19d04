"""Removal of orphans: what crashed writers left goes; what is needed, young, or somebody else's stays."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.history import branches
from lakehouse.upkeep import remove_orphans
from lakehouse.upkeep.store import Entry, LocalStore
from tests.lake_files import files_of, folder_of, needed_of

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("frame", pa.large_binary())])
KEYS = ["a/b", "50%", "k=v", "x y", "é中文", "", "..", "a:b#c?d", "\n", None, "q" * 100]


@pytest.fixture
def table(warehouse: Path) -> lh.Table:
    table = lh.connect(warehouse=str(warehouse)).create_table("default.t", SCHEMA, partition_by=["p"])
    table.append(rows())
    return table


def rows() -> list[dict[str, Any]]:
    return [{"id": i, "p": key, "frame": b"frame %d" % i} for i, key in enumerate(KEYS)]


def abandon(table: lh.Table) -> Any:
    """What a writer leaves that dies before it commits; the messages that it would have committed."""
    builder = table.paimon.new_batch_write_builder()
    write = builder.new_write()
    write.write_arrow(pa.Table.from_pylist(rows(), SCHEMA))
    messages = write.prepare_commit()
    write.close()
    return messages


def age(table: lh.Table, hours: float) -> None:
    """Make all files of the table older."""
    for path in folder_of(table).rglob("*"):
        then = path.lstat().st_mtime - hours * 3600
        os.utime(path, (then, then), follow_symlinks=False)


def test_what_a_crashed_writer_left(table: lh.Table) -> None:
    needed = files_of(table)
    assert needed == needed_of(table)
    abandon(table)
    left = files_of(table) - needed
    assert len(left) == 2 * len(KEYS)
    report = table.remove_orphans()
    assert (report.paths, report.spared) == ((), len(left))
    age(table, 23)
    assert table.remove_orphans().paths == ()
    age(table, 2)
    planned = table.remove_orphans(dry_run=True)
    assert files_of(table) == needed | left
    told: list[tuple[int, int]] = []
    sizes = sum((folder_of(table) / path).stat().st_size for path in left)
    done = table.remove_orphans(progress=lambda n, total: told.append((n, total)))
    assert done == planned
    assert set(done.paths) == left
    assert done.files == {"blob": len(KEYS), "data": len(KEYS)}
    assert done.bytes == sizes
    assert told[-1] == (len(left), len(left))
    assert files_of(table) == needed
    assert str(done) == f"default.t: removed 22 files (11 blob, 11 data), {done.bytes / 1000:.3g} KB"
    assert table.latest().arrow(blobs="bytes").sort_by("id").to_pylist() == rows()


def test_temporary_files_and_manifests(table: lh.Table) -> None:
    root = folder_of(table)
    table.tag("v1")
    table.paimon.branch_manager().create_branch("dev", "v1")
    before = everything(root)
    made = [
        f"manifest/manifest-{uuid.uuid4()}-0",
        f"manifest/manifest-list-{uuid.uuid4()}-1",
        f"manifest/index-manifest-{uuid.uuid4()}",
        f"manifest/.manifest-{uuid.uuid4()}-0.{uuid.uuid4()}.tmp",
        f"index/index-{uuid.uuid4()}-1",
        f"index/btree-global-index-{uuid.uuid4()}.index",
        f"statistics/stat-{uuid.uuid4()}-0",
        "snapshot/.snapshot-2.abcd_123",
        f"snapshot/.snapshot-2.{uuid.uuid4()}.tmp",
        "snapshot/.LATEST.abcd_123",
        "snapshot/.EARLIEST.abcd_123",
        "tag/.tag-v1.0.abcd_123",
        "branch/branch-dev/snapshot/.snapshot-7.abcd_123",
        "branch/branch-dev/tag/.tag-x.abcd_123",
        "schema/.schema-1.abcd_123",
        "lakehouse/.commits.json.abcd_123",
        f"p=x y/bucket-0/data-{uuid.uuid4()}-0.orc",
        f"p=x y/bucket-0/data-{uuid.uuid4()}-0.parquet.index",
        f"p=x y/bucket-postpone/data-{uuid.uuid4()}-12.avro",
        f"p=x y/bucket-0/.data-{uuid.uuid4()}-0.parquet.{uuid.uuid4()}.tmp",
        f"p=x y/bucket-0/changelog-{uuid.uuid4()}-0.parquet",
    ]
    for path in made:
        (root / path).parent.mkdir(exist_ok=True, parents=True)
        (root / path).write_bytes(b"x")
    report = table.remove_orphans(timedelta(0))
    assert sorted(report.paths) == sorted(made)
    assert sum(report.files.values()) == report.bytes == len(made)
    assert report.files["temporary"] == 11
    assert everything(root) == before


def test_a_branch_whose_making_stopped_half_way(table: lh.Table) -> None:
    (folder_of(table) / "lakehouse").mkdir()
    (folder_of(table) / "lakehouse" / ".history.lock").touch()
    before = everything(folder_of(table))
    table.create_branch("dev").append([{"id": 77, "p": "x y", "frame": b"only there"}])
    with_branch = everything(folder_of(table))
    folder = folder_of(table) / "branch"
    hidden = (
        folder / ".branch-dev.0123abcd"
    )  # before its last step a branch lies there, and after the first step of its removal
    (folder / "branch-dev").rename(hidden)
    age(table, 23)
    assert table.branches() == []
    assert table.remove_orphans().paths == ()
    (hidden / "late").mkdir()
    age(table, 2)
    os.utime(hidden / "snapshot" / "snapshot-2")  # one file is young: it may be at work
    report = table.remove_orphans()
    assert (report.paths, report.spared) == ((), len([path for path in hidden.rglob("*") if path.is_file()]))
    age(table, 50)
    planned = table.remove_orphans(dry_run=True)
    assert hidden.exists()
    done = table.remove_orphans()
    assert (done, done.paths) == (planned, planned.paths)
    assert not hidden.exists()
    assert len(done.paths) == len(with_branch) - len(before)
    assert everything(folder_of(table)) == before
    assert table.remove_orphans(timedelta(0)).paths == ()


def test_a_branch_whose_making_is_killed(table: lh.Table) -> None:
    """The real thing: a process ends in the middle of `create_branch`."""
    (folder_of(table) / "lakehouse").mkdir()
    (folder_of(table) / "lakehouse" / ".history.lock").touch()
    before = everything(folder_of(table))
    pid = os.fork()
    if pid == 0:
        try:
            branches._moved = lambda source, target: os._exit(0)
            table.create_branch("dev")
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert [path.name.rpartition(".")[0] for path in (folder_of(table) / "branch").iterdir()] == [".branch-dev"]
    assert table.create_branch("dev").latest().count_rows() == len(KEYS)
    table.delete_branch("dev")
    assert table.remove_orphans(timedelta(0)).files == {"temporary": 5}
    assert everything(folder_of(table)) == before


def test_names_that_look_nearly_like_it_stay(table: lh.Table) -> None:
    for name in (".branch-dev", ".branch-dev.0123", ".branch-.0123abcd~", ".other-dev.0123abcd", "dev.0123abcd"):
        (folder_of(table) / "branch" / name / "schema").mkdir(parents=True)
        (folder_of(table) / "branch" / name / "schema" / "schema-0").write_text("{}")
    before = everything(folder_of(table))
    assert table.remove_orphans(timedelta(0)).paths == ()
    assert everything(folder_of(table)) == before


def test_what_is_not_ours_is_not_touched(table: lh.Table, tmp_path: Path) -> None:
    root = folder_of(table)
    outside = tmp_path / "outside"
    outside.mkdir()
    precious = outside / f"data-{uuid.uuid4()}-0.parquet"
    foreign = [
        "README.md",
        f"data-{uuid.uuid4()}-0.parquet",  # in the table's folder itself
        f"backup/data-{uuid.uuid4()}-0.parquet",
        f"backup/bucket-0/data-{uuid.uuid4()}-0.parquet",
        f"q=1/bucket-0/data-{uuid.uuid4()}-0.parquet",  # another key
        f"p=x y/data-{uuid.uuid4()}-0.parquet",  # no bucket
        f"p=x y/bucket-0/deeper/data-{uuid.uuid4()}-0.parquet",
        f"p=x y/bucket-zero/data-{uuid.uuid4()}-0.parquet",
        "p=x y/bucket-0/data-1.parquet",
        "p=x y/bucket-0/notes.txt",
        "p=x y/bucket-0/.nfs000000",
        f"p=x y/bucket-0/DATA-{uuid.uuid4()}-0.parquet",
        f"p=x y/bucket-0/data-{uuid.uuid4()}-0.parquet~ copy",
        f"p=x y/bucket-0/my-data-{uuid.uuid4()}-0.parquet",
        "manifest/manifest-old",
        f"manifest/{uuid.uuid4()}",
        "index/index-1",
        "statistics/notes",
        "snapshot/snapshot-x",
        "snapshot/.snapshot-2",
        "snapshot/snapshot-2.bak",
        "tag/notes",
        "schema/schema-9.bak",
        "lakehouse/anything.json",
        "tag/.hidden",
    ]
    for path in foreign:
        (root / path).parent.mkdir(exist_ok=True, parents=True)
        (root / path).write_bytes(b"x")
    precious.write_bytes(b"x")
    (root / "p=link").symlink_to(outside)
    (root / "p=x y" / "bucket-9").symlink_to(outside)
    (root / "p=x y" / "bucket-0" / f"data-{uuid.uuid4()}-0.parquet").symlink_to(precious)
    before = everything(root)
    age(table, 100)
    report = table.remove_orphans()
    assert report.paths == ()
    assert report.spared == 0
    assert everything(root) == before
    assert precious.exists()
    assert table.latest().arrow(blobs="bytes").sort_by("id").to_pylist() == rows()


class Meanwhile(LocalStore):
    """The table's folder, in which something happens before the n-th call of one kind."""

    def __init__(self, root: Path, call: str, number: int, what: Callable[[], None]) -> None:
        super().__init__(root)
        self._call, self._number, self._what = call, number, what

    def list(self, folder: str) -> list[Entry]:
        self._count(f"list {folder}")
        return super().list(folder)

    def read(self, path: str) -> bytes:
        self._count(f"read {path}")
        return super().read(path)

    def _count(self, call: str) -> None:
        if call == self._call:
            self._number -= 1
            if self._number == 0:
                self._what()


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("list p=x y/bucket-0", 1),  # before or while the files are listed
        ("list snapshot", 2),  # after that, before it is read what is needed
        ("read snapshot/snapshot-1", 1),  # while that is read: the snapshots are listed already
        ("list snapshot", 3),  # after it was read
    ],
)
def test_a_commit_meanwhile_keeps_its_files(table: lh.Table, call: str, number: int) -> None:
    """Files that look abandoned, and that their writer then commits all the same."""
    messages = abandon(table)
    (stale,) = abandon(table)[:1]
    age(table, 100)
    committed = False

    def commit() -> None:
        nonlocal committed
        table.paimon.new_batch_write_builder().new_commit().commit(messages)
        committed = True

    store = Meanwhile(folder_of(table), call, number, commit)
    report = remove_orphans(table.paimon, table.name, older_than=timedelta(days=1), dry_run=False, progress=False, store=store)
    assert committed
    assert len(report.paths) == 2 * len(KEYS)  # of the other writer
    assert {file.file_name for file in stale.new_files} <= {Path(path).name for path in report.paths}
    assert table.latest().arrow(blobs="bytes").num_rows == 2 * len(KEYS)
    assert files_of(table) == needed_of(table)


def test_a_snapshot_that_expires_meanwhile_is_no_damage(table: lh.Table) -> None:
    table.append(rows())
    table.append(rows())
    name = json.loads((folder_of(table) / "snapshot" / "snapshot-1").read_text())["deltaManifestList"]

    def expire() -> None:
        table.expire(keep_last=1)

    store = Meanwhile(folder_of(table), f"read manifest/{name}", 1, expire)
    report = remove_orphans(table.paimon, table.name, older_than=timedelta(0), dry_run=False, progress=False, store=store)
    assert report.paths == ()
    assert [info.id for info in table.snapshots()] == [3]
    assert files_of(table) == needed_of(table)


def test_age_is_by_the_clock_of_the_file_system(table: lh.Table) -> None:
    store = LocalStore(folder_of(table))
    before = everything(folder_of(table))
    assert abs(store.now_s() - time.time()) < 5
    assert everything(folder_of(table)) == before


def everything(root: Path) -> dict[str, bytes | str]:
    found = (path for path in root.rglob("*") if not path.is_dir() or path.is_symlink())
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes() for path in sorted(found)
    }
