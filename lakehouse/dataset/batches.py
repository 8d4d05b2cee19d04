"""One iteration over a `Dataset` on its own, without a `Loader`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakehouse.dataset.pipeline import Pipeline
from lakehouse.dataset.steps import Step

if TYPE_CHECKING:
    from lakehouse.dataset.dataset import Dataset


@dataclass
class Progress:
    """How far an iteration has come: ``done`` steps of those that this worker makes, counted from ``first``."""

    epoch: int
    first: int
    done: int
    worker: int
    workers: int


class Batches(Iterator[Any]):
    """One iteration over a `Dataset`: its batches in order. Threads start with the first ``next()``.

    Counts what it has handed over, so that a state taken between two batches continues right there.
    """

    def __init__(self, dataset: Dataset, progress: Progress) -> None:
        self._dataset = dataset
        self._progress = progress
        self._budget = dataset.budget()
        self._pipeline: Pipeline[Step] | None = None

    def __next__(self) -> Any:
        if self._pipeline is None:
            now = self._progress
            self._pipeline = self._dataset.steps(now.epoch, now.first, worker=now.worker, workers=now.workers)
        while True:
            step = next(self._pipeline)
            self._budget.spend(step.report)
            self._progress.done += 1
            batch = step.take_batch()
            if batch is not None:  # a single row that was skipped
                return batch

    def close(self) -> None:
        """Stop the threads; the iteration is over."""
        if self._pipeline is not None:
            self._pipeline.close()

    def __del__(self) -> None:
        if getattr(self, "_pipeline", None) is not None:
            self.close()
