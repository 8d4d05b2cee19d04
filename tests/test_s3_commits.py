"""Commits, tags and schemas on a real S3 server: the store decides who was first, and no row is lost."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.stores import S3Settings, put_new
from lakehouse.stores.s3 import S3Access, botocore_of
from lakehouse.upstream_store import S3FileIO, _probed, with_store_remedies
from tests.stores.fixtures import Lake, lake_on
from tests.stores.proxy import Proxy, Request
from tests.stores.server import BUCKET, SECRET_KEY, S3Server

SCHEMA = pa.schema([("id", pa.int64()), ("frame", pa.large_binary())])
# The whole size of issue 4 is 4 processes x 10 appends.
PROCESSES, APPENDS = (4, 10) if os.environ.get("LAKEHOUSE_STRESS") else (4, 3)
ROWS = 5


def client_of(server: S3Server) -> Any:
    return botocore_of(S3Access(S3Settings.of(server.options())))


def append_rows(options: dict[str, str], process: int, appends: int, ready: Any) -> None:
    table = lh.connect(**options).table("default.frames")
    ready.wait()
    for number in range(appends):
        first = (process * appends + number) * ROWS
        table.append([{"id": first + i, "frame": bytes([i])} for i in range(ROWS)])


def test_processes_that_append_at_the_same_time_lose_nothing(s3_lake: Lake) -> None:
    table = s3_lake.connect().create_table("default.frames", SCHEMA)
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(PROCESSES)
    processes = [context.Process(target=append_rows, args=(s3_lake.options, k, APPENDS, ready)) for k in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    snap = table.latest()
    assert sorted(snap.arrow()["id"].to_pylist()) == list(range(PROCESSES * APPENDS * ROWS))
    assert [info.id for info in table.snapshots()] == list(range(1, PROCESSES * APPENDS + 1))
    row_ids = snap.query().index().row_ids.tolist()
    assert row_ids == list(range(len(row_ids)))


def test_of_many_writers_of_one_key_one_wins(s3_server: S3Server, s3_lake: Lake) -> None:
    client = client_of(s3_server)
    won: list[int] = []

    def write(i: int) -> None:
        if put_new(client, f"{s3_lake.warehouse}/one", f"writer {i}".encode()):
            won.append(i)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    key = s3_lake.warehouse.removeprefix(f"s3://{BUCKET}/") + "/one"
    assert client.get_object(Bucket=BUCKET, Key=key)["Body"].read() == f"writer {won[0]}".encode()


def snapshot_put(request: Request) -> bool:
    return request.method == "PUT" and "/snapshot/snapshot-" in request.path


def test_a_commit_whose_answer_was_lost_is_made_once(s3_server: S3Server, s3_proxy: Proxy) -> None:
    lake = lake_on(s3_proxy.server)
    table = lake.connect().create_table("default.frames", SCHEMA)
    s3_proxy.rule = lambda request: "lost-answer" if snapshot_put(request) and not request.again else None
    commit = table.append([{"id": 1, "frame": b"a"}])
    assert s3_proxy.faults == {"lost-answer": 1}
    assert commit.snapshot_id == 1
    assert table.append([{"id": 2, "frame": b"b"}]).snapshot_id == 2  # its first answer is lost as well
    assert s3_proxy.faults == {"lost-answer": 2}
    s3_proxy.rule = None
    assert table.latest().arrow()["id"].to_pylist() == [1, 2]
    assert [info.id for info in table.snapshots()] == [1, 2]


def test_a_commit_whose_every_answer_is_lost_is_found_by_its_id(s3_proxy: Proxy) -> None:
    table = lake_on(s3_proxy.server).connect().create_table("default.frames", SCHEMA)
    s3_proxy.rule = lambda request: "lost-answer" if snapshot_put(request) else None
    assert table.append([{"id": 1, "frame": b"a"}]).snapshot_id == 1
    assert s3_proxy.faults["lost-answer"] >= 2
    s3_proxy.rule = None
    assert table.latest().arrow()["id"].to_pylist() == [1]


def test_a_commit_that_is_refused_leaves_nothing(s3_proxy: Proxy) -> None:
    table = lake_on(s3_proxy.server).connect().create_table("default.frames", SCHEMA)
    s3_proxy.rule = lambda request: "403" if snapshot_put(request) else None
    with pytest.raises(lh.CommitError, match="AccessDenied"):
        table.append([{"id": 1, "frame": b"a"}])
    s3_proxy.rule = None
    assert table.latest().id is None
    paimon = table.paimon
    left = [info.path for info in paimon.file_io.filesystem.get_file_info(_everything_in(paimon)) if info.is_file]
    assert [path for path in left if path.endswith((".parquet", ".blob"))] == []
    assert table.append([{"id": 2, "frame": b"b"}]).snapshot_id == 1


def test_a_store_that_ignores_the_condition_is_refused_before_anything_is_written(s3_server: S3Server, s3_proxy: Proxy) -> None:
    """As rclone and s3rver do: they say that it was written."""
    made = lake_on(s3_server)
    made.connect().create_table("default.frames", SCHEMA)
    s3_proxy.rule = lambda request: "deaf"
    deaf = Lake({**made.options, **s3_proxy.server.options()})
    with pytest.raises(lh.CommitError, match="ignores conditions on writes"):
        deaf.connect().create_table("default.other", SCHEMA)
    table = deaf.connect().table("default.frames")
    with pytest.raises(lh.CommitError, match="ignores conditions on writes"):
        table.append([{"id": 1, "frame": b"a"}])
    paimon = table.paimon
    left = [info.path for info in paimon.file_io.filesystem.get_file_info(_everything_in(paimon)) if info.is_file]
    assert [path.rpartition("/")[2] for path in left] == ["schema-0"]
    written = {request.path.rpartition("/")[2] for request in s3_proxy.requests if request.method in ("PUT", "POST")}
    assert {name for name in written if not name.startswith(".lakehouse-probe")} <= {""}  # "": the database's folder


def test_a_tag_is_made_by_one_of_those_who_make_it(s3_lake: Lake) -> None:
    table = s3_lake.connect().create_table("default.frames", SCHEMA)
    table.append([{"id": 1, "frame": b"a"}])
    table.append([{"id": 2, "frame": b"b"}])
    outcomes: list[Any] = []

    def tag(snapshot: int) -> None:
        try:
            outcomes.append(table.tag("release", snapshot=snapshot))
        except lh.ConfigError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=tag, args=(1 + i % 2,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(made) == 1
    assert table.tags() == {"release": made[0]}


def test_two_processes_that_make_one_table_agree_on_it(s3_lake: Lake) -> None:
    catalogs = [s3_lake.connect() for _ in range(3)]
    uuids: list[str] = []

    def make(catalog: lh.Catalog) -> None:
        table = catalog.create_table("default.frames", SCHEMA, exist_ok=True)
        uuids.append(table.latest().version.uuid)

    threads = [threading.Thread(target=make, args=(catalog,)) for catalog in catalogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(uuids) == 3
    assert len(set(uuids)) == 1


def test_the_probe_is_made_once_and_leaves_nothing(s3_proxy: Proxy) -> None:
    lake = lake_on(s3_proxy.server)
    table = lake.connect().create_table("default.frames", SCHEMA)
    table.append([{"id": 1, "frame": b"a"}])
    lake.connect().table("default.frames").append([{"id": 2, "frame": b"a"}])
    probes = [request for request in s3_proxy.requests if ".lakehouse-probe" in request.path]
    assert sorted(probe.method for probe in probes) == ["DELETE", "PUT", "PUT"]
    within = urlsplit(lake.warehouse).path
    assert all(probe.path.startswith(f"/{BUCKET}{within}/.lakehouse-probe") for probe in probes)  # where rights may end
    assert (s3_proxy.server.endpoint, BUCKET) in _probed


def test_the_remedy_sits_beneath_a_cache_and_pickles(s3_lake: Lake, tmp_path: Any) -> None:
    cached = s3_lake.connect(
        **{"local-cache.enabled": "true", "local-cache.dir": str(tmp_path), "local-cache.max-size": "10 mb"}
    )
    table = cached.create_table("default.frames", SCHEMA)
    assert table.append([{"id": 1, "frame": b"a"}]).snapshot_id == 1
    file_io = s3_lake.connect().paimon.file_io
    assert type(file_io) is S3FileIO
    assert pickle.loads(pickle.dumps(file_io)).try_to_write_atomic(f"{s3_lake.warehouse}/x", "y") is True
    assert type(with_store_remedies(lh.connect(warehouse=str(tmp_path / "w")).paimon).file_io) is not S3FileIO


def test_no_secret_in_what_commits_raise(s3_proxy: Proxy) -> None:
    table = lake_on(s3_proxy.server).connect().create_table("default.frames", SCHEMA)
    s3_proxy.rule = lambda request: "403" if request.method == "PUT" else None
    with pytest.raises(lh.CommitError) as caught:
        table.append([{"id": 1, "frame": b"a"}])
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET_KEY not in str(error)
        error = error.__cause__ or error.__context__


def _everything_in(paimon: Any) -> Any:
    from pyarrow.fs import FileSelector

    return FileSelector(str(paimon.table_path).removeprefix("s3://"), recursive=True)
