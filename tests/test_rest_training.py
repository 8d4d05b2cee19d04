"""Training through a catalog server: index, loader, workers, resume, changes; the same as on a plain folder."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from daft import col

import lakehouse as lh
from tests.rest import Lake, RestServer
from tests.stores.proxy import Fault, Proxy, Request
from tests.stores.server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server

SCHEMA = pa.schema([("id", pa.int64()), ("channel", pa.string()), ("speed", pa.float64()), ("frame", pa.large_binary())])
ROWS = 120


def rows(count: int = ROWS) -> list[dict[str, Any]]:
    return [
        {"id": number, "channel": f"c{number % 3}", "speed": float(number), "frame": b"%d" % number * (number % 7 + 1)}
        for number in range(count)
    ]


@pytest.fixture
def table(rest: RestServer) -> lh.Table:
    table = lh.connect(**rest.options()).create_table("drives.frames", SCHEMA, partition_by=["channel"])
    table.append(rows())
    table.tag("v1")
    return table


def batches(loader: lh.Loader) -> list[tuple[list[int], list[bytes]]]:
    return [(batch["id"].tolist(), list(batch["frame"])) for batch in loader]


def loader(index: lh.RowIndex, workers: int = 0, **options: Any) -> lh.Loader:
    dataset = lh.Dataset(index, batch_size=8, seed=3, rank=0, world=1, **options)
    return lh.Loader(dataset, workers=workers, start_method="forkserver" if workers else None)


def test_training_is_the_same_as_on_a_folder(table: lh.Table, tmp_path: Path) -> None:
    plain = lh.connect(warehouse=str(tmp_path / "plain")).create_table("drives.frames", SCHEMA, partition_by=["channel"])
    plain.append(rows())
    ours, theirs = (one.latest().query().where(col("speed") >= 20).select("id", "frame").index() for one in (table, plain))
    got = batches(loader(ours))
    assert got == batches(loader(theirs))
    assert sorted(number for numbers, _ in got for number in numbers) == sorted({n for numbers, _ in got for n in numbers})
    for numbers, frames in got:
        assert frames == [b"%d" % number * (number % 7 + 1) for number in numbers]


def test_a_tag_trains_the_same_rows_after_the_table_has_moved(table: lh.Table, rest: RestServer, tmp_path: Path) -> None:
    index = table.at(tag="v1").query().select("id", "frame").index()
    expected = batches(loader(index))
    index.save(tmp_path / "train.idx")
    table.append([{"id": 1000, "channel": "c0", "frame": b"new"}])
    again = lh.RowIndex.load(tmp_path / "train.idx", lh.connect(**rest.options()))
    assert again.fingerprint == table.at(tag="v1").query().select("id", "frame").index().fingerprint
    assert batches(loader(again)) == expected
    assert rest.options()["token"].encode() not in (tmp_path / "train.idx").read_bytes()


class AsksTheCatalog:
    """A transform that works with the catalog in whichever process it runs."""

    def __init__(self, table: lh.Table) -> None:
        self.table = table

    def __call__(self, batch: dict[str, Any], rngs: list[np.random.Generator]) -> dict[str, Any]:
        time.sleep(0.15)  # so that tokens run out while a worker is at work, however fast it started
        batch["rows"] = [self.table.at(tag="v1").count_rows()] * len(batch["id"])
        batch["pid"] = [os.getpid()] * len(batch["id"])
        return batch


def test_workers_have_working_credentials_while_tokens_change(table: lh.Table, rest: RestServer) -> None:
    """The table's tokens run out every second, in the middle of the epoch and in each worker."""
    given = []
    rest.config["data-token.enabled"] = "true"

    def token() -> tuple[dict[str, str], int]:
        given.append(time.monotonic())
        return {"fs.s3.accessKeyId": f"key-{len(given)}"}, int((time.time() + 0.4) * 1000)

    rest.table_token = token
    table = lh.connect(**rest.options()).table("drives.frames")
    index = table.at(tag="v1").query().select("id", "frame").index()
    seen, pids, tokens_before = [], set(), 0
    for batch in loader(index, workers=2, transform=AsksTheCatalog(table)):
        seen += batch["id"].tolist()
        pids |= set(batch["pid"])
        assert set(batch["rows"]) == {ROWS}
        tokens_before = tokens_before or len(given)
    assert sorted(seen) == list(range(ROWS))
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert len(given) > tokens_before  # renewed in the middle


