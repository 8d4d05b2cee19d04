"""Catalogs: connecting, listing, creating, opening and dropping."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from tests.lake_files import BAD_NAMES
from tests.stores import place
from tests.stores.place import connect, on_stores

pytestmark = on_stores


ROOT = Path(__file__).parent.parent
SCHEMA = pa.schema([("id", pa.int64()), ("frame", pa.large_binary())])


@pytest.mark.s3
def test_a_warehouse_is_made_by_the_first_table(catalog: lh.Catalog, warehouse: Path) -> None:
    assert catalog.tables() == []
    assert catalog.databases() == []
    assert not warehouse.exists()
    table = catalog.create_table("drives.frames", SCHEMA)
    assert (catalog.databases(), catalog.tables()) == (["drives"], ["drives.frames"])
    assert table.append([{"id": 1, "frame": b"x"}]).snapshot_id == 1


@pytest.mark.s3
def test_tables_are_listed_by_database(catalog: lh.Catalog) -> None:
    for name in ("b.two", "a.one", "b.one", "plain"):
        catalog.create_table(name, SCHEMA)
    catalog.create_database("empty")
    assert catalog.databases() == ["a", "b", "default", "empty"]
    assert catalog.tables() == ["a.one", "b.one", "b.two", "default.plain"]
    assert catalog.tables("b") == ["b.one", "b.two"]
    assert catalog.tables("empty") == []
    with pytest.raises(lh.NotFoundError, match="no database 'c'; databases: a, b, default, empty"):
        catalog.tables("c")


def test_a_name_without_a_database_is_in_default(catalog: lh.Catalog) -> None:
    assert catalog.create_table("frames", SCHEMA).name == "default.frames"
    assert catalog.table("frames").name == catalog.table("default.frames").name == "default.frames"


def test_databases_that_exist(catalog: lh.Catalog) -> None:
    catalog.create_database("a")
    catalog.create_database("a")
    with pytest.raises(lh.ConfigError, match="database 'a' exists; pass exist_ok=True"):
        catalog.create_database("a", exist_ok=False)
    assert catalog.databases() == ["a"]


def test_an_absent_table_says_which_there_are(catalog: lh.Catalog) -> None:
    with pytest.raises(lh.NotFoundError, match=r"no table 'default\.nope' in .*; tables: none"):
        catalog.table("default.nope")
    catalog.create_table("default.frames", SCHEMA)
    for name in ("default.nope", "nope.frames"):
        with pytest.raises(lh.NotFoundError, match=rf"no table '{name}' in .*; tables: default\.frames"):
            catalog.table(name)
        with pytest.raises(lh.NotFoundError, match=r"tables: default\.frames"):
            catalog.drop_table(name)
        catalog.drop_table(name, missing_ok=True)
    assert catalog.tables() == ["default.frames"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_names_that_are_paths_touch_nothing(catalog: lh.Catalog, warehouse: Path, name: Any) -> None:
    catalog.create_table("default.frames", SCHEMA)
    before = sorted(warehouse.parent.rglob("*"))
    qualified = f"default.{name}" if isinstance(name, str) else name
    of_tables: list[Callable[[Any], Any]] = [catalog.table, catalog.drop_table, lambda bad: catalog.create_table(bad, SCHEMA)]
    of_databases: list[Callable[[Any], Any]] = [catalog.create_database, catalog.tables]
    for call in of_tables:
        with pytest.raises(lh.ConfigError, match="can't name a table|a table's name is a string"):
            call(qualified)
    if name is not None:
        for call in of_databases:
            with pytest.raises(lh.ConfigError, match="can't name a database"):
                call(name)
    assert sorted(warehouse.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["a.b.c", "default.", ".frames", "default.t$snapshots", "default.t$branch_x", "../default.t", "/t"]
)
def test_what_is_no_table_name(catalog: lh.Catalog, name: str) -> None:
    for call in (catalog.table, catalog.drop_table, lambda bad: catalog.create_table(bad, SCHEMA)):
        with pytest.raises(lh.ConfigError, match="can't name a (table|database)"):
            call(name)


def test_the_engines_own_database_is_refused(catalog: lh.Catalog, warehouse: Path) -> None:
    for call in (lambda: catalog.create_database("sys"), lambda: catalog.create_table("sys.t", SCHEMA)):
        with pytest.raises(lh.ConfigError, match="'sys' can't name a database"):
            call()
    assert not warehouse.exists()


def test_a_refused_schema_makes_no_database(catalog: lh.Catalog, warehouse: Path) -> None:
    with pytest.raises(lh.SchemaError):
        catalog.create_table("fresh.t", pa.schema([("id", pa.uint64())]))
    assert catalog.databases() == []
    assert not warehouse.exists()


# --- tables that exist -------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_a_table_that_exists(catalog: lh.Catalog) -> None:
    catalog.create_table("default.t", SCHEMA).append([{"id": 1, "frame": b"x"}])
    with pytest.raises(lh.ConfigError, match="table default.t exists; pass exist_ok=True to use it, or drop_table first"):
        catalog.create_table("default.t", SCHEMA)
    assert catalog.create_table("default.t", SCHEMA, exist_ok=True).latest().count_rows() == 1


@pytest.mark.parametrize(
    ("schema", "partition_by", "message"),
    [
        (pa.schema([("id", pa.int32()), ("p", pa.string()), ("frame", pa.large_binary())]), ["p"], "other columns: id differ"),
        (pa.schema([("id", pa.int64()), ("p", pa.string())]), ["p"], "other columns: frame differ"),
        (
            pa.schema([("p", pa.string()), ("id", pa.int64()), ("frame", pa.large_binary())]),
            ["p"],
            "the order of columns differ",
        ),
        (
            pa.schema([pa.field("id", pa.int64(), nullable=False), ("p", pa.string()), ("frame", pa.large_binary())]),
            ["p"],
            "id differ",
        ),
        (
            pa.schema([("id", pa.int64()), ("p", pa.string()), ("frame", pa.large_binary())]),
            [],
            r"partitions \['p'\], not \[\]",
        ),
        (
            lh.Schema({"id": pa.int64(), "p": pa.string(), "frame": lh.Blob(reference=True)}),
            ["p"],
            "declared by reference .*: frame",
        ),
    ],
)
def test_a_table_that_exists_otherwise(catalog: lh.Catalog, schema: Any, partition_by: list[str], message: str) -> None:
    held = pa.schema([("id", pa.int64()), ("p", pa.string()), ("frame", pa.large_binary())])
    catalog.create_table("default.t", held, partition_by=["p"])
    with pytest.raises(lh.SchemaError, match=f"table default.t exists.*{message}"):
        catalog.create_table("default.t", schema, partition_by=partition_by, exist_ok=True)
    assert catalog.table("default.t").schema.equals(held)


def test_widened_columns_exist_as_they_were_declared(catalog: lh.Catalog) -> None:
    schema = pa.schema([("label", pa.uint8()), ("name", pa.large_string()), ("day", pa.date64())])
    catalog.create_table("default.t", schema)
    assert catalog.create_table("default.t", schema, exist_ok=True).schema.names == schema.names


def test_a_table_made_again_is_another_table(catalog: lh.Catalog, tmp_path: Path) -> None:
    first = catalog.create_table("default.t", SCHEMA)
    first.append([{"id": 1, "frame": b"first"}])
    old = first.latest()
    index = old.query().index()
    index.save(tmp_path / "train.idx")
    catalog.drop_table("default.t")
    assert catalog.tables() == []
    for call in (first.latest, lambda: first.append([]), lambda: first.schema, first.tags, lambda: catalog.table("default.t")):
        with pytest.raises(lh.NotFoundError, match=r"no table 'default\.t'"):
            call()
    second = catalog.create_table("default.t", SCHEMA)
    second.append([{"id": 1, "frame": b"first"}])
    assert second.latest().version.uuid != old.version.uuid
    assert second.latest() != old
    assert second.latest().query().index().fingerprint != index.fingerprint
    with pytest.raises(lh.ResumeError, match="made from another table of the name default.t"):
        lh.RowIndex.load(tmp_path / "train.idx", catalog)
    with pytest.raises(lh.NotFoundError, match=r"default\.t is another table now"):
        first.latest()


def test_a_table_of_another_engine_has_an_identity(catalog: lh.Catalog) -> None:
    from pypaimon import Schema

    options = {"bucket": "-1", "row-tracking.enabled": "true", "data-evolution.enabled": "true"}
    catalog.create_database("default")
    uuids = []
    for _ in range(2):
        catalog.paimon.create_table("default.t", Schema.from_pyarrow_schema(SCHEMA, options=options), False)
        table = catalog.table("default.t")
        table.append([{"id": 1, "frame": b"x"}])
        assert table.latest().version.uuid == table.latest().version.uuid
        uuids.append(table.latest().version.uuid)
        catalog.drop_table("default.t")
    assert uuids[0] != uuids[1]


# --- warehouses --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["with space", "50%41", "é図🚗", "a#b?c=1", "dots..", "x" * 200])
@pytest.mark.s3
def test_warehouses_of_any_name(tmp_path: Path, name: str) -> None:
    catalog = connect(tmp_path / name)
    table = catalog.create_table("default.t", SCHEMA)
    table.append([{"id": 1, "frame": b"one"}])
    table.tag("v1")
    assert [path.name for path in place.path(tmp_path).iterdir()] == [name]
    assert table.at(tag="v1").arrow(blobs="bytes").to_pylist() == [{"id": 1, "frame": b"one"}]
    assert table.latest().daft().select(table.latest().bytes("frame")).to_pylist() == [{"frame": b"one"}]
    assert table.latest().query().index().row(0)["frame"].read(table) == b"one"


@pytest.mark.local("relative paths")
def test_a_relative_warehouse_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    catalog = lh.connect(warehouse="lake")
    catalog.create_table("default.t", SCHEMA).append([{"id": 1, "frame": b"one"}])
    monkeypatch.chdir("/")
    assert catalog.table("default.t").latest().arrow(blobs="bytes").to_pylist() == [{"id": 1, "frame": b"one"}]


def test_a_warehouse_may_move(tmp_path: Path) -> None:
    connect(tmp_path / "old").create_table("default.t", SCHEMA).append([{"id": 1, "frame": b"one"}])
    place.path(tmp_path / "old").rename(place.path(tmp_path / "new"))
    table = connect(tmp_path / "new").table("default.t")
    table.append([{"id": 2, "frame": b"two"}])
    assert [row["frame"] for row in table.latest().arrow(blobs="bytes").to_pylist()] == [b"one", b"two"]


@pytest.mark.local("a file in the place of a folder")
def test_a_warehouse_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    catalog = connect(tmp_path / "file")
    calls = (
        catalog.tables,
        catalog.databases,
        lambda: catalog.table("default.t"),
        lambda: catalog.create_table("default.t", SCHEMA),
        lambda: catalog.create_database("a"),
        lambda: catalog.drop_table("default.t"),
        lambda: catalog.paimon,
    )
    for call in calls:
        with pytest.raises(lh.ConfigError, match="is a file, not a folder"):
            call()


@pytest.mark.local("a file in the place of a folder")
def test_a_warehouse_that_can_not_be_made(tmp_path: Path) -> None:
    """A file in the place of a folder: what a folder that can't be written does, for root too."""
    (tmp_path / "file").write_text("x")
    inside = connect(tmp_path / "file" / "lake")
    for call in (lambda: inside.create_database("a"), lambda: inside.create_table("default.t", SCHEMA)):
        with pytest.raises(lh.CommitError, match=r"database \w+ can't be made in catalog 'default' at .*Not a directory"):
            call()
    with pytest.raises(lh.NotFoundError, match="tables: none"):
        inside.table("default.t")
    (tmp_path / "lake" / "default.db").mkdir(parents=True)
    (tmp_path / "lake" / "default.db" / "t").write_text("x")
    catalog = connect(tmp_path / "lake")
    with pytest.raises(lh.CommitError, match=r"table default\.t can't be made in catalog 'default' at .*Not a directory"):
        catalog.create_table("default.t", SCHEMA)
    assert catalog.tables() == []


