"""Proofs of exactness that run on any table, and a fetcher that fails on purpose: for our tests and for yours.

Both proofs take a function that makes a loader as your training does::

    def make_loader(**overrides):
        workers = overrides.pop("workers", 0)
        options = {"batch_size": 12, "seed": 7, "decode": {"frame_jpg": lh.Image()}, **overrides}
        return lh.Loader(lh.Dataset(index, **options), workers=workers)


    assert_elastic(make_loader, key="frame_id")
    assert_resumable(make_loader)

They call it with some of ``rank``, ``world``, ``batch_size`` (options of `Dataset`) and ``workers`` (of `Loader`), which must
have the last word. Its own batch size should have many divisors, such as 12: worlds that don't divide it are left out. A few
hundred rows are enough: ``index.take(range(300))``. Worker processes are started only where you ask for them
(``workers=(0, 2)``), and want the script's ``if __name__ == "__main__":`` guard.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow.compute as pc
import torch

from lakehouse.errors import FetchError
from lakehouse.fetch import BlobRef, BlobRefs, Fetched, Fetcher
from lakehouse.loader import Loader
from lakehouse.order import Order

Fault: TypeAlias = Literal["missing", "truncated", "empty", "text", "flipped"] | Exception
GlobalBatch: TypeAlias = list[bytes]  # a digest per row, in the order of ranks and rows

_FAULTS = ("missing", "truncated", "empty", "text", "flipped")


class MakeLoader(Protocol):
    """Makes a new loader over the same rows."""

    def __call__(self, **overrides: Any) -> Loader:
        """A loader with ``rank``, ``world``, ``batch_size`` and ``workers`` as given, or else the maker's own."""
        ...


def assert_elastic(
    make_loader: MakeLoader,
    *,
    worlds: Sequence[int] = (1, 2, 3, 4, 6, 8, 12),
    workers: Sequence[int] = (0,),
    epochs: int = 2,
    key: str | None = None,
) -> None:
    """Every world and number of workers gives the same global batches, no row twice, and fewer than one batch lost.

    Ranks are simulated, one after the other, in this process. With ``tail="pad"`` no row may be lost.

    Args:
        make_loader: see the module.
        worlds: numbers of ranks to try.
        workers: numbers of worker processes to try, each with every world.
        epochs: epochs to run.
        key: a column whose values all differ. Then rows are counted in the batches as they arrive; without it, in the plan
            that they are made from.

    Raises:
        AssertionError: naming the topology and the step that differ, or the rows that come twice or never.
        ValueError: the key is no column of the batches, or has a value twice.

    Example:
        >>> assert_elastic(make_loader, key="frame_id", workers=(0, 2))  # doctest: +SKIP
    """
    base = make_loader(rank=0, world=1, workers=0)
    shard = base.dataset.shard
    expected = []
    for epoch in range(epochs):
        _check_plan(base, epoch)
        arrived = None if key is None else _KeyCount(base, key)
        expected.append(_collect([base], each=arrived))
        if arrived is not None:
            arrived.check(epoch)
    dealt = [world for world in worlds if shard.global_batch % world == 0]
    for world in dealt:
        for count in workers:
            loaders = _ranks(make_loader, world, shard.global_batch, count)
            for epoch in range(epochs):
                name = f"world {world} x {count} workers, epoch {epoch}"
                _compare(_collect(loaders, name), expected[epoch], 0, name)
    if not any(world > 1 for world in dealt):
        raise AssertionError(
            f"no world of {list(worlds)} divides the batch size {shard.global_batch}: use one with divisors, such as 12"
        )


