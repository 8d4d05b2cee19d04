"""Compaction while others write, and when it is killed: no row is lost, none comes back, and what is left over is no one's."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.write import Moved, publish_on
from tests.stores import place
from tests.stores.place import connect, on_stores
from tests.test_compact import SCHEMA, change, delete, held, listed, made, row, row_id

pytestmark = on_stores

KILLS = int(os.environ.get("LAKEHOUSE_STRESS_KILLS", "3"))
APPENDS = int(os.environ.get("LAKEHOUSE_STRESS_APPENDS", "8"))


def once(work: Callable[[], Any]) -> Callable[[int, int], None]:
    """A progress callback that does something while the first file is written."""
    waiting = [work]

    def progress(done: int, total: int) -> None:
        assert 0 <= done <= total
        while waiting:
            waiting.pop()()

    return progress


def overwrite(table: lh.Table, rows: list[dict[str, Any]]) -> None:
    builder = table.paimon.new_batch_write_builder().overwrite()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.Table.from_pylist(rows, schema=SCHEMA))
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def update(table: lh.Table, i: int, **values: Any) -> None:
    where = table.paimon.new_read_builder().new_predicate_builder().equal("id", i)
    change(table, lambda made: made.update_by_predicate(where, values))


MEANWHILE: dict[str, tuple[Callable[[lh.Table], Any], Callable[[dict[int, Any]], Any], int]] = {
    "append": (lambda t: t.append([row(900)]), lambda rows: rows.update({900: row(900)}), 1),
    "two appends": (lambda t: [t.append([row(n)]) for n in (900, 901)], lambda r: r.update({n: row(n) for n in (900, 901)}), 1),
    "delete": (lambda t: delete(t, 7), lambda rows: rows.pop(7), 2),
    "update": (lambda t: update(t, 7, v="new"), lambda rows: rows[7].update(v="new"), 2),
    "update of a BLOB": (lambda t: update(t, 7, img=b"new"), lambda rows: rows[7].update(img=b"new"), 2),
    "overwrite": (
        lambda t: overwrite(t, [row(901, p="P1")]),
        lambda rows: [*map(rows.pop, [i for i in rows if rows[i]["p"] == "P1"]), rows.update({901: row(901, p="P1")})],
        2,
    ),
    "compact": (lambda t: t.compact(), lambda rows: None, 2),
    "compact of one partition": (lambda t: t.compact("p = 'P1'"), lambda rows: None, 2),
    "tag": (lambda t: t.tag("x"), lambda rows: None, 1),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_what_others_did_meanwhile_stays(what: str, warehouse: Path) -> None:
    table = made(warehouse, commits=4)
    work, expect, attempts = MEANWHILE[what]
    rows = {found["id"]: found for found in held(table.latest())}
    report = table.compact(progress=once(lambda: work(table)))
    expect(rows)
    assert held(table.latest()) == sorted(rows.values(), key=lambda found: found["id"])
    assert report.attempts == attempts
    assert report.manifests_after == 1
    # What was thrown away is gone: everything that lies there is named by some snapshot.
    names = named(table)
    assert {Path(path).name for path in listed(table) if "bucket-" in path} <= names


def named(table: lh.Table) -> set[str]:
    """Names of all files that any snapshot has."""
    found: set[str] = set()
    for info in table.snapshots():
        paimon = table.paimon.copy({"scan.snapshot-id": str(info.id)})
        found |= {file.file_name for split in paimon.new_read_builder().new_scan().plan().splits() for file in split.files}
    return found


def test_a_rollback_meanwhile(warehouse: Path) -> None:
    """Row ids and the snapshot's number are used again by other rows."""
    table = made(warehouse, commits=4)

    def back() -> None:
        table.paimon.rollback_to(3)
        table.append([row(500 + i) for i in range(6)])

    table.compact(progress=once(back))
    assert [found["id"] for found in held(table.latest())] == [*range(18), *range(500, 506)]


def test_rows_that_change_each_time(warehouse: Path) -> None:
    table = made(warehouse, commits=2, by=())

    def progress(done: int, total: int) -> None:
        update(table, 1, v=str(time.monotonic_ns()))

    with pytest.raises(lh.CommitError, match="changed each of 8 times"):
        table.compact(progress=progress)
    assert len(held(table.latest())) == 12
    assert {Path(path).name for path in listed(table) if "bucket-" in path} <= named(table)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_interrupted_it_leaves_nothing(error: type[BaseException], warehouse: Path) -> None:
    table = made(warehouse)
    before = listed(table)
    calls = 0

    def progress(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise error("now")

    with pytest.raises((KeyboardInterrupt, lh.CommitError), match="now"):
        table.compact(progress=progress)
    assert listed(table) == before


@pytest.mark.parametrize("limit", [1_000, 4_000])
@pytest.mark.local("limits of the operating system")
def test_no_more_room(limit: int, warehouse: Path) -> None:
    """No file may grow beyond so many bytes: row files, BLOB files or manifests fail."""
    table = made(warehouse, commits=8)
    table.append([row(100, img=os.urandom(6_000))])
    before = listed(table)
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, allowed[1]))
    try:
        with pytest.raises(lh.LakehouseError, match="File too large"):
            table.compact()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert listed(table) == before


