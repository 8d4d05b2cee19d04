"""A process that changes a table in a loop is killed at a random moment, again and again; what is checked after each kill.

What is done is one of `tests.stress.operations`. All kills of a run happen to one table, which therefore has to survive all of
them in a row.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lakehouse as lh
from tests.stress.lake import held, made, named_files, orphans, row, rows
from tests.stress.operations import FIRST_OWN, OPERATIONS, Operation

NAME = "default.t"
_START_S = 60.0


def kill_at_random(warehouse: Path, operation: str, *, moments: int, seed: int) -> dict[str, int]:
    """Kill the operation's process at so many random moments.

    Returns:
        What happened: steps ``done``, steps ``cut`` off, and files left behind that nothing names (``orphans``).
    """
    chance = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.stress.preload"])
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
        begun, step_s = _watch(here, done, steps=chance.randint(0 if moment else 1, 2))
        time.sleep(chance.uniform(0, step_s or at_work.span_s))
        child.kill()
        child.join()
        cut |= (begun | _rest(here, done)) - set(done)
        _check(table, at_work, done, cut, moment)
    left, content = orphans(table), held(table)
    table.remove_orphans(timedelta(0))
    assert orphans(table) == set()
    named_files(table)  # nothing else is gone
    assert held(table) == content
    return {"done": len(done), "cut": len(cut), "orphans": len(left)}


def _watch(pipe: Connection, done: dict[int, Any], *, steps: int) -> tuple[set[int], float]:
    """Wait until so many steps are done and another is begun: steps begun, and the seconds of the last that was done."""
    begun: set[int] = set()
    step_s, started = 0.0, 0.0
    while len(begun) <= steps:
        assert pipe.poll(_START_S), "the process does not go on"
        if _heard(pipe, done, begun):
            step_s = time.perf_counter() - started
        else:
            started = time.perf_counter()
    return begun, step_s


def _rest(pipe: Connection, done: dict[int, Any]) -> set[int]:
    """Steps begun of which nothing was heard yet when the process was killed."""
    begun: set[int] = set()
    try:
        while True:
            _heard(pipe, done, begun)
    except (EOFError, OSError):
        return begun


def _heard(pipe: Connection, done: dict[int, Any], begun: set[int]) -> bool:
    """Take one message: whether a step is done."""
    what, step, result = pipe.recv()
    if what == "done":
        done[step] = result
        return True
    begun.add(step)
    return False


def _check(table: lh.Table, at_work: Operation, done: Mapping[int, Any], cut: set[int], moment: int) -> None:
    table = lh.connect(warehouse=str(Path(str(table.paimon.table_path)).parent.parent)).table(NAME)  # it opens
    for info in table.snapshots():
        assert table.at(snapshot=info.id).count_rows() >= 0
    before = {path: path.read_bytes() for path in named_files(table)}  # which also finds what is named and not there
    at_work.check(table, done, cut)
    own = FIRST_OWN + moment
    table.append([row(own)])  # the next writer succeeds
    assert [one for one in held(table) if one["id"] >= FIRST_OWN] == rows(range(FIRST_OWN, own + 1))
    changed = [path for path, data in before.items() if path.name != "LATEST" and path.read_bytes() != data]
    assert changed == []


def _work(warehouse: str, operation: str, first: int, pipe: Connection) -> None:
    table = lh.connect(warehouse=warehouse).table(NAME)
    at_work = OPERATIONS[operation]()
    at_work.warm_up(table)
    step = first
    while True:
        pipe.send(("begun", step, None))
        pipe.send(("done", step, at_work.run(table, step)))
        step += 1