def assert_resumable(
    make_loader: MakeLoader,
    *,
    topologies: Sequence[tuple[int, int]] = ((1, 0), (2, 0), (3, 0)),
    epochs: int = 2,
    every: int = 1,
) -> None:
    """After every step a saved state continues exactly, on other topologies, again and again, across the epoch's end.

    Args:
        make_loader: see the module.
        topologies: pairs (world, workers) to resume on, used in turn; worlds that don't divide the batch size are left out.
        epochs: epochs of a run.
        every: resume after each so many steps.

    Raises:
        AssertionError: naming the step and the topology.

    Example:
        >>> assert_resumable(make_loader, topologies=[(1, 0), (2, 0), (1, 2)])  # doctest: +SKIP
    """
    base = make_loader(rank=0, world=1, workers=0)
    steps, size = len(base), base.dataset.shard.global_batch
    expected: list[GlobalBatch] = []
    states = [json.loads(json.dumps(base.state_dict()))]
    for _ in range(epochs):
        for batch in base:
            expected.append(_digests(batch))
            states.append(json.loads(json.dumps(base.state_dict())))
    fitting = [pair for pair in topologies if size % pair[0] == 0]
    if not fitting or not steps:
        raise AssertionError(f"nothing to test: {steps} steps, topologies that fit batch size {size}: {fitting}")
    for done in range(0, len(states), every):
        world, workers = fitting[(done // every) % len(fitting)]
        name = f"resumed after step {done} on world {world} x {workers} workers"
        loaders = _ranks(make_loader, world, size, workers)
        for loader in loaders:
            loader.load_state_dict(states[done])
        # One step, then another resume: a state must not be that of the loader that it was loaded into.
        if done < len(expected):
            _compare(_collect(loaders, name, limit=1), expected[done : done + 1], done, name)
            again = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
            if any(state != states[done + 1] for state in again):
                raise AssertionError(f"{name}: one step later the state is {again}, expected {states[done + 1]} on every rank")
            world, workers = fitting[(done // every + 1) % len(fitting)]
            name = f"{name}, then again after step {done + 1} on world {world} x {workers} workers"
            loaders = _ranks(make_loader, world, size, workers)
            for loader in loaders:
                loader.load_state_dict(again[0])
        rest: list[GlobalBatch] = []
        while loaders[0].epoch < epochs:
            rest += _collect(loaders, name)
        _compare(rest, expected[done + 1 :], done + 1, name)


class FaultyFetcher:
    """A fetcher whose chosen ranges fail, always in the same way.

    Args:
        inner: what fetches the others, and the bytes to spoil.
        faults: ``BlobRef`` to fault, or a function of a ``BlobRef`` (of module level, for worker processes). "missing":
            a `FetchError`; "truncated": the first half; "empty"; "text"; "flipped": one byte in the middle inverted; an
            exception: raised by ``fetch`` itself, as a mistake in a fetcher would.
        delay_s: time that each call takes longer.

    Attributes:
        calls: number of references of each call in this process.
    """

    def __init__(
        self,
        inner: Fetcher,
        faults: Mapping[BlobRef, Fault] | Callable[[BlobRef], Fault | None] | None = None,
        *,
        delay_s: float = 0.0,
    ) -> None:
        self.calls: list[int] = []
        self._inner = inner
        self._faults = faults
        self._delay_s = delay_s

    @property
    def whole_steps(self) -> bool:
        """As the inner fetcher."""
        return bool(getattr(self._inner, "whole_steps", False))

    def fetch(self, refs: BlobRefs) -> Fetched:
        """The inner fetcher's values, spoilt where asked."""
        self.calls.append(len(refs))
        if self._delay_s:
            time.sleep(self._delay_s)
        faults = [self._fault(refs[i]) for i in range(len(refs))]
        for fault in faults:
            if isinstance(fault, Exception) and not isinstance(fault, FetchError):
                raise fault
        fetched = self._inner.fetch(refs)
        values = [
            value if fault is None or value is None else _spoil(refs[i], value, fault)
            for i, (value, fault) in enumerate(zip(fetched.values, faults, strict=True))
        ]
        return Fetched(values, fetched.stats)

    def _fault(self, ref: BlobRef | None) -> Fault | None:
        if ref is None or self._faults is None:
            return None
        fault = self._faults(ref) if callable(self._faults) else self._faults.get(ref)
        if fault is not None and not isinstance(fault, Exception) and fault not in _FAULTS:
            raise ValueError(f"a fault is one of {', '.join(_FAULTS)} or an exception, got {fault!r}")
        return fault


def _spoil(ref: BlobRef | None, value: Any, fault: Fault) -> Any:
    if isinstance(fault, FetchError) or isinstance(value, FetchError):
        return fault if isinstance(fault, FetchError) else value
    if fault == "missing":
        return FetchError(f"{ref}: made to be missing")
    data = bytearray(value)
    if fault == "truncated":
        return bytes(data[: len(data) // 2])
    if fault == "flipped" and data:
        data[len(data) // 2] ^= 0xFF
        return bytes(data)
    return b"these are words, no image" if fault == "text" else b""


def _ranks(make_loader: MakeLoader, world: int, size: int, workers: int) -> list[Loader]:
    loaders = [make_loader(rank=rank, world=world, batch_size=size // world, workers=workers) for rank in range(world)]
    for rank, loader in enumerate(loaders):
        shard = loader.dataset.shard
        if (shard.rank, shard.world, shard.global_batch) != (rank, world, size):
            raise ValueError(
                f"make_loader was asked for rank={rank}, world={world}, batch_size={size // world} and made a loader with "
                f"rank={shard.rank}, world={shard.world}, batch_size={shard.batch_size}: what it is given must have the last "
                "word"
            )
    return loaders


def _collect(
    loaders: Sequence[Loader], name: str = "", limit: int | None = None, each: Callable[[Any], None] | None = None
) -> list[GlobalBatch]:
    """The global batches of one epoch, or of its first steps; ``each`` is shown every batch."""
    ranks: list[list[GlobalBatch]] = []
    for loader in loaders:
        iterator: Iterator[Any] = iter(loader)
        batches: list[GlobalBatch] = []
        while limit is None or len(batches) < limit:
            batch = next(iterator, None)
            if batch is None:
                break
            if each is not None:
                each(batch)
            batches.append(_digests(batch))
        ranks.append(batches)
        del iterator
    counts = {len(batches) for batches in ranks}
    if len(counts) != 1:
        raise AssertionError(f"{name}: ranks have different numbers of steps: {[len(batches) for batches in ranks]}")
    return [[row for batch in step for row in batch] for step in zip(*ranks, strict=True)]


def _compare(got: Sequence[GlobalBatch], expected: Sequence[GlobalBatch], first: int, name: str) -> None:
    for step, (one, other) in enumerate(zip(got, expected, strict=False), first):
        if one != other:
            same = sum(a == b for a, b in zip(one, other, strict=False))
            raise AssertionError(f"{name}: step {step} has {len(one)} rows, {same} of {len(other)} as expected in place")
    if len(got) != len(expected):
        raise AssertionError(f"{name}: {len(got)} steps from step {first} on, expected {len(expected)}")


def _check_plan(loader: Loader, epoch: int) -> None:
    """Every row at most once, and as few lost as promised, by the rows that steps are made from."""
    dataset = loader.dataset
    if not isinstance(dataset.order, Order):
        return  # a mixture or weights: rows come as often as they are due
    n = len(dataset.index)
    seen = np.zeros(n, np.int64)
    for step in range(len(loader)):
        rows = dataset.rows_of(epoch, step)
        np.add.at(seen, rows.rows[rows.valid], 1)
    _check_counts(loader, epoch, int((seen > 1).sum()), int((seen == 0).sum()))


def _check_counts(loader: Loader, epoch: int, twice: int, lost: int) -> None:
    shard = loader.dataset.shard
    allowed = shard.global_batch - 1 if shard.tail == "drop" else 0
    if twice or lost > allowed:
        raise AssertionError(f"epoch {epoch}: {twice} rows come twice, {lost} of {shard.n} are lost ({allowed} allowed)")


class _KeyCount:
    """How often each row came, by a column that tells rows apart."""

    def __init__(self, loader: Loader, key: str) -> None:
        once_each = isinstance(loader.dataset.order, Order)
        if not once_each:
            raise ValueError(
                "key= counts rows that come once each; those of a mixture or of weights come as often as they are due"
            )
        values = loader.dataset.index.column(key)
        if pc.count_distinct(values, mode="all").as_py() != len(values):
            raise ValueError(f"key={key!r}: the column has a value twice and can't tell rows apart; take one that is unique")
        self._loader = loader
        self._key = key
        self._seen: Counter[Any] = Counter()
        self._skipped = -loader.stats.rows_skipped

    def __call__(self, batch: Any) -> None:
        """Count a batch's rows."""
        if self._key not in batch:
            raise ValueError(f"key={self._key!r} is no column of the batches, which have {', '.join(map(str, batch))}")
        values = batch[self._key]
        values = values.tolist() if isinstance(values, torch.Tensor) else values
        valid = batch["valid"].tolist() if "valid" in batch else [True] * len(values)
        self._seen.update(value for value, is_valid in zip(values, valid, strict=True) if is_valid)

    def check(self, epoch: int) -> None:
        """Every row at most once, and as few lost as promised, beside those that were skipped as bad."""
        twice = sum(count > 1 for count in self._seen.values())
        came = len(self._seen) + self._skipped + self._loader.stats.rows_skipped
        _check_counts(self._loader, epoch, twice, self._loader.dataset.shard.n - came)


def _digests(batch: Any) -> GlobalBatch:
    """One digest per row of a batch, over all its columns but the report."""
    if not isinstance(batch, Mapping):
        raise TypeError(f"the proofs compare batches that are dicts, got {type(batch).__name__}; leave the transform out")
    columns = {name: values for name, values in batch.items() if name != "_bad"}
    if not columns:
        return []
    length = len(next(iter(columns.values())))
    rows = [hashlib.blake2b(digest_size=16) for _ in range(length)]
    for name, values in columns.items():
        if len(values) != length:
            raise AssertionError(f"column {name} has {len(values)} values, others have {length}")
        for row, value in zip(rows, values, strict=True):
            row.update(name.encode())
            row.update(_value_bytes(value))
    return [row.digest() for row in rows]


def _value_bytes(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes()
    if isinstance(value, bytes):
        return value
    return pickle.dumps(value)
