"""What other processes do in the tests of upkeep."""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta

import lakehouse as lh

NIGHTLY = timedelta(microseconds=1)


def frame(i: int) -> bytes:
    """The BLOB of row i."""
    return b"frame %d" % i * 100


def churn(warehouse: str, acknowledged: str, first: int) -> None:
    """Append, tag and expire for ever; each row that is committed is written down."""
    table = lh.connect(warehouse=warehouse).table("default.t")
    log = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    i = first
    while True:
        for _ in range(3):
            table.append([{"id": i, "p": f"p{i % 3}", "frame": frame(i)}], commit_id=f"row-{i}")
            os.write(log, b"%d\n" % i)
            i += 1
        table.tag("kept", replace=True)
        table.tag(f"over-{i}", keep_for=NIGHTLY)
        builder = table.paimon.new_batch_write_builder()
        predicate = table.paimon.new_read_builder().new_predicate_builder().equal("id", i - 1)
        builder.new_commit().commit(builder.new_update().delete_by_predicate(predicate))
        os.write(log, b"-%d\n" % (i - 1))
        table.expire(keep_last=2)


def append(warehouse: str, first: int, count: int) -> None:
    """So many rows, one a commit."""
    table = lh.connect(warehouse=warehouse).table("default.t")
    for i in range(first, first + count):
        table.append([{"id": i, "p": f"p{i % 3}", "frame": frame(i)}])


def expire(warehouse: str, stop: str) -> None:
    """Again and again, until the file is there."""
    table = lh.connect(warehouse=warehouse).table("default.t")
    while not os.path.exists(stop):
        table.expire(keep_last=2)


def tag(warehouse: str, name: str, stop: str, made: str) -> None:
    """Tags the earliest snapshots, which expire meanwhile; those that were made are written down."""
    table = lh.connect(warehouse=warehouse).table("default.t")
    n = 0
    with open(made, "w") as log:
        while not os.path.exists(stop):
            with contextlib.suppress(lh.NotFoundError):
                number = table.snapshots()[0].id
                table.tag(f"{name}-{n}", snapshot=number)
                log.write(f"{name}-{n} {number}\n")
                log.flush()
            n += 1
