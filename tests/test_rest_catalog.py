"""Catalogs behind a server that speaks the Paimon REST API: connecting, listing, making, dropping; refusals and silences."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.served.client import BoundedClient
from tests.rest import Fault, RestServer

SCHEMA = pa.schema([("id", pa.int64()), ("channel", pa.string()), ("frame", pa.large_binary())])
TOKEN = "token-of-the-test"


@pytest.fixture
def catalog(rest: RestServer) -> lh.Catalog:
    return lh.connect(**rest.options())


def shown(error: BaseException | None) -> str:
    """Text and repr of an error and of all that it came from."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def test_tables_are_made_listed_and_dropped(catalog: lh.Catalog, rest: RestServer) -> None:
    assert (catalog.databases(), catalog.tables()) == ([], [])
    names = [f"drives.t{number}" for number in range(7)]  # more than a page
    for name in names:
        catalog.create_table(name, SCHEMA, partition_by=["channel"])
    catalog.create_database("other")
    assert catalog.databases() == ["drives", "other"]
    assert catalog.tables() == catalog.tables("drives") == names
    assert catalog.tables("other") == []
    assert rest.count("GET tables") > 4  # pages were asked for
    table = catalog.table("drives.t3")
    assert (table.name, table.partition_by, table.schema) == ("drives.t3", ("channel",), SCHEMA)
    catalog.drop_table("drives.t3")
    assert "drives.t3" not in catalog.tables()
    with pytest.raises(lh.NotFoundError, match=r"no table 'drives\.t3' in .*; tables: drives\.t0, drives\.t1"):
        catalog.table("drives.t3")


def test_absent_things(catalog: lh.Catalog) -> None:
    with pytest.raises(lh.NotFoundError, match=r"no database 'nope'; databases: none"):
        catalog.tables("nope")
    with pytest.raises(lh.NotFoundError, match=r"no table 'nope\.t' in .*; tables: none"):
        catalog.table("nope.t")
    with pytest.raises(lh.NotFoundError, match="no table"):
        catalog.drop_table("nope.t")
    catalog.drop_table("nope.t", missing_ok=True)
    catalog.create_table("drives.t", SCHEMA)
    with pytest.raises(lh.ConfigError, match="exists; pass exist_ok=True"):
        catalog.create_table("drives.t", SCHEMA)
    assert catalog.create_table("drives.t", SCHEMA, exist_ok=True).name == "drives.t"


def test_an_absent_warehouse(rest: RestServer) -> None:
    with pytest.raises(lh.ConfigError, match="404|no such warehouse"):
        lh.connect(**rest.options(warehouse="nope")).tables()


def test_defaults_of_tables_are_applied(rest: RestServer) -> None:
    rest.config["table-default.commit.max-retries"] = "7"  # the server may give some
    catalog = lh.connect(
        **rest.options(**{"table-default.read.batch-size": "64", "table-default.blob.target-file-size": "1 gb"})
    )
    table = catalog.create_table("drives.t", SCHEMA, options={"read.batch-size": "32"})
    held = table.paimon.table_schema.options
    assert (held["read.batch-size"], held["blob.target-file-size"], held["commit.max-retries"]) == ("32", "1 gb", "7")


def test_a_table_whose_making_was_left_without_an_answer_is_ours(catalog: lh.Catalog, rest: RestServer) -> None:
    rest.faults.append(Fault("POST tables", lost=True))
    assert catalog.create_table("drives.t", SCHEMA).append([{"id": 1}]).snapshot_id == 1
    assert rest.count("POST tables") == 1


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        begun_s = time.monotonic()
        with pytest.raises(lh.ConfigError, match="can't be opened: the server can't be reached .*refused.*check uri") as caught:
            lh.connect(metastore="rest", uri=uri, warehouse="lake", **{"token.provider": "bear", "token": TOKEN}).tables()
    assert uri in str(caught.value)
    assert TOKEN not in shown(caught.value)
    assert time.monotonic() - begun_s < 5


def test_a_server_that_takes_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedClient, "_CONNECT_TIMEOUT_SECONDS", 0.5)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = deaf.getsockname()
        waiting = [socket.socket() for _ in range(4)]  # these fill its queue
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        options = {"metastore": "rest", "uri": f"http://127.0.0.1:{address[1]}", "warehouse": "lake"}
        with pytest.raises(lh.ConfigError, match="can't be reached .*no connection within 0.5 s"):
            lh.connect(**options, **{"token.provider": "bear", "token": TOKEN}).tables()
        for one in waiting:
            one.close()


