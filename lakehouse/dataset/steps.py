"""One step of one rank: which rows, then their values, then the batch.

::

    step s ──shard──> positions ──order──> index rows ──┬─ scalar columns ──────────────────────┐
                                                        └─ BLOB columns: fetch, decode (tasks) ─┴─> bad rows ─> transform
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import torch

from lakehouse.dataset.badrows import BadRow, Report, bad_value
from lakehouse.dataset.blob_step import BlobStep
from lakehouse.dataset.blobs import BlobColumn
from lakehouse.dataset.columns import IntArray, ScalarColumn
from lakehouse.dataset.memory import Memory, Trim
from lakehouse.dataset.pipeline import Spawn, Stop
from lakehouse.dataset.selection import Ids
from lakehouse.dataset.stage import stage
from lakehouse.errors import DecodeError, FetchError, LakehouseError, cause_line
from lakehouse.fetch import Fetcher, FetchStats
from lakehouse.order import row_rng

OnError = Literal["raise", "skip", "null"]
Transform = Callable[[Any, Sequence[np.random.Generator]], Any]


class RowRngs(Sequence[np.random.Generator]):
    """One random generator per row of a batch, made when it is asked for.

    Seeded by ``(seed, epoch, position)`` alone: a row gets the same draws on any topology and after any resume.
    """

    def __init__(self, seed: int, epoch: int, positions: IntArray) -> None:
        self._key = (seed, epoch)
        self._positions = positions
        self._made: dict[int, np.random.Generator] = {}

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, i: int) -> np.random.Generator: ...

    @overload
    def __getitem__(self, i: slice) -> list[np.random.Generator]: ...

    def __getitem__(self, i: int | slice) -> np.random.Generator | list[np.random.Generator]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        k = range(len(self))[i]  # negative indices, and IndexError
        if k not in self._made:
            self._made[k] = row_rng(*self._key, int(self._positions[k]))
        return self._made[k]


@dataclass(frozen=True)
class Rows:
    """The rows of one rank's step.

    Attributes:
        step: number of the step within the epoch.
        positions: places in the epoch's order, int64[b]; beyond the last row for padding.
        rows: index rows at those positions, int64[b].
        valid: False for padding, bool[b].
    """

    step: int
    positions: IntArray
    rows: IntArray
    valid: npt.NDArray[np.bool_]


@dataclass
class Made:
    """What the steps of one iteration have become.

    Attributes:
        batch_bytes: of the one finished last, since a transform may make more of a batch, such as floats; None: of none yet.
    """

    batch_bytes: int | None = None


@dataclass(frozen=True)
class Recipe:
    """How one process turns rows into batches in one epoch.

    Attributes:
        columns: selected columns in order.
        row_ids: the table's row id of each index row.
        where: index row and column name (None: the row) to "default.drive_frames@41 row 88123 column frame_jpg (...)".
        padded: the tail is padded, so batches carry ``valid``.
        squeezed: batches of one row are delivered as rows.
        pinned: tensors are page-locked.
        threads: threads that decode.
        spread_from: from this step on there are too few others to keep the threads busy.
        max_bytes: bound of the bytes in flight.
        trim: told of what is read; None: who reads ahead has its own.
        made: what is learnt on the way.
    """

    columns: Mapping[str, ScalarColumn | BlobColumn]
    row_ids: Ids
    where: Callable[[int, str | None], str]
    fetcher: Fetcher | None
    memory: Memory
    seed: int
    epoch: int
    transform: Transform | None
    on_error: OnError
    padded: bool
    squeezed: bool
    pinned: bool
    threads: int
    spread_from: int
    max_bytes: int
    stop: Stop
    trim: Trim | None
    made: Made = field(default_factory=Made)


class Step:
    """The making of one batch; the batch and its `report` are there after `finish`."""

    def __init__(self, recipe: Recipe, rows: Rows) -> None:
        self.rows = rows
        self._batch: Any = None
        self._batch_bytes: int | None = None  # once the batch is there
        self.report = Report()
        self._recipe = recipe
        self._blobs: dict[str, BlobStep] = {}
        for name, column in recipe.columns.items():
            if isinstance(column, BlobColumn) and recipe.fetcher is not None:
                self._blobs[name] = BlobStep(
                    column,
                    rows.rows,
                    fetcher=recipe.fetcher,
                    memory=recipe.memory,
                    # Each column gets a generator of its own with the row's seed: which column comes first is up to the
                    # threads, and an image and its mask are cropped alike.
                    rng=lambda i: row_rng(recipe.seed, recipe.epoch, int(rows.positions[i])),
                    stop=recipe.stop,
                    threads=recipe.threads,
                    trim=recipe.trim,
                )

    def cost_bytes(self) -> int | None:
        """Bytes that the step holds until it is handed over; None while unknown."""
        blobs = self._blobs  # before the next line: `finish` may run meanwhile, and replaces this last
        if self._batch_bytes is not None:
            return self._batch_bytes
        total_bytes = 0
        for blob in blobs.values():
            cost_bytes = blob.cost_bytes()
            if cost_bytes is None:
                return None
            total_bytes += cost_bytes
        made_bytes = self._recipe.made.batch_bytes
        if made_bytes is None:
            return total_bytes if self._recipe.transform is None else None
        return max(total_bytes, made_bytes)

    def start(self, spawn: Spawn) -> None:
        """Hand out the fetching and decoding."""
        recipe, cost_bytes = self._recipe, self.cost_bytes()
        few = cost_bytes is None or cost_bytes * (recipe.threads + 1) > recipe.max_bytes
        for blob in self._blobs.values():
            blob.start(spawn, spread=few or self.rows.step >= recipe.spread_from)

    def finish(self) -> None:
        """Assemble the batch; raises what is wrong with the step."""
        for blob in self._blobs.values():
            blob.settle()
        bad = sorted(
            ((i, name, error) for name, blob in self._blobs.items() for i, error in blob.errors.items()),
            key=lambda entry: entry[0],  # stable: columns keep their order within a row
        )
        if bad and self._recipe.on_error == "raise":
            i, name, error = bad[0]
            kind = FetchError if isinstance(error, FetchError) else DecodeError
            raise kind(f"{self._where(i, name)}: {error}") from error
        keep: npt.NDArray[np.intp] | None = None
        if bad and self._recipe.on_error == "skip":
            keep = np.setdiff1d(np.arange(len(self.rows.rows)), np.array([i for i, _, _ in bad]))
        reported = [(i, name, error) for i, name, error in bad if self.rows.valid[i]]  # padding repeats rows: count once
        report = [
            bad_value(int(self._recipe.row_ids[self.rows.rows[i]]), name, self._ref(i, name), error)
            for i, name, error in reported
        ]
        seconds = 0.0
        if keep is None or len(keep) or not self._recipe.squeezed:
            batch = self._assemble(keep, report)
            if self._recipe.transform is not None:
                began = time.perf_counter()
                batch = self._transformed(batch, self._recipe.transform, keep)
                seconds = time.perf_counter() - began
            self._batch = _pinned(batch) if self._recipe.pinned else batch
        self.report = self._reported(reported, report, len(self.rows.rows) if keep is None else len(keep), seconds)
        held_bytes = sum(blob.value_bytes() for blob in self._blobs.values())
        self._batch_bytes = self._recipe.made.batch_bytes = max(held_bytes, _tensor_bytes(self._batch))
        for blob in self._blobs.values():
            blob.forget()
        self._blobs = {}

    def take_batch(self) -> Any:
        """The batch, which the step then forgets; None where a single row (``batch_size=None``) was skipped."""
        batch, self._batch = self._batch, None
        return batch

    @stage("assemble")
    def _assemble(self, keep: npt.NDArray[np.intp] | None, report: list[dict[str, Any]]) -> Any:
        rows = self.rows.rows if keep is None else self.rows.rows[keep]
        batch: dict[str, Any] = {}
        for name, column in self._recipe.columns.items():
            batch[name] = self._blobs[name].result(keep) if isinstance(column, BlobColumn) else column.take(rows)
        if self._recipe.padded:
            batch["valid"] = torch.from_numpy(self.rows.valid.copy() if keep is None else self.rows.valid[keep])
        if self._recipe.on_error == "null":
            for name, blob in self._blobs.items():
                batch[f"{name}_ok"] = torch.tensor([i not in blob.errors for i in range(len(rows))], dtype=torch.bool)
        if self._recipe.squeezed:
            batch = {name: values[0] for name, values in batch.items()}
        if self._recipe.on_error != "raise":
            batch["_bad"] = report
        return batch

    @stage("transform")
    def _transformed(self, batch: Any, transform: Transform, keep: npt.NDArray[np.intp] | None) -> Any:
        positions = self.rows.positions if keep is None else self.rows.positions[keep]
        try:
            made = transform(batch, RowRngs(self._recipe.seed, self._recipe.epoch, positions))
        except Exception as error:
            rows = self.rows.rows
            raise LakehouseError(
                f"transform stopped by {cause_line(error)} in step {self.rows.step} of epoch {self._recipe.epoch}, "
                f"{len(positions)} rows from {self._recipe.where(int(rows[0]), None)} to "
                f"{self._recipe.where(int(rows[-1]), None)}; an error in a transform always stops the run"
            ) from error
        if made is None:  # it would pass for a row that was skipped, and the epoch for an empty one
            raise LakehouseError(f"transform {transform!r} returned None: it has to return the batch")
        return made

    def _reported(
        self, bad: list[tuple[int, str, BadRow]], report: list[dict[str, Any]], delivered: int, seconds_transform: float
    ) -> Report:
        reasons = {i: type(error).__name__ for i, _, error in reversed(bad)}  # reversed: the first column's stays
        blobs = self._blobs.values()
        fetched = sum((blob.fetched for blob in blobs), FetchStats())
        return Report(
            rows=delivered,
            bytes_referenced=fetched.bytes_referenced,
            bytes_fetched=fetched.bytes_fetched,
            requests=fetched.requests,
            retries=fetched.retries,
            throttles=fetched.throttles,
            seconds_backoff=fetched.seconds_backoff,
            seconds_fetching=sum(blob.seconds_fetching for blob in blobs),
            seconds_decoding=sum(blob.seconds_decoding for blob in blobs),
            seconds_transform=seconds_transform,
            bad=report,
            bad_rows={reason: list(reasons.values()).count(reason) for reason in sorted(set(reasons.values()))},
            nulled=self._recipe.on_error == "null",
        )

    def _where(self, i: int, name: str) -> str:
        return self._recipe.where(int(self.rows.rows[i]), name)

    def _ref(self, i: int, name: str) -> Any:
        column = self._recipe.columns[name]
        return column.refs[int(self.rows.rows[i])] if isinstance(column, BlobColumn) else None


def _tensor_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout == torch.strided else 0  # sparse ones do not say
    if isinstance(value, (dict, list, tuple)):
        return sum(map(_tensor_bytes, value.values() if isinstance(value, dict) else value))
    return 0


def _pinned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.pin_memory()
    if isinstance(value, dict):
        return {key: _pinned(item) for key, item in value.items()}
    if type(value) in (list, tuple) and any(isinstance(item, torch.Tensor) for item in value):
        return type(value)(_pinned(item) for item in value)
    return value
