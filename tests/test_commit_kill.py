"""kill -9 at random moments: the table opens, what was committed is there and right, the next writer succeeds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.stress import FULL
from tests.stress.kill import kill_at_random
from tests.stress.operations import OPERATIONS


@pytest.mark.timeout(900 if FULL else 120)
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_a_killed_process_leaves_the_table_right(warehouse: Path, operation: str) -> None:
    seed = int(os.environ.get("LAKEHOUSE_SEED", "7"))
    for turn in range(5 if FULL else 1):  # a new table for each ten: every check reads the whole history
        happened = kill_at_random(warehouse / str(turn), operation, moments=10 if FULL else 3, seed=seed + turn)
        assert happened["done"] > 0
        assert happened["cut"] > 0
