"""A process that changes a table in a loop is killed at a random moment, again and again; what is checked after each kill.

To add an operation, write a class with the methods of `Operation` and name it in `OPERATIONS`: `tests/test_commit_kill.py`
runs each of them. All kills of a run happen to one table, which therefore has to survive all of them in a row.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import lakehouse as lh
from tests.stress.lake import held, made, named_files, orphans, row, rows

NAME = "default.t"
_FIRST_OWN = 1_000_000  # ids of rows that the check appends itself
_START_S = 60.0


class Operation(Protocol):
    """What the killed process does. Its steps are numbered over all kills, so no two are alike."""

    def prepare(self, table: lh.Table) -> None:
        """Fill the new table."""

    def run(self, table: lh.Table, step: int) -> Any:
        """One step, in the process that is killed; what it returns says what was done."""

    def check(self, table: lh.Table, done: Mapping[int, Any], cut: set[int]) -> None:
        """After each kill: the steps that are ``done`` hold, each of those ``cut`` off happened wholly or not at all."""


def ours(table: lh.Table) -> list[dict[str, Any]]:
    """The rows that the operation is answerable for, by id."""
    return [one for one in held(table) if one["id"] < _FIRST_OWN]


class Append:
    """Three rows of three partitions, under a commit id."""

    size = 3

    def prepare(self, table: lh.Table) -> None:
        table.append(rows(range(900_000, 900_003)))

    def run(self, table: lh.Table, step: int) -> int | None:
        return table.append(self._rows(step), commit_id=f"step-{step}").snapshot_id

    def check(self, table: lh.Table, done: Mapping[int, Any], cut: set[int]) -> None:
        made = {step for step in {*done, *cut} if table.find_commit(f"step-{step}") is not None}
        assert made >= set(done)
        assert ours(table) == self._table(made)
        for step, snapshot_id in done.items():
            commit = table.append(self._rows(step), commit_id=f"step-{step}")  # again: nothing happens
            assert (commit.snapshot_id, commit.rows) == (snapshot_id, self.size)
        for step in cut:  # what one does after a crash
            table.append(self._rows(step), commit_id=f"step-{step}")
        assert ours(table) == self._table({*done, *cut})

    def _rows(self, step: int) -> list[dict[str, Any]]:
        return rows(range(step * self.size, (step + 1) * self.size))

    def _table(self, steps: set[int]) -> list[dict[str, Any]]:
        return [one for step in sorted(steps) for one in self._rows(step)] + rows(range(900_000, 900_003))


class Tag:
    """A new tag, or one that moves."""

    names = 5
    snapshots = 4

    def prepare(self, table: lh.Table) -> None:
        for number in range(self.snapshots):
            table.append([row(number)])

    def run(self, table: lh.Table, step: int) -> int:
        return table.tag(f"t{step % self.names}", snapshot=1 + step % self.snapshots, replace=True)

    def check(self, table: lh.Table, done: Mapping[int, Any], cut: set[int]) -> None:
        tags = table.tags()
        for name in {f"t{step % self.names}" for step in done}:
            last = max(step for step in done if f"t{step % self.names}" == name)
            later = {1 + step % self.snapshots for step in cut if step > last and f"t{step % self.names}" == name}
            assert tags[name] in {done[last], *later}
        for name, number in tags.items():
            assert [one["id"] for one in table.at(tag=name).arrow().to_pylist()] == list(range(number))


OPERATIONS: dict[str, type[Operation]] = {"append": Append, "tag": Tag}


def kill_at_random(warehouse: Path, operation: str, *, moments: int, seed: int) -> dict[str, int]:
    """Kill the operation's process at so many random moments.

    Returns:
        What happened: steps ``done``, steps ``cut`` off, and files left behind that nothing names (``orphans``).
    """
    chance = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.stress.kill"])
    table = made(warehouse, NAME)
    at_work = OPERATIONS[operation]()
    at_work.prepare(table)
    done: dict[int, Any] = {}
    cut: set[int] = set()
    for moment in range(moments):
        here, there = context.Pipe(duplex=False)
        first = max([*done, *cut], default=-1) + 1
        child = context.Process(target=_work, args=(str(warehouse), operation, first, there), daemon=True)
        child.start()
        there.close()
        assert here.poll(_START_S), "the process did not begin"
        time.sleep(chance.uniform(0, 0.12))
        child.kill()
        child.join()
        begun = _heard(here, done)
        cut |= begun - set(done)
        _check(table, at_work, done, cut, moment)
    return {"done": len(done), "cut": len(cut), "orphans": len(orphans(table))}


def _heard(pipe: Connection, done: dict[int, Any]) -> set[int]:
    """Steps that were begun; those that were done go into ``done``."""
    begun = set()
    try:
        while True:
            what, step, result = pipe.recv()
            if what == "done":
                done[step] = result
            else:
                begun.add(step)
    except (EOFError, OSError):
        return begun


def _check(table: lh.Table, at_work: Operation, done: Mapping[int, Any], cut: set[int], moment: int) -> None:
    table = lh.connect(warehouse=str(Path(str(table.paimon.table_path)).parent.parent)).table(NAME)  # it opens
    for info in table.snapshots():
        assert table.at(snapshot=info.id).count_rows() >= 0
    before = {path: path.read_bytes() for path in named_files(table)}  # which also finds what is named and not there
    at_work.check(table, done, cut)
    own = _FIRST_OWN + moment
    table.append([row(own)])  # the next writer succeeds
    assert [one for one in held(table) if one["id"] >= _FIRST_OWN] == rows(range(_FIRST_OWN, own + 1))
    changed = [path for path, data in before.items() if path.name != "LATEST" and path.read_bytes() != data]
    assert changed == []


def _work(warehouse: str, operation: str, first: int, pipe: Connection) -> None:
    table = lh.connect(warehouse=warehouse).table(NAME)
    at_work = OPERATIONS[operation]()
    step = first
    while True:
        pipe.send(("begun", step, None))
        pipe.send(("done", step, at_work.run(table, step)))
        step += 1
