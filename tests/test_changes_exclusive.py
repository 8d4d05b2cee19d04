"""Publishing only on the snapshot that the work was made from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.schema import Columns
from lakehouse.write import Describer, Moved, Writer, publish_on, to_batches
from tests.upstream.plain import SCHEMA, row

NAME = "default.t"


def made(warehouse: Path, *rows: dict[str, Any]) -> lh.Table:
    table = lh.connect(warehouse=str(warehouse)).create_table(NAME, SCHEMA, partition_by=["p"], exist_ok=True)
    if rows:
        table.append(list(rows))
    return table


def append_messages(paimon: Any, rows: list[dict[str, Any]]) -> list[Any]:
    columns = Columns.of(paimon)
    writer = Writer(paimon, columns)
    for batch in to_batches(rows, columns, Describer(paimon)):
        writer.write(batch)
    return writer.finish()


def delete_messages(paimon: Any, *row_ids: int) -> list[Any]:
    messages: list[Any] = paimon.new_batch_write_builder().new_update().delete_by_row_id(list(row_ids))
    return messages


def files_of(warehouse: Path) -> set[Path]:
    kept = ("schema", "manifest", "snapshot")
    return {path for path in warehouse.rglob("*") if path.is_file() and not set(kept) & set(path.parts)}


def ids(table: lh.Table) -> list[int]:
    return sorted(table.latest().query().select("id").arrow().column("id").to_pylist())


def test_it_publishes_on_its_base_and_says_what_it_is(warehouse: Path) -> None:
    table = made(warehouse, row(0), row(1))
    paimon = table.paimon
    assert publish_on(paimon, delete_messages(paimon, 0), 1, operation="delete", properties={"a": "b"}) == 2
    assert ids(table) == [1]
    properties = table.paimon.snapshot_manager().get_snapshot_by_id(2).properties
    assert properties["lakehouse.operation"] == "delete"
    assert properties["a"] == "b"
    assert table.snapshots()[1].commit_id == properties["lakehouse.commit-id"]


def test_a_first_snapshot_and_one_without_files(warehouse: Path) -> None:
    paimon = made(warehouse).paimon
    assert publish_on(paimon, append_messages(paimon, [row(0)]), None, operation="append") == 1
    assert publish_on(paimon, [], 1, operation="nothing") == 2
    assert ids(made(warehouse)) == [0]


@pytest.mark.parametrize("keep", [False, True])
def test_it_refuses_another_base_and_deletes_its_files_unless_told_to_keep_them(warehouse: Path, keep: bool) -> None:
    table = made(warehouse, row(0), row(1))
    paimon = table.paimon
    before = files_of(warehouse)
    messages = append_messages(paimon, [row(5)])
    written = files_of(warehouse) - before
    table.append([row(2)])
    with pytest.raises(Moved, match="another commit came after snapshot 1.*fresh data"):
        publish_on(paimon, messages, 1, operation="update", keep=keep)
    assert len(table.snapshots()) == 2
    assert (written <= files_of(warehouse)) is keep
    assert written
    if keep:
        assert publish_on(paimon, messages, 2, operation="update") == 3
        assert ids(table) == [0, 1, 2, 5]


@pytest.mark.parametrize("over_appends", [False, True])
def test_another_commit_in_the_last_moment(warehouse: Path, monkeypatch: pytest.MonkeyPatch, over_appends: bool) -> None:
    """After the check, before the link."""
    table = made(warehouse, row(0), row(1))
    paimon = table.paimon
    messages = delete_messages(paimon, 0)
    link = os.link
    raced: list[int] = []

    def link_later(source: Any, target: Any, **kwargs: Any) -> None:
        if Path(target).name == "snapshot-2" and not raced:
            raced.append(1)
            lh.connect(warehouse=str(warehouse)).table(NAME).append([row(2)])
        link(source, target, **kwargs)

    monkeypatch.setattr(os, "link", link_later)
    if over_appends:
        assert publish_on(paimon, messages, 1, operation="delete", over_appends=True) == 3
        assert ids(table) == [1, 2]
    else:
        with pytest.raises(Moved):
            publish_on(paimon, messages, 1, operation="delete")
        assert ids(table) == [0, 1, 2]
    assert raced


@pytest.mark.parametrize("other", ["delete", "update", "overwrite"])
def test_over_appends_lets_nothing_else_pass(warehouse: Path, other: str) -> None:
    table = made(warehouse, row(0), row(1), row(3))
    paimon, fresh = table.paimon, table.paimon
    messages = delete_messages(paimon, 1)
    builder = fresh.new_batch_write_builder()
    if other == "delete":
        theirs = delete_messages(fresh, 2)
    elif other == "update":
        update = builder.new_update().with_update_type(["v"])
        theirs = update.update_by_arrow_with_row_id(pa.table({"_ROW_ID": pa.array([2], pa.int64()), "v": ["new"]}))
    else:
        builder = builder.overwrite({})
        theirs = append_messages(fresh, [row(9)])
    builder.new_commit().commit(theirs)
    table.append([row(12)])
    with pytest.raises(Moved):
        publish_on(paimon, messages, 1, operation="delete", over_appends=True)
    assert len(table.snapshots()) == 3


def test_a_store_that_refuses(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(warehouse, row(0))
    paimon = table.paimon
    before = files_of(warehouse)
    messages = delete_messages(paimon, 0)

    def full(source: Any, target: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        with pytest.raises(lh.CommitError, match="No space left on device") as raised:
            publish_on(paimon, messages, 1, operation="delete")
    assert not isinstance(raised.value, Moved)
    assert files_of(warehouse) == before
    assert ids(table) == [0]
