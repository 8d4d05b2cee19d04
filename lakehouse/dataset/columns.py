"""Scalar columns of an index as batch values: Arrow in, one tensor or one Python list per batch out.

| Arrow type                                   | batch value                                   | a null                  |
|----------------------------------------------|-----------------------------------------------|-------------------------|
| numbers, booleans                            | tensor ``[b]``                                | error, unless ``fill``  |
| fixed-length list of numbers                 | tensor ``[b, k]``                             | error, unless ``fill``  |
| variable-length list of numbers              | list of tensors                               | ``None``                |
| string, binary, decimal, date, time, instant | list                                          | ``None``                |
| struct, map                                  | list of dicts                                 | ``None``                |
| any other list                               | list of lists                                 | ``None``                |

torch lacks arithmetic on ``uint16``, ``uint32`` and ``uint64``: they become ``int32``, ``int64`` and ``int64`` (a ``uint64``
beyond the largest ``int64`` is an error that names its row). Nothing is ever cast to a float.

Work is done per batch and vectorised. Columns without nulls are viewed as numpy once, without a copy, so a mapped index
stays on disk; no Python object per row of the table exists at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from lakehouse.errors import SchemaError

IntArray = npt.NDArray[np.int64]
Where = Callable[[int, str], str]

# The next type of torch that holds every value.
WIDENED = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.uint64): np.int64}


class ScalarColumn(Protocol):
    """One column of the index."""

    def take(self, rows: IntArray) -> torch.Tensor | list[Any]:
        """The batch value of these index rows, in the order given."""
        ...


def scalar_column(name: str, array: pa.Array, fill: object, where: Where) -> ScalarColumn:
    """The converter of one column.

    Args:
        name: the column's name, for errors.
        array: all rows of the index.
        fill: replaces null numbers; None: a null number is an error.
        where: index row and column name to "default.drive_frames@41 row 88123 column speed".
    """
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks > 1:
            return _Chunks(name, array.chunks, fill, where)
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type) and is_numeric(array.type.value_type):
        array = array.dictionary_decode()
    if is_numeric(array.type):
        return _dense(name, array, None, where) or _Numbers(name, array, fill, where)
    if pa.types.is_fixed_size_list(array.type) and is_numeric(array.type.value_type):
        return _dense(name, array, array.type.list_size, where) or _Vectors(name, array, fill, where)
    if _is_list(array.type) and is_numeric(array.type.value_type):
        return _NumberLists(name, array, fill, where)
    return _Objects(array)


def is_numeric(kind: pa.DataType) -> bool:
    """Whether values of this Arrow type become a tensor."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def fillable(kind: pa.DataType) -> bool:
    """Whether ``fill`` applies to a column of this type."""
    if pa.types.is_dictionary(kind):
        return is_numeric(kind.value_type)
    return is_numeric(kind) or ((pa.types.is_fixed_size_list(kind) or _is_list(kind)) and is_numeric(kind.value_type))


def fill_scalar(name: str, kind: pa.DataType, value: object) -> pa.Scalar:
    """The fill value in the column's own number type.

    Raises:
        SchemaError: the type can't hold it.
    """
    element = kind if is_numeric(kind) else kind.value_type
    try:
        scalar = pa.scalar(value, element)
        same = scalar.is_valid and (pa.types.is_floating(element) or scalar.as_py() == value)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError, ValueError):
        same = False
    if not same:
        raise SchemaError(f"fill for column {name}: {value!r} is no value of {element}")
    return scalar


