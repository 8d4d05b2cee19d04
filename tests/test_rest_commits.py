"""Commits that a catalog server decides: they go to it and nowhere else, and its silence is never taken for a no."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.served import ServedSnapshotCommit
from tests.rest import Fault, RestServer

SCHEMA = pa.schema([("id", pa.int64()), ("channel", pa.string()), ("frame", pa.large_binary())])


@pytest.fixture
def table(rest: RestServer) -> lh.Table:
    return lh.connect(**rest.options()).create_table("drives.t", SCHEMA, partition_by=["channel"])


def rows(first: int, count: int = 3) -> list[dict[str, object]]:
    return [
        {"id": number, "channel": f"c{number % 2}", "frame": str(number).encode() * 5} for number in range(first, first + count)
    ]


def ids(table: lh.Table) -> list[int]:
    held: list[int] = table.latest().arrow(blobs="bytes").sort_by("id")["id"].to_pylist()
    return held


def files_of(rest: RestServer) -> list[Path]:
    return sorted(path for path in rest.lake.folder.rglob("*") if path.suffix in (".blob", ".parquet"))


def test_a_commit_goes_to_the_server(rest: RestServer, table: lh.Table) -> None:
    commit = table.append(rows(0))
    assert (commit.snapshot_id, rest.count("POST commit")) == (1, 1)
    held = table.paimon
    assert type(held.catalog_environment.snapshot_commit(held.snapshot_manager())) is ServedSnapshotCommit
    assert table.append(rows(3)).snapshot_id == 2
    assert (ids(table), rest.count("POST commit")) == ([0, 1, 2, 3, 4, 5], 2)
    snapshots = [json.loads(path.read_text()) for path in sorted(rest.lake.folder.rglob("snapshot-*"))]
    assert [one["id"] for one in snapshots] == [1, 2]


@pytest.mark.parametrize(
    ("status", "why"), [(400, "it went wrong"), (401, "Not authorized"), (403, "No permission"), (501, "it went")]
)
def test_a_refusal_ends_it_at_once(rest: RestServer, table: lh.Table, status: int, why: str) -> None:
    table.append(rows(0))
    before = files_of(rest)
    rest.faults.append(Fault("POST commit", status=status, times=99))
    with pytest.raises(lh.CommitError, match=f"nothing was committed .*{why}") as caught:
        table.append(rows(3))
    assert not isinstance(caught.value, lh.CommitUnknownError)
    assert rest.count("POST commit") == 2
    assert (ids(table), files_of(rest)) == ([0, 1, 2], before)


def test_a_table_made_again_meanwhile_takes_no_commit_of_the_old_one(rest: RestServer, table: lh.Table) -> None:
    catalog = lh.connect(**rest.options())
    old = table.paimon
    catalog.drop_table("drives.t")
    catalog.create_table("drives.t", SCHEMA, partition_by=["channel"])
    commit = old.catalog_environment.snapshot_commit(old.snapshot_manager())
    catalog.table("drives.t").append(rows(0))
    head = old.snapshot_manager().get_latest_snapshot()
    head.id += 1
    with pytest.raises(Exception, match="does not exist|dropped"):
        commit.commit(head.uuid, head, [])
    assert ids(catalog.table("drives.t")) == [0, 1, 2]


def test_too_busy_is_tried_again(rest: RestServer, table: lh.Table) -> None:
    rest.faults.append(Fault("POST commit", status=503, times=2))
    assert table.append(rows(0)).snapshot_id == 1
    assert (ids(table), rest.count("POST commit")) == ([0, 1, 2], 3)


def test_a_lost_answer_is_found_by_the_commits_id(rest: RestServer, table: lh.Table) -> None:
    rest.faults.append(Fault("POST commit", lost=True))
    commit = table.append(rows(0), commit_id="drive-7")
    assert (commit.snapshot_id, commit.rows, ids(table)) == (1, 3, [0, 1, 2])
    assert rest.count("POST commit") == 1
    assert table.append(rows(0), commit_id="drive-7") == commit
    assert ids(table) == [0, 1, 2]


def test_an_outcome_that_can_not_be_looked_up_is_unknown(rest: RestServer, table: lh.Table) -> None:
    table.append(rows(0))
    down = Fault("GET snapshot", status=500, times=99)
    rest.faults.append(Fault("POST commit", lost=True, then=lambda: rest.faults.append(down)))
    with pytest.raises(lh.CommitUnknownError, match=r"not known .*find_commit\('drive-8'\)"):
        table.append(rows(3), commit_id="drive-8")
    rest.faults.clear()
    assert ids(table) == [0, 1, 2, 3, 4, 5]
    assert table.append(rows(3), commit_id="drive-8").snapshot_id == 2  # what the error advises
    assert ids(table) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("status", [500, 502])
def test_what_the_server_does_later_finds_its_files(rest: RestServer, table: lh.Table, status: int) -> None:
    """A gateway gives up before the server does: the commit comes through after all tries have failed."""
    table.append(rows(0))
    rest.faults.append(Fault("POST commit", status=status, late=True, times=99))
    with pytest.raises(lh.CommitUnknownError, match=r"not known .*may still come.*find_commit\('drive-9'\)"):
        table.append(rows(3), commit_id="drive-9")
    tries = rest.count("POST commit") - 1
    assert 1 < tries < 10
    assert ids(table) == [0, 1, 2]
    rest.faults.clear()
    done = rest.catch_up()
    assert [body for _, body in done] == [{"success": True}] + [{"success": False}] * (tries - 1)
    assert ids(table) == [0, 1, 2, 3, 4, 5]
    assert table.latest().arrow(blobs="bytes").sort_by("id")["frame"].to_pylist()[3:] == [b"3" * 5, b"4" * 5, b"5" * 5]


def test_what_another_commit_has_ruled_out_did_not_happen(rest: RestServer, table: lh.Table) -> None:
    table.append(rows(0))
    other = lh.connect(**rest.options()).table("drives.t")
    # The head moves on while ours gets no answer.
    rest.faults.append(Fault("POST commit", status=500, late=True, then=lambda: other.append(rows(10))))
    table.append(rows(3))
    assert not any(body["success"] for _, body in rest.catch_up())
    assert ids(table) == [0, 1, 2, 3, 4, 5, 10, 11, 12]


def _write(options: dict[str, str], writer: int, appends: int, begin: Any) -> None:
    table = lh.connect(**options).table("drives.t")
    begin.wait()
    for number in range(appends):
        table.append(rows((writer * appends + number) * 3))


def test_processes_that_meet_in_a_commit_lose_nothing(rest: RestServer, table: lh.Table) -> None:
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(4)
    rest.faults.append(Fault("POST commit", stall_s=0.05, times=999))
    writers = [context.Process(target=_write, args=(rest.options(), writer, 6, begin)) for writer in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert ids(table) == list(range(4 * 6 * 3))
    assert [info.id for info in table.snapshots()] == list(range(1, 25))
    assert rest.count("POST commit") > 24  # some met
