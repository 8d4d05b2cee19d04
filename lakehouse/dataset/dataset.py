"""`Dataset`: index x order x shard x fetch x decode, as a torch data set of whole batches."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch.utils.data import IterableDataset, get_worker_info

from lakehouse.cache import Cache
from lakehouse.dataset import options
from lakehouse.dataset.ahead import SHARE, Ahead
from lakehouse.dataset.badrows import Budget
from lakehouse.dataset.batches import Batches, Progress
from lakehouse.dataset.blobs import BlobColumn
from lakehouse.dataset.memory import Place, Trim
from lakehouse.dataset.orphan import end_with_trainer
from lakehouse.dataset.pipeline import Pipeline, Stop
from lakehouse.dataset.selection import Index, Opened, Selection
from lakehouse.dataset.state import LAST_EPOCH, Identity, Start
from lakehouse.dataset.steps import OnError, Recipe, Rows, Step, Transform
from lakehouse.errors import ConfigError, ResumeError
from lakehouse.fetch import Fetcher
from lakehouse.order import RowOrder, Shuffle, order_of
from lakehouse.shard import Shard, step_of, worker_steps

logger = logging.getLogger(__name__)

_PREFETCH_BYTES = 256 * 1024 * 1024
_STORE_PREFETCH_BYTES = 512 * 1024 * 1024
_IO_THREADS = 4  # they only wait; each fetches a whole step, and the fetcher reads its ranges concurrently


class Dataset(IterableDataset[Any]):
    """The rows of an index as batches, in an order that depends on nothing but ``seed``, ``epoch`` and the position.

    Yields whole batches: dicts in the order of the selected columns. Give it to `Loader`, or to torch's own
    ``DataLoader(ds, batch_size=None)`` (then call `set_epoch` before each epoch).

    A batch holds, by column type: numbers and booleans as a tensor ``[b]``; fixed-length numeric lists as ``[b, k]``;
    strings, decimals, dates and instants as lists, null as None; variable-length lists as a list of tensors; structs and
    maps as a list of dicts; BLOBs by their decoder: `Image` gives uint8 ``[b, H, W, C]``, `Raw` a list of bytes, any other
    callable ``(data, rng) -> value`` a tensor where its values are arrays of one shape or numbers, else a list. Unsigned
    integers that torch lacks become the next wider signed type. The tensors belong to the trainer.

    Each process reads and decodes in threads of its own, which begin with an iteration and end with it.

    Args:
        index: the rows: a `RowIndex`, a `Mixture` of several, or a `Weighted` one.
        batch_size: rows per batch and rank; None: single rows, without the first axis.
        seed: with the epoch, decides the order and all randomness.
        shuffle: "blocks" (blocks of neighbouring rows, then rows inside a window of 64 blocks: fast on any storage), "rows"
            (any row anywhere), or None (as stored). A block has 256 rows, and fewer where the index's rows have more than
            20 KiB of BLOBs on average: about 5 MiB at most, or a single row. So a window is read in few long requests.
            "blocks:64x32": blocks of 64 rows, windows of 32 blocks, whatever the rows are.
        decode: BLOB column to decoder; others are `Raw`. A decoder is called from several threads. Each value gets a
            generator with its row's seed, so that an image and its mask are cropped alike.
        columns: which columns, in which order. Default: all of the index.
        transform: ``transform(batch, rngs) -> batch``, last; ``rngs[i]`` is the generator of row i, made when asked for.
            Called for one batch at a time and in order, in another thread than the trainer's.
        rank: this process among ``world``. Default for both: torch.distributed, else ``RANK`` and ``WORLD_SIZE``, else 0 of 1.
        world: number of ranks.
        tail: "drop" (fewer than ``world * batch_size`` rows of an epoch are left out, other ones each epoch) or "pad"
            (rows are repeated, and a boolean ``valid`` tells them). Equal steps on all ranks either way.
        on_error: what to do with a row that can't be fetched or decoded. "raise"; "skip" (its batch is shorter); "null"
            (zeros, None under `Raw`, and a boolean ``<column>_ok``). With the last two a batch has ``_bad``, a list of
            dicts with row id, column, uri, offset, length and cause. Where no row of a batch can be decoded and the
            decoder names no size, images are ``[b, 0, 0, C]``. Any other exception always stops the run.
        max_bad: bad rows allowed in an epoch of one rank: None (no limit), a count (int) or a share (float). No effect
            with "raise". After a resume the count begins anew. Under torch's own DataLoader with worker processes each worker
            counts for itself; `Loader` counts exactly.
        ragged: images (and arrays of custom decoders) may differ in shape: they come as a list of tensors, except
            where the decoder has a ``size``.
        fill: column to the value that replaces null numbers. Without it a null number is an error.
        verify: check each BLOB's stored checksum (files of the table itself), at the price of reading 16 bytes more.
        threads: threads that read and decode, per process. Default: the cores this process may use, at least 2 and at
            most 8; in worker processes their share of them. 0: none, everything in the caller's thread (for debuggers), but
            for reads from a store, which have threads of their own.
        prefetch_bytes: bound of the bytes of steps in flight, read plus decoded, per process. One step is always allowed. None:
            256 MiB; 512 MiB where bytes come from a store, so that a window of some 320 MiB is read in long requests.
        cache: keeps what was read on a local disk, so that a second epoch reads no bytes from the store. Useful where the
            table is not on a local disk already.
        fetcher: reads byte ranges. Default: the index's own. It is pickled to worker processes.

    Raises:
        ConfigError: a value outside what is allowed.
        NotFoundError: a column that does not exist.
        SchemaError: a reserved column name, or an option that does not fit a column's type.

    Example:
        >>> ds = Dataset(index, batch_size=64, seed=7, decode={"frame_jpg": Image(size=(224, 224))})  # doctest: +SKIP
        >>> next(iter(ds))["frame_jpg"].shape  # doctest: +SKIP
        torch.Size([64, 224, 224, 3])
    """

    def __init__(
        self,
        index: Index,
        *,
        batch_size: int | None,
        seed: int = 0,
        shuffle: Shuffle = "blocks",
        decode: Mapping[str, Callable[[Any, Any], Any]] | None = None,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        rank: int | None = None,
        world: int | None = None,
        tail: Literal["drop", "pad"] = "drop",
        on_error: OnError = "raise",
        max_bad: float | None = None,
        ragged: bool = False,
        fill: Mapping[str, Any] | None = None,
        verify: bool = False,
        threads: int | None = None,
        prefetch_bytes: int | None = None,
        cache: Cache | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        options.one_of("tail", tail, ("drop", "pad"))
        options.one_of("on_error", on_error, ("raise", "skip", "null"))
        if transform is not None and not callable(transform):
            raise ConfigError(f"transform must be a function (batch, rngs) -> batch, got {transform!r}")
        self._index = index
        self._selection = Selection.of(
            index, columns=columns, decode=decode, fill=fill, ragged=ragged, verify=verify, fetcher=fetcher, cache=cache
        )
        self._batch_size = None if batch_size is None else options.whole_number("batch_size", batch_size, least=1)
        self._transform = transform
        self._on_error = on_error
        self._max_bad = options.bad_limit(max_bad)
        self._threads = None if threads is None else options.whole_number("threads", threads, least=0, most=256)
        self._prefetch_bytes = (
            None if prefetch_bytes is None else options.whole_number("prefetch_bytes", prefetch_bytes, least=1)
        )
        seed = options.whole_number("seed", seed, least=0, most=2**64 - 1)
        rank, world = options.place(rank, world)
        self._order = order_of(index, seed, shuffle)
        self._shard = Shard(self._order.n, self._batch_size or 1, world, rank, tail)
        self._start = Start()
        self._epoch_requests = 0
        self._pending: tuple[int, int, int, int] | None = None  # epoch, step, worker and workers of a loaded state
        self._progress: Progress | None = None
        self._process: Opened | None = None
        self._stop = Stop()  # of the latest iteration
        if 0 < self._order.n < self._shard.global_batch and tail == "drop":
            logger.warning(
                "%d rows are fewer than one global batch of %d (world %d x batch size %d): epochs have no steps; "
                'make the batch smaller or use tail="pad"',
                self._order.n, self._shard.global_batch, world, self._shard.batch_size,
            )  # fmt: skip

    # --- what it is ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Steps per rank and epoch; the same on all ranks."""
        return self._shard.steps

    def __repr__(self) -> str:
        return (
            f"Dataset({self._index!r}, batch_size={self._batch_size}, seed={self.seed}, order={self._order.spec!r}, "
            f"rank={self._shard.rank}, world={self._shard.world}; {len(self):,} steps an epoch)"
        )

    @property
    def index(self) -> Index:
        """The rows."""
        return self._index

    @property
    def batch_size(self) -> int | None:
        """Rows per batch and rank; None: single rows."""
        return self._batch_size

    @property
    def seed(self) -> int:
        """Decides the order, with the epoch."""
        return self._order.seed

    @property
    def order(self) -> RowOrder:
        """Positions to index rows."""
        return self._order

    @property
    def shard(self) -> Shard:
        """Steps to positions."""
        return self._shard

    @property
    def identity(self) -> Identity:
        """What a saved state must agree with."""
        return Identity(self._index.fingerprint, self.seed, self._order.spec)

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter()`` gives."""
        return self._start.read()[0]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter()`` gives, here and in worker processes, persistent ones too.

        Call it between epochs. Setting the epoch that a loaded state is in keeps the state's position.

        Raises:
            ConfigError: no whole number from 0 to 2**62.
        """
        epoch = options.whole_number("epoch", epoch, least=0, most=LAST_EPOCH)
        if self._pending is not None and self._pending[0] != epoch:
            self._pending = None
        self._start.write(epoch, 0)
        self._epoch_requests += 1

    @property
    def epoch_requests(self) -> int:
        """How often `set_epoch` was called; lets `Loader` see that it was."""
        return self._epoch_requests

    def budget(self) -> Budget:
        """A new count of bad rows for one epoch of this rank."""
        return Budget(self._max_bad, self._shard.steps * self._shard.batch_size)

    def rows_of(self, epoch: int, step: int) -> Rows:
        """Which rows this rank's step holds. Any step alone costs the same."""
        first, stop = self._shard.span(step)
        positions = np.arange(first, stop)
        if stop <= self._order.n:
            return Rows(step, positions, self._order.rows(epoch, first, stop), _no_padding(stop - first))
        padded, valid = self._shard.positions(step)
        return Rows(step, positions, self._order.at(epoch, padded), valid)

    # --- iterating -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Batches:
        """The epoch's batches from its beginning, or from a state that was just loaded.

        In a worker process of torch's DataLoader: the steps that are dealt to this worker.
        """
        info = get_worker_info()
        if info is not None:
            end_with_trainer()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self._pending is None:
            epoch, first = self._start.read()
        else:
            epoch, first, *saved = self._pending
            self._pending = None
            if saved != [worker, workers]:
                raise ResumeError(
                    f"the state is that of worker process {saved[0]} of {saved[1]}, this one is {worker} of {workers}: "
                    "use the same number of workers, or lakehouse.Loader, whose states fit any number"
                )
        self._progress = Progress(epoch, first, 0, worker, workers)
        return Batches(self, self._progress)

    def step_at(self, position: int) -> int:
        """The step that begins at a position of all ranks together; the number of steps at the end of an epoch.

        Raises:
            ResumeError: no step begins there.
        """
        return step_of(position, self._shard.global_batch, self._shard.n, self._shard.tail)

    def steps(
        self, epoch: int, first: int, *, worker: int = 0, workers: int = 1, pinned: bool = False, lent: bool = False
    ) -> Pipeline[Step]:
        """Finished steps of an epoch, for `Loader`.

        Args:
            epoch: the epoch.
            first: the step to start from.
            worker: this process among the worker processes: it makes ``first + worker``, and every ``workers``-th step on.
            workers: number of worker processes; 1 where the main process does the work.
            pinned: make tensors in page-locked memory.
            lent: make them in memory that this worker process lends.
        """
        place: Place = "heap"
        if pinned:
            place = "pinned"
        elif get_worker_info() is not None and self._transform is None:  # with one, decoded arrays need not leave the process
            place = "lent" if lent else "shared"
        process = self._this_process(place)
        # Where the epoch before was taken to its end, nobody waits for the first batch alone.
        hurried = not self._stop.at_end
        if process.caching is not None:
            process.caching.begin_epoch()
        threads = self._thread_count(workers)
        stop = self._stop = Stop()
        which = worker_steps(first, len(self), worker, workers)
        rows: Iterator[Rows] = (self.rows_of(epoch, step) for step in which)
        fetcher = process.fetcher
        whole_steps = bool(getattr(fetcher, "whole_steps", False))
        max_bytes = self._prefetch_bytes or (_STORE_PREFETCH_BYTES if whole_steps else _PREFETCH_BYTES)
        trim = None if whole_steps else Trim(max_bytes // 4)
        if fetcher is not None and whole_steps:
            window_end = getattr(self._order, "window_end", None)
            refs = [column.refs for column in process.columns.values() if isinstance(column, BlobColumn)]
            end_of = None if window_end is None else partial(window_end, epoch)
            fetcher = ahead = Ahead(fetcher, refs, max_bytes=max_bytes, window_end=end_of, hurried=hurried, stop=stop)
            rows, max_bytes = ahead.announced(rows), max_bytes - int(max_bytes * SHARE)
        recipe = Recipe(
            columns=process.columns,
            row_ids=self._index.row_ids,
            where=self._index.where,
            fetcher=fetcher,
            memory=process.memory,
            seed=self.seed,
            epoch=epoch,
            transform=self._transform,
            on_error=self._on_error,
            padded=self._shard.tail == "pad",
            squeezed=self._batch_size is None,
            pinned=pinned,
            threads=threads,
            spread_from=len(self) - threads * workers,
            max_bytes=max_bytes,
            stop=stop,
            trim=trim,
        )
        plan = (Step(recipe, one) for one in rows)
        return Pipeline(plan, stop=stop, threads=threads, io_threads=_IO_THREADS if whole_steps else 0, max_bytes=max_bytes)

    def _thread_count(self, processes: int) -> int:
        if self._threads is not None:
            return self._threads
        if not self._selection.decoders and self._transform is None:
            return 0  # taking numbers out of an array is quicker than waking a thread
        share = len(os.sched_getaffinity(0)) // processes if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(2 if processes == 1 else 1, min(8, share))

    def _this_process(self, place: Place) -> Opened:
        if self._process is None or not self._process.serves(place):
            self._process = self._selection.open(place)
        return self._process

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None, "_progress": None, "_stop": Stop()}

    # --- torchdata's protocol ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of the latest iteration, for torchdata's StatefulDataLoader.

        It fits the same rank, batch size and number of worker processes. For states that fit any, use `Loader`.
        """
        now = self._progress or Progress(*self._start.read(), 0, 0, 1)
        return self.identity.state(
            epoch=now.epoch,
            # Where all workers together would go on if each had come as far as this one.
            step=min(now.first + now.done * now.workers, len(self)),
            worker=now.worker,
            workers=now.workers,
            batch_size=self._shard.batch_size,
            rank=self._shard.rank,
            world=self._shard.world,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state at the next ``iter()``.

        Raises:
            ResumeError: the state is malformed or does not fit.
        """
        names = ("epoch", "step", "worker", "workers", "batch_size", "rank", "world")
        epoch, step, worker, workers, *shard = self.identity.read(state, *names)
        current = [self._shard.batch_size, self._shard.rank, self._shard.world]
        if shard != current:
            raise ResumeError(
                f"the state was saved with (batch size, rank, world) = {tuple(shard)}, this data set has {tuple(current)}: "
                "use the same, or lakehouse.Loader, whose states fit others"
            )
        if step > len(self):
            raise ResumeError(f"the state was saved at step {step}, an epoch of this data set has {len(self)}")
        self._pending = (epoch, step, worker, workers)
        if get_worker_info() is None:
            self._start.write(epoch, 0)


@functools.cache
def _no_padding(length: int) -> npt.NDArray[np.bool_]:
    """All rows of a step are valid, bool[length]; shared, not to be written to."""
    valid = np.ones(length, np.bool_)
    valid.setflags(write=False)
    return valid
