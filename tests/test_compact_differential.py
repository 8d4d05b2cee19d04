"""Compaction against a plain model: whatever was done to a table, its rows are the same afterwards, by every path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lakehouse.compaction import blobcopy, rowfile
from tests.lake_tables import LakeTable, _Builder
from tests.stores.place import connect, on_stores
from tests.test_query_differential import check_blobs, run_cases

pytestmark = on_stores

TABLES = int(os.environ.get("LAKEHOUSE_STRESS_TABLES", "4"))
FIRST_SEED = 500_000 + 1000 * int(os.environ.get("LAKEHOUSE_FUZZ_SEED", "0"))
CASES = 6


class Compacting(_Builder):
    """Makes a random table as the others do, and compacts it in between and at the end."""

    def run(self) -> LakeTable:
        steps = [self.append, self.append, self.append, self.delete, self.update_scalars, self.update_blobs, self.add_column]
        rare = [self.empty_partition, self.drop_partition, self.overwrite, self.widen, self.drop_column]
        self.append()
        for step in self.rng.choices([*steps, *steps, *rare, self.compact, self.compact, self.compact], k=7):
            step()
        self.compact()
        return self.lake

    def compact(self) -> None:
        keep = self.rng.random() < 0.5
        target = self.rng.choice((1, 3_000, 20_000, 1 << 30))
        before = self.lake.table.latest().id
        would = self.lake.table.compact(target_size=target, row_ids="keep" if keep else "any", dry_run=True)
        assert self.lake.table.latest().id == before
        report = self.lake.table.compact(target_size=target, row_ids="keep" if keep else "any")
        assert (would.rows, would.renumbered, would.dropped, would.bytes_read, would.left) == (
            report.rows,
            report.renumbered,
            report.dropped,
            report.bytes_read,
            report.left,
        )
        assert report.manifests_after <= 1
        self.undeletable = False  # the deletion vectors that upstream trips over are gone
        if keep:
            assert not report.renumbered
        if report.renumbered:
            self.ids = {}
        if report.snapshots:
            assert self.lake.table.latest().id == report.snapshots[-1]
            self.done(f"compact {'keep' if keep else 'any'} {target}: {report}")


@pytest.mark.parametrize("chunk", range(4))
def test_no_difference(chunk: int, warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends, deletes, updates of scalars and BLOBs, added, dropped and widened columns, overwrites, by-reference columns,
    every kind of partition; after each compaction pypaimon's own reader must give the model's rows, and in the end random
    queries at every snapshot and tag, also those from before, through Arrow, Daft and RowIndex."""
    outside = tmp_path / "outside"
    outside.mkdir()
    catalog = connect(warehouse, blob_roots=[str(outside)])
    if chunk % 2:
        monkeypatch.setattr(blobcopy, "_CHUNK_ROWS", 5)
        monkeypatch.setattr(blobcopy, "_PIECE_BYTES", 7)
        monkeypatch.setattr(blobcopy, "_OPEN_SOURCES", 1)
        monkeypatch.setattr(rowfile, "_GROUP_BYTES", 300)
    compactions = 0
    for n in range(max(1, TABLES // 4)):
        lake = Compacting(FIRST_SEED + chunk * 100 + n, catalog, outside).run()
        check_blobs(lake)
        run_cases(lake, CASES)
        compactions += sum("compact" in line for line in lake.recipe)
    assert compactions
