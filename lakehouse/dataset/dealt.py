"""The steps of one worker process, on their way to `Loader` in the trainer's."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeAlias

from torch.utils.data import IterableDataset, get_worker_info

from lakehouse.dataset import segments
from lakehouse.dataset.badrows import Report
from lakehouse.dataset.dataset import Dataset
from lakehouse.dataset.memory import Memory
from lakehouse.dataset.orphan import end_with_trainer
from lakehouse.dataset.pipeline import Pipeline
from lakehouse.dataset.state import Start
from lakehouse.dataset.steps import Step
from lakehouse.dataset.wire import pack
from lakehouse.errors import LakehouseError, cause_line

Item: TypeAlias = tuple[int, Any, Report]  # step number, batch, what happened while it was made


class Dealt(IterableDataset[Any]):
    """The steps of one worker process, whose memory `borrower` gets."""

    def __init__(self, dataset: Dataset, start: Start, borrower: str) -> None:
        self._dataset = dataset
        self._start = start
        self._borrower = borrower

    def __iter__(self) -> Iterator[Item]:
        info = get_worker_info()
        if info is not None:
            end_with_trainer()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        # Read now, not at the first next(): from here on the main process may not change it.
        epoch, first = self._start.read()
        memory = Memory("shared")
        if segments.SUPPORTED:
            segments.lend_to(self._borrower)
            memory = Memory("lent")
        pipeline = self._dataset.steps(epoch, first, worker=worker, workers=workers, lent=segments.SUPPORTED)
        return items(_staying(pipeline), lambda batch: pack(batch, memory))


def items(steps: Pipeline[Step] | Generator[Step], wrap: Callable[[Any], Any]) -> Iterator[Item]:
    """What goes to the trainer.

    Args:
        steps: closed when they end, or when the trainer breaks off.
        wrap: how a batch travels.
    """
    try:
        for step in steps:
            yield step.rows.step, wrap(step.take_batch()), step.report
    finally:
        steps.close()


def _staying(pipeline: Pipeline[Step]) -> Generator[Step]:
    """The steps, in a process that does not end by ``sys.exit`` in a transform: it could not say where."""
    try:
        while True:
            try:
                step = next(pipeline)
            except StopIteration:
                return
            except (SystemExit, GeneratorExit) as error:
                raise LakehouseError(f"{cause_line(error)} in a worker process, which is not for it to end") from error
            yield step
            del step
    finally:
        pipeline.close()
