"""Expiry that is killed, and expiry beside writers and taggers: nothing that is needed is ever lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from tests.lake_files import files_of, needed_of
from tests.upkeep_worker import append, churn, expire, frame, tag

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("frame", pa.large_binary())])
STRESS = bool(os.environ.get("LAKEHOUSE_STRESS"))
KILLS = 5 if STRESS else 6  # of one table
TABLES = 10 if STRESS else 1  # a new one each time: every check reads all of it


@pytest.fixture(scope="module")
def processes() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.upkeep_worker", "lakehouse.table"])
    return context


@pytest.fixture
def table(warehouse: Path) -> lh.Table:
    return lh.connect(warehouse=str(warehouse)).create_table("default.t", SCHEMA, partition_by=["p"])


def rows(snapshot: lh.Snapshot) -> list[int]:
    found = snapshot.arrow(blobs="bytes").to_pylist()
    assert all(row["frame"] == frame(row["id"]) and row["p"] == f"p{row['id'] % 3}" for row in found)
    numbers = sorted(row["id"] for row in found)
    assert len(numbers) == len(set(numbers))
    return numbers


@pytest.mark.timeout(600 if STRESS else 120)
def test_killed_at_any_moment(tmp_path: Path, processes: Any) -> None:
    rng = random.Random(4)
    orphans = 0
    for turn in range(5 * TABLES):
        if turn >= TABLES and orphans:  # few kills may all have come at moments that leave nothing
            break
        orphans += kill_and_check(tmp_path / str(turn), processes, rng)
    assert orphans, "no kill left anything: the moments were badly chosen"


def kill_and_check(folder: Path, processes: Any, rng: random.Random) -> int:
    """Kills of one table's process; how many files they left that nothing needs."""
    folder.mkdir()
    warehouse, log = folder / "warehouse", folder / "acknowledged"
    log.touch()
    table = lh.connect(warehouse=str(warehouse)).create_table("default.t", SCHEMA, partition_by=["p"])
    orphans = 0
    for kill in range(KILLS):
        first = 1000 * kill
        process = processes.Process(target=churn, args=(str(warehouse), str(log), first))
        process.start()
        before = log.stat().st_size
        while log.stat().st_size == before:  # until it is at work
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.6))
        process.kill()
        process.join()
        process.close()

        lines = [int(line) for line in log.read_text().splitlines()]
        deleted = {-line for line in lines if line < 0}
        kept = {line for line in lines if line >= 0} - deleted
        found = set(rows(table.latest()))
        # A commit, or a deletion, may have happened without being written down: at most the last one.
        doubtful = {i for i in range(first, first + 1000) if i > max((n for n in lines if n >= first), default=first - 1)}
        assert found - doubtful <= kept
        missing = kept - found
        assert len(missing) <= 1
        assert missing <= {max(kept)}, "only the row that was about to be deleted"
        for name in table.tags():
            rows(table.at(tag=name))
        for info in table.snapshots():
            rows(table.at(snapshot=info.id))
        for i in (0, *rng.sample(sorted(kept), min(3, len(kept)))):  # commit ids outlive their snapshots
            assert table.find_commit(f"row-{i}") is not None

        extra = files_of(table) - needed_of(table)
        report = table.remove_orphans(timedelta(0))
        assert {path for path in report.paths if "/." not in path} == extra
        orphans += len(extra)
        assert files_of(table) == needed_of(table)
        assert rows(table.latest()) == sorted(found)
        assert not table.remove_orphans(timedelta(0)).paths
        table.append(
            [{"id": first + 999, "p": f"p{(first + 999) % 3}", "frame": frame(first + 999)}], commit_id=f"row-{first + 999}"
        )
        with log.open("a") as file:
            file.write(f"{first + 999}\n")
            file.writelines(f"-{i}\n" for i in sorted(missing))  # so it did happen
            file.writelines(f"{i}\n" for i in sorted(found & doubtful))
    return orphans


@pytest.mark.timeout(600 if STRESS else 120)
def test_beside_writers_and_taggers(table: lh.Table, warehouse: Path, tmp_path: Path, processes: Any) -> None:
    stop = tmp_path / "stop"
    made = [tmp_path / f"made-{n}" for n in range(2)]
    count = 120 if STRESS else 25
    append(str(warehouse), 10_000, 3)
    writers = [processes.Process(target=append, args=(str(warehouse), 1000 * n, count)) for n in range(2)]
    others = [processes.Process(target=expire, args=(str(warehouse), str(stop)))]
    others += [processes.Process(target=tag, args=(str(warehouse), f"t{n}", str(stop), str(made[n]))) for n in range(2)]
    for process in (*others, *writers):
        process.start()
    for process in writers:
        process.join()
    stop.touch()
    for process in others:
        process.join()
    assert [process.exitcode for process in (*writers, *others)] == [0] * 5
    expected = sorted([10_000, 10_001, 10_002, *range(count), *range(1000, 1000 + count)])
    table.expire(keep_last=1)
    assert rows(table.latest()) == expected
    tagged = [line.split() for path in made for line in path.read_text().splitlines()]
    assert tagged
    manager = table.paimon.tag_manager()
    named: dict[int, dict[object, str]] = {}  # some forty snapshots, by a thousand tags
    for name, number in tagged:
        at = manager.get(name)
        files = (at.id, at.base_manifest_list, at.delta_manifest_list, at.index_manifest)
        named.setdefault(int(number), {})[files] = name
    for snapshot, names in named.items():
        assert len(names) == 1  # to all of its tags the snapshot is the same one
        for name in names.values():
            held = table.at(tag=name)
            assert held.id == snapshot
            assert len(rows(held)) == snapshot  # one row a snapshot
    assert set(table.tags()) == {name for name, _ in tagged}
    # A commit that finds its number taken leaves the manifests of that attempt.
    assert {path.partition("/")[0] for path in table.remove_orphans(timedelta(0)).paths} <= {"manifest"}
    assert files_of(table) == needed_of(table)
