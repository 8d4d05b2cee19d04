"""`Loader`: hands batches to the trainer, counts what it took, and saves and restores that place.

The count is a plain variable of the trainer's process. Worker processes know only where an epoch began; what they have
prepared and the trainer has not taken is not part of any state.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import uuid
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pickle import PicklingError
from typing import Any

import torch
from torch.utils.data import DataLoader

from lakehouse.dataset import options, segments
from lakehouse.dataset.badrows import Budget, Report
from lakehouse.dataset.dataset import Dataset
from lakehouse.dataset.dealt import Dealt, Item, items
from lakehouse.dataset.stage import stage
from lakehouse.dataset.start_method import StartMethod, start_method, unsendable, why_none_starts
from lakehouse.dataset.state import Start
from lakehouse.dataset.wire import unpack
from lakehouse.errors import ConfigError, LakehouseError, ResumeError, cause_line

_of_parents: list[DataLoader[Any]] = []  # of processes that this one was forked from


@dataclass(frozen=True)
class Stats:
    """What a loader has handed over so far, in all epochs since it was made. ``dict(loader.stats)`` gives plain values.

    Attributes:
        rows: rows delivered to this rank, padding included.
        bytes_referenced: bytes that these rows refer to.
        bytes_fetched: bytes read for them; more where neighbouring ranges were merged.
        requests: reads that were made, those repeated included.
        retries: requests that repeated a failed one.
        throttles: answers by which a store asked for fewer requests (429, 503, SlowDown).
        seconds_backoff: waits before requests were repeated, all of them added up.
        seconds_waiting: time that the trainer waited for batches. Near zero: the trainer is the limit, not the loader.
        seconds_consumer: time that the trainer held a batch before it asked for the next one. With ``seconds_waiting`` it
            makes the time of the loop.
        seconds_fetching, seconds_decoding, seconds_transform: summed over threads and worker processes, so they may
            exceed the time that has passed. The largest of them says what to speed up.
        rows_skipped: bad rows left out (``on_error="skip"``).
        rows_nulled: bad rows delivered as zeros (``on_error="null"``).
        reasons: bad rows by the kind of error, such as ``{"DecodeError": 3}``.
    """

    rows: int = 0
    bytes_referenced: int = 0
    bytes_fetched: int = 0
    requests: int = 0
    retries: int = 0
    throttles: int = 0
    seconds_backoff: float = 0.0
    seconds_waiting: float = 0.0
    seconds_consumer: float = 0.0
    seconds_fetching: float = 0.0
    seconds_decoding: float = 0.0
    seconds_transform: float = 0.0
    rows_skipped: int = 0
    rows_nulled: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    def plus(self, report: Report, seconds_waiting: float, seconds_consumer: float) -> Stats:
        """With one more step, and the time that the trainer held the batch before it."""
        bad = sum(report.bad_rows.values())
        reasons = self.reasons
        if bad:
            reasons = dict(Counter(self.reasons) + Counter(report.bad_rows))
        return Stats(
            rows=self.rows + report.rows,
            bytes_referenced=self.bytes_referenced + report.bytes_referenced,
            bytes_fetched=self.bytes_fetched + report.bytes_fetched,
            requests=self.requests + report.requests,
            retries=self.retries + report.retries,
            throttles=self.throttles + report.throttles,
            seconds_backoff=self.seconds_backoff + report.seconds_backoff,
            seconds_waiting=self.seconds_waiting + seconds_waiting,
            seconds_consumer=self.seconds_consumer + seconds_consumer,
            seconds_fetching=self.seconds_fetching + report.seconds_fetching,
            seconds_decoding=self.seconds_decoding + report.seconds_decoding,
            seconds_transform=self.seconds_transform + report.seconds_transform,
            rows_skipped=self.rows_skipped + (0 if report.nulled else bad),
            rows_nulled=self.rows_nulled + (bad if report.nulled else 0),
            reasons=reasons,
        )

    def keys(self) -> list[str]:
        """Names of the numbers."""
        return [item.name for item in fields(self)]

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)


class Loader:
    """Batches of a `Dataset`, epoch after epoch, from any saved place.

    Each ``iter()`` is one epoch. After the last batch the loader stands at the next epoch. Leaving a loop early
    (``break``) and calling ``iter()`` again restarts that epoch, unless all its batches were taken or a state was just
    loaded. Two live iterators over one loader raise. ``dataset.set_epoch`` moves the loader too.

    With ``workers=0`` (the default, and the fastest for decoding) the data set's threads do the work. Worker processes
    pay off for transforms that hold Python's lock. They stay alive between epochs; their batches come through memory that
    both processes have mapped, and which goes back for the next ones once a batch and all views of it are let go. On Linux
    it is no part of /dev/shm.

    Args:
        dataset: what to load.
        workers: worker processes.
        prefetch: batches that each worker process holds ready, beside those that its own threads have in flight: the data
            set's ``prefetch_bytes`` applies to each process. Without workers it alone rules.
        pin_memory: hand out page-locked tensors, where there is a GPU to copy them to.
        start_method: "forkserver" (default where there is one), "spawn" (default elsewhere, and in processes forked from one
            that has a fork server), or "fork". Fork is refused by nothing here, but no client of a remote store survives it,
            nor does any library that runs threads. The first two need the `__main__` guard.

    Raises:
        ConfigError: a value outside what is allowed.

    Example:
        >>> loader = Loader(ds)  # doctest: +SKIP
        >>> for epoch in range(loader.epoch, 10):  # doctest: +SKIP
        ...     for batch in loader:
        ...         state = loader.state_dict()
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        workers: int = 0,
        prefetch: int = 2,
        pin_memory: bool = False,
        start_method: StartMethod | None = None,
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise ConfigError(f"Loader takes a lakehouse.Dataset, got {type(dataset).__name__}")
        options.one_of("start_method", start_method, (None, *multiprocessing.get_all_start_methods()))
        self._dataset = dataset
        self._workers = options.whole_number("workers", workers, least=0)
        self._prefetch = options.whole_number("prefetch", prefetch, least=1)
        self._pinned = options.flag("pin_memory", pin_memory) and torch.cuda.is_available()
        self._start_method = start_method
        self._pid = os.getpid()  # whose worker processes these are: a forked child starts its own
        self._start = Start()
        self._borrower = uuid.uuid4().hex  # of worker processes' memory
        weakref.finalize(self, segments.forget, self._borrower)
        self._torch_loader: DataLoader[Any] | None = None
        self._held: weakref.finalize[[DataLoader[Any], int], Loader] | None = None
        self._epoch = dataset.epoch
        self._step = 0  # steps of the epoch that the trainer has taken
        self._resumed = False  # a state was loaded and nothing taken since
        self._epoch_requests = dataset.epoch_requests
        self._live: weakref.ref[_Epoch] | None = None
        self._stats = Stats()
        self._handed_over = 0.0  # when the trainer got the batch that it has; 0: it has none

    def __len__(self) -> int:
        """Steps per epoch on this rank."""
        return len(self._dataset)

    def __repr__(self) -> str:
        epoch, step = self._place()
        return f"Loader({self._dataset!r}, workers={self._workers}; {step:,} steps of epoch {epoch} taken)"

    @property
    def dataset(self) -> Dataset:
        """What is loaded."""
        return self._dataset

    @property
    def epoch(self) -> int:
        """The epoch that is running, or else the one that the next ``iter()`` gives."""
        if self._is_live():
            return self._epoch
        return self._place()[0]

    @property
    def stats(self) -> Stats:
        """What was handed over so far and where the time went."""
        return self._stats

    # --- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last batch taken, as plain JSON; the same on every rank.

        Taken behind the last batch of an epoch it is the next epoch's beginning.
        """
        epoch, step = self._place()
        return self._dataset.identity.state(epoch=epoch, position=step * self._dataset.shard.global_batch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next ``iter()`` continue behind the batch that was the last one taken when ``state`` was saved.

        Batch size, world and workers may be others than then, as long as the position is a multiple of the global batch.

        Raises:
            ResumeError: the state is malformed, belongs to other rows, another order or seed, or its position does not
                fit the global batch; or an iterator is live, whose worker processes would not see the change.
        """
        if self._is_live():
            raise ResumeError(
                "load_state_dict was called while an iterator over this loader is live: it would go on from its old place; "
                "load the state first, then call iter()"
            )
        epoch, position = self._dataset.identity.read(state, "epoch", "position")
        step = self._dataset.step_at(position)
        self._epoch, self._step = (epoch, step) if step < len(self) else (epoch + 1, 0)
        self._resumed = True
        self._epoch_requests = self._dataset.epoch_requests

    def _place(self) -> tuple[int, int]:
        """Epoch and step behind the last batch taken."""
        if not self._is_live() and self._dataset.epoch_requests != self._epoch_requests:
            self._epoch_requests = self._dataset.epoch_requests
            if self._dataset.epoch != self._epoch:
                self._epoch, self._step, self._resumed = self._dataset.epoch, 0, False
        if len(self) and self._step >= len(self):
            return self._epoch + 1, 0
        return self._epoch, self._step

    def _is_live(self) -> bool:
        live = None if self._live is None else self._live()
        return live is not None and not live.ended and live.pid == os.getpid()

    # --- iterating -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """One epoch, or the rest of one after `load_state_dict`.

        Raises:
            LakehouseError: another iterator over this loader is live.
        """
        if self._is_live():
            raise LakehouseError(
                "an iterator over this loader is live already, and a loader has one position; let it go (del, or its "
                "close()) before calling iter() again, or make a second Loader over the data set"
            )
        self._epoch, self._step = self._place()
        if not self._resumed:
            self._step = 0
        self._handed_over = 0.0
        budget = self._dataset.budget()
        iterator = _Epoch(self._source(), lambda source: self._next(source, budget), self._ended)
        self._live = weakref.ref(iterator)
        return iterator

    def _source(self) -> Iterator[Item]:
        if self._workers:
            return self._from_workers()
        return items(self._dataset.steps(self._epoch, self._step, pinned=self._pinned), lambda batch: batch)

    def _from_workers(self) -> Iterator[Item]:
        if self._pid != os.getpid():
            if self._held is not None:
                self._held()
            self._torch_loader, self._held, self._start, self._pid = None, None, Start(), os.getpid()
        self._start.write(self._epoch, self._step)
        with warnings.catch_warnings():
            # torch advises against more workers than cores; the number was the caller's choice.
            warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
            warnings.filterwarnings("ignore", message="Got pickle error", category=UserWarning)  # said below, and what to do
            if self._torch_loader is None:
                self._torch_loader = DataLoader(
                    Dealt(self._dataset, self._start, self._borrower),
                    batch_size=None,
                    num_workers=self._workers,
                    collate_fn=_as_is,
                    prefetch_factor=self._prefetch,
                    persistent_workers=True,
                    pin_memory=self._pinned,
                    multiprocessing_context=start_method(self._start_method, self._workers),
                )
                # Worker processes end when torch's loader is dropped, but are waited for in vain, 5 seconds each, when the
                # garbage collector finds it in a cycle (an exception that someone kept): its queues go first. So it is
                # held from outside any cycle, and dropped once this loader is gone.
                self._held = weakref.finalize(self, _let_go, self._torch_loader, self._pid)
            try:
                return iter(self._torch_loader)
            except RuntimeError as error:
                raise self._worker_death(error) from error
            except (PicklingError, AttributeError, TypeError) as error:  # as pickle tells of a lambda, a local class, a lock
                raise unsendable(error) from error

    def _worker_death(self, error: Exception) -> LakehouseError:
        self._torch_loader = None
        if self._held is not None:
            self._held.detach()
        return LakehouseError(
            f"{cause_line(error)}. If it happened at the start: {why_none_starts()}. Later, a worker is most often killed "
            "for its memory: lower workers, prefetch or prefetch_bytes"
        )

    def _next(self, source: Iterator[Item], budget: Budget) -> Any:
        """The next batch, counted as taken."""
        began = time.perf_counter()
        held = began - self._handed_over if self._handed_over else 0.0
        self._handed_over = 0.0
        while True:
            try:
                step, batch, report = _wait_for(source)
            except StopIteration:
                self._stats = replace(self._stats, seconds_consumer=self._stats.seconds_consumer + held)
                raise
            except Exception as error:
                if not self._workers:
                    raise
                if _tells_of_death(error):
                    raise self._worker_death(error) from error
                # The worker's traceback is in the text; this process's own would tie torch's iterator into a cycle.
                raise error.with_traceback(None) from None
            if step != self._step:
                raise LakehouseError(f"step {step} came where step {self._step} of epoch {self._epoch} was due")
            budget.spend(report)
            self._step += 1
            self._resumed = False
            batch = unpack(batch) if self._workers else batch
            now = time.perf_counter()
            self._stats = self._stats.plus(report, now - began, held)
            if batch is not None:
                self._handed_over = now
                return batch
            began, held = now, 0.0  # a single row that was skipped

    def _ended(self) -> None:
        """All steps of the epoch were taken."""
        if self._step != len(self):
            raise LakehouseError(f"epoch {self._epoch} ended after {self._step} of {len(self)} steps")
        self._epoch += 1
        self._step = 0
        self._resumed = False


class _Epoch(Iterator[Any]):
    """One iteration over a `Loader`, which it keeps alive."""

    def __init__(self, source: Iterator[Item], advance: Callable[[Iterator[Item]], Any], finish: Callable[[], None]) -> None:
        self.ended = False
        self.pid = os.getpid()
        self._source: Iterator[Item] | None = source
        self._advance = advance
        self._finish = finish

    def __next__(self) -> Any:
        if self._source is None:
            raise StopIteration
        if self.pid != os.getpid():
            raise LakehouseError("this iterator was started in another process; call iter() in the process that reads")
        try:
            return self._advance(self._source)
        except StopIteration:
            self.close()
            self._finish()
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop. The loader's position stays behind the last batch taken."""
        self.ended = True
        source, self._source = self._source, None
        if isinstance(source, Generator):
            source.close()


@stage("wait")
def _wait_for(source: Iterator[Item]) -> Item:
    return next(source)


def _tells_of_death(error: Exception) -> bool:
    """Whether a worker process is gone, and not just one of its batches.

    What torch notices first decides the type: the process, or the end of the line to it, through which tensors come.
    """
    if "in DataLoader worker process" in str(error):  # raised there
        return False
    return isinstance(error, (ConnectionError, EOFError, FileNotFoundError)) or "DataLoader worker" in str(error)


def _let_go(loader: DataLoader[Any], started_in: int) -> None:
    """Being this function's argument was what held it; in a forked child, dropping it would end its parent's workers."""
    if os.getpid() != started_in:
        _of_parents.append(loader)


def _as_is(item: Any) -> Any:
    return item
