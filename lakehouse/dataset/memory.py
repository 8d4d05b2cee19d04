"""Where a batch's arrays live.

A decoded batch of 64 images of 320x240 is 15 MB. Fresh memory of that size costs a page fault and a zeroed page for every
4 KB, up to 15 % of decoding, so arrays that the trainer has let go are used again. Worker processes allocate in memory that
they lend to the trainer's process and pinned loaders in pinned memory, so that handing over copies nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import mmap
import weakref
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from lakehouse.dataset import segments

Bytes = npt.NDArray[np.uint8]
Place = Literal["heap", "shared", "lent", "pinned"]

_OWN_BLOCK_BYTES = 1 << 17  # below malloc's threshold for memory maps: nothing to gain
_HUGE_BYTES = 1 << 21
_LARGE_BYTES = 1 << 16  # rows from here on leave holes that smaller ones don't
# A free block that is passed over so often is let go: the batches have other shapes than before. Columns of a batch that differ
# in size pass each other's over, a few times a batch.
_MOST_MISSES = 64


class Memory:
    """Allocates the arrays of batches; one per process.

    Without locks, on single list and dict operations: an array may be released by the garbage collector at any line, or in
    a forked child that inherited it.

    Args:
        place: "heap"; "shared" (worker processes of torch's own loader: the storage is the one that the main process maps);
            "lent" (worker processes of `Loader`, see `segments`); "pinned" (page-locked, from torch's own cache).
        keep: number of released arrays kept for reuse.
    """

    def __init__(self, place: Place = "heap", *, keep: int = 8) -> None:
        self.place = place
        self._keep = keep
        self._free: list[_Free] = []
        self._leases: dict[int, weakref.ref[npt.NDArray[Any]]] = {}

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised C-contiguous tensor."""
        if self.place == "pinned":
            return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)
        size_bytes = math.prod(shape) * dtype.itemsize
        if self.place == "shared" and size_bytes:
            # What torch's own collate does, so that the result queue passes a handle instead of a copy.
            storage = torch.UntypedStorage._new_shared(size_bytes, device="cpu")  # noqa: SLF001
            return torch.empty(0, dtype=dtype).set_(storage).view(tuple(shape))
        if self.place == "lent" and size_bytes >= segments.LEAST_BYTES:
            return torch.from_numpy(segments.lender().array(size_bytes)).view(dtype).view(tuple(shape))
        if size_bytes < _OWN_BLOCK_BYTES:
            return torch.empty(tuple(shape), dtype=dtype)
        block = self._block(size_bytes)
        # The tensor holds this very array, so the array's death says that no tensor or view of it is left.
        plain = dtype is torch.uint8  # then torch need not be asked twice
        lease = block[:size_bytes].reshape(tuple(shape) if plain else -1)
        self._leases[id(lease)] = weakref.ref(lease, self._releaser(id(lease), block))
        return torch.from_numpy(lease) if plain else torch.from_numpy(lease).view(dtype).view(tuple(shape))

    def _block(self, size_bytes: int) -> Bytes:
        for free in self._free[::-1]:
            fits = size_bytes <= free.block.nbytes <= size_bytes + size_bytes // 4
            free.misses += not fits
            if fits or free.misses > _MOST_MISSES:
                try:
                    self._free.remove(free)
                except ValueError:  # another thread's by now
                    continue
                if fits:
                    return free.block
        return _mapped(size_bytes)

    def _releaser(self, key: int, block: Bytes) -> Any:
        def release(_: object) -> None:
            self._leases.pop(key, None)
            if len(self._free) < self._keep:
                self._free.append(_Free(block))

        return release


class _Free:
    """A block that waits to be used again."""

    __slots__ = ("block", "misses")

    def __init__(self, block: Bytes) -> None:
        self.block = block
        self.misses = 0  # times that it was passed over for its size


def _mapped(size_bytes: int) -> Bytes:
    """New memory, not from malloc: what is let go returns to the system at once, whatever thread took it."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if size_bytes < 2 * _HUGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.frombuffer(mmap.mmap(-1, size_bytes, flags=flags), np.uint8)
    # Whole huge pages, which Linux then aligns: 8 page faults instead of 3,600 for 15 MB, and fewer address look-ups.
    block = mmap.mmap(-1, -(-size_bytes // _HUGE_BYTES) * _HUGE_BYTES, flags=flags)
    with contextlib.suppress(OSError):  # a kernel without them
        block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, np.uint8)[:size_bytes]


class Trim:
    """Gives freed memory back to the system now and then.

    Blobs are allocated by one thread and freed by another. glibc then keeps them for the first one, up to as much again as is
    in use (seen: 152 MB where 88 were allowed). To give it back takes milliseconds, and so does taking it again.

    Args:
        every_bytes: may be read before it is done again.
    """

    def __init__(self, every_bytes: int) -> None:
        self._every_bytes = every_bytes
        self._read_bytes = 0  # since; a lost update does no harm

    def before(self, size_bytes: int, rows: int) -> None:
        """So much is read next."""
        if size_bytes < _LARGE_BYTES * rows:
            return
        self._read_bytes += size_bytes
        if self._read_bytes >= self._every_bytes:
            self._read_bytes = 0
            release = _malloc_trim()
            if release is not None:
                release(0)


@functools.cache
def _malloc_trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not glibc
        return None