def test_resume_on_another_machine(table: lh.Table, rest: RestServer) -> None:
    index = table.at(tag="v1").query().select("id", "frame").index()
    expected = batches(loader(index))
    first = loader(index)
    begun = list(itertools.islice(first, 4))
    state = first.state_dict()
    assert rest.options()["token"] not in repr(state)
    other = lh.connect(**rest.options()).table("drives.frames")
    second = loader(other.at(tag="v1").query().select("id", "frame").index())
    second.load_state_dict(state)
    assert [(batch["id"].tolist(), list(batch["frame"])) for batch in begun] + batches(second) == expected


def test_queries(table: lh.Table) -> None:
    snap = table.at(tag="v1")
    assert snap.daft().where(col("channel") == "c1").count_rows() == ROWS // 3
    frame = (
        snap.daft().where(col("id") < 9).with_column("bytes", snap.bytes("frame")).select("id", "bytes").sort("id").to_pydict()
    )
    assert frame["bytes"] == [b"%d" % number * (number % 7 + 1) for number in range(9)]
    assert snap.query().where("speed >= 100").count_rows() == 20
    assert snap.query().explain().partitions == 3


def test_every_change_goes_to_the_server(table: lh.Table, rest: RestServer) -> None:
    def held() -> dict[int, tuple[float | None, bytes | None]]:
        return {row["id"]: (row["speed"], row["frame"]) for row in table.latest().arrow(blobs="bytes").to_pylist()}

    expected = held()
    changes: list[Callable[[], Any]] = [
        lambda: table.update("id < 3", {"speed": -1.0}),
        lambda: table.update("id = 2", {"frame": b"two"}),
        lambda: table.delete("id = 5"),
        lambda: table.upsert(
            [
                {"id": 7, "channel": "c1", "speed": 0.5, "frame": b"7"},
                {"id": 900, "channel": "c0", "speed": None, "frame": None},
            ],
            key=["id"],
        ),
        lambda: table.add_column(pa.field("score", pa.float64())),
    ]
    for number in range(3):
        expected[number] = (-1.0, expected[number][1])
    expected[2] = (-1.0, b"two")
    del expected[5]
    expected[7], expected[900] = (0.5, b"7"), (None, None)
    for at, change in enumerate(changes):
        change()
        assert rest.count("POST commit") == at + 2
    assert held() == expected
    table.compact()
    assert held() == expected
    table.overwrite(rows(4))
    assert sorted(held()) == [0, 1, 2, 3]
    assert table.at(tag="v1").count_rows() == ROWS
    assert table.rollback(tag="v1").rows == ROWS
    assert len(table.snapshots()) == rest.count("POST commit")  # nothing was published past the server
    with pytest.raises(lh.ConfigError, match="its catalog server keeps the snapshots"):
        table.expire(older_than=timedelta(days=1))
    with pytest.raises(lh.ConfigError, match="its catalog server keeps the snapshots"):
        table.remove_orphans(older_than=timedelta(days=1))


def test_many_appends_while_training(table: lh.Table) -> None:
    index = table.at(tag="v1").query().select("id", "frame").index()
    stop = threading.Event()
    written: list[int | None] = []

    def append() -> None:
        while not stop.is_set():
            written.append(table.append([{"id": 5000 + len(written), "channel": "c0", "frame": b"late"}]).snapshot_id)

    writer = threading.Thread(target=append)
    writer.start()
    try:
        for _ in range(3):
            seen = [number for numbers, _ in batches(loader(index)) for number in numbers]
            assert sorted(seen) == list(range(ROWS))
    finally:
        stop.set()
        writer.join()
    assert table.latest().count_rows() == ROWS + len(written)
    assert written == list(range(2, 2 + len(written)))


@pytest.fixture
def on_s3(s3_server: S3Server, s3_proxy: Proxy) -> Iterator[tuple[RestServer, dict[str, str], list[float]]]:
    """A catalog server whose tables lie on S3, readable only by the tokens it gives out: (it, options, times of tokens)."""
    lake = Lake(f"s3://{BUCKET}/served-{uuid.uuid4().hex}", s3_server.options())
    given: list[float] = []

    def token() -> tuple[dict[str, str], int]:
        given.append(time.monotonic())
        return {"fs.s3.accessKeyId": ACCESS_KEY, "fs.s3.accessKeySecret": SECRET_KEY}, int((time.time() + 2.0) * 1000)

    with RestServer.run(lake, bearer={"token-of-the-test"}) as server:
        server.config["data-token.enabled"] = "true"
        server.table_token = token
        keyless = {key: value for key, value in s3_proxy.server.options().items() if "key" not in key}
        yield server, server.options(**keyless), given


