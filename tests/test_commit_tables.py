"""Tables of a local warehouse are made and dropped in one step."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from tests.stress.lake import SCHEMA, held, rows

OTHER = pa.schema([("key", pa.string()), ("frame", pa.large_binary())])


def _slowly(function: Any) -> Any:
    """The function after a pause: between the look whether a name is free and taking it."""

    def slow(*given: Any, **named: Any) -> Any:
        time.sleep(0.05)
        return function(*given, **named)

    return slow


def _make(warehouse: str, number: int, together: Barrier, pipe: Connection) -> None:
    os.link = _slowly(os.link)
    Path.rename = _slowly(Path.rename)  # type: ignore[method-assign]
    schema = (SCHEMA, OTHER)[number % 2]
    catalog = lh.connect(warehouse=warehouse)
    catalog.databases()
    outcomes = []
    for table in range(4):
        together.wait(60)
        try:
            outcomes.append(catalog.create_table(f"default.t{table}", schema).schema.names)
        except lh.ConfigError:  # it exists
            outcomes.append(None)
    pipe.send(outcomes)


def test_of_processes_that_make_a_table_at_once_one_does(warehouse: Path) -> None:
    lh.connect(warehouse=str(warehouse)).create_database("default")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.stress.preload"])
    pipes, makers = [], []
    together = context.Barrier(4)
    for number in range(4):
        here, there = context.Pipe(duplex=False)
        makers.append(context.Process(target=_make, args=(str(warehouse), number, together, there)))
        makers[-1].start()
        there.close()
        pipes.append(here)
    outcomes = [pipe.recv() for pipe in pipes]
    for maker in makers:
        maker.join()
    for table in range(4):
        made = [outcome[table] for outcome in outcomes if outcome[table] is not None]
        assert len(made) == 1
        assert lh.connect(warehouse=str(warehouse)).table(f"default.t{table}").schema.names == made[0]


def test_a_drop_that_was_killed_is_done_or_not(warehouse: Path) -> None:
    """Whatever files a crash of an earlier drop left, the table is not listed, and a new one of its name is empty."""
    catalog = lh.connect(warehouse=str(warehouse))
    table = catalog.create_table("default.t", SCHEMA, partition_by=["channel"])
    table.append(rows(range(9)))
    folder = warehouse / "default.db" / "t"
    shutil.copytree(folder, folder.with_name(".dropped-t-0123"))  # renamed, then killed before its files were deleted
    assert catalog.tables() == ["default.t"]
    catalog.drop_table("default.t")
    assert catalog.tables() == []
    assert list(folder.parent.iterdir()) == []
    assert catalog.create_table("default.t", SCHEMA).latest().count_rows() == 0


def test_half_a_table_of_another_engines_drop(warehouse: Path) -> None:
    catalog = lh.connect(warehouse=str(warehouse))
    table = catalog.create_table("default.t", SCHEMA, partition_by=["channel"])
    table.append(rows(range(9)))
    shutil.rmtree(warehouse / "default.db" / "t" / "schema")
    assert catalog.tables() == []
    with pytest.raises(lh.NotFoundError):
        catalog.table("default.t")
    half = shutil.copytree(warehouse / "default.db" / "t", warehouse / "default.db" / "u")
    catalog.drop_table("default.t")  # again
    assert not (warehouse / "default.db" / "t").exists()
    with pytest.raises(lh.NotFoundError):
        catalog.drop_table("default.t")
    again = catalog.create_table("default.u", SCHEMA)  # over what is left: none of its old snapshots come back
    assert again.latest().count_rows() == 0
    assert not list(half.glob("channel*"))
    again.append(rows(range(2)))
    assert [one["id"] for one in held(again)] == [0, 1]


def test_a_writer_does_not_bring_a_dropped_table_back(warehouse: Path) -> None:
    catalog = lh.connect(warehouse=str(warehouse))
    table = catalog.create_table("default.t", SCHEMA, partition_by=["channel"])
    table.append(rows(range(3)))

    def interrupted() -> object:
        yield pa.Table.from_pylist(rows(range(3, 6)), schema=SCHEMA)
        catalog.drop_table("default.t")
        yield pa.Table.from_pylist(rows(range(6, 9)), schema=SCHEMA)

    with pytest.raises(lh.CommitError, match="nothing was committed"):
        table.append(interrupted())
    assert catalog.tables() == []
    assert catalog.create_table("default.t", SCHEMA, partition_by=["channel"]).latest().count_rows() == 0


def test_a_writer_of_a_dropped_table_does_not_write_into_a_new_one(warehouse: Path) -> None:
    catalog = lh.connect(warehouse=str(warehouse))
    table = catalog.create_table("default.t", SCHEMA, partition_by=["channel"])

    def interrupted() -> object:
        catalog.drop_table("default.t")
        catalog.create_table("default.t", pa.schema([*SCHEMA, ("more", pa.int64())]), partition_by=["channel"])
        yield pa.Table.from_pylist(rows(range(3)), schema=SCHEMA)

    with pytest.raises(lh.CommitError, match="nothing was committed"):
        table.append(interrupted())
    assert catalog.table("default.t").latest().count_rows() == 0
