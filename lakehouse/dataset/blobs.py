"""One BLOB column of one step: byte ranges to bytes to values, in chunks that run in any thread and any order.

Three kinds of decoder: `Raw` (the bytes are the value); decoders that decode into a given array, such as `Image` (they have
``shape_of`` and ``decode_into``: each row is decoded straight into its place in the batch); and any other callable
``(data, rng) -> value``. The result never depends on which thread came first.

Between two pictures a decoder fills the processor's caches with pixels, so that every line of Python after it takes several
times as long. So a chunk is fetched first, then its headers are read (`Image.inspect`), then it is decoded in a loop of few
lines.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from lakehouse.dataset.badrows import BadRow
from lakehouse.dataset.columns import IntArray
from lakehouse.dataset.memory import LARGE_BYTES, Memory, trim
from lakehouse.dataset.pipeline import Spawn, Stop
from lakehouse.dataset.stack import check_shapes, gather, size_bytes
from lakehouse.dataset.stage import stage
from lakehouse.decode import Raw
from lakehouse.errors import DecodeError, FetchError, LakehouseError, cause_line
from lakehouse.fetch import BlobRef, BlobRefs, Fetched, Fetcher, FetchStats

Kind = Literal["raw", "place", "call"]

_MIN_CHUNK_ROWS = 8  # below: handing out tasks costs more than it spreads
_MAX_CHUNK_ROWS = 32  # above: a step's last chunk leaves other threads idle, and a chunk's bytes pile up
_RAW_CHUNK_BYTES = 1 << 20  # reads alone are so short that small rows are best read in one go
# Small rows that lie in the page cache: the reads are so short that threads would mostly wait for Python's lock, so one
# thread does them all. Beyond either bound, they are spread.
_QUICK_READ_S = 100e-6
_QUICK_READ_BYTES = 1 << 18
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


class Refs(Protocol):
    """References of all rows of an index: `BlobRefs`, or those of several tables behind each other."""

    def take(self, rows: Any, /) -> BlobRefs:
        """Those of these rows, in this order."""
        ...

    def __getitem__(self, row: int, /) -> BlobRef | None: ...


@dataclass
class Sizes:
    """What a column's rows weigh, learnt from the rows seen so far; used to bound memory and to choose threads.

    Attributes:
        value_bytes: the largest decoded row so far; None before the first.
        blob_bytes: the largest row of unknown length so far.
        read_s: seconds that reading a row took lately.
    """

    value_bytes: int | None = None
    blob_bytes: int = 0
    read_s: float = 0.0


class _Shaped(NamedTuple):
    """Bytes and the shape that they decode to, for decoders that read headers and decode in one go."""

    data: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class BlobColumn:
    """A BLOB column as one process sees it.

    Attributes:
        name: the column.
        refs: byte ranges of all rows of the index.
        decoder: bytes to value.
        ragged: values keep their own shapes, in a list.
        where: index row and column name to its description in errors.
    """

    name: str
    refs: Refs
    decoder: Callable[[Any, Any], Any]
    ragged: bool
    where: Callable[[int, str], str]
    sizes: Sizes

    @property
    def kind(self) -> Kind:
        """How the decoder is used."""
        if isinstance(self.decoder, Raw):
            return "raw"
        return "place" if hasattr(self.decoder, "decode_into") and hasattr(self.decoder, "shape_of") else "call"

    @property
    def sized(self) -> bool:
        """Whether all rows get one shape, whatever their bytes say."""
        return getattr(self.decoder, "size", None) is not None

    @property
    def listed(self) -> bool:
        """Whether decoded arrays are delivered as a list."""
        return self.ragged and not self.sized

    def empty_shape(self) -> tuple[int, ...]:
        """A row's shape where not one row could be read: as the decoder says, or without height and width."""
        if self.sized:
            return tuple(self.decoder.shape_of(b""))  # type: ignore[attr-defined]
        channels = _CHANNELS.get(getattr(self.decoder, "mode", "RGB"), 3)
        return (channels, 0, 0) if getattr(self.decoder, "layout", "HWC") == "CHW" else (0, 0, channels)