_SESSION = re.compile(rb"\r\nx-amz-security-token: *session-(\d+)", re.IGNORECASE)


def signed_without_session(head: bytes) -> bytes:
    """A request without a body, signed anew: the server itself knows no sessions."""
    if _SESSION.search(head) is None:
        return head
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    first, *lines = head.decode().strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    kept = {name: value for name, value in headers.items() if not name.startswith("x-amz-") and name != "authorization"}
    signed = AWSRequest(method, f"http://{headers['host']}{path}", headers={"host": headers["host"]})
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION).add_auth(signed)
    kept |= {name.lower(): value for name, value in signed.headers.items()}
    return "\r\n".join([first, *(f"{name}: {value}" for name, value in kept.items()), "", ""]).encode()


def test_workers_sign_with_the_token_of_the_moment(
    on_s3: tuple[RestServer, dict[str, str], list[float]], s3_proxy: Proxy
) -> None:
    """Each token is another session, which the store refuses once it has ended; that of the writer at once."""
    server, options, _ = on_s3
    lh.connect(**options).create_table("drives.frames", SCHEMA, partition_by=["channel"]).append(rows())
    valid_s, ends = 2.0, dict[int, float]()

    def token() -> tuple[dict[str, str], int]:
        ends[number := len(ends)] = time.time() + valid_s
        keys = {
            "fs.s3.accessKeyId": ACCESS_KEY,
            "fs.s3.accessKeySecret": SECRET_KEY,
            "fs.s3.securityToken": f"session-{number}",
        }
        return keys, int(ends[number] * 1000)

    def rule(request: Request) -> Fault | None:
        if ".blob" not in request.path:  # upstream's own client reads it, with a token that it may hold from before
            return None
        held = _SESSION.search(request.head)
        return None if held is not None and time.time() < ends[int(held[1])] else "expired"

    server.table_token, s3_proxy.rule, s3_proxy.rewrite = token, rule, signed_without_session
    index = lh.connect(**{**options, "s3.region": REGION}).table("drives.frames").latest().query().select("id", "frame").index()
    s3_proxy.requests.clear()
    seen: list[tuple[int, bytes]] = []
    for at, batch in enumerate(loader(index, workers=2, prefetch_bytes=200)):
        seen += zip(batch["id"].tolist(), batch["frame"], strict=True)
        time.sleep(0.6 if at < 10 else 0)
    assert sorted(seen) == sorted((row["id"], row["frame"]) for row in rows())
    used = [_SESSION.search(request.head) for request in s3_proxy.requests if ".blob" in request.path]
    assert len({int(held[1]) for held in used if held is not None}) >= 3


def test_tokens_run_out_in_the_middle_of_an_epoch_on_s3(
    on_s3: tuple[RestServer, dict[str, str], list[float]], s3_proxy: Proxy
) -> None:
    _, options, given = on_s3
    assert not [value for value in options.values() if value in (ACCESS_KEY, SECRET_KEY)]
    table = lh.connect(**options).create_table("drives.frames", SCHEMA, partition_by=["channel"])
    table.append(rows())
    table.tag("v1")
    index = table.at(tag="v1").query().select("id", "frame").index()
    # Some keys are refused although they should still hold; the client asks for new ones and goes on.
    s3_proxy.rule = lambda request: (
        "expired" if ".blob" in request.path and request.number % 7 == 0 and not request.again else None
    )
    before, begun_s = len(given), time.monotonic()
    seen: dict[int, bytes] = {}
    for at, batch in enumerate(loader(index, workers=2, prefetch_bytes=200)):
        seen |= dict(zip(batch["id"].tolist(), batch["frame"], strict=True))
        time.sleep(0.6 if at < 10 else 0)
    assert seen == {row["id"]: row["frame"] for row in rows()}
    assert [at - begun_s for at in given[before:] if at - begun_s > 2.5]  # renewed when those of the start had run out
    s3_proxy.rule = None
    assert table.append([{"id": 1000, "channel": "c0", "frame": b"new"}]).snapshot_id == 2
    assert table.latest().arrow(blobs="bytes").num_rows == ROWS + 1
