"""How a batch travels from a worker process to the trainer's.

torch passes each tensor as a handle to shared memory: one open file per tensor, and lists of bytes go through a pipe. A
batch of 256 ragged images would need 256 open files, and raw bytes would be copied four times. So lists of bytes and lists
of tensors are packed into one shared tensor each, and taken apart again on arrival.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lakehouse.dataset.memory import Memory


@dataclass(frozen=True)
class PackedBytes:
    """A list of bytes in one tensor; a length of -1 is None."""

    data: torch.Tensor
    lengths: list[int]

    def unpack(self) -> list[bytes | None]:
        """The list again."""
        flat = self.data.numpy()
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

    data: torch.Tensor
    shapes: list[tuple[int, ...] | None]

    def unpack(self) -> list[torch.Tensor | None]:
        """The list again, as views of one tensor."""
        sizes = [0 if shape is None else int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]
        parts = torch.split(self.data, sizes)
        return [None if shape is None else part.view(shape) for shape, part in zip(self.shapes, parts, strict=True)]

    def pin_memory(self) -> PackedTensors:
        """The same in page-locked memory."""
        return PackedTensors(self.data.pin_memory(), self.shapes)


def pack(batch: Any, memory: Memory) -> Any:
    """A batch with its lists packed; anything else goes as it is."""
    if type(batch) is not dict:
        return batch
    return {name: _pack_list(value, memory) if type(value) is list else value for name, value in batch.items()}


def unpack(batch: Any) -> Any:
    """The batch as it was."""
    if type(batch) is not dict:
        return batch
    return {name: value.unpack() if isinstance(value, (PackedBytes, PackedTensors)) else value for name, value in batch.items()}


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
        return PackedBytes(data, lengths)
    if all(_is_plain(value) and value.dtype == present[0].dtype for value in present):
        shapes = [None if value is None else tuple(value.shape) for value in values]
        data = memory.tensor((sum(value.numel() for value in present),), present[0].dtype)
        torch.cat([value.reshape(-1) for value in present], out=data)
        return PackedTensors(data, shapes)
    return values


def _is_plain(value: Any) -> bool:
    return (
        type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided and not value.requires_grad
    )
