"""The whole matrix: the same global batches for every world and every number of workers.

Ranks are simulated by arguments. Workers too in the default run, by what a worker process runs (`Dataset.steps` of its
share), handed out in turn as torch's DataLoader does; the real processes of the whole matrix are the slow test, a sample of
them the default one.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from lakehouse.dataset import Dataset
from lakehouse.index import RowIndex
from lakehouse.testing import assert_elastic
from tests.stores.place import on_stores
from tests.training import Maker, raw_index

pytestmark = on_stores

WORLDS = (1, 2, 3, 4, 6, 8, 12)
WORKERS = (0, 1, 2, 3, 4, 5)
GLOBAL_BATCH = 24  # what all worlds divide

Global = list[list[tuple[int, bytes, bool]]]  # per step, per row: id, its bytes, whether it is valid


@pytest.fixture(scope="module")
def index(store: str, tmp_path_factory: pytest.TempPathFactory) -> RowIndex:
    return raw_index(tmp_path_factory.mktemp("elastic"), 151)  # 6 steps of 24 rows, and 7 rows over


def rows_of(batch: Any) -> list[tuple[int, bytes, bool]]:
    valid = batch["valid"].tolist() if "valid" in batch else [True] * len(batch["data"])
    return list(zip(batch["id"].tolist(), batch["data"], valid, strict=True))


def of_rank(ds: Dataset, epoch: int, first: int, workers: int) -> Global:
    """A rank's batches, of which worker w makes every ``workers``-th one."""
    pipelines = [ds.steps(epoch, first, worker=worker, workers=max(1, workers)) for worker in range(max(1, workers))]
    got: Global = []
    for step in range(first, len(ds)):
        work = next(pipelines[(step - first) % len(pipelines)])
        assert work.rows.step == step
        got.append(rows_of(work.take_batch()))
    assert all(next(pipeline, None) is None for pipeline in pipelines)  # and not one step more
    return got


def global_batches(index: RowIndex, world: int, workers: int, *, epoch: int, first: int, **options: Any) -> Global:
    """Global batches of an epoch from step ``first`` on."""
    ranks = []
    for rank in range(world):
        ds = Dataset(index, batch_size=GLOBAL_BATCH // world, rank=rank, world=world, seed=5, threads=0, **options)
        ranks.append(of_rank(ds, epoch, first, workers))
    assert len({len(batches) for batches in ranks}) == 1  # equally many steps on all ranks
    return [list(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("shuffle", ["blocks", "rows", None])
def test_every_world_with_every_number_of_workers(index: RowIndex, tail: str, shuffle: Any) -> None:
    options = {"tail": tail, "shuffle": shuffle}
    whole = global_batches(index, 1, 0, epoch=1, first=0, **options)
    assert len(whole) == {"drop": 6, "pad": 7}[tail]
    seen = [row for batch in whole for row, _, valid in batch if valid]
    assert len(seen) == len(set(seen)) == {"drop": 144, "pad": 151}[tail]
    for world, workers in itertools.product(WORLDS, WORKERS):
        assert global_batches(index, world, workers, epoch=1, first=0, **options) == whole, (world, workers)
        # From where another topology stopped, whichever step that was.
        first = (world + workers) % len(whole)
        assert global_batches(index, world, workers, epoch=1, first=first, **options) == whole[first:], (world, workers, first)


@pytest.mark.parametrize(("world", "workers"), [(2, 3), (3, 1), (2, 2), (4, 5)])
def test_a_sample_with_real_processes(index: RowIndex, world: int, workers: int) -> None:
    assert_elastic(Maker(index, "fork", batch_size=GLOBAL_BATCH), worlds=(world,), workers=(workers,), epochs=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", WORKERS)
def test_the_whole_matrix_with_real_processes(index: RowIndex, workers: int) -> None:
    """Every world; each rank's loader has so many worker processes of its own, for two epochs."""
    assert_elastic(Maker(index, "fork", batch_size=GLOBAL_BATCH), worlds=WORLDS, workers=(workers,))