class BlobStep:
    """The column's values for one step.

    Args:
        column: the column.
        rows: index rows, int64[b].
        rng: batch row to its own generator.
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
    ) -> None:
        self.column = column
        self.errors: dict[int, BadRow] = {}  # batch row to its error
        self.requests = 0
        self.bytes_referenced = 0
        self.bytes_fetched = 0
        self.seconds_fetching = 0.0
        self.seconds_decoding = 0.0
        self._rows = rows
        self._refs = column.refs.take(rows)
        self._fetcher = fetcher
        self._memory = memory
        self._rng = rng
        self._stop = stop
        self._threads = threads
        self._kind = column.kind
        self._lock = threading.Lock()
        self._values: list[Any] = [None] * len(rows)  # bytes, or decoded values that have no place in `_out`
        self._out: torch.Tensor | None = None  # [b, ...]
        self._places: npt.NDArray[Any] | None = None  # the same memory
        self._odd: dict[int, Any] = {}  # bytes of rows whose shape is not that of `_out`
        self._known_bytes = self._refs.total_bytes
        self._unknown = int(((self._refs.lengths < 0) & (self._refs.uri_ids >= 0)).sum())

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

    def _learn(self, value_bytes: int) -> None:
        if self.column.sizes.value_bytes is None or value_bytes > self.column.sizes.value_bytes:
            self.column.sizes.value_bytes = value_bytes

    def _chunk_rows(self) -> int:
        b = max(1, len(self._rows))
        if self._kind == "raw":
            row_bytes = max(1, self._known_bytes // b)
            return max(_MIN_CHUNK_ROWS, min(b, _RAW_CHUNK_BYTES // row_bytes))
        return max(_MIN_CHUNK_ROWS, min(_MAX_CHUNK_ROWS, math.ceil(b / max(1, self._threads))))

    # --- tasks ---------------------------------------------------------------------------------------------------------

    def start(self, spawn: Spawn) -> None:
        """Hand out the work: a fetcher of whole steps is called once, so that it can merge neighbouring ranges."""
        b, chunk = len(self._rows), self._chunk_rows()
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
        if self._known_bytes >= LARGE_BYTES * len(self._rows):
            trim()
        began = time.perf_counter()
        try:
            fetched = self._fetcher.fetch(refs)
        except FetchError as error:
            # A fetcher of the user's own may raise for a whole call. One bad range is one bad row all the same.
            fetched = self._fetch_singly(lo, hi) if hi - lo > 1 else Fetched([error], FetchStats(requests=1))
        except Exception as error:
            raise self._mistake("fetching", lo, error) from error
        if len(fetched.values) != hi - lo:
            raise LakehouseError(
                f"{type(self._fetcher).__name__}.fetch returned {len(fetched.values)} values for {hi - lo} references; "
                "it must return one for each, in order"
            )
        seconds = time.perf_counter() - began
        sizes = self.column.sizes
        sizes.read_s += (seconds / max(1, hi - lo) - sizes.read_s) / 4  # of the last few calls; a lost update does no harm
        if self._unknown:
            longest = max((len(v) for v in fetched.values if v is not None and not isinstance(v, FetchError)), default=0)
            self.column.sizes.blob_bytes = max(self.column.sizes.blob_bytes, longest)
        with self._lock:
            self.requests += fetched.stats.requests
            self.bytes_referenced += fetched.stats.bytes_referenced
            self.bytes_fetched += fetched.stats.bytes_fetched
            self.seconds_fetching += seconds
        return fetched.values

    def _fetch_singly(self, lo: int, hi: int) -> Fetched:
        values: list[Any] = []
        stats = FetchStats()
        for i in range(lo, hi):
            try:
                one = self._fetcher.fetch(self._refs.take(np.array([i])))
            except FetchError as error:  # noqa: PERF203 - one bad range is one bad row
                values.append(error)
            else:
                values.extend(one.values)
                stats = stats + one.stats
        return Fetched(values, stats)

    @stage("decode")
    def _decode(self, lo: int, values: Sequence[Any]) -> None:
        began = time.perf_counter()
        if self._kind == "raw":
            for i, data in enumerate(values, lo):
                if type(data) is bytes or data is None:
                    self._values[i] = data
                elif isinstance(data, FetchError):
                    self.errors[i] = data
                else:
                    self._values[i] = bytes(data)
            return
        decode: Callable[[int, Any], None] = self._call
        if self._kind == "place":
            values, decode = self._inspected(lo, values), self._place
        for i, data in enumerate(values, lo):
            if self._stop.asked:
                return
            if isinstance(data, (FetchError, DecodeError)):
                self.errors[i] = data
            elif data is None:
                self.errors[i] = DecodeError("the BLOB is null")
            else:
                try:
                    decode(i, data)
                except (FetchError, DecodeError) as error:
                    self.errors[i] = error
                except Exception as error:
                    raise self._mistake("decoding", i, error) from error
        with self._lock:
            self.seconds_decoding += time.perf_counter() - began

    def _inspected(self, lo: int, values: Sequence[Any]) -> Sequence[Any]:
        """Bytes by what the decoder reads in their header, or its error."""
        inspect = getattr(self.column.decoder, "inspect", None) or self._shaped
        inspected: list[Any] = []
        for i, data in enumerate(values, lo):
            if data is None or isinstance(data, FetchError):
                inspected.append(data)
                continue
            try:
                inspected.append(inspect(data))
            except (FetchError, DecodeError) as error:
                inspected.append(error)
            except Exception as error:
                raise self._mistake("decoding", i, error) from error
        return inspected

    def _shaped(self, data: Any) -> _Shaped:
        return _Shaped(data, tuple(self.column.decoder.shape_of(data)))  # type: ignore[attr-defined]

    def _place(self, i: int, picture: Any) -> None:
        if self.column.listed:
            array = np.empty(picture.shape, np.uint8)
            self._fill(picture, array)
            self._values[i] = array
            self._learn(array.nbytes)
            return
        places = self._places
        if places is None:
            places = self._open(picture.shape)
        if picture.shape == places.shape[1:]:
            self._fill(picture, places[i])
        else:
            self._odd[i] = picture.data

    def _fill(self, picture: Any, out: npt.NDArray[Any]) -> None:
        decoder: Any = self.column.decoder
        if isinstance(picture, _Shaped):
            decoder.decode_into(picture.data, out)
        else:
            decoder.decode_inspected(picture, out)

    def _open(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        with self._lock:
            if self._places is None:
                self._out = self._memory.tensor((len(self._rows), *shape), torch.uint8)
                self._learn(math.prod(shape))
                self._places = self._out.numpy()
            return self._places

    def _call(self, i: int, data: Any) -> None:
        rng = self._rng(i) if getattr(self.column.decoder, "needs_rng", True) else None
        value = self.column.decoder(data, rng)
        self._learn(size_bytes(value))
        self._values[i] = value

    def _mistake(self, doing: str, i: int, error: Exception) -> LakehouseError:
        what = type(self._fetcher).__name__ if doing == "fetching" else repr(self.column.decoder)[:200]
        return LakehouseError(
            f"{self._where(i)}: {doing} stopped by {cause_line(error)}, raised by "
            f"{what}. Such an error always stops the run; for bytes that can't be read raise lakehouse.DecodeError "
            "instead, which follows on_error"
        )

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
        if self._odd:
            self._settle_odd()
        if len(self.errors) == len(self._rows):
            self._out = None  # its shape was that of whichever broken row came first

    def _settle_odd(self) -> None:
        """Exact whatever row came first: a broken row's header must neither set the shape nor count as a difference."""
        decoder: Any = self.column.decoder
        loose: dict[int, npt.NDArray[Any]] = {}
        for i, data in sorted(self._odd.items()):
            try:
                array = np.empty(decoder.shape_of(data), np.uint8)
                decoder.decode_into(data, array)
            except (FetchError, DecodeError) as error:  # noqa: PERF203 - one bad value is one bad row
                self.errors[i] = error
            except Exception as error:
                raise self._mistake("decoding", i, error) from error
            else:
                loose[i] = array
        self._odd.clear()
        out, self._out = self._out, None
        shapes = {i: array.shape for i, array in loose.items()}
        if out is not None:
            placed = [i for i in range(len(self._rows)) if i not in shapes and i not in self.errors]
            shapes.update((i, tuple(out.shape[1:])) for i in placed)
        check_shapes(self.column.name, shapes, self._where)
        if out is not None and not loose:
            self._out = out
        elif loose:  # all rows that set the first shape were broken
            self._out = self._memory.tensor((len(self._rows), *next(iter(loose.values())).shape), torch.uint8)
            places = self._out.numpy()
            for i, array in loose.items():
                places[i] = array

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
        if self._kind == "place" and not self.column.listed:
            return self._placed(keep)
        if self._kind == "raw":
            return self._values if keep is None else [self._values[i] for i in keep]
        picked = range(len(self._rows)) if keep is None else keep.tolist()
        good = {k: self._values[i] for k, i in enumerate(picked) if i not in self.errors}
        return gather(self.column, good, len(picked), self._memory, lambda k: self._where(picked[k]))

    def _placed(self, keep: npt.NDArray[np.intp] | None) -> torch.Tensor:
        out = self._out
        if out is None:
            b = len(self._rows) if keep is None else len(keep)
            return torch.zeros((b, *self.column.empty_shape()), dtype=torch.uint8)
        if keep is None:
            for i in self.errors:
                out[i] = 0
            return out
        if len(keep) == len(self._rows):
            return out
        kept = self._memory.tensor((len(keep), *out.shape[1:]), out.dtype)
        np.take(out.numpy(), keep, axis=0, out=kept.numpy())
        return kept