def test_a_missing_file_is_named(warehouse: Path) -> None:
    table = made(warehouse)
    gone = next(place.path(table.paimon.table_path).rglob("*.blob"))
    gone.unlink()
    before = listed(table)
    with pytest.raises(lh.FetchError, match=gone.name):
        table.compact()
    assert listed(table) == before


# --- other processes -----------------------------------------------------------------------------------------------------

_WRITER = """
import json, sys, lakehouse as lh
from tests.test_compact import row
table = lh.connect(json.loads(sys.argv[1])).table("default.t")
print("ready", flush=True)
for n in range(int(sys.argv[2])):
    table.append([row(10_000 + 3 * n + i) for i in range(3)])
"""
_DELETER = """
import json, sys, time, lakehouse as lh
from tests.test_compact_meanwhile import delete_exactly
table = lh.connect(json.loads(sys.argv[1])).table("default.t")
print("ready", flush=True)
for i in range(int(sys.argv[2])):
    delete_exactly(table, i)
"""
_COMPACTOR = """
import json, sys, lakehouse as lh
table = lh.connect(json.loads(sys.argv[1])).table("default.t")
print("ready", flush=True)
table.compact(target_size=int(sys.argv[2]))
"""


def delete_exactly(table: lh.Table, i: int) -> None:
    """Delete a row on exactly the snapshot that its row id was read from."""
    while True:
        paimon = table.paimon
        base = table.latest()
        where = base.query().where(f"id = {i}")
        messages = paimon.new_batch_write_builder().new_update().delete_by_row_id(where.index().row_ids.tolist())
        try:
            publish_on(paimon, messages, base.id, operation="delete")
        except Moved:
            continue
        return


def started(program: str, *arguments: object) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def ended(child: subprocess.Popen[str]) -> int:
    status = child.wait()
    assert child.stdout is not None
    child.stdout.close()
    return status


def test_appends_and_deletes_of_other_processes(warehouse: Path) -> None:
    table = made(warehouse, commits=10)
    rows = [found for found in held(table.latest()) if found["id"] >= 5]
    others = [
        started(_WRITER, json.dumps(place.options(warehouse)), APPENDS),
        started(_DELETER, json.dumps(place.options(warehouse)), 5),
    ]
    compactions = 0
    while any(other.poll() is None for other in others):
        compactions += bool(table.compact(target_size=2_000).snapshots)
    assert [ended(other) for other in others] == [0, 0]
    assert compactions
    table.compact()
    assert held(table.latest()) == [*rows, *(row(10_000 + n) for n in range(3 * APPENDS))]
    assert [info.id for info in table.snapshots()] == list(range(1, len(table.snapshots()) + 1))


@pytest.mark.local("kills processes many times; commits on S3 are in test_s3_commits.py")
def test_killed_at_any_moment(warehouse: Path) -> None:
    """The rows stay, the next compaction and the next append succeed, and every older snapshot reads as before."""
    rng = random.Random(4)
    table = made(warehouse, commits=6)
    rows = held(table.latest())
    started_at = time.monotonic()
    assert ended(started(_COMPACTOR, json.dumps(place.options(warehouse)), 1 << 28)) == 0
    whole_s = time.monotonic() - started_at
    killed = 0
    for n in range(KILLS):
        for i in range(6):
            table.append([row(1000 + 12 * n + i), row(1006 + 12 * n + i)])
        rows = held(table.latest())
        before = {info.id: table.at(snapshot=info.id).count_rows() for info in table.snapshots()}
        child = started(_COMPACTOR, json.dumps(place.options(warehouse)), 1 << 28)
        time.sleep(rng.uniform(0, min(whole_s, 0.4)))
        child.send_signal(signal.SIGKILL)
        killed += ended(child) == -signal.SIGKILL
        table = connect(warehouse).table("default.t")
        assert held(table.latest()) == rows
        assert {number: table.at(snapshot=number).count_rows() for number in before} == before
    assert killed
    table.append([row(1)])
    table.compact()
    assert held(table.latest()) == sorted([*rows, row(1)], key=lambda found: found["id"])


def test_a_row_id_is_looked_up(warehouse: Path) -> None:
    """The helper that the others stand on."""
    table = made(warehouse, commits=1)
    assert sorted(row_id(table, i) for i in range(6)) == list(range(6))
