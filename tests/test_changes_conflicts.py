"""Two writers at once: the result is that of one after the other, and no append is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakehouse as lh
from lakehouse.changes import base as base_module
from lakehouse.write import exclusive
from tests.stores import place
from tests.stores.place import connect, on_stores
from tests.upstream.plain import SCHEMA, row

pytestmark = on_stores

NAME = "default.t"
STRESS = bool(os.environ.get("LAKEHOUSE_STRESS"))
ROUNDS = 40 if STRESS else 3


def made(warehouse: Path, rows: int) -> lh.Table:
    table = connect(warehouse).create_table(NAME, SCHEMA, partition_by=["p"])
    table.append([row(i) for i in range(rows)])
    return table


def state(table: lh.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.latest().arrow(blobs="bytes").sort_by("id").to_pylist()
    return rows


def start(warehouse: Path, code: str, *args: object) -> subprocess.Popen[str]:
    """A process that has opened the table, and runs ``code`` once it reads a line."""
    program = f"""
import json, os, sys
import lakehouse as lh
from daft import col
from tests.upstream.plain import row
table = lh.connect(json.loads(sys.argv[1])).table({NAME!r})
args = sys.argv[2:]
table.latest().query().where("id >= 0").count_rows()
print("ready", flush=True)
sys.stdin.readline()
{code}
print("done", flush=True)
os._exit(0)
"""
    root = str(Path(__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(place.options(warehouse)), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )


def run_together(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready == "ready\n", process.communicate()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        out, err = process.communicate(timeout=100)
        assert out == "done\n", err


@pytest.mark.timeout(600 if STRESS else 120)
@pytest.mark.s3
def test_two_processes_change_the_same_rows(warehouse: Path) -> None:
    """Each adds 1 to every row, ROUNDS times: none is lost only where each works on fresh data."""
    table = made(warehouse, 12)
    add = "for _ in range(int(args[0])):\n    assert table.update('id < 100', {'a': col('a') + 1}).rows == 12"
    run_together(start(warehouse, add, ROUNDS), start(warehouse, add, ROUNDS))
    assert [r["a"] for r in state(table)] == [10 * i + 2 * ROUNDS for i in range(12)]
    assert len(table.snapshots()) == 1 + 2 * ROUNDS


@pytest.mark.timeout(600 if STRESS else 120)
def test_two_processes_change_different_columns_while_a_third_appends_and_a_fourth_deletes(warehouse: Path) -> None:
    table = made(warehouse, 12)
    run_together(
        start(warehouse, "for i in range(int(args[0])): table.update('id < 6', {'v': f'new {i}'})", ROUNDS),
        start(warehouse, "for i in range(int(args[0])): table.update('id < 6', {'img': b'new %d' % i})", ROUNDS),
        start(warehouse, "for i in range(int(args[0])): table.append([row(100 + i)])", ROUNDS),
        start(warehouse, "for i in range(6, 12): assert table.delete(f'id = {i}').rows == 1"),
    )
    last = ROUNDS - 1
    expected = [row(i, v=f"new {last}", img=b"new %d" % last) for i in range(6)]
    assert state(table) == [*expected, *(row(100 + i) for i in range(ROUNDS))]
    assert [info.id for info in table.snapshots()] == list(range(1, 3 * ROUNDS + 8))


def test_two_processes_upsert_the_same_new_keys(warehouse: Path) -> None:
    """No key is there twice, and each row is whole from one of the two."""
    table = made(warehouse, 3)
    code = """
for i in range(int(args[0])):
    key = range(10 * i, 10 * i + 10)
    table.upsert([row(k, p=f"P{(k + int(args[1])) % 3}", v=args[1]) for k in key], key=["id"])
"""
    run_together(start(warehouse, code, 4, 1), start(warehouse, code, 4, 2))
    rows = state(table)
    assert [r["id"] for r in rows] == list(range(40))
    for r in rows:
        assert r == row(r["id"], p=f"P{(r['id'] + int(r['v'])) % 3}", v=r["v"])


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a function once, between the work and the publishing of the next change."""

    def arrange(action: Any) -> list[str]:
        happened: list[str] = []
        publish = exclusive.publish_snapshot_on

        def later(*args: Any, **kwargs: Any) -> Any:
            if not happened:
                happened.append("yes")
                action()
            return publish(*args, **kwargs)

        monkeypatch.setattr(base_module, "publish_snapshot_on", later)
        return happened

    return arrange


def other(warehouse: Path) -> lh.Table:
    return connect(warehouse).table(NAME)


def by_hand(table: lh.Table, messages: Any) -> None:
    """A commit of another engine, which knows nothing of ours."""
    table.paimon.new_batch_write_builder().new_commit().commit(messages)


def delete_by_hand(table: lh.Table, *row_ids: int) -> None:
    by_hand(table, table.paimon.new_batch_write_builder().new_update().delete_by_row_id(list(row_ids)))


@pytest.mark.s3
def test_rows_deleted_meanwhile_do_not_come_back(warehouse: Path, meanwhile: Any) -> None:
    """Upstream does not see them where files are replaced."""
    table = made(warehouse, 9)
    happened = meanwhile(lambda: delete_by_hand(table, 0))
    victim = table.at(snapshot=1).query().where("id IN (0, 3, 6)").arrow().num_rows
    assert victim == 3
    commit = table.update("p = 'P0'", {"v": "new"})
    assert happened
    assert commit.rows == 2  # on fresh data
    assert [r["id"] for r in state(table) if r["p"] == "P0"] == [3, 6]


