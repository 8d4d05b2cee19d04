"""`Weighted`: the rows of one index, each drawn as often as its weight says."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.errors import ConfigError, SchemaError
from lakehouse.fetch import BlobRefs, Fetcher
from lakehouse.index import RowIndex
from lakehouse.mixture.ends import MAX_DRAWS, MOST_TOTAL, Ends, WeightedOrder, scale_of
from lakehouse.order import Shuffle

_PIECE_ROWS = 1 << 20


class Weighted:
    """Rows of an index, each drawn in proportion to its weight: ``Weighted(index, weights="difficulty")``.

    Give it to `Dataset` in place of an index. An epoch has ``length`` draws. Each row comes as often as its weight says,
    ``length * weight / sum`` times, rounded down or up, in every epoch; which way it is rounded evens out over epochs. Rows
    of weight 0 never come. `Weighted.balanced` gives classes equal shares.

    The weights, added up, take 8 bytes a row: in a temporary file that worker processes map, where they are many.

    Args:
        index: the rows.
        weights: a numeric column of the index, or one number for each of its rows: finite, 0 or more, not all 0. One below
            a 2**61st of their sum counts as 0.
        length: draws in an epoch, at most 2**32. Default: ``len(index)``.

    Raises:
        ConfigError: weights that are negative, not finite, all 0, or not as many as rows.
        NotFoundError: the column is not in the index.
        SchemaError: the column has nulls, or holds no numbers.

    Example:
        >>> loader = Loader(Dataset(Weighted(index, weights="difficulty"), batch_size=64))  # doctest: +SKIP
        >>> loader = Loader(Dataset(Weighted.balanced(index, by="weather"), batch_size=64))  # doctest: +SKIP
    """

    def __init__(self, index: RowIndex, weights: Any, *, length: int | None = None) -> None:
        if not isinstance(index, RowIndex):
            raise ConfigError(
                f"Weighted takes a RowIndex, got {type(index).__name__}; a Mixture takes a Weighted as one of its parts"
            )
        named = isinstance(weights, str)
        values = _numbers(index.column(weights) if named else weights, f"column {weights}" if named else "weights")
        self._index = index
        self._length = len(index) if length is None else whole_length(length, MAX_DRAWS)
        if len(values) != len(index):
            raise ConfigError(f"weights: {len(values)} numbers for an index of {len(index)} rows")
        if not 1 <= self._length <= MAX_DRAWS:
            raise ConfigError(f"an epoch of {self._length} draws: there must be 1 to {MAX_DRAWS}; give length=")
        self._ends = Ends(len(index), _integers(values, lambda i: index.where(i, weights) if named else f"weights[{i}]"))
        self._fingerprint = _fingerprint(index, self._ends, self._length)

    @classmethod
    def balanced(cls, index: RowIndex, *, by: str, length: int | None = None) -> Weighted:
        """Each value of a column with an equal share of the draws, shared equally among its rows.

        Args:
            index: the rows.
            by: the column; null is a value like others.
            length: draws in an epoch. Default: ``len(index)``.

        Raises:
            NotFoundError: the column is not in the index.
            SchemaError: a BLOB column, or one of lists or structs.
        """
        column = index.column(by)
        values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        try:
            codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)  # [n]
        except pa.ArrowNotImplementedError as error:
            raise SchemaError(
                f"column {by} of {column.type} has no classes to balance: give a column of plain values"
            ) from error
        return cls(index, (1.0 / np.maximum(np.bincount(codes), 1))[codes], length=length)

    # --- what it is ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Rows of the index."""
        return len(self._index)

    @property
    def length(self) -> int:
        """Draws in an epoch."""
        return self._length

    @property
    def index(self) -> RowIndex:
        """The rows."""
        return self._index

    @property
    def fingerprint(self) -> str:
        """``sha256:...`` over the index, the weights and the length."""
        return self._fingerprint

    def __repr__(self) -> str:
        return f"Weighted({self._index!r}; {self._length:,} draws an epoch)"

    # --- what a data set asks ------------------------------------------------------------------------------------------

    def order(self, seed: int, shuffle: Shuffle) -> WeightedOrder:
        """Which row stands where. With None: in stored order, but for the rows within each 256."""
        return WeightedOrder(self._length, seed, shuffle, self._ends)

    @property
    def columns(self) -> tuple[str, ...]:
        """As the index."""
        return self._index.columns

    @property
    def schema(self) -> pa.Schema:
        """As the index."""
        return self._index.schema

    @property
    def blob_columns(self) -> tuple[str, ...]:
        """As the index."""
        return self._index.blob_columns

    @property
    def row_ids(self) -> npt.NDArray[np.int64]:
        """As the index."""
        return self._index.row_ids

    def column(self, name: str) -> pa.Array:
        """As the index."""
        return self._index.column(name)

    def blobs(self, name: str) -> BlobRefs:
        """As the index."""
        return self._index.blobs(name)

    def where(self, i: int, column: str | None = None) -> str:
        """As the index."""
        return self._index.where(i, column)

    def fetcher(self) -> Fetcher:
        """As the index."""
        return self._index.fetcher()


