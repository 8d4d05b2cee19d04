"""A BLOB table of plain pypaimon, and the few steps that every test here takes."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pypaimon
from pypaimon import CatalogFactory

NAME = "default.t"
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.string()), ("a", pa.int64()), ("img", pa.large_binary())])
# What the Python writer needs for BLOB columns; everything else stays at upstream's defaults.
OPTIONS = {"bucket": "-1", "file.format": "parquet", "row-tracking.enabled": "true", "data-evolution.enabled": "true"}
WITH_DELETES = {"deletion-vectors.enabled": "true"}


def row(i: int, **changes: Any) -> dict[str, Any]:
    """Row ``i`` of partition P0, P1 or P2."""
    return {"id": i, "p": f"P{i % 3}", "v": f"v{i}", "a": 10 * i, "img": b"image %d" % i, **changes}


def bytes_read() -> int:
    """Bytes that this process has read so far, from whatever file."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(lines[0].removeprefix("rchar: "))


@dataclass(frozen=True)
class Plain:
    """One table and the folder of its catalog."""

    warehouse: Path
    schema: pa.Schema
    options: Mapping[str, str]

    @property
    def catalog(self) -> Any:
        return CatalogFactory.create(dict(self.options))

    @property
    def table(self) -> Any:
        """A fresh handle."""
        return self.catalog.get_table(NAME)

    @property
    def daft(self) -> Any:
        """The table as pypaimon's own Daft source gives it."""
        from pypaimon.daft import read_paimon

        return read_paimon(NAME, dict(self.options))

    def alter(self, change: Any) -> None:
        self.catalog.alter_table(NAME, [change], False)

    def ids(self) -> list[int]:
        return sorted(read(self.table, ["id"]).column("id").to_pylist())


def plain(
    warehouse: Path,
    rows: Sequence[Mapping[str, Any]] = (),
    *,
    schema: pa.Schema = SCHEMA,
    partition_by: Sequence[str] = ("p",),
    options: Mapping[str, str] | None = None,
    catalog_options: Mapping[str, str] | None = None,
) -> Plain:
    """A new table, with ``rows`` in one commit."""
    made = Plain(warehouse, schema, {"warehouse": str(warehouse), **(catalog_options or {})})
    made.catalog.create_database("default", True)
    kept = pypaimon.Schema.from_pyarrow_schema(
        schema, partition_keys=list(partition_by), options={**OPTIONS, **(options or {})}
    )
    made.catalog.create_table(NAME, kept, False)
    if rows:
        append(made.table, rows, schema)
    return made


def append(table: Any, rows: Sequence[Mapping[str, Any]], schema: pa.Schema = SCHEMA) -> None:
    """One commit."""
    builder = table.new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.Table.from_pylist(list(rows), schema=schema))
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def read(table: Any, columns: Sequence[str] | None = None, predicate: Any = None) -> pa.Table:
    builder = table.new_read_builder()
    if columns is not None:
        builder = builder.with_projection(list(columns))
    if predicate is not None:
        builder = builder.with_filter(predicate)
    return builder.new_read().to_arrow(builder.new_scan().plan().splits())


def predicates(table: Any) -> Any:
    return table.new_read_builder().new_predicate_builder()


def files(table: Any) -> list[Any]:
    return [file for split in table.new_read_builder().new_scan().plan().splits() for file in split.files]


@contextlib.contextmanager
def leaking() -> Iterator[None]:
    """For a failure after which upstream leaves files open: they are closed here, so that no later test gets the warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@contextlib.contextmanager
def few_files(more: int) -> Iterator[None]:
    """Let this process open just so many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    fillers = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while fillers[-1] < highest:  # the limit is on the number, so those below must be taken
            fillers.append(os.open(os.devnull, os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1 + more, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


def hangs(program: str, *arguments: str, after_s: float = 3.0) -> bool:
    """Whether a program that has printed a line is still running ``after_s`` later. It is ended either way.

    Raises:
        AssertionError: it failed, before that line or after it.
    """
    command = [sys.executable, "-c", program, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as child:
        assert child.stdout is not None
        try:
            child.stdout.readline()
            _, said = child.communicate(timeout=after_s)
        except subprocess.TimeoutExpired:
            return True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # what the child forked, too
    assert child.returncode == 0, said
    return False
