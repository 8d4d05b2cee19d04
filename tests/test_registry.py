"""Training sets: the same rows again, whatever became of the table, and which of them a model has seen."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from daft import col
from hypothesis import given
from hypothesis import strategies as st

import lakehouse as lh
from lakehouse.fetch import BlobRefs
from lakehouse.index.ids import read_ids, write_ids
from lakehouse.order import Order
from lakehouse.registry.seen import Place, seen
from tests.lake_files import BAD_NAMES
from tests.stores import place
from tests.stores.place import connect, on_stores

pytestmark = on_stores


SCHEMA = pa.schema([("id", pa.int64()), ("scene", pa.string()), ("v", pa.float64()), ("frame", pa.large_binary())])


@pytest.fixture
def table(catalog: lh.Catalog) -> lh.Table:
    table = catalog.create_table("default.t", SCHEMA, partition_by=["scene"])
    for start in (0, 30):
        table.append(rows(range(start, start + 30)))
    return table


def rows(ids: Any) -> list[dict[str, Any]]:
    return [{"id": i, "scene": f"s{i % 4}", "v": i / 2, "frame": b"frame %d" % i} for i in ids]


def same(one: lh.RowIndex, other: lh.RowIndex, table: lh.Table) -> bool:
    assert one.fingerprint == other.fingerprint
    assert one.columns == other.columns
    assert one.row_ids.tolist() == other.row_ids.tolist()
    for name in one.columns:
        if name in one.blob_columns:
            assert [ref and ref.read(table) for ref in one.blobs(name)] == [
                ref and ref.read(table) for ref in other.blobs(name)
            ]
        else:
            assert one.column(name).to_pylist() == other.column(name).to_pylist()
    return True


Make = Callable[[lh.Snapshot], lh.RowIndex]
RECIPES: dict[str, Make] = {
    "all": lambda snap: snap.query().index(),
    "where": lambda snap: snap.query().where("v > 5 and scene in ('s1', 's2')").select("frame", "id").index(),
    "expression": lambda snap: snap.query().where((col("v") > 5) & col("frame").not_null()).select("scene").index(),
    "limit": lambda snap: snap.query().where("id >= 3").limit(7).index(),
    "sample": lambda snap: snap.query().sample(0.4, seed=3).sample(0.9, seed=4).index(),
    "split": lambda snap: snap.query().index().split({"train": 0.7, "val": 0.3}, by="scene", seed=5)["train"],
    "split of a split": lambda snap: snap.query().index().split({"a": 0.5})["a"].split({"b": 0.5}, seed=1)["b"],
    "take": lambda snap: snap.query().select("id", "frame").index().take([5, 3, 3, 40, 0]),
    "none": lambda snap: snap.query().where("id < 0").index(),
    "frame": lambda snap: lh.RowIndex.from_daft(
        snap.daft().where(col("id") < 9).with_column("twice", col("v") * 2).select("twice", "frame"), table=snap
    ),
    "taken frame": lambda snap: lh.RowIndex.from_daft(snap.daft().sort("id", desc=True), table=snap).take([2, 1, 1]),
}


@pytest.mark.parametrize("how", RECIPES)
def test_the_same_rows_again_after_the_table_went_on(table: lh.Table, catalog: lh.Catalog, warehouse: Path, how: str) -> None:
    """After appends, a delete, a rollback, and the expiry of every snapshot but the last; by another catalog object."""
    index = RECIPES[how](table.at(snapshot=1) if how == "all" else table.latest())
    saved = catalog.save_training_set("set", index, description=f"by {how}")
    table.append(rows(range(60, 70)))
    builder = table.paimon.new_batch_write_builder()
    commit = builder.new_commit()
    commit.commit(builder.new_update().delete_by_row_id([0, 3, 5]))
    commit.close()
    table.rollback(snapshot=1)
    table.append(rows([99]))
    for info in table.snapshots()[:-1]:
        (place.path(table.paimon.table_path) / "snapshot" / f"snapshot-{info.id}").unlink()
    again = connect(warehouse).training_set("set")
    assert again == saved
    assert same(again.index(), index, table)
    assert (again.rows, again.fingerprint, again.columns) == (len(index), index.fingerprint, index.columns)
    assert again.bytes == sum(index.blobs(name).total_bytes for name in index.blob_columns)
    assert (again.table, again.branch, again.snapshot) == ("default.t", None, index.snapshot_id)
    assert again.index().recipe == index.recipe
    assert again.index().where_text == index.where_text == again.predicate


def test_what_is_kept_of_it(table: lh.Table, catalog: lh.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    index = table.latest().query().where("v > 5").index().split({"train": 0.5}, by="scene")["train"]
    first = catalog.save_training_set("rain.v2-x_1", index)
    second = catalog.save_training_set("rain.v2-x_1", index.take([0]), description="one row")
    assert (first.name, first.version, second.version, second.description) == ("rain.v2-x_1", 1, 2, "one row")
    assert first.created_by == "ada"
    assert first.created.utcoffset() is not None
    assert first.created <= second.created
    assert json.loads(first.split or "") == {"split": {"train": 0.5}, "by": "scene", "seed": 0, "part": "train"}
    assert [next(iter(step)) for step in json.loads(second.recipe)] == ["where", "split", "take"]
    assert table.tags() == {"training-set.rain.v2-x_1.v1": 2, "training-set.rain.v2-x_1.v2": 2}
    assert catalog.training_set("rain.v2-x_1") == second
    assert catalog.training_set("rain.v2-x_1", 1) == first
    catalog.save_training_set("a", index)
    assert [(item.name, item.version) for item in catalog.training_sets()] == [("a", 1), ("rain.v2-x_1", 1), ("rain.v2-x_1", 2)]
    assert str(first) == "training set rain.v2-x_1 version 1"


@pytest.mark.s3
def test_wrong_lengths_that_add_up_beyond_64_bits_can_be_saved(table: lh.Table, catalog: lh.Catalog) -> None:
    index = table.latest().query().select("frame").index()
    refs = index.blobs("frame")
    wrong = BlobRefs(refs.uris, refs.uri_ids, refs.offsets, np.full(len(refs), 2**62))
    index = lh.RowIndex(index.source, index.schema, index.row_ids, {}, {"frame": wrong})
    assert index.blob_bytes == 60 * 2**62
    assert catalog.save_training_set("wrong", index).bytes == 2**63 - 1


def test_any_engine_can_read_it(table: lh.Table, catalog: lh.Catalog) -> None:
    """By pypaimon itself, and the row ids as the Parquet file that they are."""
    index = table.latest().query().where("id >= 50").index()
    catalog.save_training_set("set", index)
    paimon = catalog.paimon.get_table("lakehouse.training_sets")
    builder = paimon.new_read_builder()
    (row,) = builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pylist()
    assert (row["name"], row["version"], row["rows"], row["snapshot"]) == ("set", 1, 10, 2)
    assert row["fingerprint"] == index.fingerprint
    assert pq.read_table(pa.BufferReader(row["content"])).column("row_id").to_pylist() == index.row_ids.tolist()
    text = str({name: value for name, value in row.items() if name != "content"})
    assert str(paimon.table_path.rsplit("/", 2)[0]) not in text  # a moved lake keeps its sets
    assert catalog.table("lakehouse.training_sets").latest().daft().count_rows() == 1


def test_a_set_of_a_branch(table: lh.Table, catalog: lh.Catalog) -> None:
    dev = table.create_branch("dev", snapshot=1)
    dev.append(rows([70, 71]))
    index = dev.latest().query().where("id >= 20").index()
    saved = catalog.save_training_set("dev-set", index)
    assert (saved.table, saved.branch, saved.snapshot, saved.rows) == ("default.t", "dev", 2, 12)
    assert (dev.tags(), table.tags()) == ({saved.tag: 2}, {})
    dev.append(rows([72]))
    assert same(saved.index(), index, table)
    with pytest.raises(lh.ConfigError, match="holds the rows of saved training sets, under the tags training-set.dev-set.v1"):
        table.delete_branch("dev")
    dev.delete_tag(saved.tag, force=True)
    table.delete_branch("dev")
    with pytest.raises(lh.NotFoundError, match="no branch 'dev'"):
        saved.index()


def test_a_set_of_a_snapshot_that_only_a_tag_keeps(table: lh.Table, catalog: lh.Catalog) -> None:
    table.tag("v1", snapshot=1)
    (place.path(table.paimon.table_path) / "snapshot/snapshot-1").unlink()
    index = table.at(tag="v1").query().index()
    saved = catalog.save_training_set("set", index)
    table.delete_tag("v1")
    assert same(saved.index(), index, table)
    table.delete_tag(saved.tag, force=True)
    with pytest.raises(lh.NotFoundError, match="no snapshot 1"):
        saved.index()


# --- what is refused, and what has changed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*BAD_NAMES, "x" * 91], ids=repr)
def test_names_that_can_not_be(table: lh.Table, catalog: lh.Catalog, name: Any) -> None:
    index = table.latest().query().index()
    with pytest.raises(lh.ConfigError, match="can't name a training set"):
        catalog.save_training_set(name, index)
    if name != "x" * 91:
        with pytest.raises(lh.ConfigError, match="can't name a training set"):
            catalog.training_set(name)
    assert table.tags() == {}
    assert catalog.databases() == ["default"]


def test_what_can_not_be_saved(table: lh.Table, catalog: lh.Catalog, store: str, tmp_path: Path) -> None:
    index = table.latest().query().index()
    for wrong in (lh.Weighted(index, [1.0] * len(index)), "index", None):
        with pytest.raises(lh.SchemaError, match=r"save_training_set\(\) takes a RowIndex"):
            catalog.save_training_set("set", wrong)  # type: ignore[arg-type]
    nothing = catalog.create_table("default.empty", SCHEMA).latest().query().index()
    nameless = lh.RowIndex.from_daft(table.latest().daft().select("frame" if store == "local" else "id"))
    for unpinned in (nothing, nameless):
        with pytest.raises(lh.SchemaError, match="names no snapshot of a table"):
            catalog.save_training_set("set", unpinned)
    with pytest.raises(lh.ConfigError, match="description is text"):
        catalog.save_training_set("set", index, description=3)  # type: ignore[arg-type]
    elsewhere = connect(tmp_path / "other")
    with pytest.raises(lh.NotFoundError, match="no table 'default.t'"):
        elsewhere.save_training_set("set", index)
    elsewhere.create_table("default.t", SCHEMA).append(rows(range(3)))
    with pytest.raises(lh.NotFoundError, match="no snapshot 2"):
        elsewhere.save_training_set("set", index)
    elsewhere.table("default.t").append(rows(range(3)))
    with pytest.raises(lh.ResumeError, match="another default.t@2 than this catalog has"):
        elsewhere.save_training_set("set", index)
    assert catalog.training_sets() == elsewhere.training_sets() == []
    assert table.tags() == {}


def test_what_is_not_there_says_what_is(table: lh.Table, catalog: lh.Catalog) -> None:
    assert catalog.training_sets() == []
    with pytest.raises(lh.NotFoundError, match="no training set 'x'; training sets: none"):
        catalog.training_set("x")
    for name in ("b", "a", "b"):
        catalog.save_training_set(name, table.latest().query().index())
    with pytest.raises(lh.NotFoundError, match="no training set 'x'; training sets: a, b"):
        catalog.training_set("x")
    with pytest.raises(lh.NotFoundError, match="training set b has no version 3; versions: 1, 2"):
        catalog.training_set("b", 3)


def test_its_tag_is_neither_moved_nor_deleted_by_the_way(table: lh.Table, catalog: lh.Catalog) -> None:
    catalog.save_training_set("rain.v2-x", table.latest().query().index())
    saved = catalog.save_training_set("rain.v2-x", table.latest().query().index())
    before = table.tags()
    what = r"tag 'training-set\.rain\.v2-x\.v2' keeps the rows of training set rain\.v2-x version 2"
    with pytest.raises(lh.ConfigError, match=f"{what} and is not moved"):
        table.tag(saved.tag, snapshot=1, replace=True)
    with pytest.raises(lh.ConfigError, match=rf"{what}; delete_tag\('{saved.tag}', force=True\) if they may go"):
        table.delete_tag(saved.tag)
    assert table.tags() == before
    assert len(saved.index()) == saved.rows
    table.tag("training-set.by-hand.v1", snapshot=1, replace=True)  # a name that nothing has yet
    table.delete_tag(saved.tag, force=True)
    assert saved.tag not in table.tags()


def test_another_table_or_snapshot_in_its_place_is_noticed(table: lh.Table, catalog: lh.Catalog) -> None:
    saved = catalog.save_training_set("set", table.latest().query().index())
    table.delete_tag(saved.tag, force=True)
    table.tag(saved.tag, snapshot=1)
    with pytest.raises(lh.ResumeError, match="tag training-set.set.v1 of default.t names another snapshot than 2"):
        saved.index()
    catalog.drop_table("default.t")
    with pytest.raises(lh.NotFoundError, match="no table 'default.t'"):
        saved.index()
    again = catalog.create_table("default.t", SCHEMA, partition_by=["scene"])
    for start in (0, 30):
        again.append(rows(range(start, start + 30)))
    with pytest.raises(lh.ResumeError, match="it was dropped and made again"):
        saved.index()


def test_a_leftover_tag_of_a_killed_saver_is_left_alone(table: lh.Table, catalog: lh.Catalog) -> None:
    table.tag("training-set.set.v1", snapshot=1)
    saved = catalog.save_training_set("set", table.latest().query().index())
    assert saved.version == 1
    assert saved.tag.startswith("training-set.set.v1.")
    assert table.tags() == {"training-set.set.v1": 1, saved.tag: 2}
    assert saved.index().snapshot_id == 2


def _save(options: dict[str, Any], worker: int, count: int) -> None:
    catalog = lh.connect(options)
    index = catalog.table("default.t").at(snapshot=1 + worker % 2).query().index()
    for i in range(count):
        catalog.save_training_set("shared", index.take([worker, i]), description=f"{worker}/{i}")


def test_savers_at_once_get_versions_of_their_own(table: lh.Table, catalog: lh.Catalog, warehouse: Path) -> None:
    context = multiprocessing.get_context("spawn")
    savers = [context.Process(target=_save, args=(place.options(warehouse), worker, 4)) for worker in range(3)]
    for saver in savers:
        saver.start()
    for saver in savers:
        saver.join(110)
        assert saver.exitcode == 0
    sets = catalog.training_sets()
    assert [item.version for item in sets] == list(range(1, 13))
    assert sorted(item.description or "" for item in sets) == sorted(f"{w}/{i}" for w in range(3) for i in range(4))
    assert table.tags() == {item.tag: item.snapshot for item in sets}
    for item in sets:
        worker, i = map(int, (item.description or "").split("/"))
        assert item.snapshot == 1 + worker % 2
        assert item.index().fingerprint == table.at(snapshot=item.snapshot).query().index().take([worker, i]).fingerprint


# --- rows that a model saw ---------------------------------------------------------------------------------------------------


def ids_of(batches: list[dict[str, Any]]) -> list[int]:
    return [int(i) for batch in batches for i in batch["id"]]


@pytest.mark.parametrize("shuffle", ["blocks", "rows", None])
def test_rows_seen_are_those_that_the_trainer_took(table: lh.Table, catalog: lh.Catalog, shuffle: Any) -> None:
    index = table.latest().query().where("id >= 5").select("id", "v").index()
    saved = catalog.save_training_set("set", index)
    catalog.save_training_set("other", index.take([1, 2]))
    loader = lh.Loader(lh.Dataset(index, batch_size=4, seed=11, shuffle=shuffle))
    taken: set[int] = set()
    for epoch in range(2):
        for step, batch in enumerate(loader):
            taken.update(ids_of([batch]))
            state = json.loads(json.dumps(loader.state_dict()))
            found = saved.seen(state, global_batch=4)
            assert set(found.column("id").to_pylist()) == taken, (epoch, step)
            assert len(found) == len(taken)
            if epoch == 0 and step < 12:
                assert set(catalog.rows_seen(state).column("id").to_pylist()) == taken
    assert len(catalog.rows_seen(loader.state_dict())) == len(index)


def test_a_state_of_other_rows_is_refused(table: lh.Table, catalog: lh.Catalog) -> None:
    index = table.latest().query().select("id").index()
    saved = catalog.save_training_set("set", index)
    state = lh.Loader(lh.Dataset(index.take(range(20)), batch_size=4)).state_dict()
    with pytest.raises(lh.ResumeError, match="saved with index sha256:.*training set set version 1 has sha256:"):
        saved.seen(state)
    with pytest.raises(lh.NotFoundError, match="no training set has the state's index sha256:.*training sets: set version 1"):
        catalog.rows_seen(state)
    good = lh.Loader(lh.Dataset(index, batch_size=4)).state_dict()
    for wrong, said in [
        ("x", "a saved state is a mapping"),
        ({}, "the state has no 'format'; it has: nothing"),
        ({**good, "format": 2}, "format 2, this version"),
        ({**good, "position": -4}, "'position' must be a whole number"),
        ({**good, "index": 5}, "'index' must be text"),
        ({**good, "position": 64}, "position 64 lies outside an index of 60 rows"),
        ({**good, "position": 4, "order": "blocks-2:256x64"}, "order is 'blocks-2:256x64', which is not that of a plain index"),
    ]:
        with pytest.raises(lh.ResumeError, match=said):
            catalog.rows_seen(wrong)  # type: ignore[arg-type]
    with pytest.raises(lh.ConfigError, match="global_batch is 1 or more"):
        catalog.rows_seen(good, global_batch=0)


@given(
    n=st.integers(1, 200),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 3),
    step=st.integers(0, 60),
    batch=st.integers(1, 30),
    shuffle=st.sampled_from(["blocks", "rows", None]),
)
def test_seen_equals_a_plain_count(n: int, seed: int, epoch: int, step: int, batch: int, shuffle: Any) -> None:
    order = Order(n, seed, shuffle, 4, 3)
    steps = n // batch
    position = min(step, steps) * batch
    consumed = {int(row) for e in range(epoch) for row in order.rows(e, 0, steps * batch)}
    consumed |= {int(row) for row in order.rows(epoch, 0, position)}
    place = Place("x", seed, epoch, position, order.spec)
    assert seen(place, n, batch).tolist() == sorted(consumed)
    assert seen(place, n).tolist() == (list(range(n)) if epoch else sorted(consumed))


# --- row ids as bytes --------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**62), max_size=50))
def test_row_ids_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, ids: list[int]) -> None:
    path = tmp_path_factory.mktemp("ids") / "ids"
    write_ids(np.array(ids, np.int64), path)
    assert read_ids(path.read_bytes()).tolist() == ids


@pytest.mark.parametrize(("ids", "most"), [
    (np.arange(3_000_000), 20_000),
    (np.flatnonzero(np.random.default_rng(1).random(3_000_000) < 0.1), 300_000),
], ids=["all rows", "a tenth of them"])  # fmt: skip
def test_row_ids_take_little_room(tmp_path: Path, ids: Any, most: int) -> None:
    write_ids(ids, tmp_path / "ids")
    assert (tmp_path / "ids").stat().st_size <= most
    assert np.array_equal(read_ids((tmp_path / "ids").read_bytes()), ids)


@pytest.mark.parametrize(
    ("order", "seed"),
    [("blocks-1:0x4", 1), ("blocks-1:" + "9" * 5000 + "x1", 1), ("blocks-1:\u0663x\u0664", 1), ("rows-1", 2**64)],
)
def test_a_state_whose_order_can_not_be_is_refused(order: str, seed: int) -> None:
    with pytest.raises(lh.ResumeError, match="not"):
        seen(Place("sha256:0", seed, 0, 4, order), 10)


@pytest.mark.parametrize(
    ("order", "batch", "rows"), [("stored-1", 4, 8), ("rows-1", 16, 0), ("stored-1", 16, 0), ("rows-1", 4, 10)]
)
def test_rows_seen_in_any_number_of_epochs(order: str, batch: int, rows: int) -> None:
    """Epochs that consume nothing, or the same rows each, are not gone through one by one."""
    assert len(seen(Place("sha256:0", 1, 2**60, 0, order), 10, batch)) == rows