def whole_length(length: object, most: int = 2**48) -> int:
    """``length=`` as given.

    Raises:
        ConfigError: no whole number from 1 to ``most``.
    """
    try:
        number = operator.index(length)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if isinstance(length, bool) or not 1 <= number <= most:
        raise ConfigError(f"length must be a whole number from 1 to {most}, got {length!r}")
    return number


def draws_of(part: Any) -> int:
    """Draws in an epoch of an index, `Weighted` or mixture."""
    return int(getattr(part, "length", len(part)))


def _numbers(weights: Any, what: str) -> npt.NDArray[Any]:
    """Weights as a numpy array of numbers [n]."""
    if isinstance(weights, (pa.Array, pa.ChunkedArray)):
        if pa.types.is_dictionary(weights.type) or weights.null_count:
            raise SchemaError(f"{what} has nulls or is of {weights.type}: weights are numbers, none of them null")
        weights = weights.to_numpy(zero_copy_only=False) if isinstance(weights, pa.Array) else weights.to_numpy()
    values = np.asarray(weights)
    if values.dtype.kind not in "biuf" or values.ndim != 1:
        raise SchemaError(f"{what}: weights are one number for each row, got {values.dtype} with {values.ndim} axes")
    return values


def _integers(values: npt.NDArray[Any], where: Any) -> Callable[[int, int], npt.NDArray[np.int64]]:
    """Weights as integers of the same ratios, up to the last of 62 bits, that add up to at most 2**62; piece by piece."""
    total: Any = 0
    for first in range(0, len(values), _PIECE_ROWS):
        piece = values[first : first + _PIECE_ROWS]
        bad = np.flatnonzero(~((piece >= 0) & (piece < np.inf)))
        if len(bad):
            i = first + int(bad[0])
            raise ConfigError(f"{where(i)} is {values[i]}: a weight is a finite number of 0 or more")
        with np.errstate(over="ignore"):  # told below
            total += float(piece.sum(dtype=np.float64)) if values.dtype.kind == "f" else _sum_of(piece)
    if not 0 < total < np.inf:
        raise ConfigError(f"the weights add up to {total}: nothing could be drawn")
    if values.dtype.kind != "f" and total <= MOST_TOTAL:
        return lambda first, stop: values[first:stop].astype(np.int64)
    shift = scale_of(float(total))
    return lambda first, stop: np.floor(np.ldexp(values[first:stop].astype(np.float64), shift)).astype(np.int64)


def _sum_of(piece: npt.NDArray[Any]) -> int:
    """The exact sum of integers: halves of 32 bits can't overflow."""
    wide = piece.astype(np.uint64)
    return (int((wide >> np.uint64(32)).sum()) << 32) + int((wide & np.uint64(0xFFFFFFFF)).sum())


def _fingerprint(index: RowIndex, ends: Ends, length: int) -> str:
    digest = hashlib.sha256(f"lakehouse-weighted-1\0{index.fingerprint}\0{ends.digest}\0{length}".encode())
    return f"sha256:{digest.hexdigest()}"
