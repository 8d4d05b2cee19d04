"""References to byte ranges, what fetching them gives, and the one-method protocol of whoever fetches."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from lakehouse.errors import FetchError, LakehouseError
from lakehouse.fetch.uris import Uris

if TYPE_CHECKING:
    import daft

IntArray: TypeAlias = npt.NDArray[np.int64]
Value: TypeAlias = "bytes | memoryview | FetchError | None"

TO_END = -1
_MAX_INT64 = np.iinfo(np.int64).max
_SHOWN = 3


class HasFetcher(Protocol):
    """A table, snapshot or index: what knows how its bytes are read."""

    def fetcher(self) -> Fetcher:
        """What reads its BLOBs."""
        ...


@dataclass(frozen=True, order=True)
class BlobRef:
    """A byte range of a file or object; reading it is left to whoever holds the right to.

    Attributes:
        uri: path, or URL with a scheme.
        offset: bytes before the range.
        length: bytes in the range; -1: to the end of the object.
    """

    uri: str
    offset: int = 0
    length: int = TO_END

    def read(self, table: HasFetcher) -> bytes:
        """The bytes, read as ``table`` (a table, snapshot or index) reads its own.

        Raises:
            FetchError: they could not be read, or lie outside the table's folder and its ``blob_roots``.
        """
        return fetch_blob(self, table)


@dataclass(frozen=True, eq=False, repr=False)
class BlobRefs:
    """Many references as arrays: no Python object per row.

    Attributes:
        uris: the files and objects.
        uri_ids: int[n], position in ``uris``; -1: null.
        offsets: int64[n], bytes before each range.
        lengths: int64[n], bytes in each range; -1: to the end of the object.
    """

    uris: Sequence[str]
    uri_ids: npt.NDArray[Any]
    offsets: IntArray
    lengths: IntArray

    def __post_init__(self) -> None:
        if not isinstance(self.uris, (tuple, Uris)):
            object.__setattr__(self, "uris", tuple(self.uris))
        for name in ("uri_ids", "offsets", "lengths"):
            array = np.asarray(getattr(self, name))
            if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
                raise ValueError(
                    f"BlobRefs.{name} is a one-dimensional array of integers, got {array.dtype} of shape {array.shape}"
                )
            # Values stay unread and signed types as they are: the arrays may be mapped from a file of 100 M rows. A view, so
            # that the caller's own array keeps its flags.
            array = array.astype(array.dtype if array.dtype.kind == "i" else np.int64, copy=False).view()
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        if not len(self.uri_ids) == len(self.offsets) == len(self.lengths):
            raise ValueError(
                f"BlobRefs takes arrays of one length, got {len(self.uri_ids)} uri_ids, {len(self.offsets)} offsets, "
                f"{len(self.lengths)} lengths"
            )

    @classmethod
    def of(cls, refs: Iterable[BlobRef | None]) -> BlobRefs:
        """From single references; None: null."""
        uris: dict[str, int] = {}
        ids: list[int] = []
        offsets: list[int] = []
        lengths: list[int] = []
        for ref in refs:
            ids.append(-1 if ref is None else uris.setdefault(ref.uri, len(uris)))
            offsets.append(0 if ref is None else ref.offset)
            lengths.append(0 if ref is None else ref.length)
        return cls(tuple(uris), np.array(ids, np.int64), np.array(offsets, np.int64), np.array(lengths, np.int64))

    def take(self, rows: Any) -> BlobRefs:
        """The references at these positions (an integer array, or a mask), in this order; ``uris`` stay as they are.

        Raises:
            IndexError: a position outside.
        """
        rows = np.asarray(rows)
        if not len(rows) and rows.dtype != np.bool_:
            rows = rows.astype(np.int64)  # an empty list is an array of floats to numpy
        offsets, lengths = (array[rows].astype(np.int64, copy=False) for array in (self.offsets, self.lengths))
        return self._part(self.uri_ids[rows], offsets, lengths)

    def slice(self, start: int, stop: int) -> BlobRefs:
        """The references from ``start`` to before ``stop``, as views."""
        return self._part(*(array[start:stop] for array in (self.uri_ids, self.offsets, self.lengths)))

    def _part(self, uri_ids: npt.NDArray[Any], offsets: IntArray, lengths: IntArray) -> BlobRefs:
        part: BlobRefs = object.__new__(BlobRefs)  # a part of what was checked needs no check
        for array in (uri_ids, offsets, lengths):
            array.setflags(write=False)
        part.__dict__.update(uris=self.uris, uri_ids=uri_ids, offsets=offsets, lengths=lengths)
        return part

    @property
    def total_bytes(self) -> int:
        """Bytes referenced, without the ranges of unknown length."""
        return exact_sum(self.lengths[(self.uri_ids >= 0) & (self.lengths > 0)])

    @property
    def impossible(self) -> npt.NDArray[np.bool_]:
        """Which ranges no object can have, bool[n]: wrong references, whatever their object holds."""
        return (self.offsets < 0) | (self.lengths < TO_END) | (self.lengths > _MAX_INT64 - self.offsets.clip(0))

    def __len__(self) -> int:
        return len(self.uri_ids)

    def __getitem__(self, i: int) -> BlobRef | None:
        i = operator.index(i)
        uri_id = int(self.uri_ids[i])
        return None if uri_id < 0 else BlobRef(self.uris[uri_id], int(self.offsets[i]), int(self.lengths[i]))

    def __iter__(self) -> Iterator[BlobRef | None]:
        return (self[i] for i in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return BlobRefs, (self.uris, self.uri_ids, self.offsets, self.lengths)

    def __repr__(self) -> str:
        first = [self[i] for i in range(min(len(self), _SHOWN))]
        shown = ["null" if ref is None else f"{ref.uri} {range_text(ref.offset, ref.length)}" for ref in first]
        shown += ["..."] if len(self) > _SHOWN else []
        return f"BlobRefs({len(self):,} in {len(self.uris):,} uris: [{', '.join(shown)}])"


def exact_sum(lengths: npt.NDArray[Any]) -> int:
    """The sum of lengths of 0 or more, however large: two wrong ones of 2**62 are beyond an int64."""
    if lengths.dtype.itemsize < 8:
        return int(lengths.sum(dtype=np.int64))
    return (int((lengths >> 32).sum()) << 32) + int((lengths & 0xFFFFFFFF).sum())


@dataclass(frozen=True)
class FetchStats:
    """What fetching cost.

    Attributes:
        requests: reads that were begun, those repeated included.
        bytes_referenced: of the values that arrived; a range referenced twice counts twice.
        bytes_fetched: read from storage: with the gaps between merged ranges, and what was read again.
        seconds: the caller's wait.
        retries: requests that repeated a failed one.
        throttles: answers by which the store asked for fewer requests (429, 503, SlowDown).
        seconds_backoff: waits before requests were repeated, all of them added up; other requests go on meanwhile.
    """

    requests: int = 0
    bytes_referenced: int = 0
    bytes_fetched: int = 0
    seconds: float = 0.0
    retries: int = 0
    throttles: int = 0
    seconds_backoff: float = 0.0

    def __add__(self, other: FetchStats) -> FetchStats:
        return FetchStats(  # one by one: a loop over the fields takes five times as long, and every step adds some
            self.requests + other.requests,
            self.bytes_referenced + other.bytes_referenced,
            self.bytes_fetched + other.bytes_fetched,
            self.seconds + other.seconds,
            self.retries + other.retries,
            self.throttles + other.throttles,
            self.seconds_backoff + other.seconds_backoff,
        )


@dataclass(frozen=True)
class Fetched:
    """The answer of a `Fetcher`.

    Attributes:
        values: one per reference, in the order asked: its bytes, None for null, or the error that this one range met.
        stats: what it cost.
    """

    values: list[Value]
    stats: FetchStats


class Fetcher(Protocol):
    """Reads byte ranges.

    A fetcher that gains from seeing a whole step's ranges at once, because it merges or overlaps them, says so with an
    attribute ``whole_steps = True``.
    """

    def fetch(self, refs: BlobRefs) -> Fetched:
        """Read every range; a range that can't be read is a FetchError among the values, never raised."""
        ...


