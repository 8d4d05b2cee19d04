"""kill -9 in the middle of a rollback, of making a branch, of fast-forwarding, of saving a training set."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import lakehouse as lh

KILLS = 25 if os.environ.get("LAKEHOUSE_STRESS") else 2
SCHEMA = pa.schema([("id", pa.int64()), ("frame", pa.large_binary())])
# Says "ready" once everything is loaded, then does the same thing again and again until it is killed.
PROGRAM = """
import sys
import lakehouse as lh
warehouse, what = sys.argv[1:]
catalog = lh.connect(warehouse=warehouse)
table = catalog.table("default.t")
index = table.at(snapshot=2).query().index()
print("ready", flush=True)
for i in range(100_000):
    if what == "rollback":
        table.rollback(snapshot=1 + i % 2)
    elif what == "branch":
        table.create_branch(f"b{i}", snapshot=1 + i % 2)
    elif what == "fast_forward":
        if f"f{i}" not in table.branches():
            dev = table.create_branch(f"f{i}")
            for k in range(3):
                dev.append([{"id": 1000 * (i + 1) + k, "frame": b"x"}])
            table.fast_forward(f"f{i}")
    else:
        catalog.save_training_set("set", index.take([i % 4, 0]), description=str(i))
"""


def ids(table: lh.Table | lh.Snapshot) -> list[int]:
    snapshot = table.latest() if isinstance(table, lh.Table) else table
    found: list[int] = snapshot.arrow(blobs="bytes").sort_by("id")["id"].to_pylist()
    return found


@pytest.mark.parametrize("what", ["rollback", "branch", "fast_forward", "save"])
def test_killed(warehouse: Path, tmp_path: Path, what: str) -> None:
    """Whatever was published is whole and right, the rest is not there, and the next one succeeds."""
    rng = random.Random(what)
    catalog = lh.connect(warehouse=str(warehouse))
    table = catalog.create_table("default.t", SCHEMA)
    for start in (0, 3):
        table.append([{"id": start + i, "frame": b"frame"} for i in range(3)])
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    for _ in range(KILLS):
        command = [sys.executable, str(program), str(warehouse), what]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.02, 0.35))
            process.send_signal(signal.SIGKILL)
            process.wait(30)
        check(catalog, table, what)


def check(catalog: lh.Catalog, table: lh.Table, what: str) -> None:
    infos = table.snapshots()
    assert [info.id for info in infos] == list(range(1, len(infos) + 1))
    assert (ids(table.at(snapshot=1)), ids(table.at(snapshot=2))) == ([0, 1, 2], [0, 1, 2, 3, 4, 5])
    if what == "rollback":
        for info in [info for info in infos if info.operation == "rollback"]:
            assert ids(table.at(snapshot=info.id)) in ([0, 1, 2], [0, 1, 2, 3, 4, 5])
    elif what == "branch":
        for name in table.branches():
            assert ids(table.branch(name)) == ids(table.at(snapshot=1 + int(name[1:]) % 2))
            table.delete_branch(name)
    elif what == "fast_forward":
        finish_fast_forwards(table)
    else:
        sets = catalog.training_sets()
        assert [item.version for item in sets] == list(range(1, len(sets) + 1))
        for item in sets[-2:]:
            expected = table.at(snapshot=2).query().index().take([int(item.description or 0) % 4, 0])
            assert item.index().fingerprint == expected.fingerprint
            assert table.tags()[item.tag] == 2
        catalog.save_training_set("set", table.at(snapshot=2).query().index().take([0, 0]), description="0")
        return
    expected_rows = len(ids(table))
    table.append([{"id": 7, "frame": b"frame"}])
    table.rollback(snapshot=len(infos) if what != "fast_forward" else table.snapshots()[-2].id)
    assert len(ids(table)) == expected_rows


def finish_fast_forwards(table: lh.Table) -> None:
    """The table has some of a branch's snapshots, or all of them and more; asked again, all of them."""
    for name in table.branches():
        held, theirs = Counter(ids(table)), Counter(ids(table.branch(name)))
        assert held <= theirs or theirs <= held
        if held < theirs:
            assert table.fast_forward(name) == table.branch(name).latest().id
            assert Counter(ids(table)) == theirs
        table.delete_branch(name)
