"""Random sequences of changes against a plain model: equal after each step, on every path, and in every old snapshot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lake_changes import PARTITIONS, Lake, by_arrow, by_daft, by_dataset, by_index

STRESS = bool(os.environ.get("LAKEHOUSE_STRESS"))
STEPS = 60 if STRESS else 8
SEEDS = range(20 if STRESS else 1)


def check(lake: Lake) -> None:
    for number in range(STEPS):
        step = lake.step()
        snapshot = lake.table.latest()
        expected = lake.expected()
        where = f"step {number}: {step}"
        assert snapshot.count_rows() == len(expected), where
        assert by_arrow(snapshot) == expected, where
        if number % 3 == 0 or number == STEPS - 1:
            assert by_daft(snapshot) == expected, where
            assert by_index(snapshot) == expected, where
            assert by_dataset(snapshot) == [{n: r[n] for n in ("id", "img", "more")} for r in expected], where
    for snapshot_id, held in lake.history.items():
        assert by_arrow(lake.table.at(snapshot=snapshot_id)) == held, f"snapshot {snapshot_id}"


@pytest.mark.timeout(3600 if STRESS else 120)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", sorted(PARTITIONS))
def test_changes_equal_a_model_after_each_step(warehouse: Path, kind: str, seed: int) -> None:
    check(Lake.made(warehouse, kind, seed))


@pytest.mark.timeout(3600 if STRESS else 120)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["string", "int"])
def test_changes_of_columns_equal_a_model_after_each_step(warehouse: Path, kind: str, seed: int) -> None:
    lake = Lake.made(warehouse, kind, seed)
    lake.column_steps = ("add_column", "add_column", "drop_column", "widen_column")
    check(lake)


@pytest.mark.timeout(3600 if STRESS else 120)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("columns", [False, True])
def test_changes_beside_compaction_and_rollback(warehouse: Path, columns: bool, seed: int) -> None:
    lake = Lake.made(warehouse, "string", 1000 + seed)
    lake.other_steps = ("compact", "compact", "roll_back")
    lake.column_steps = ("add_column", "drop_column", "widen_column") if columns else ()
    check(lake)