def test_a_server_that_gives_no_answer(catalog: lh.Catalog, rest: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedClient, "_READ_TIMEOUT_SECONDS", 0.3)
    assert catalog.tables() == []
    rest.faults.append(Fault("GET databases", stall_s=2))
    with pytest.raises(lh.LakehouseError, match="no answer within 0.3 s.*try again"):
        catalog.tables()
    assert catalog.tables() == []


@pytest.mark.parametrize("status", [429, 503])
def test_reading_is_tried_again_when_the_server_is_too_busy(catalog: lh.Catalog, rest: RestServer, status: int) -> None:
    catalog.create_table("drives.t", SCHEMA)
    before = rest.count("GET databases")
    rest.faults.append(Fault("GET databases", status=status))
    assert catalog.databases() == ["drives"]
    assert rest.count("GET databases") == before + 2


def test_waits_are_bounded_wherever_a_client_is_made(catalog: lh.Catalog) -> None:
    catalog.create_table("drives.t", SCHEMA)
    held = catalog.table("drives.t").paimon
    of_commits = held.catalog_environment.snapshot_commit(held.snapshot_manager()).catalog
    assert of_commits is catalog.paimon  # one session for all
    for client in (
        catalog.paimon.rest_api.client,
        pickle.loads(pickle.dumps(of_commits.catalog_loader())).load().rest_api.client,
    ):
        assert client._timeout == (10, 60)


@pytest.mark.parametrize(
    ("status", "kind", "match"),
    [
        (401, lh.ConfigError, r"does not accept the credentials .*check token or dlf"),
        (403, lh.ConfigError, r"these credentials may not do that .*grant the right"),
        (500, lh.LakehouseError, r"Server error: it went wrong.*try again"),
        (502, lh.LakehouseError, r"Unable to process: it went wrong.*try again"),
    ],
)
def test_refusals_say_why_and_show_no_token(
    catalog: lh.Catalog,
    rest: RestServer,
    caplog: pytest.LogCaptureFixture,
    status: int,
    kind: type[Exception],
    match: str,
) -> None:
    catalog.create_table("drives.t", SCHEMA)
    table = catalog.table("drives.t")
    caplog.set_level(logging.DEBUG)
    asked: list[tuple[str, Any]] = [
        ("GET databases", catalog.databases),
        ("GET tables", catalog.tables),
        ("GET t", lambda: catalog.table("drives.t")),
        ("GET tags", table.tags),
    ]
    for on, ask in asked:
        rest.faults.append(Fault(on, status=status))
        with pytest.raises(kind, match=match) as caught:
            ask()
        assert type(caught.value) is kind
        assert rest.uri in str(caught.value)
        assert "***" in str(caught.value)  # the server echoes the token
        assert TOKEN not in shown(caught.value)
        ask()
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("status", [401, 403, 500])
def test_what_a_server_refuses_to_write(catalog: lh.Catalog, rest: RestServer, status: int) -> None:
    kind = lh.CommitError if status == 500 else lh.ConfigError
    for on, ask in (
        ("POST databases", lambda: catalog.create_database("other")),
        ("POST tables", lambda: catalog.create_table("drives.t", SCHEMA)),
    ):
        rest.faults.append(Fault(on, status=status))
        with pytest.raises(kind) as caught:
            ask()
        assert TOKEN not in shown(caught.value)
    table = catalog.create_table("drives.t", SCHEMA)
    table.append([{"id": 1}])
    rest.faults.append(Fault("POST tags", status=status))
    with pytest.raises(lh.CommitError, match="tag 'v1' can't be written"):
        table.tag("v1")
    table.tag("v1")
    rest.faults.append(Fault("DELETE v1", status=status))
    with pytest.raises(lh.CommitError, match="tag 'v1' can't be removed"):
        table.delete_tag("v1")
    assert table.tags() == {"v1": 1}
    rest.faults.append(Fault("DELETE t", status=status))
    with pytest.raises(kind):
        catalog.drop_table("drives.t")
    assert catalog.tables() == ["drives.t"]


def test_a_token_that_expires(catalog: lh.Catalog, rest: RestServer) -> None:
    catalog.create_table("drives.t", SCHEMA)
    rest.identity.bearer.clear()
    with pytest.raises(lh.ConfigError, match=r"unknown or has expired.*when they expire"):
        catalog.tables()


