"""Faults of pypaimon 2.1 behind a catalog server, each shown as it is; one that heals turns its test red."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory
from pypaimon.schema.schema import Schema

from tests.rest import Fault, RestServer

SCHEMA = pa.schema([("id", pa.int64())])


def test_each_look_at_the_head_makes_a_client_that_may_wait_for_minutes(rest: RestServer) -> None:
    catalog = CatalogFactory.create(rest.options())
    loader = catalog.catalog_loader()
    assert loader.load() is not loader.load()
    assert catalog.rest_api.client._timeout == (180, 180)


def test_the_netrc_file_replaces_the_token(rest: RestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(Exception, match="no credentials: Basic"):
        CatalogFactory.create(rest.options())


def test_a_refused_commit_is_tried_again(rest: RestServer) -> None:
    catalog = CatalogFactory.create(rest.options())
    catalog.create_database("drives", True)
    options = {"commit.max-retries": "3", "commit.min-retry-wait": "1 ms", "commit.max-retry-wait": "2 ms"}
    catalog.create_table("drives.t", Schema.from_pyarrow_schema(SCHEMA, options=options), False)
    builder = catalog.get_table("drives.t").new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.table({"id": [1]}))
    rest.faults.append(Fault("POST commit", status=403, times=99))
    with pytest.raises(RuntimeError, match="there maybe exist commit conflicts"):
        commit.commit(write.prepare_commit())
    assert rest.count("POST commit") == 4


def test_an_error_repeats_the_token_that_a_server_echoes(rest: RestServer) -> None:
    rest.identity.bearer.clear()
    with pytest.raises(Exception, match="token-of-the-test"):
        CatalogFactory.create(rest.options(token="token-of-the-test"))


def test_a_token_is_used_for_a_table_of_the_same_name_on_another_server(rest: RestServer, tmp_path: Path) -> None:
    held = []
    with RestServer.run(tmp_path / "other", bearer={"token-of-the-test"}) as other:
        for server, name in ((rest, "one"), (other, "two")):
            server.config["data-token.enabled"] = "true"
            server.table_token = lambda name=name: ({"fs.s3.accessKeyId": name}, int((time.time() + 7200) * 1000))
            catalog = CatalogFactory.create(server.options())
            catalog.create_database("upstream", True)
            catalog.create_table("upstream.t", Schema.from_pyarrow_schema(SCHEMA), False)
            held.append(catalog.get_table("upstream.t").file_io.valid_token().token["fs.s3.accessKeyId"])
    assert held == ["one", "one"]


def test_a_token_for_half_an_hour_is_asked_for_by_every_file(rest: RestServer) -> None:
    rest.config["data-token.enabled"] = "true"
    rest.table_token = lambda: ({"fs.s3.accessKeyId": "key"}, int((time.time() + 1800) * 1000))
    catalog = CatalogFactory.create(rest.options())
    catalog.create_database("upstream", True)
    catalog.create_table("upstream.half", Schema.from_pyarrow_schema(SCHEMA), False)
    file_io = catalog.get_table("upstream.half").file_io
    for _ in range(5):
        file_io.exists(str(rest.lake.folder))
    assert rest.count("GET token") >= 5


def test_defaults_of_tables_are_ignored(tmp_path: Path) -> None:
    catalog = CatalogFactory.create({"warehouse": str(tmp_path), "table-default.read.batch-size": "64"})
    catalog.create_database("drives", True)
    catalog.create_table("drives.t", Schema.from_pyarrow_schema(SCHEMA), False)
    assert "read.batch-size" not in catalog.get_table("drives.t").table_schema.options


def test_each_look_at_a_table_of_a_database_opens_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = CatalogFactory.create({"metastore": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/db", "warehouse": str(tmp_path)})
    catalog.create_database("drives", True)
    catalog.create_table("drives.t", Schema.from_pyarrow_schema(SCHEMA), False)
    manager = catalog.get_table("drives.t").snapshot_manager()
    opened = []
    connect = sqlite3.connect

    def counting(*given: object, **named: object) -> object:
        opened.append(connect(*given, **named))  # type: ignore[call-overload]
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", counting)
    for _ in range(3):
        assert manager.get_latest_snapshot() is None
    assert len(opened) == 3
    for connection in opened:
        connection.close()
    catalog.close()


def test_in_a_bucket_with_versions_a_commit_falls_back_to_a_rename(caplog: pytest.LogCaptureFixture) -> None:
    from types import SimpleNamespace

    from pypaimon.common.options import Options
    from pypaimon.filesystem.oss_file_io import OssFileIO

    options = {"fs.oss.endpoint": "oss-cn-hangzhou.aliyuncs.com", "fs.oss.accessKeyId": "a", "fs.oss.accessKeySecret": "b"}
    file_io = OssFileIO("oss://bucket/lake", Options(options))
    bucket = SimpleNamespace(get_bucket_versioning=lambda: SimpleNamespace(status="Suspended"))
    assert file_io._supports_atomic_write(bucket) is False
    assert "Concurrent commits are not protected against overwrites" in caplog.text
