"""Who asks a catalog server: DLF signatures, temporary keys that rotate under a running program, tokens of tables."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from tests.rest import RestServer

SCHEMA = pa.schema([("id", pa.int64()), ("channel", pa.string()), ("frame", pa.large_binary())])
KEY, SECRET, STS = "key-id-of-the-test", "secret-of-the-test", "sts-of-the-test"
HOUR_S = 3600.0


@pytest.fixture
def dlf(tmp_path: Path) -> Iterator[RestServer]:
    with RestServer.run(tmp_path / "served", keys={KEY: (SECRET, None)}) as server:
        yield server


def options(server: RestServer, **more: str) -> dict[str, str]:
    common = {"metastore": "rest", "uri": server.uri, "warehouse": "lake", "token.provider": "dlf", "dlf.region": "cn-hangzhou"}
    return {**common, **more}


def keys(key: str = KEY, secret: str = SECRET, **more: str) -> dict[str, str]:
    return {"dlf.access-key-id": key, "dlf.access-key-secret": secret, **more}


def temporary(key: str, left_s: float) -> dict[str, str]:
    """A temporary key as files and metadata services give it; its times are whole seconds."""
    end = datetime.now(timezone.utc) + timedelta(seconds=left_s)
    return {
        "AccessKeyId": key,
        "AccessKeySecret": f"secret-of-{key}",
        "SecurityToken": f"sts-of-{key}",
        "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def admit(server: RestServer, key: str) -> None:
    server.identity.keys[key] = (f"secret-of-{key}", f"sts-of-{key}")


def use_everything(catalog: lh.Catalog) -> None:
    """Each kind of request: with and without a body, with parameters, several pages, names that are encoded."""
    for number in range(5):
        catalog.create_table(f"drives.t{number}", SCHEMA)
    assert len(catalog.tables()) == 5
    table = catalog.table("drives.t1")
    table.append([{"id": 1, "channel": "front", "frame": b"x"}])
    table.tag("v.1-a")
    assert table.at(tag="v.1-a").count_rows() == 1
    table.delete_tag("v.1-a")
    catalog.drop_table("drives.t4")


@pytest.mark.parametrize("token", [None, STS], ids=["key", "sts"])
@pytest.mark.parametrize("algorithm", ["default", "openapi", "openapi-v4"])
def test_requests_are_signed(dlf: RestServer, algorithm: str, token: str | None) -> None:
    dlf.identity.keys[KEY] = (SECRET, token)
    more = {} if token is None else {"dlf.security-token": token}
    use_everything(lh.connect(**options(dlf, **keys(), **more, **{"dlf.signing-algorithm": algorithm})))
    assert set(dlf.keys_seen) == {KEY}


@pytest.mark.parametrize("algorithm", ["default", "openapi", "openapi-v4"])
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"dlf.access-key-secret": "another-secret"}, "signature does not match"),
        ({"dlf.access-key-id": "another-key"}, "access key is unknown or has expired"),
        ({"dlf.security-token": "another-sts"}, "security token is not this key's"),
    ],
)
def test_wrong_keys_are_refused(dlf: RestServer, algorithm: str, wrong: dict[str, str], why: str) -> None:
    catalog = lh.connect(**{**options(dlf, **keys()), **wrong, "dlf.signing-algorithm": algorithm})
    with pytest.raises(lh.ConfigError, match=f"does not accept the credentials .*{why}") as caught:
        catalog.tables()
    shown = f"{caught.value}{caught.value.__cause__!r}"
    assert not [secret for secret in (SECRET, KEY, *wrong.values()) if secret in shown]


def test_the_region_is_part_of_the_signature(dlf: RestServer) -> None:
    with pytest.raises(lh.ConfigError, match="signature does not match"):
        lh.connect(**{**options(dlf, **keys()), "dlf.region": "cn-beijing"}).tables()


def test_keys_from_a_file_rotate_under_a_running_program(dlf: RestServer, tmp_path: Path) -> None:
    path = tmp_path / "token.json"
    admit(dlf, "first")
    path.write_text(json.dumps(temporary("first", HOUR_S + 2)))  # clients look for a new one an hour ahead
    table = lh.connect(**options(dlf, **{"dlf.token-path": str(path)})).create_table("drives.t", SCHEMA)
    table.append([{"id": 0}])
    assert set(dlf.keys_seen) == {"first"}
    admit(dlf, "second")
    path.write_text(json.dumps(temporary("second", 12 * HOUR_S)))
    time.sleep(2.1)
    del dlf.identity.keys["first"]
    table.append([{"id": 1}])
    assert table.latest().count_rows() == 2
    assert dlf.keys_seen[-1] == "second"


def test_keys_from_the_machines_role(dlf: RestServer) -> None:
    admit(dlf, "of-the-role")
    dlf.role_token = lambda: temporary("of-the-role", 6 * HOUR_S)
    role = {"dlf.token-loader": "ecs", "dlf.token-ecs-metadata-url": f"{dlf.uri}/role/", "dlf.token-ecs-role-name": "trainer"}
    lh.connect(**options(dlf, **role)).create_table("drives.t", SCHEMA).append([{"id": 0}])
    assert set(dlf.keys_seen[1:]) == {"of-the-role"}


def _work(table: lh.Table, seconds: float, failures: Any) -> None:
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            table.append([{"id": os.getpid()}])
            table.latest().count_rows()
    except Exception as error:
        failures.put(f"{type(error).__name__}: {error}")


def test_worker_processes_follow_the_rotation(dlf: RestServer, tmp_path: Path) -> None:
    path = tmp_path / "token.json"
    admit(dlf, "first")
    path.write_text(json.dumps(temporary("first", HOUR_S + 3)))
    table = lh.connect(**options(dlf, **{"dlf.token-path": str(path)})).create_table("drives.t", SCHEMA)
    context = multiprocessing.get_context("spawn")
    failures = context.Queue()
    workers = [context.Process(target=_work, args=(table, 4.0, failures)) for _ in range(2)]
    for worker in workers:
        worker.start()
    time.sleep(1.5)
    admit(dlf, "second")
    draft = tmp_path / "draft"
    draft.write_text(json.dumps(temporary("second", 12 * HOUR_S)))
    draft.replace(path)
    time.sleep(2)
    del dlf.identity.keys["first"]
    for worker in workers:
        worker.join()
    assert failures.empty(), failures.get()
    assert [worker.exitcode for worker in workers] == [0, 0]
    pids = table.latest().arrow()["id"].to_pylist()
    assert {worker.pid for worker in workers} == set(pids)  # both worked
    assert {"first", "second"} <= set(dlf.keys_seen)
    assert dlf.keys_seen[-1] == "second"


def with_tokens(rest: RestServer, valid_s: float) -> list[int]:
    """Let the server give data tokens, valid so long; the list grows with each."""
    given: list[int] = []
    lock = threading.Lock()

    def token() -> tuple[dict[str, str], int]:
        with lock:
            given.append(len(given))
        return {"fs.s3.accessKeyId": f"key-{len(given)}"}, int((time.time() + valid_s) * 1000)

    rest.config["data-token.enabled"] = "true"
    rest.table_token = token
    return given


@pytest.mark.parametrize("valid_s", [12 * HOUR_S, HOUR_S, 600.0])
def test_a_tables_token_is_asked_for_once(rest: RestServer, valid_s: float) -> None:
    given = with_tokens(rest, valid_s)
    table = lh.connect(**rest.options()).create_table("drives.t", SCHEMA, partition_by=["channel"])
    for number in range(5):
        table.append([{"id": number, "channel": "front", "frame": b"x"}])
    assert table.latest().arrow(blobs="bytes").num_rows == 5
    assert len(given) == 1


def test_tables_of_one_name_on_two_servers_have_tokens_of_their_own(rest: RestServer, tmp_path: Path) -> None:
    with RestServer.run(tmp_path / "other", bearer={"token-of-the-test"}) as other:
        for server, name in ((rest, "one"), (other, "two")):
            server.config["data-token.enabled"] = "true"
            server.table_token = lambda name=name: ({"fs.s3.accessKeyId": name}, int((time.time() + HOUR_S) * 1000))
            table = lh.connect(**server.options()).create_table("drives.t", SCHEMA)
            assert table.paimon.file_io.valid_token().token["fs.s3.accessKeyId"] == name


def test_a_tables_token_is_renewed_before_it_expires(rest: RestServer) -> None:
    given = with_tokens(rest, 1.0)
    table = lh.connect(**rest.options()).create_table("drives.t", SCHEMA)
    file_io = table.paimon.file_io
    ends = []
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < 2:
        ends.append(file_io.valid_token().expire_at_millis / 1000 - time.time())
        time.sleep(0.05)
    assert 2 <= len(given) <= 4
    assert min(ends) > 0.2  # of 1 s, a quarter is left when it is renewed
