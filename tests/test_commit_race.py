"""Processes that append at once lose nothing and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stress import FULL
from tests.stress.race import race


@pytest.mark.timeout(1800 if FULL else 120)
def test_appends_of_many_processes_are_all_there(warehouse: Path) -> None:
    """Half of the repetitions with a pause forced between the look for a free number and taking it."""
    if FULL:
        seconds = race(warehouse, processes=8, appends=50, pauses_s=[0.0, 0.02] * 10)
        (Path(warehouse).parent / "seconds").write_text(f"{seconds:.0f}")
    else:
        race(warehouse, processes=4, appends=10, pauses_s=[0.0, 0.02])


def test_processes_that_append_the_same_batches_add_each_once(warehouse: Path) -> None:
    race(warehouse, processes=4, appends=6, pauses_s=[0.0, 0.01], same_ids=True)