def test_an_overwrite_replaces_what_was_there_and_keeps_what_was_appended_meanwhile(warehouse: Path, meanwhile: Any) -> None:
    table = made(warehouse, 6)
    assert meanwhile(lambda: other(warehouse).append([row(30), row(31)])) == []
    assert table.overwrite([row(60)], partition={"p": "P0"}).snapshot_id == 3
    assert [r["id"] for r in state(table)] == [1, 2, 4, 5, 30, 31, 60]


def test_an_overwrite_after_rows_were_deleted_meanwhile(warehouse: Path, meanwhile: Any) -> None:
    table = made(warehouse, 9)
    happened = meanwhile(lambda: delete_by_hand(table, 1))
    table.overwrite([row(60)], partition={"p": "P0"})
    assert happened
    assert [r["id"] for r in state(table)] == [1, 2, 4, 5, 7, 8, 60]
    assert table.delete("id = 60 OR id = 1").rows == 2  # no mark of a replaced file is left to trip over
    assert [r["id"] for r in state(table)] == [2, 4, 5, 7, 8]


def test_an_upsert_sees_keys_that_were_appended_meanwhile(warehouse: Path, meanwhile: Any) -> None:
    table = made(warehouse, 3)
    meanwhile(lambda: other(warehouse).append([row(30)]))
    assert table.upsert([row(30, v="mine"), row(31)], key="id").rows == 2
    assert [(r["id"], r["v"]) for r in state(table)] == [(0, "v0"), (1, "v1"), (2, "v2"), (30, "mine"), (31, "v31")]


@pytest.mark.s3
def test_an_update_goes_over_appends_without_being_done_again(warehouse: Path, meanwhile: Any) -> None:
    table = made(warehouse, 3)
    meanwhile(lambda: other(warehouse).append([row(30)]))
    calls: list[int] = []

    def values(rows: Any) -> list[str]:
        calls.append(rows.num_rows)
        return ["new"] * rows.num_rows

    assert table.update("a >= 0", {"v": values}).rows == 3
    assert sum(calls) == 3
    assert [r["v"] for r in state(table)] == ["new", "new", "new", "v30"]


def test_who_never_gets_through_gives_up_and_leaves_nothing(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(warehouse, 3)
    monkeypatch.setattr(base_module, "TRIES", 3)
    monkeypatch.setattr(base_module, "_LONGEST_WAIT_S", 0.001)
    publish = exclusive.publish_snapshot_on

    def always_late(*args: Any, **kwargs: Any) -> Any:
        by_hand(table, table.paimon.new_batch_write_builder().new_update().update_by_predicate(None, {"a": 5}))
        return publish(*args, **kwargs)

    monkeypatch.setattr(base_module, "publish_snapshot_on", always_late)
    changes: list[Callable[[], Any]] = [
        lambda: table.update("id = 1", {"v": "never"}),
        lambda: table.upsert([row(1, v="never", p="P7"), row(9)], key=["id"]),
        lambda: table.overwrite([row(9)]),
        lambda: table.delete("id = 1"),
    ]
    for change in changes:
        with pytest.raises(lh.CommitError, match=r"was made 3 times.*another writer changed the table first"):
            change()
    assert state(table) == [row(i, a=5) for i in range(3)]
    splits = table.latest().version.paimon.new_read_builder().new_scan().plan().splits()
    referenced = {file.file_name for split in splits for file in split.files}
    assert {path.name for path in warehouse.rglob("*.blob")} <= referenced
    assert [path for path in warehouse.rglob("p=P7/**/*") if path.is_file()] == []
    assert [path for path in warehouse.rglob("index-*") if path.parent.name == "index"] == []


@pytest.mark.parametrize("meet", ["append", "delete"])
@pytest.mark.local("replaces a call of the operating system")
def test_an_overwrite_that_meets_another_commit_at_the_last_moment(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, meet: str
) -> None:
    """After its manifests are written: the new rows' files are used again, each once."""
    table = made(warehouse, 9)
    link = os.link
    raced: list[int] = []

    def link_later(source: Any, target: Any, **kwargs: Any) -> None:
        if Path(target).name == "snapshot-2" and not raced:
            raced.append(1)
            if meet == "append":
                other(warehouse).append([row(30), row(31)])
            else:
                other(warehouse).delete("id = 3 OR id = 4")
        link(source, target, **kwargs)

    monkeypatch.setattr(os, "link", link_later)
    commit = table.overwrite([row(60), row(63)], partition={"p": "P0"})
    assert raced
    assert (commit.snapshot_id, commit.rows) == (3, 2)
    left = [1, 2, 4, 5, 7, 8, 30, 31, 60, 63] if meet == "append" else [1, 2, 5, 7, 8, 60, 63]
    assert [r["id"] for r in state(table)] == left
    index = table.latest().query().select("id").index()
    assert len(set(index.row_ids.tolist())) == len(left)
    assert [r for r in state(table) if r["id"] >= 60] == [row(60), row(63)]
