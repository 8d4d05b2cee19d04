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
    happened = kill_at_random(warehouse, operation, moments=50 if FULL else 3, seed=seed)
    assert happened["done"] > 0
    assert happened["cut"] > 0
