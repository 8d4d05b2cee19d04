"""Purging random rows of random tables: they are gone from every version and file, and nothing else is."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakehouse as lh
from tests.lake_tables import LakeTable, State
from tests.stores import place
from tests.stores.place import connect, on_stores
from tests.test_compact import listed
from tests.test_compact_differential import Compacting
from tests.test_query_differential import run_cases

pytestmark = on_stores

TABLES = int(os.environ.get("LAKEHOUSE_STRESS_TABLES", "2"))
FIRST_SEED = 700_000 + 1000 * int(os.environ.get("LAKEHOUSE_FUZZ_SEED", "0"))


@pytest.mark.timeout(60 + 30 * TABLES)
@pytest.mark.parametrize("chunk", range(2))
def test_no_difference(chunk: int, warehouse: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    catalog = connect(warehouse, blob_roots=[str(outside)])
    purged = 0
    for n in range(max(1, TABLES // 2)):
        builder = Compacting(FIRST_SEED + chunk * 100 + n, catalog, outside)
        lake = builder.run()
        known = sorted({row["k"] for state in lake.states for row in state.rows})
        latest = lake.table.latest().id
        gone = set(builder.rng.sample(known, min(len(known), builder.rng.choice((1, 3, len(known) // 2)))))
        report = lake.table.purge(f"k in ({', '.join(map(str, gone))})", orphans_older_than=timedelta(0))
        shown = [state for state in lake.states if gone & {row["k"] for row in state.rows}]
        assert sum(report.rows.values()) == sum(row["k"] in gone for row in lake.states[-1].rows)
        assert len(report.snapshots_removed) == (lake.states[-1].snapshot if shown else 0), lake.recipe
        assert set(report.tags) >= {f"tag {state.tag!r}" for state in shown if state.tag}
        check_files(lake.table, gone)
        lake.states = [without(lake, state, gone) for state in lake.states if state.tag or state is lake.states[-1]]
        lake.recipe.append(f"purge {gone}: {report}")
        run_cases(lake, 10)
        # The engine's own writers and readers go on with it.
        for k in gone & builder.rows.keys():
            del builder.rows[k]
        builder.undeletable = False
        if lake.table.latest().id != latest:  # rows that only history held leave without a new snapshot
            builder.ids = {}
            builder.done("purge")
        for step in (
            builder.append,
            builder.delete,
            builder.update_scalars,
            builder.update_blobs,
            builder.append,
            builder.compact,
        ):
            step()
        purged += len(shown)
    assert purged


def without(lake: LakeTable, state: State, gone: set[int]) -> State:
    """What a version holds once the rows are gone."""
    rows = tuple(row for row in state.rows if row["k"] not in gone)
    if state is lake.states[-1] and not state.tag:
        latest = lake.table.latest().id
        assert latest is not None
        state = replace(state, snapshot=latest)
    index = lake.snapshot(state).query().select("k").index()
    ids: dict[Any, int] = dict(zip(index.column("k").to_pylist(), index.row_ids.tolist(), strict=True))
    assert sorted(ids) == sorted(row["k"] for row in rows), (state.snapshot, state.tag, lake.recipe)
    rows = tuple(sorted(rows, key=lambda row: ids[row["k"]]))
    return replace(state, rows=rows, row_ids=tuple(ids[row["k"]] for row in rows), descriptors={})


def check_files(table: lh.Table, gone: set[int]) -> None:
    """No row file holds one of the rows, whichever version it is of."""
    files = [(place.path(table.paimon.table_path) / name) for name in listed(table, "*.parquet")]
    for path in files:
        file = pq.ParquetFile(pa.BufferReader(path.read_bytes()))
        if "k" in file.schema_arrow.names:
            assert not gone & set(file.read(["k"]).column("k").to_pylist()), path
