"""`MapDataset`: rows of an index by number, for users of torch's samplers."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import get_worker_info

from lakehouse.cache import Cache
from lakehouse.dataset import options
from lakehouse.dataset.memory import Trim
from lakehouse.dataset.pipeline import Lane, Stop, Task
from lakehouse.dataset.selection import Index, Opened, Selection
from lakehouse.dataset.steps import Recipe, Rows, Step
from lakehouse.errors import ConfigError, LakehouseError, cause_line
from lakehouse.fetch import BlobRefs, Fetched, Fetcher
from lakehouse.order import row_rng

SampleTransform: TypeAlias = Callable[[dict[str, Any], np.random.Generator], Any]

_SEEDS = 2**62
_TRIM_BYTES = 64 * 1024 * 1024


class MapDataset(TorchDataset[Any]):
    """Rows of an index by number: ``ds[i]`` is a sample, a dict of column to value.

    For samplers and libraries that choose rows themselves. torch's ``DataLoader(ds, batch_size=64, sampler=...)`` asks for a
    batch at once, which is one planned read per BLOB column, decoded in threads. There is no order, no state and no elastic
    resume here: those are `Dataset`'s and `Loader`'s, which are faster, too.

    torch's own collate makes batches of numbers, strings, bytes and images of one size (`Image(size=...)`); nulls and images
    of many sizes need a ``collate_fn`` of yours.

    Args:
        index: the rows: a `RowIndex`; of a `Mixture` all rows of all parts, whatever their weights.
        decode: BLOB column to decoder; others are `Raw`. A decoder is called from several threads.
        columns: which columns, in which order. Default: all of the index.
        transform: ``transform(sample, rng) -> sample``, last, for one sample at a time.
        on_error: what to do with a row that can't be fetched or decoded: "raise", or "null" (zeros, None under `Raw`, and a
            boolean ``<column>_ok``). Any other exception is always raised.
        fill: column to the value that replaces null numbers. Without it a null number is an error.
        verify: check each BLOB's stored checksum (files of the table itself), at the price of reading 16 bytes more.
        threads: threads that decode, per process. Default: the cores this process may use, at most 8; in worker processes
            their share of them. 0: everything in the caller's thread.
        cache: keeps what was read on a local disk, so that a second epoch reads no bytes from the store. Useful where the
            table is not on a local disk already.
        fetcher: reads byte ranges. Default: the index's own. It is pickled to worker processes.

    A sample's generator is seeded from torch's: ``torch.manual_seed`` makes a run repeat itself, and worker processes differ.

    Raises:
        ConfigError: a value outside what is allowed.
        NotFoundError: a column that does not exist.
        SchemaError: a reserved column name, or an option that does not fit a column's type.

    Example:
        >>> ds = MapDataset(index, decode={"frame_jpg": Image(size=(224, 224))})  # doctest: +SKIP
        >>> loader = torch.utils.data.DataLoader(ds, batch_size=64, shuffle=True)  # doctest: +SKIP
    """

    def __init__(
        self,
        index: Index,
        *,
        decode: Mapping[str, Callable[[Any, Any], Any]] | None = None,
        columns: Sequence[str] | None = None,
        transform: SampleTransform | None = None,
        on_error: Literal["raise", "null"] = "raise",
        fill: Mapping[str, Any] | None = None,
        verify: bool = False,
        threads: int | None = None,
        cache: Cache | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        options.one_of("on_error", on_error, ("raise", "null"))
        if transform is not None and not callable(transform):
            raise ConfigError(f"transform must be a function (sample, rng) -> sample, got {transform!r}")
        # Each sample has a shape of its own until torch's collate makes one batch of them.
        self._selection = Selection.of(
            index, columns=columns, decode=decode, fill=fill, ragged=True, verify=verify, fetcher=fetcher, cache=cache
        )
        self._transform = transform
        self._on_error = on_error
        self._threads = None if threads is None else options.whole_number("threads", threads, least=0, most=256)
        decoders = self._selection.decoders.values()
        self._draws = transform is not None or any(getattr(decoder, "needs_rng", True) for decoder in decoders)
        self._trim = Trim(_TRIM_BYTES)
        self._process: Opened | None = None
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        """Rows of the index."""
        return len(self._selection.index)

    def __repr__(self) -> str:
        return f"MapDataset({self.index!r})"

    @property
    def index(self) -> Index:
        """The rows."""
        return self._selection.index

    def __getitem__(self, i: int) -> Any:
        """One sample; negative numbers count from the end.

        Raises:
            IndexError: no such row.
        """
        return self.__getitems__([i])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Many samples in the order asked, read together.

        Raises:
            IndexError: no such row.
            FetchError: bytes that can't be read.
            DecodeError: bytes that the decoder refuses.
        """
        n = len(self)
        numbers = np.array([operator.index(row) for row in rows], np.int64)
        if len(numbers) and not (-n <= numbers.min() and numbers.max() < n):
            outside = numbers[(numbers < -n) | (numbers >= n)][0]
            raise IndexError(f"row {outside} of an index of {n} rows")
        numbers %= max(n, 1)
        # One draw from torch's generator for a batch; the seeds of its samples run on from there.
        first = int(torch.randint(_SEEDS, ()).item()) if self._draws else 0
        batch = self._batch(Rows(0, first + np.arange(len(numbers)), numbers, np.ones(len(numbers), np.bool_)))
        samples = [dict(zip(batch, values, strict=True)) for values in zip(*map(_apart, batch.values()), strict=True)]
        if self._transform is None:
            return samples
        return [self._transformed(sample, row, first + k) for k, (sample, row) in enumerate(zip(samples, numbers, strict=True))]

    def _transformed(self, sample: dict[str, Any], row: Any, number: int) -> Any:
        try:
            made = self._transform(sample, row_rng(0, 0, number))  # type: ignore[misc]
        except Exception as error:
            raise LakehouseError(
                f"transform stopped by {cause_line(error)} at {self.index.where(int(row))}; an error in a transform always "
                "stops the run"
            ) from error
        if made is None:
            raise LakehouseError(f"transform {self._transform!r} returned None: it has to return the sample")
        return made

    def _batch(self, rows: Rows) -> dict[str, Any]:
        if self._process is None or not self._process.serves("heap"):
            self._process, self._pool = self._selection.open("heap"), None
        process = self._process
        threads = self._thread_count()
        stop = Stop()
        recipe = Recipe(
            columns=process.columns,
            row_ids=self.index.row_ids,
            where=self.index.where,
            fetcher=None if process.fetcher is None else _Whole(process.fetcher),
            memory=process.memory,
            seed=0,
            epoch=0,
            transform=None,
            on_error=self._on_error,
            padded=False,
            squeezed=False,
            pinned=False,
            threads=threads,
            spread_from=0,
            max_bytes=0,
            stop=stop,
            trim=self._trim,
        )
        step = Step(recipe, rows)
        if threads and len(rows.rows) > 1 and process.fetcher is not None:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(threads, "lakehouse-map")
            _run(step, self._pool, stop)
        else:
            step.start(lambda _, task: task())
        step.finish()
        batch: dict[str, Any] = step.take_batch()
        batch.pop("_bad", None)  # torch's collate could make nothing of it
        return batch

    def _thread_count(self) -> int:
        if self._threads is not None:
            return self._threads
        info = get_worker_info()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, min(8, cores // (1 if info is None else info.num_workers)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None, "_pool": None}


class _Whole:
    """The same fetcher, asked once for a whole batch."""

    whole_steps = True

    def __init__(self, inner: Fetcher) -> None:
        self.reads_by = type(inner).__name__
        self._inner = inner

    def fetch(self, refs: BlobRefs) -> Fetched:
        """As the inner one."""
        return self._inner.fetch(refs)


def _run(step: Step, pool: ThreadPoolExecutor, stop: Stop) -> None:
    """All tasks of a step, in threads; raises what the first of them that failed raised."""
    futures: list[Future[None]] = []

    def spawn(_: Lane, task: Task) -> None:
        futures.append(pool.submit(task))

    step.start(spawn)
    done = 0
    try:
        while done < len(futures):  # a task adds those that follow from it before it ends
            futures[done].result()
            done += 1
    finally:
        stop.asked = True  # after an error the others need not go on


def _apart(values: Any) -> Sequence[Any]:
    return values.unbind(0) if isinstance(values, torch.Tensor) else values
