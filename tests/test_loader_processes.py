"""Loaders with worker processes in processes that are somebody's children themselves."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from lakehouse.dataset import Dataset
from lakehouse.errors import LakehouseError
from lakehouse.index import RowIndex
from lakehouse.loader import Loader
from tests.training import ids, raw_index

FORK = multiprocessing.get_context("fork")


def loader(index: RowIndex, method: Any = None, workers: int = 2) -> Loader:
    return Loader(Dataset(index, batch_size=4, rank=0, world=1), workers=workers, start_method=method)


def _tell(end: Connection, task: Callable[[], Any]) -> None:
    try:
        end.send(task())
    except BaseException as error:
        end.send(error)


class Child:
    """What `task` gives in a forked child."""

    def __init__(self, task: Callable[[], Any], *, daemon: bool = False) -> None:
        self._end, other = FORK.Pipe(duplex=False)
        self._process = FORK.Process(target=_tell, args=(other, task), daemon=daemon)
        self._process.start()
        other.close()

    def result(self) -> Any:
        try:
            assert self._end.poll(100), "the child hangs"
            got = self._end.recv()
            self._process.join(60)
        finally:
            self._process.kill()
            self._process.join()
            self._end.close()
        if isinstance(got, BaseException):
            raise got
        return got


@pytest.mark.parametrize("method", [None, "fork"])
def test_in_a_process_forked_from_one_with_a_fork_server(tmp_path: Path, method: str | None) -> None:
    index = raw_index(tmp_path, 40)
    expected = ids(loader(index, "forkserver"))
    assert Child(lambda: ids(loader(index, method))).result() == expected


def test_a_fork_server_of_another_process_is_no_use(tmp_path: Path) -> None:
    index = raw_index(tmp_path, 40)
    ids(loader(index, "forkserver"))
    with pytest.raises(LakehouseError, match="belongs to the process that this one was forked from.*'spawn'.*workers=0"):
        Child(lambda: ids(loader(index, "forkserver"))).result()


@pytest.mark.parametrize("method", [None, "fork", "forkserver", "spawn"])
def test_a_daemonic_process_may_have_no_workers(tmp_path: Path, method: str | None) -> None:
    index = raw_index(tmp_path, 40)
    with pytest.raises(LakehouseError, match="workers=2 in the daemonic process .*daemon=False.*workers=0"):
        Child(lambda: ids(loader(index, method)), daemon=True).result()
    assert Child(lambda: ids(loader(index, method, workers=0)), daemon=True).result() == ids(loader(index, workers=0))


@pytest.mark.parametrize("method", [None, "fork"])
def test_a_forked_child_has_worker_processes_of_its_own(tmp_path: Path, method: str | None) -> None:
    """Two processes that took from the same ones would each miss what the other got."""
    index = raw_index(tmp_path, 400)
    one = loader(index, method)
    first = ids(one)
    child = Child(lambda: ids(one))
    second = ids(one)
    assert child.result() == second != first


@pytest.mark.parametrize("workers", [0, 2])
def test_a_forked_child_does_not_go_on_with_its_parents_iterator(tmp_path: Path, workers: int) -> None:
    one = loader(raw_index(tmp_path, 40), "fork", workers=workers)
    batches = iter(one)
    got = ids(islice(batches, 3))
    with pytest.raises(LakehouseError, match="started in another process"):
        Child(lambda: ids(batches)).result()
    again = Child(lambda: ids(one)).result()  # from the epoch's beginning
    got += ids(batches)
    assert got == again


def test_a_forked_child_that_lets_a_loader_go_ends_nobodys_workers(tmp_path: Path) -> None:
    held = [loader(raw_index(tmp_path, 400), "fork")]
    batches = iter(held[0])
    got = ids(islice(batches, 2))

    def let_go() -> int:
        nonlocal batches
        del batches
        held.clear()
        return 1

    assert Child(let_go).result() == 1
    assert len(got + ids(batches)) == 100


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, batch: Any, rngs: Any) -> Any:
        return batch


@pytest.mark.parametrize("transform", [lambda batch, rngs: batch, Locked()])
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_pickle_refuses_is_explained(tmp_path: Path, method: Any, transform: Any) -> None:
    ds = Dataset(raw_index(tmp_path, 8), batch_size=4, rank=0, world=1, transform=transform)
    for _ in range(2):
        with pytest.raises(LakehouseError, match="can't be sent to worker processes .*pickle.*top level.*workers=0"):
            next(iter(Loader(ds, workers=1, start_method=method)))


_NO_FILE = """
from pathlib import Path
import lakehouse as lh
from tests.training import raw_index
def decode(data, rng):
    return len(data)
next(iter(lh.Loader(lh.Dataset(raw_index(Path({folder!r}), 8), batch_size=4, decode={{"data": decode}}), workers=1)))
"""


@pytest.mark.parametrize("how", ["-c", "-"])
def test_a_session_without_a_file_is_told_what_workers_know(tmp_path: Path, how: str) -> None:
    """A decoder of a notebook's cell can't be found by a worker, and its own traceback ends in the server's log."""
    code = _NO_FILE.format(folder=str(tmp_path))
    command = [sys.executable, how, *([code] if how == "-c" else [])]
    run = subprocess.run(
        command, input=code, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False, timeout=110
    )
    assert run.returncode == 1
    assert "defined in a notebook, an interactive session" in run.stderr.splitlines()[-1]