def as_tensor(values: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor of the same values, widened where torch lacks the type."""
    wider = WIDENED.get(values.dtype)
    return torch.from_numpy(values if wider is None else values.astype(wider))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Values without nulls as an array of their own: Arrow's buffers are read-only, which torch refuses."""
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values if values.flags.writeable else values.copy()


def _dense(name: str, array: pa.Array, size: int | None, where: Where) -> _Dense | None:
    """A numpy view of a column that stores no null, or None.

    The absence of a validity buffer is asked, not the null count: counting reads a mapped column from end to end.
    """
    values = array
    if array.buffers()[0] is not None:
        return None
    if size is not None:
        values = array.values
        if values.buffers()[0] is not None:
            return None
        values = values.slice(array.offset * size, len(array) * size)
    if pa.types.is_boolean(values.type) or not len(values):
        return None
    # Not by `to_numpy`, which imports pandas: a third of a second in every worker process.
    kind = "f" if pa.types.is_floating(values.type) else "u" if pa.types.is_unsigned_integer(values.type) else "i"
    numbers = np.frombuffer(values.buffers()[1], f"{kind}{values.type.bit_width // 8}")
    dense = numbers[values.offset : values.offset + len(values)]
    return _Dense(name, dense if size is None else dense.reshape(len(array), size), where)


class _Chunks:
    """A column of several tables, one behind the other; none of them is copied."""

    def __init__(self, name: str, chunks: list[pa.Array], fill: object, where: Where) -> None:
        self._starts = np.cumsum([0, *map(len, chunks)])  # [chunks + 1]
        self._columns: list[ScalarColumn] = [
            scalar_column(name, chunk, fill, lambda i, column, start=start: where(start + i, column))  # type: ignore[misc]
            for chunk, start in zip(chunks, self._starts.tolist(), strict=False)
        ]

    def take(self, rows: IntArray) -> torch.Tensor | list[Any]:
        owners = np.searchsorted(self._starts, rows, side="right") - 1  # [b]
        values: torch.Tensor | list[Any] = []
        chunks: list[int] = np.unique(owners).tolist() or [0]
        for chunk in chunks:
            places = np.flatnonzero(owners == chunk)
            taken = self._columns[chunk].take(rows[places] - self._starts[chunk])
            if len(places) == len(rows):
                return taken
            if isinstance(taken, torch.Tensor):
                if not isinstance(values, torch.Tensor):
                    values = taken.new_empty((len(rows), *taken.shape[1:]))
                values[torch.from_numpy(places)] = taken
            else:
                values = values or [None] * len(rows)
                for place, value in zip(places.tolist(), taken, strict=True):
                    values[place] = value
        return values


class _Dense:
    """Numbers ``[n]`` or vectors ``[n, k]`` without nulls."""

    def __init__(self, name: str, values: npt.NDArray[Any], where: Where) -> None:
        self._name = name
        self._values = values
        self._where = where

    def take(self, rows: IntArray) -> torch.Tensor:
        taken = self._values.take(rows, axis=0)
        _check_uint64(taken, lambda i: self._where(int(rows[i]), self._name))
        return as_tensor(taken)


class _Numbers:
    """Numbers that may be null, and booleans (Arrow packs them into bits)."""

    def __init__(self, name: str, array: pa.Array, fill: object, where: Where) -> None:
        self._name = name
        self._array = array
        self._where = where
        self._fill = None if fill is None else fill_scalar(name, array.type, fill)

    def take(self, rows: IntArray) -> torch.Tensor:
        taken = self._array.take(pa.array(rows))
        if taken.null_count:
            if self._fill is None:
                _refuse_null(taken, rows, self._name, self._where)
            taken = taken.fill_null(self._fill)
        values = _to_numpy(taken)
        _check_uint64(values, lambda i: self._where(int(rows[i]), self._name))
        return as_tensor(values)


class _Vectors:
    """Fixed-length lists with nulls, as lists or inside them, or of booleans."""

    def __init__(self, name: str, array: pa.Array, fill: object, where: Where) -> None:
        self._name = name
        self._array = array
        self._where = where
        self._fill = None if fill is None else fill_scalar(name, array.type, fill)

    def take(self, rows: IntArray) -> torch.Tensor:
        taken = self._array.take(pa.array(rows))
        size = taken.type.list_size
        elements = taken.values.slice(taken.offset * size, len(taken) * size)  # [b * k], null lists included
        if taken.null_count:
            if self._fill is None:
                _refuse_null(taken, rows, self._name, self._where)
            absent = np.repeat(taken.is_null().to_numpy(zero_copy_only=False), size)
            elements = pc.if_else(pa.array(absent), self._fill, elements)
        if elements.null_count:
            if self._fill is None:
                _refuse_null(elements, np.repeat(rows, size), self._name, self._where)
            elements = elements.fill_null(self._fill)
        values = _to_numpy(elements)
        _check_uint64(values, lambda i: self._where(int(rows[i // size]), self._name))
        return as_tensor(values.reshape(len(rows), size))


class _NumberLists:
    """Variable-length lists of numbers: one tensor per row, all views of one tensor per batch."""

    def __init__(self, name: str, array: pa.Array, fill: object, where: Where) -> None:
        self._name = name
        self._array = array
        self._where = where
        self._fill = None if fill is None else fill_scalar(name, array.type, fill)

    def take(self, rows: IntArray) -> list[Any]:
        taken = self._array.take(pa.array(rows))
        offsets = taken.offsets.to_numpy()  # [b + 1]
        elements = taken.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        lengths = np.diff(offsets)
        if elements.null_count:
            if self._fill is None:
                _refuse_null(elements, np.repeat(rows, lengths), self._name, self._where)
            elements = elements.fill_null(self._fill)
        values = _to_numpy(elements)
        _check_uint64(values, lambda i: self._where(int(np.repeat(rows, lengths)[i]), self._name))
        lists: list[Any] = list(torch.split(as_tensor(values), lengths.tolist()))
        if taken.null_count:
            for i in np.flatnonzero(taken.is_null().to_numpy(zero_copy_only=False)):
                lists[i] = None
        return lists


class _Objects:
    """Everything that torch has no type for, as Python objects."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array
        self._plain = _is_text(array.type)
        self._fix = _map_fixer(array.type)

    def take(self, rows: IntArray) -> list[Any]:
        taken = self._array.take(pa.array(rows))
        if pa.types.is_dictionary(taken.type):
            taken = taken.dictionary_decode()
        if self._plain:  # 5 times faster than to_pylist, which goes through a scalar object per value
            plain: list[Any] = taken.to_numpy(zero_copy_only=False).tolist()
            return plain
        values: list[Any] = taken.to_pylist()
        return values if self._fix is None else [self._fix(value) for value in values]


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    )


def _map_fixer(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Turns the pairs that Arrow gives for a map into a dict, at any depth; None where no map is inside."""
    if pa.types.is_map(kind):
        item = _map_fixer(kind.item_type)
        if item is None:
            return lambda pairs: None if pairs is None else dict(pairs)
        return lambda pairs: None if pairs is None else {key: item(value) for key, value in pairs}
    if _is_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _map_fixer(kind.value_type)
        if element is None:
            return None
        return lambda values: None if values is None else [element(value) for value in values]
    if pa.types.is_struct(kind):
        fixers = {field.name: fixer for field in kind if (fixer := _map_fixer(field.type)) is not None}
        if not fixers:
            return None
        return lambda record: (
            None if record is None else {key: fixers[key](value) if key in fixers else value for key, value in record.items()}
        )
    return None


def _refuse_null(taken: pa.Array, rows: IntArray, name: str, where: Where) -> None:
    """Raises for the first null of a batch.

    Args:
        taken: values of the batch, at least one of them null.
        rows: index row of each value.
        name: the column.
        where: describes an index row and column.
    """
    i = int(np.flatnonzero(taken.is_null().to_numpy(zero_copy_only=False))[0])
    raise SchemaError(
        f"{where(int(rows[i]), name)} is null, and a tensor of {taken.type} can't hold a null; "
        f'give fill={{"{name}": value}}, filter with not-null, or leave the column out with columns=[...]'
    )


def _check_uint64(values: npt.NDArray[Any], where: Callable[[int], str]) -> None:
    if values.dtype != np.uint64:
        return
    beyond = np.flatnonzero(values.reshape(-1) > np.uint64(np.iinfo(np.int64).max))
    if len(beyond):
        width = values[0].size if values.ndim > 1 else 1
        i = int(beyond[0])
        raise SchemaError(
            f"{where(i // width)} is {values.reshape(-1)[i]}, beyond the largest int64; torch has no wider integer: "
            "store the column as a string or split it"
        )