def answered(fetched: Any, length: int, reads_by: str) -> Fetched:
    """What a fetcher returned, once it is seen to be an answer: users write fetchers of their own.

    Raises:
        LakehouseError: no `Fetched` with one value for each reference.
    """
    if not isinstance(fetched, Fetched):
        wrong = f"{type(fetched).__name__}; it must return a Fetched(values, stats)"
    elif not isinstance(fetched.values, (list, tuple)) or not isinstance(fetched.stats, FetchStats):
        kinds = f"{type(fetched.values).__name__} and {type(fetched.stats).__name__}"
        wrong = f"values and stats of type {kinds}; they must be a list and a FetchStats"
    elif len(fetched.values) != length:
        wrong = f"{len(fetched.values)} values for {length} references; it must return one for each, in order"
    else:
        return fetched
    raise LakehouseError(f"{reads_by}.fetch returned {wrong}")


def fetch_blob(ref: BlobRef | daft.File, table: HasFetcher) -> bytes:
    """The bytes of one reference, read as ``table`` reads its own BLOBs.

    Args:
        ref: a BlobRef, or the ``daft.File`` of a BLOB column.
        table: a table, snapshot or index.

    Raises:
        FetchError: they could not be read, or lie outside the table's folder and its ``blob_roots``.
    """
    (value,) = table.fetcher().fetch(BlobRefs.of([_as_ref(ref)])).values
    if isinstance(value, FetchError):
        raise value
    return value if isinstance(value, bytes) else bytes(value or b"")


def _as_ref(ref: Any) -> BlobRef:
    if isinstance(ref, BlobRef):
        return ref
    if not (hasattr(ref, "path") and hasattr(ref, "position") and callable(getattr(ref, "size", None))):
        raise TypeError(f"fetch_blob takes a lakehouse.BlobRef or a daft.File, got {type(ref).__name__}")
    if ref.position is None:
        return BlobRef(str(ref.path))
    # Not `size()`: it opens the file with Daft's own credentials and gives less than was asked for when the file is short.
    inner = getattr(ref, "_inner", None)
    size = inner.size() if inner is not None else ref.size()
    return BlobRef(str(ref.path), int(ref.position), TO_END if size is None else int(size))


def range_text(offset: int, length: int) -> str:
    """``4096+18211``, as every error writes a range."""
    return f"{offset}+{'end' if length == TO_END else length}"


def unread(ref: BlobRef, why: str, advice: str, cause: BaseException | None = None) -> FetchError:
    """The error of one range: what, where, why, what to do."""
    error = FetchError(f"can't read {ref.uri} {range_text(ref.offset, ref.length)}: {why}; {advice}")
    error.__cause__ = cause
    return error
