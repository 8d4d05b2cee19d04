"""Decoded values of one column as a batch value: one tensor where they are arrays or numbers of one kind, else a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from lakehouse.dataset.columns import as_tensor
from lakehouse.dataset.memory import Memory
from lakehouse.errors import DecodeError, LakehouseError, cause_line

_MAX_INT64 = np.iinfo(np.int64).max


class Decoded(Protocol):
    """What the values are of."""

    @property
    def name(self) -> str:
        """The column."""
        ...

    @property
    def listed(self) -> bool:
        """Whether arrays come as a list."""
        ...

    def empty_shape(self) -> tuple[int, ...]:
        """The shape of an array in a list that stands for a missing one."""
        ...


def gather(
    column: Decoded, values: Mapping[int, Any], length: int, memory: Memory, where: Callable[[int], str]
) -> torch.Tensor | list[Any]:
    """The batch value.

    Args:
        column: the column.
        values: place in the batch to value; missing ones are zeros of the others' kind, or None.
        length: places in the batch.
        memory: allocates the result.
        where: place in the batch to its description in errors.

    Raises:
        DecodeError: arrays of different shapes, which are not to come as a list.
        LakehouseError: arrays of different types.
    """
    given = {k: _plain(value, k, where) for k, value in values.items()}
    tensors = all(isinstance(value, torch.Tensor) for value in given.values())
    if column.listed and tensors:
        return _spread(given, length, torch.zeros(column.empty_shape(), dtype=torch.uint8))
    if given and tensors:
        check_shapes(column.name, {k: tuple(value.shape) for k, value in given.items()}, where)
        return _stacked(column.name, given, length, memory)
    if given and all(isinstance(value, (bool, int, float)) for value in given.values()):
        try:
            return torch.tensor(_spread(given, length, type(next(iter(given.values())))(0)))
        except (RuntimeError, ValueError, OverflowError) as error:
            raise _no_tensor(f"column {column.name}", "numbers", error) from error
    return _spread(given, length, None)


def check_shapes(name: str, shapes: Mapping[int, tuple[int, ...]], where: Callable[[int], str]) -> None:
    """Arrays of one batch have one shape.

    Args:
        name: the column.
        shapes: place in the batch to shape.
        where: place in the batch to its description in errors.

    Raises:
        DecodeError: they do not; names the first two that differ.
    """
    ordered = sorted(shapes.items())
    for k, shape in ordered[1:]:
        first, expected = ordered[0]
        if shape != expected:
            raise DecodeError(
                f"column {name}: shapes differ within a batch: {where(first)} is {expected}, {where(k)} is {shape}; "
                "give Image(size=(height, width)) to have one shape, or ragged=True to get lists"
            )


def size_bytes(value: Any) -> int:
    """About how much memory a value takes."""
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        return 64  # sparse ones do not say
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    return len(value) if isinstance(value, (bytes, bytearray, str)) else 64


def _plain(value: Any, k: int, where: Callable[[int], str]) -> Any:
    """Arrays and numpy numbers as tensors, anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in "biufc":
        return value
    try:
        # Files hold numbers of either byte order; torch knows the machine's own.
        array = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])
        if array.dtype == np.uint64 and array.size and array.max() > _MAX_INT64:
            raise OverflowError(f"{array.max()} is beyond the largest int64")
        return as_tensor(array)
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_tensor(where(k), f"an array of {value.dtype}", error) from error


def _no_tensor(place: str, what: str, error: Exception) -> LakehouseError:
    return LakehouseError(f"{place}: the decoder returned {what} that no tensor can hold: {cause_line(error)}")


def _spread(values: Mapping[int, Any], length: int, missing: Any) -> list[Any]:
    return [values.get(k, missing) for k in range(length)]


def _stacked(name: str, values: Mapping[int, torch.Tensor], length: int, memory: Memory) -> torch.Tensor:
    """Arrays ``[...]`` as one tensor ``[length, ...]``, zeros where there is none."""
    kinds = {value.dtype for value in values.values()}
    if len(kinds) > 1:
        names = ", ".join(sorted(map(str, kinds)))
        raise LakehouseError(f"column {name}: the decoder returned arrays of different types: {names}")
    first = next(iter(values.values()))
    out = memory.tensor((length, *first.shape), first.dtype)
    if len(values) < length:
        out.zero_()
    try:
        for k, value in values.items():
            out[k] = value
    except RuntimeError as error:  # sparse, quantized, without data
        raise _no_tensor(f"column {name}", f"a tensor of {first.dtype}, {first.layout}, {first.device}", error) from error
    return out