@pytest.mark.local("calls of the operating system that fail")
def test_a_table_that_can_not_be_dropped(catalog: lh.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    catalog.create_table("default.t", SCHEMA).append([{"id": 1, "frame": b"x"}])

    def refuse(path: Any, *_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(lh.CommitError, match=r"table default\.t can't be dropped in .*Permission denied"):
        catalog.drop_table("default.t")
    monkeypatch.undo()
    assert catalog.table("default.t").latest().count_rows() == 1
    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(lh.CommitError, match=r"no table any more, but files of it are left in .*Permission denied"):
        catalog.drop_table("default.t")
    monkeypatch.undo()
    assert catalog.tables() == []
    catalog.create_table("default.u", SCHEMA)
    catalog.drop_table("default.u")
    assert list((place.path(catalog.paimon.warehouse) / "default.db").iterdir()) == []


@pytest.mark.s3
def test_a_damaged_table_says_so(catalog: lh.Catalog, warehouse: Path) -> None:
    table = catalog.create_table("default.t", SCHEMA)
    (warehouse / "default.db" / "t" / "schema" / "schema-0").write_text("{")
    for call in (lambda: catalog.table("default.t"), lambda: table.append([]), table.latest):
        with pytest.raises(lh.NotFoundError, match=r"table 'default\.t' in .* can't be read"):
            call()


# --- what a catalog is -------------------------------------------------------------------------------------------------------


def test_a_catalog_shows_its_settings_and_no_secret(tmp_path: Path) -> None:
    catalog = connect(tmp_path, blob_roots=[str(tmp_path / "raw")], **{"s3.secret-key": "hush"})
    text = repr(catalog)
    assert str(tmp_path) in text
    assert str(tmp_path / "raw") in text
    assert "hush" not in text
    with pytest.raises(lh.NotFoundError) as caught:
        catalog.table("default.nope")
    assert "hush" not in str(caught.value)


@pytest.mark.s3
def test_a_catalog_can_be_pickled(catalog: lh.Catalog) -> None:
    catalog.create_table("default.t", SCHEMA).append([{"id": 1, "frame": b"x"}])
    copy = pickle.loads(pickle.dumps(catalog))
    assert copy.table("default.t").latest() == catalog.table("default.t").latest()


def test_the_engines_catalog_is_there(catalog: lh.Catalog) -> None:
    from pypaimon.catalog.filesystem_catalog import FileSystemCatalog

    assert isinstance(catalog.paimon, FileSystemCatalog)
    assert catalog.paimon is catalog.paimon


@pytest.mark.local("forks, with clients open")
def test_processes_that_make_one_table_share_it(warehouse: Path) -> None:
    script = """
import os, sys, pyarrow as pa, lakehouse as lh
catalog = lh.connect(warehouse=sys.argv[1])
catalog.databases()
children = []
for number in range(4):
    pid = os.fork()
    if pid == 0:
        try:
            for i in range(5):
                catalog.create_table(f"default.t{i}", pa.schema([("id", pa.int64())]), exist_ok=True)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    children.append(pid)
sys.exit(max(os.waitpid(pid, 0)[1] for pid in children) != 0)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(warehouse)], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert connect(warehouse).tables() == [f"default.t{i}" for i in range(5)]


def test_why_a_catalog_without_a_server_can_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a KeyError of the server's address."""

    def failing(options: Any) -> Any:
        raise OSError("the disk is on fire")

    monkeypatch.setattr("lakehouse.warehouse.open_local", failing)
    with pytest.raises(lh.ConfigError, match="can't be opened: OSError: the disk is on fire"):
        lh.connect(warehouse=str(tmp_path)).tables()


def test_a_folder_for_a_config_is_told_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(lh.ConfigError, match=r"is a folder, not a file; .*connect\(warehouse='/"):
        lh.connect(str(tmp_path))
