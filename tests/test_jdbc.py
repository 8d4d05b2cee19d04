"""Catalogs in a database: SQLite with several processes; PostgreSQL where a server can be started."""

from __future__ import annotations

import importlib.util
import multiprocessing
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh

SCHEMA = pa.schema([("id", pa.int64()), ("channel", pa.string()), ("frame", pa.large_binary())])
HAS_POSTGRES = all(importlib.util.find_spec(name) for name in ("pgserver", "psycopg2"))


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {"metastore": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/catalog.db", "warehouse": str(tmp_path / "lake")}


def rows(first: int, count: int = 3) -> list[dict[str, Any]]:
    return [{"id": number, "channel": f"c{number % 2}", "frame": b"%d" % number} for number in range(first, first + count)]


def use(options: dict[str, str]) -> None:
    """What catalogs are for: make, list, write, tag, travel, train, drop."""
    catalog = lh.connect(**options)
    assert (catalog.databases(), catalog.tables()) == ([], [])
    table = catalog.create_table("drives.t", SCHEMA, partition_by=["channel"])
    table.append(rows(0))
    table.tag("v1")
    table.append(rows(3))
    assert (catalog.databases(), catalog.tables()) == (["drives"], ["drives.t"])
    assert (table.at(tag="v1").count_rows(), table.latest().count_rows()) == (3, 6)
    dataset = lh.Dataset(table.at(tag="v1").query().index(), batch_size=1, rank=0, world=1)
    assert sorted(batch["frame"][0] for batch in dataset) == [b"0", b"1", b"2"]
    with pytest.raises(lh.ConfigError, match="exists"):
        catalog.create_table("drives.t", SCHEMA)
    with pytest.raises(lh.NotFoundError, match=r"no table 'drives\.nope' in .*; tables: drives\.t"):
        catalog.table("drives.nope")
    assert lh.connect(**options, **{"catalog-key": "other"}).tables() == []  # several catalogs in one database
    catalog.drop_table("drives.t")
    assert catalog.tables() == []


def test_sqlite(options: dict[str, str]) -> None:
    use(options)


def test_no_connection_is_opened_to_look_at_a_table(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    table = lh.connect(**options).create_table("drives.t", SCHEMA)
    opened: list[Any] = []
    connect = sqlite3.connect

    def counting(*given: Any, **named: Any) -> Any:
        opened.append(given)
        return connect(*given, **named)

    monkeypatch.setattr(sqlite3, "connect", counting)
    table.append(rows(0))
    assert table.latest().count_rows() == 3
    assert opened == []


def _make(options: dict[str, str], worker: int, begin: Any) -> None:
    catalog = lh.connect(**options)
    begin.wait()
    for number in range(4):
        catalog.create_table(f"drives.t{worker}_{number}", SCHEMA)
        catalog.create_table("drives.common", SCHEMA, exist_ok=True).append(rows((worker * 4 + number) * 3))


def test_several_processes_make_tables_and_write_to_one(options: dict[str, str]) -> None:
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(3)
    workers = [context.Process(target=_make, args=(options, worker, begin)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    catalog = lh.connect(**options)
    assert catalog.tables() == sorted(["drives.common", *(f"drives.t{w}_{n}" for w in range(3) for n in range(4))])
    table = catalog.table("drives.common")
    assert sorted(table.latest().arrow()["id"].to_pylist()) == list(range(36))
    assert [info.id for info in table.snapshots()] == list(range(1, 13))


ROUNDS = 12


def _meet(options: dict[str, str], worker: int, begin: Any, outcomes: Any) -> None:
    catalog = lh.connect(**options)
    for number in range(ROUNDS):
        begin.wait()
        catalog.create_table(f"d{number}.common", SCHEMA, exist_ok=True).append(rows(worker * 3))
        begin.wait()
        try:
            catalog.create_table(f"d{number}.single", SCHEMA).append(rows(worker * 3))
        except lh.ConfigError as error:
            outcomes.put((number, str(error)))
        else:
            outcomes.put((number, "made"))


def test_processes_that_make_one_database_and_table_at_the_same_moment(options: dict[str, str]) -> None:
    meet(options)


def meet(options: dict[str, str]) -> None:
    context = multiprocessing.get_context("spawn")
    begin, outcomes = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_meet, args=(options, worker, begin, outcomes)) for worker in range(3)]
    for worker in workers:
        worker.start()
    found = sorted(outcomes.get(timeout=120) for _ in range(3 * ROUNDS))
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    catalog = lh.connect(**options)
    for number in range(ROUNDS):
        refused = f"table d{number}.single exists; pass exist_ok=True to use it, or drop_table first"
        assert [text for round_, text in found if round_ == number] == ["made", refused, refused]
        ids = [sorted(catalog.table(f"d{number}.{name}").latest().arrow()["id"].to_pylist()) for name in ("common", "single")]
        assert ids[0] == list(range(9))
        assert len(ids[1]) == 3


def test_a_folder_that_the_database_does_not_list(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.database._LISTED_WITHIN_S", 0.2)
    table = lh.connect(**options).create_table("drives.t", SCHEMA)
    table.append(rows(0))
    other = lh.connect(**options, **{"catalog-key": "other"})
    for exist_ok in (False, True):
        with pytest.raises(lh.CommitError, match=r"drives.db/t holds a table that the database doesn't list"):
            other.create_table("drives.t", SCHEMA, exist_ok=exist_ok)
    assert table.latest().count_rows() == 3


def test_a_locked_database_makes_nothing(options: dict[str, str], tmp_path: Path) -> None:
    catalog = lh.connect(**options)
    catalog.create_database("drives")
    assert catalog.tables() == []
    other = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(lh.CommitError, match=r"table drives\.t can't be made in .*database is locked"):
        catalog.create_table("drives.t", SCHEMA)
    assert not list((tmp_path / "lake").rglob("schema-*"))
    release = threading.Timer(1.0, other.execute, ["ROLLBACK"])  # a writer waits for another
    release.start()
    assert catalog.create_table("drives.t", SCHEMA).append(rows(0)).snapshot_id == 1
    release.join()
    other.close()


def test_a_database_that_can_not_be_opened(tmp_path: Path) -> None:
    options = {"metastore": "jdbc", "warehouse": str(tmp_path)}
    for uri, match in (
        (f"jdbc:sqlite:{tmp_path}/no/such/folder.db", "unable to open database"),
        ("jdbc:oracle://me:planted-password@host/db", r"Unsupported JDBC catalog URI .*\*\*\*"),
        ("jdbc:postgresql://me:planted-password@127.0.0.1:1/db", "psycopg2|refused|connection"),
    ):
        with pytest.raises(lh.ConfigError, match=f"can't be opened: .*{match}") as caught:
            lh.connect(uri=uri, **options).tables()
        error: BaseException | None = caught.value
        while error is not None:
            assert "planted-password" not in f"{error!r} {error}"
            error = error.__cause__ or error.__context__


@pytest.fixture
def postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of a server of the test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    from pgserver.postgres_server import get_server

    # Run by root, the server runs as another user, who may not enter pytest's folders.
    folder = Path(tempfile.mkdtemp(prefix="lakehouse-pg-"))
    folder.chmod(0o755)
    with get_server(folder / "data", cleanup_mode="stop") as server:
        yield server.get_uri()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.filterwarnings("default")  # pgserver's own
@pytest.mark.skipif(not HAS_POSTGRES, reason="needs pgserver and psycopg2")
def test_processes_that_meet_in_an_empty_postgresql(postgres: str, tmp_path: Path) -> None:
    """Its own tables are made at that moment, too."""
    host = postgres.rpartition("host=")[2]
    meet({
        "metastore": "jdbc", "uri": "jdbc:postgresql:///postgres", "jdbc.user": "postgres", "jdbc.host": host,
        "warehouse": str(tmp_path / "lake"),
    })  # fmt: skip


@pytest.mark.filterwarnings("default")  # pgserver's own
@pytest.mark.skipif(not HAS_POSTGRES, reason="needs pgserver and psycopg2")
def test_postgresql(postgres: str, tmp_path: Path) -> None:
    host = postgres.rpartition("host=")[2]
    uri = "jdbc:postgresql:///postgres"
    use({"metastore": "jdbc", "uri": uri, "jdbc.user": "postgres", "jdbc.host": host, "warehouse": str(tmp_path / "lake")})
