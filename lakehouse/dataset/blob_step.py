"""One BLOB column of one step: byte ranges to bytes to values, in chunks that run in any thread and any order.

Three kinds of decoder: `Raw` (the bytes are the value); decoders that decode into a given array, such as `Image` (they have
``shape_of`` and ``decode_into``: each row is decoded straight into its place in the batch); and any other callable
``(data, rng) -> value``. The result never depends on which thread came first.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lakehouse.dataset.badrows import BadRow, mistake
from lakehouse.dataset.blobs import BlobColumn
from lakehouse.dataset.columns import IntArray
from lakehouse.dataset.memory import Memory, Trim
from lakehouse.dataset.pipeline import Spawn, Stop
from lakehouse.dataset.placed import Placed
from lakehouse.dataset.stack import gather, size_bytes
from lakehouse.dataset.stage import stage
from lakehouse.errors import DecodeError, FetchError, LakehouseError
from lakehouse.fetch import Fetched, Fetcher, FetchStats, answered, exact_sum

_MIN_CHUNK_ROWS = 8  # below: handing out tasks costs more than it spreads
_MAX_CHUNK_ROWS = 32  # while it is unknown how long a row takes
_LONG_CHUNK_ROWS = 128  # a chunk's bytes pile up
# A chunk's first lines of Python run a millisecond in all, since the caches hold pixels; small steps are best not cut at all.
_CHUNK_S = 0.025
_RAW_CHUNK_BYTES = 1 << 20  # reads alone are so short that small rows are best read in one go
# Small rows that lie in the page cache: the reads are so short that threads would mostly wait for Python's lock, so one
# thread does them all. Beyond either bound, they are spread.
_QUICK_READ_S = 100e-6
_QUICK_READ_BYTES = 1 << 18


class BlobStep:
    """The column's values for one step.

    Args:
        column: the column.
        rows: index rows, int64[b].
        rng: batch row to its own generator.
        threads: threads that decode.
        trim: told of what is read; None: nobody need be.
    """

    def __init__(
        self,
        column: BlobColumn,
        rows: IntArray,
        *,
        fetcher: Fetcher,
        memory: Memory,
        rng: Callable[[int], np.random.Generator],
        stop: Stop,
        threads: int,
        trim: Trim | None,
    ) -> None:
        self.column = column
        self.errors: dict[int, BadRow] = {}  # batch row to its error
        self.fetched = FetchStats()
        self.seconds_fetching = 0.0
        self.seconds_decoding = 0.0
        self._rows = rows
        self._refs = column.refs.take(rows)
        self._fetcher = fetcher
        self._reads_by = getattr(fetcher, "reads_by", type(fetcher).__name__)
        self._memory = memory
        self._rng = rng
        self._stop = stop
        self._threads = threads
        self._trim = trim
        self._kind = column.kind
        self._lock = threading.Lock()
        self._values: list[Any] = [None] * len(rows)  # bytes, or decoded values that have no place in an array
        self._placed = Placed(column, rows, memory=memory, errors=self.errors) if self._kind == "place" else None
        lengths = self._refs.lengths[self._refs.uri_ids >= 0]
        self._unknown = int(np.count_nonzero(lengths < 0))  # rows that reach to the end of their object
        self._known_bytes = exact_sum(lengths[lengths > 0])

    # --- bounds --------------------------------------------------------------------------------------------------------

    def cost_bytes(self) -> int | None:
        """Bytes held while the step is in flight: what is referenced, and what it decodes to."""
        sizes = self.column.sizes
        if self._kind == "raw":
            return self.value_bytes()
        if sizes.value_bytes is None:
            return None
        return self._known_bytes + self._unknown * sizes.blob_bytes + self.value_bytes()

    def value_bytes(self) -> int:
        """Bytes of the values alone, once they are there."""
        if self._kind == "raw":
            return self._known_bytes + self._unknown * self.column.sizes.blob_bytes
        return len(self._rows) * (self.column.sizes.value_bytes or 0)

    def _chunk_rows(self, *, spread: bool) -> int:
        b = max(1, len(self._rows))
        if self._kind == "raw":
            row_bytes = max(1, self._known_bytes // b)
            return max(_MIN_CHUNK_ROWS, min(b, _RAW_CHUNK_BYTES // row_bytes))
        share = math.ceil(b / max(1, self._threads))
        row_s = self.column.sizes.decode_s
        if spread or not row_s:
            return max(_MIN_CHUNK_ROWS, min(_MAX_CHUNK_ROWS, share))
        chunks = math.ceil(b / max(_MIN_CHUNK_ROWS, min(_LONG_CHUNK_ROWS, int(_CHUNK_S / row_s))))
        return math.ceil(b / chunks)

    # --- tasks ---------------------------------------------------------------------------------------------------------

    def start(self, spawn: Spawn, *, spread: bool) -> None:
        """Hand out the work: a fetcher of whole steps is called once, so that it can merge neighbouring ranges.

        Args:
            spawn: takes a task.
            spread: cut it for all threads, since there are no other steps to keep them busy.
        """
        b, chunk = len(self._rows), self._chunk_rows(spread=spread)
        spans = [(lo, min(lo + chunk, b)) for lo in range(0, b, chunk)]

        def whole() -> None:
            values = self._fetch(0, b)
            for lo, hi in spans:
                spawn("cpu", lambda lo=lo, hi=hi: self._decode(lo, values[lo:hi]))  # type: ignore[misc]

        if getattr(self._fetcher, "whole_steps", False):
            spawn("io", whole)
            return
        if self._kind == "raw" and self.column.sizes.read_s < _QUICK_READ_S and self._known_bytes <= b * _QUICK_READ_BYTES:
            spawn("quick", lambda: self._decode(0, self._fetch(0, b)))
            return
        for lo, hi in spans:
            spawn("cpu", lambda lo=lo, hi=hi: self._decode(lo, self._fetch(lo, hi)))  # type: ignore[misc]

    @stage("fetch")
    def _fetch(self, lo: int, hi: int) -> Sequence[Any]:
        refs = self._refs if hi - lo == len(self._rows) else self._refs.slice(lo, hi)
        if self._trim is not None:
            self._trim.before(self._known_bytes * (hi - lo) // max(1, len(self._rows)), hi - lo)
        began = time.perf_counter()
        try:
            fetched = self._fetcher.fetch(refs)
        except FetchError as error:
            # A fetcher of the user's own may raise for a whole call. One bad range is one bad row all the same.
            fetched = self._fetch_singly(lo, hi) if hi - lo > 1 else Fetched([error], FetchStats(requests=1))
        except Exception as error:
            which = self._where(lo) if hi - lo == 1 else f"one of {hi - lo} rows, the first of them {self._where(lo)}"
            raise mistake("fetching", self._reads_by, which, error) from error
        fetched = answered(fetched, hi - lo, self._reads_by)
        seconds = time.perf_counter() - began
        sizes = self.column.sizes
        sizes.read_s += (seconds / max(1, hi - lo) - sizes.read_s) / 4  # of the last few calls; a lost update does no harm
        if self._unknown:
            longest = max((len(v) for v in fetched.values if v is not None and not isinstance(v, FetchError)), default=0)
            self.column.sizes.blob_bytes = max(self.column.sizes.blob_bytes, longest)
        with self._lock:
            self.fetched += fetched.stats
            self.seconds_fetching += seconds
        return fetched.values

    def _fetch_singly(self, lo: int, hi: int) -> Fetched:
        values: list[Any] = []
        stats = FetchStats()
        for i in range(lo, hi):
            try:
                one = answered(self._fetcher.fetch(self._refs.take(np.array([i]))), 1, self._reads_by)
            except FetchError as error:  # noqa: PERF203 - one bad range is one bad row
                values.append(error)
            else:
                values.extend(one.values)
                stats = stats + one.stats
        return Fetched(values, stats)

    @stage("decode")
    def _decode(self, lo: int, values: Sequence[Any]) -> None:
        if self._kind == "raw":
            self._keep_bytes(lo, values)
            return
        began = time.perf_counter()
        rows, data = [], []
        for i, value in enumerate(values, lo):
            if type(value) is bytes or self._is_data(i, value):
                rows.append(i)
                data.append(value)
            else:
                self.errors[i] = DecodeError("the BLOB is null") if value is None else value
        (self._call if self._placed is None else self._placed.decode)(rows, data, self._stop)
        seconds = time.perf_counter() - began
        self.column.sizes.decode_s = seconds / max(1, len(rows))
        with self._lock:
            self.seconds_decoding += seconds

    def _keep_bytes(self, lo: int, values: Sequence[Any]) -> None:
        for i, data in enumerate(values, lo):
            if type(data) is bytes:
                self._values[i] = data
            elif self._is_data(i, data):
                self._values[i] = bytes(memoryview(data))
            elif data is not None:
                self.errors[i] = data

    def _is_data(self, i: int, value: Any) -> bool:
        """Whether a fetched value is bytes, rather than null or an error."""
        if isinstance(value, FetchError) or (value is None and self._refs.uri_ids[i] < 0):
            return False
        try:
            memoryview(value)
        except TypeError as error:
            raise LakehouseError(
                f"{self._where(i)}: {self._reads_by}.fetch returned a value of type {type(value).__name__}; a value is bytes "
                "(or another buffer), a FetchError, or None where the reference is null"
            ) from error
        return True

    def _call(self, rows: Sequence[int], data: Sequence[Any], stop: Stop) -> None:
        decoder = self.column.decoder
        draws = getattr(decoder, "needs_rng", True)
        for i, one in zip(rows, data, strict=True):
            if stop.asked:
                return
            try:
                value = decoder(one, self._rng(i) if draws else None)
            except (FetchError, DecodeError) as error:
                self.errors[i] = error
            except Exception as error:
                raise mistake("decoding", repr(decoder)[:200], self._where(i), error) from error
            else:
                self.column.sizes.learn(size_bytes(value))
                self._values[i] = value

    def _where(self, i: int) -> str:
        return self.column.where(int(self._rows[i]), self.column.name)

    # --- result --------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """After all tasks: decide on rows of differing shapes. `errors` is complete afterwards.

        Raises:
            DecodeError: good rows differ in shape.
        """
        if self.column.sizes.value_bytes is None:
            self.column.sizes.value_bytes = 0  # not one row could be decoded: nothing to wait for
        if self._placed is not None:
            self._placed.settle()

    def forget(self) -> None:
        """Drop the errors. The frames in their tracebacks hold this object and the batch's memory, often in cycles."""
        for error in self.errors.values():
            linked: BaseException | None = error
            while linked is not None and linked.__traceback__ is not None:
                linked.__traceback__ = None
                linked = linked.__cause__ or linked.__context__
        self.errors.clear()

    def result(self, keep: npt.NDArray[np.intp] | None) -> torch.Tensor | list[Any]:
        """The batch value.

        Args:
            keep: batch rows to keep; None: all of them, with zeros in place of bad ones.
        """
        if self._placed is not None and not self.column.listed:
            return self._placed.result(keep)
        if self._kind == "raw":
            return self._values if keep is None else [self._values[i] for i in keep]
        values = self._values if self._placed is None else self._placed.own
        picked = range(len(self._rows)) if keep is None else keep.tolist()
        good = {k: values[i] for k, i in enumerate(picked) if i not in self.errors}
        return gather(self.column, good, len(picked), self._memory, lambda k: self._where(picked[k]))
