"""Rows that are decoded straight into their places in the batch's array.

Between two pictures a decoder fills the processor's caches with pixels, so that every line of Python after it takes several
times as long. So the headers of a chunk are read first (`Image.inspect`), then it is decoded in a loop of few lines.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lakehouse.dataset.badrows import BadRow, mistake
from lakehouse.dataset.blobs import BlobColumn
from lakehouse.dataset.columns import IntArray
from lakehouse.dataset.memory import Memory
from lakehouse.dataset.pipeline import Stop
from lakehouse.dataset.stack import check_shapes
from lakehouse.errors import DecodeError, FetchError, LakehouseError


class _Shaped(NamedTuple):
    """Bytes and the shape that they decode to, for decoders that read headers and decode in one go."""

    data: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Plain:
    """A decoder of the user's own that has ``shape_of`` and ``decode_into`` alone."""

    decoder: Any

    def inspect(self, data: Any) -> _Shaped:
        return _Shaped(data, tuple(self.decoder.shape_of(data)))

    def decode_inspected(self, picture: _Shaped, out: npt.NDArray[Any]) -> None:
        self.decoder.decode_into(picture.data, out)


class Placed:
    """One step's rows of a column, in one array ``[b, ...]``; as arrays of their own where the column is ``listed``.

    Args:
        column: the column; its decoder has ``shape_of`` and ``decode_into``.
        rows: index rows of the step, int64[b].
        memory: allocates the array.
        errors: batch row to its error, filled here.
    """

    def __init__(
        self,
        column: BlobColumn,
        rows: IntArray,
        *,
        memory: Memory,
        errors: dict[int, BadRow],
    ) -> None:
        self.own: dict[int, npt.NDArray[Any]] = {}  # of a listed column
        self._column = column
        self._rows = rows
        self._length = len(rows)
        self._memory = memory
        self._errors = errors
        self._lock = threading.Lock()
        self._out: torch.Tensor | None = None  # [b, ...]
        self._places: npt.NDArray[Any] | None = None  # the same memory
        self._odd: dict[int, Any] = {}  # bytes of rows whose shape is not that of `_out`
        decoder: Any = column.decoder
        if not hasattr(decoder, "inspect"):
            decoder = _Plain(decoder)
        self._inspect: Callable[[Any], Any] = decoder.inspect
        self._fill: Callable[[Any, Any], None] = decoder.decode_inspected

    def _mistake(self, i: int, error: Exception) -> LakehouseError:
        return mistake("decoding", repr(self._column.decoder)[:200], self._where(i), error)

    def _where(self, i: int) -> str:
        return self._column.where(int(self._rows[i]), self._column.name)

    # --- decoding, in any thread ---------------------------------------------------------------------------------------

    def decode(self, rows: Sequence[int], data: Sequence[Any], stop: Stop) -> None:
        """Decode rows of the batch; those that can't be are among the errors afterwards."""
        pictures = self._inspected(rows, data)
        if self._column.listed:
            self._decode_apart(pictures, stop)
        elif pictures:
            self._decode_together(pictures, stop)

    def _inspected(self, rows: Sequence[int], data: Sequence[Any]) -> list[tuple[int, Any]]:
        """Batch row and what the decoder reads in its header."""
        inspect = self._inspect
        pictures = []
        for i, one in zip(rows, data, strict=True):
            try:
                pictures.append((i, inspect(one)))
            except (FetchError, DecodeError) as error:  # noqa: PERF203 - one bad value is one bad row
                self._errors[i] = error
            except Exception as error:
                raise self._mistake(i, error) from error
        return pictures

    def _decode_together(self, pictures: list[tuple[int, Any]], stop: Stop) -> None:
        places = self._places
        if places is None:
            places = self._open(pictures[0][1].shape)
        shape = places.shape[1:]
        fill = self._fill
        for i, picture in pictures:
            if stop.asked:
                return
            if picture.shape != shape:
                self._odd[i] = picture.data
                continue
            try:
                fill(picture, places[i])
            except (FetchError, DecodeError) as error:
                self._errors[i] = error
            except Exception as error:
                raise self._mistake(i, error) from error

    def _decode_apart(self, pictures: list[tuple[int, Any]], stop: Stop) -> None:
        for i, picture in pictures:
            if stop.asked:
                return
            array = np.empty(picture.shape, np.uint8)
            try:
                self._fill(picture, array)
            except (FetchError, DecodeError) as error:
                self._errors[i] = error
            except Exception as error:
                raise self._mistake(i, error) from error
            else:
                self.own[i] = array
                self._column.sizes.learn(array.nbytes)

    def _open(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        with self._lock:
            if self._places is None:
                self._out = self._memory.tensor((self._length, *shape), torch.uint8)
                self._column.sizes.learn(math.prod(shape))
                self._places = self._out.numpy()
            return self._places

    # --- result, in one thread -----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """After all rows: decide on those of differing shapes. The errors are complete afterwards.

        Raises:
            DecodeError: good rows differ in shape.
        """
        if self._odd:
            self._settle_odd()
        if len(self._errors) == self._length:
            self._out = None  # its shape was that of whichever broken row came first

    def _settle_odd(self) -> None:
        """Exact whatever row came first: a broken row's header must neither set the shape nor count as a difference."""
        decoder: Any = self._column.decoder
        loose: dict[int, npt.NDArray[Any]] = {}
        for i, data in sorted(self._odd.items()):
            try:
                array = np.empty(decoder.shape_of(data), np.uint8)
                decoder.decode_into(data, array)
            except (FetchError, DecodeError) as error:  # noqa: PERF203 - one bad value is one bad row
                self._errors[i] = error
            except Exception as error:
                raise self._mistake(i, error) from error
            else:
                loose[i] = array
        self._odd.clear()
        out, self._out = self._out, None
        shapes = {i: array.shape for i, array in loose.items()}
        if out is not None:
            placed = [i for i in range(self._length) if i not in shapes and i not in self._errors]
            shapes.update((i, tuple(out.shape[1:])) for i in placed)
        check_shapes(self._column.name, shapes, self._where)
        if out is not None and not loose:
            self._out = out
        elif loose:  # all rows that set the first shape were broken
            self._out = self._memory.tensor((self._length, *next(iter(loose.values())).shape), torch.uint8)
            places = self._out.numpy()
            for i, array in loose.items():
                places[i] = array

    def result(self, keep: npt.NDArray[np.intp] | None) -> torch.Tensor:
        """The array as a tensor.

        Args:
            keep: batch rows to keep; None: all of them, with zeros in place of bad ones.
        """
        out = self._out
        if out is None:
            b = self._length if keep is None else len(keep)
            return torch.zeros((b, *self._column.empty_shape()), dtype=torch.uint8)
        if keep is None:
            for i in self._errors:
                out[i] = 0
            return out
        if len(keep) == self._length:
            return out
        kept = self._memory.tensor((len(keep), *out.shape[1:]), out.dtype)
        np.take(out.numpy(), keep, axis=0, out=kept.numpy())
        return kept
