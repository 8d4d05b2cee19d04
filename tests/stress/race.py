"""Many processes append to one table at once."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import lakehouse as lh
from tests.lake_files import folder_of
from tests.stress.lake import held, made, orphans, row

_BARRIER: Barrier | None = None


@dataclass(frozen=True)
class Task:
    """What one process does in one repetition."""

    warehouse: Path
    table: str
    writer: int
    appends: int
    pause_s: float  # at most, between the look whether the number is free and the attempt to take it
    same_ids: bool  # all writers append the same rows under the same commit ids


def race(warehouse: Path, *, processes: int, appends: int, pauses_s: list[float], same_ids: bool = False) -> float:
    """Let processes append at once, once for each pause; check each time what became of it. Seconds of the appends alone."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    spent_s = 0.0
    with context.Pool(processes, initializer=_begin, initargs=(barrier,)) as pool:
        for repetition, pause_s in enumerate(pauses_s):
            name = f"default.r{repetition}"
            table = made(warehouse, name)
            tasks = [Task(warehouse, name, writer, appends, pause_s, same_ids) for writer in range(processes)]
            results = pool.map(_write, tasks, chunksize=1)
            spent_s += max(seconds for _, seconds in results)
            check(table, [commit for commits, _ in results for commit in commits], tasks)
    return spent_s


def check(table: lh.Table, commits: list[lh.Commit], tasks: list[Task]) -> None:
    """All rows, each once; ids of snapshots without a gap; each commit reported once; nothing left behind."""
    wanted = sorted({number for task in tasks for number in _numbers(task)})
    assert held(table) == [row(number) for number in wanted]
    ids = [info.id for info in table.snapshots()]
    assert ids == list(range(1, len(wanted) + 1))
    reported = Counter(commit.snapshot_id or 0 for commit in commits)
    assert sorted(reported) == ids
    times = len(tasks) if tasks[0].same_ids else 1
    assert set(reported.values()) == {times}
    assert orphans(table) == set(), folder_of(table)


def _begin(barrier: Barrier) -> None:
    global _BARRIER
    _BARRIER = barrier


def _numbers(task: Task) -> range:
    first = 0 if task.same_ids else task.writer * task.appends
    return range(first, first + task.appends)


def _write(task: Task) -> tuple[list[lh.Commit], float]:
    plain = os.link

    def slow(*given: Any, **named: Any) -> None:
        time.sleep(random.uniform(0, task.pause_s))
        plain(*given, **named)

    table = made(task.warehouse, task.table)
    assert _BARRIER is not None
    _BARRIER.wait(60)
    started = time.perf_counter()
    os.link = slow if task.pause_s else plain
    try:
        commits = [
            table.append([row(number)], commit_id=f"batch-{number}" if task.same_ids else None) for number in _numbers(task)
        ]
    finally:
        os.link = plain
    return commits, time.perf_counter() - started