def test_the_netrc_file_does_not_replace_the_token(rest: RestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    catalog = lh.connect(**rest.options())
    catalog.create_table("drives.t", SCHEMA).append([{"id": 1}])
    assert set(rest.keys_seen) == {TOKEN}


@pytest.mark.parametrize("uri", ["http://me:pass-of-the-test@127.0.0.1:1", "http://127.0.0.1:1/?token=pass-of-the-test"])
def test_passwords_in_the_uri_are_refused(rest: RestServer, uri: str) -> None:
    options = rest.options(uri=uri)
    with pytest.raises(lh.ConfigError, match=r"uri .*holds a user name or password.*token") as caught:
        lh.connect(**options)
    assert "pass-of-the-test" not in shown(caught.value)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "token.provider is missing"),
        ({"token.provider": "bear"}, "token is missing"),
        (
            {"token.provider": "dlf", "dlf.region": "cn-hangzhou"},
            "dlf.access-key-id and dlf.access-key-secret, or dlf.token-path",
        ),
        ({"token.provider": "dlf", "dlf.access-key-id": "a", "dlf.region": "x"}, "dlf.access-key-secret"),
    ],
)
def test_credentials_that_are_missing(rest: RestServer, options: dict[str, str], match: str) -> None:
    with pytest.raises(lh.ConfigError, match=match):
        lh.connect(metastore="rest", uri=rest.uri, warehouse="lake", **options).tables()
    assert rest.seen == []


def test_tags_travel_and_branches(catalog: lh.Catalog, rest: RestServer, tmp_path: Path) -> None:
    table = catalog.create_table("drives.t", SCHEMA, partition_by=["channel"])
    for number in range(5):
        table.append([{"id": number, "channel": "front", "frame": bytes([number]) * 9}])
        assert table.tag(f"v{number}") == number + 1
    assert rest.count("POST tags") == 5
    assert table.tags() == {f"v{number}": number + 1 for number in range(5)}
    with pytest.raises(lh.ConfigError, match="tag 'v1' exists and names snapshot 2"):
        table.tag("v1")
    assert table.tag("v1", snapshot=4, replace=True) == 4
    assert table.at(tag="v1").count_rows() == 4
    table.delete_tag("v4")
    assert "v4" not in table.tags()
    with pytest.raises(lh.NotFoundError, match="no tag 'v4'; tags: v0, v1, v2, v3"):
        table.at(tag="v4")
    assert table.at(snapshot=2).arrow(blobs="bytes")["frame"].to_pylist() == [b"\0" * 9, b"\1" * 9]
    times = [info.time for info in table.snapshots()]
    assert table.at(time=times[2]).id == 3
    dev = table.create_branch("dev", tag="v2")
    assert (table.at(branch="dev").count_rows(), table.branches(), dev.tags()) == (3, ["dev"], {})
    assert dev.append([{"id": 9, "channel": "rear"}]).snapshot_id == 4
    assert (dev.latest().count_rows(), table.latest().count_rows()) == (4, 5)
    with pytest.raises(lh.ConfigError, match="exists"):
        table.create_branch("dev")
    assert table.rollback(snapshot=2).rows == 2
    assert table.latest().count_rows() == 2
    assert list(table.tags()) == ["v0", "v1", "v2", "v3"]
    with pytest.raises(lh.NotFoundError, match="no branch 'nope'; branches: dev"):
        table.at(branch="nope")
    table.delete_branch("dev")
    assert table.branches() == []
    rest.faults.append(Fault("POST branches", status=403))
    with pytest.raises(lh.CommitError, match="branch 'dev' can't be written .*403|no permission|No permission"):
        table.create_branch("dev")
    assert list(table.tags()) == ["v0", "v1", "v2", "v3"]


def test_a_tag_that_can_not_move_comes_back(catalog: lh.Catalog, rest: RestServer) -> None:
    table = catalog.create_table("drives.t", SCHEMA)
    table.append([{"id": 1}])
    table.append([{"id": 2}])
    table.tag("v", snapshot=1)
    rest.faults += [Fault("POST tags", status=409), Fault("POST tags", status=500)]
    with pytest.raises(lh.CommitError):
        table.tag("v", replace=True)
    assert table.tags() == {"v": 1}


def test_a_tag_whose_answer_is_lost_is_there(catalog: lh.Catalog, rest: RestServer) -> None:
    table = catalog.create_table("drives.t", SCHEMA)
    table.append([{"id": 1}])
    rest.faults.append(Fault("POST tags", lost=True))
    assert table.tag("v") == 1
    assert table.tags() == {"v": 1}


def test_a_forked_process_asks_by_itself(catalog: lh.Catalog) -> None:
    catalog.create_table("drives.t", SCHEMA)
    loader = catalog.table("drives.t").paimon.catalog_environment.catalog_loader
    here = loader.load()
    assert here is loader.load() is catalog.paimon
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:  # what a child does with what it inherits
        there = loader.load()
        os.write(writer, b"other" if there is not here and there.list_databases() == ["drives"] else b"same")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 9) == b"other"
    os.close(reader)
    os.close(writer)
