"""How a batch travels from a worker process to the trainer's.

torch passes each tensor as a handle to shared memory: one open file and a new mapping per tensor, and lists of bytes go
through a pipe. A batch of 256 ragged images would need 256 open files, and raw bytes would be copied four times. So lists of
bytes and lists of tensors are packed into one tensor each, and taken apart again on arrival. Large tensors are lent (see
`segments`), small ones travel as bytes; inside of data classes, named tuples and nested lists too.
"""

from __future__ import annotations

import io
import itertools
import pickle
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

import numpy as np
import torch

from lakehouse.dataset import segments
from lakehouse.dataset.memory import Memory
from lakehouse.dataset.segments import Arrived, Loan
from lakehouse.errors import LakehouseError, cause_line

_SIMPLE = frozenset({type(None), bool, int, float, complex, str, bytes})  # what can always be pickled


@dataclass(frozen=True)
class Small:
    """A tensor of few bytes."""

    data: bytes
    shape: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        """The tensor again."""
        return torch.frombuffer(bytearray(self.data), dtype=self.dtype).view(self.shape)

    def pin_memory(self) -> torch.Tensor:
        """It in page-locked memory."""
        return self.tensor().pin_memory()


# On its way, a tensor is one of these.
Packed: TypeAlias = "torch.Tensor | Loan | Arrived | Small"


@dataclass(frozen=True)
class PackedBytes:
    """A list of bytes in one tensor; a length of -1 is None."""

    data: Packed
    lengths: list[int]

    def unpack(self) -> list[bytes | None]:
        """The list again."""
        flat = _tensor(self.data).numpy()
        ends = list(itertools.accumulate(max(0, length) for length in self.lengths))
        return [
            None if length < 0 else flat[end - length : end].tobytes() for length, end in zip(self.lengths, ends, strict=True)
        ]

    def pin_memory(self) -> PackedBytes:
        """Itself: bytes are not copied to a device."""
        return self


@dataclass(frozen=True)
class PackedTensors:
    """A list of tensors of one type in one tensor; a shape of None is None."""

    data: Packed
    shapes: list[tuple[int, ...] | None]

    def unpack(self) -> list[torch.Tensor | None]:
        """The list again, as views of one tensor."""
        sizes = [0 if shape is None else int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]
        parts = torch.split(_tensor(self.data), sizes)
        return [None if shape is None else part.view(shape) for shape, part in zip(self.shapes, parts, strict=True)]

    def pin_memory(self) -> PackedTensors:
        """The same in page-locked memory."""
        return PackedTensors(_tensor(self.data).pin_memory(), self.shapes)


class Foreign:
    """Any other value. Pickled at once: what the queue's own thread can't pickle it drops, and the trainer waits for good.

    Raises:
        LakehouseError: it can't be pickled.
    """

    def __init__(self, value: Any, memory: Memory) -> None:
        file = io.BytesIO()
        try:
            _Pickler(file, memory).dump(value)
        except Exception as error:
            raise LakehouseError(
                f"a worker process can't hand over a value of type {type(value).__qualname__}: {cause_line(error)}. "
                "What decoders and transforms return must be picklable there; workers=0 takes anything"
            ) from error
        self._data = file.getvalue()

    def unpack(self) -> Any:
        """The value again, where it did not travel."""
        return pickle.loads(self._data)  # noqa: S301 - of this very process

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._data,)


class _Pickler(ForkingPickler):
    """Lends the tensors in what it pickles."""

    def __init__(self, file: io.BytesIO, memory: Memory) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._memory = memory

    def reducer_override(self, value: Any) -> Any:
        """As pickle asks: how this object is made again."""
        if isinstance(value, torch.Tensor) and value.is_quantized:
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # torch's hand-over between processes loses the scale
        packed = _pack_tensor(value, self._memory) if _is_plain(value) else value
        return NotImplemented if packed is value else (_tensor, (packed,))


def pack(batch: Any, memory: Memory) -> Any:
    """A batch ready to travel.

    Raises:
        LakehouseError: a value that can't be pickled.
    """
    if memory.place != "lent":
        return _pack(batch, memory)
    with segments.lender().all_or_none():
        return _pack(batch, memory)


def _pack(batch: Any, memory: Memory) -> Any:
    kind = type(batch)
    if kind is dict and all(type(name) in _SIMPLE for name in batch):
        return {name: _pack(value, memory) for name, value in batch.items()}
    if kind is tuple:
        return tuple(_pack(value, memory) for value in batch)
    if kind is list:
        return _pack_list(batch, memory)
    if _is_plain(batch):
        return _pack_tensor(batch, memory)
    # An array of numbers is pickled as quickly by the queue.
    simple = kind in _SIMPLE or (kind is np.ndarray and not batch.dtype.hasobject)
    return batch if simple else Foreign(batch, memory)


def unpack(batch: Any) -> Any:
    """The batch as it was."""
    kind = type(batch)
    if kind is dict:
        return {name: unpack(value) for name, value in batch.items()}
    if kind is tuple:
        return tuple(unpack(value) for value in batch)
    if isinstance(batch, (PackedBytes, PackedTensors, Foreign)):
        return batch.unpack()
    return _tensor(batch) if isinstance(batch, (Arrived, Small)) else batch


def _tensor(packed: Packed) -> torch.Tensor:
    if isinstance(packed, (Arrived, Small)):
        return packed.tensor()
    if isinstance(packed, Loan):
        raise TypeError("a loan becomes a tensor in the process that it was sent to")
    return packed


def _pack_tensor(tensor: torch.Tensor, memory: Memory) -> Packed:
    if memory.place != "lent":
        return tensor
    tensor = tensor.resolve_conj().resolve_neg()  # memory alone does not say that they are due
    size_bytes = tensor.numel() * tensor.element_size()
    if size_bytes >= segments.LEAST_BYTES:
        return segments.lender().lend(tensor)
    if not size_bytes:
        return tensor
    return Small(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), tuple(tensor.shape), tensor.dtype)


def _pack_list(values: list[Any], memory: Memory) -> Any:
    present = [value for value in values if value is not None]
    if not present:
        return values
    if all(type(value) is bytes for value in present):
        lengths = [-1 if value is None else len(value) for value in values]
        data = memory.tensor((sum(map(len, present)),), torch.uint8)
        flat = data.numpy()
        begin = 0
        for value in present:
            flat[begin : begin + len(value)] = np.frombuffer(value, np.uint8)
            begin += len(value)
        return PackedBytes(_pack_tensor(data, memory), lengths)
    if all(_is_plain(value) and value.dtype == present[0].dtype for value in present):
        shapes = [None if value is None else tuple(value.shape) for value in values]
        data = memory.tensor((sum(value.numel() for value in present),), present[0].dtype)
        torch.cat([value.reshape(-1) for value in present], out=data)
        return PackedTensors(_pack_tensor(data, memory), shapes)
    return values if all(type(value) in _SIMPLE for value in present) else Foreign(values, memory)


def _is_plain(value: Any) -> bool:
    """Whether type, shape and memory are all that there is to it."""
    return (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_nested)
    )
