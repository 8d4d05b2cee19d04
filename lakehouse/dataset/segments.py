"""Memory that worker processes lend to the trainer's process, and get back.

::

    worker: Lender.array ──> batch ──> Loan ──queue──> trainer: Arrived.tensor
                  ^                                        │ its last view is let go
                  └─────── the byte behind the data ───────┘

A batch of 64 pictures of 320x240 is 15 MB. Fresh shared memory of that size costs a page fault and a zeroed page for every
4 KB, and the other process faults once more: together nearly as long as decoding takes. So segments stay mapped on both sides
and go back and forth. They are files without a name (``memfd_create``): a killed process leaves none behind, and /dev/shm,
64 MB in most containers, has no part in it. Systems other than Linux hand over by torch's own means.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lakehouse.errors import LakehouseError

Bytes = npt.NDArray[np.uint8]

SUPPORTED = hasattr(os, "memfd_create")
LEAST_BYTES = 1 << 16  # below, copying through the queue's pipe is as quick

# The byte behind a segment's data. The worker lends a free one; the trainer makes it free again, or says that it never will.
_FREE, _LENT, _GONE = 0, 1, 2
_SLACK = 4  # a segment may be a quarter longer than what it is used for
# A free segment that is passed over so often is given back to the system; more slowly where it would have fitted, since how
# many are on their way differs from batch to batch.
_MOST_MISSES = 64
_MISSES_OF_OTHER_SIZES = 8


# --- in a worker process -------------------------------------------------------------------------------------------------


class _Segment:
    """Memory of one size, mapped here, and in the trainer's process once it has been lent."""

    __slots__ = ("address", "data", "fd", "held", "introduced", "misses", "number", "size_bytes")

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self.held = False  # an array over it is alive in this process
        self.introduced = False  # the trainer's process has it mapped
        self.misses = 0
        self.fd = os.memfd_create("lakehouse", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size_bytes + 1)
        self.data: Bytes = np.frombuffer(mmap.mmap(self.fd, size_bytes + 1), np.uint8)
        self.address = self.data.ctypes.data

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            os.close(fd)


class Loan:
    """What travels to the trainer's process, where an `Arrived` comes out."""

    def __init__(self, lender: Lender, segment: _Segment, tensor: torch.Tensor) -> None:
        self._lender = lender
        self._segment = segment
        self._shape = tuple(tensor.shape)
        self._dtype = tensor.dtype
        self._handle: Any = None  # to the segment, where the trainer's process has not mapped it
        self._retired: list[int] = []

    def __reduce__(self) -> tuple[Any, ...]:
        segment = self._segment
        if not segment.introduced:
            self._handle = DupFd(segment.fd)
            segment.introduced = True
        passed = None if self._handle is None else (self._handle, segment.size_bytes)
        self._retired = self._lender.retired()
        return _arrive, (self._lender.key, segment.number, passed, self._retired, self._shape, self._dtype)

    def take_back(self) -> None:
        """As if it had never been made: what it was pickled into will not be sent."""
        if self._handle is not None:
            os.close(self._handle.detach())
            self._segment.introduced = False
        self._lender.retire(self._retired)
        self._segment.data[self._segment.size_bytes] = _FREE


class Lender:
    """The segments of one worker process.

    Args:
        borrower: names the loader that gets them, in the trainer's process.
    """

    def __init__(self, borrower: str) -> None:
        self.key = (borrower, os.getpid())
        # Taken for choosing alone: an array may be let go by the garbage collector at any line, and takes no lock.
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._made = 0
        self._retired: list[int] = []
        self._leases: dict[int, weakref.ref[Bytes]] = {}
        self._loans: list[Loan] | None = None  # of the batch that is being packed

    @contextlib.contextmanager
    def all_or_none(self) -> Iterator[None]:
        """For the packing of one batch: what was lent for it is taken back if that fails."""
        self._loans = []
        try:
            yield
        except BaseException:
            for loan in self._loans:
                loan.take_back()
            raise
        finally:
            self._loans = None

    def array(self, size_bytes: int) -> Bytes:
        """Uninitialised memory, uint8[size_bytes]; its segment can be lent while the array lives."""
        with self._lock:
            segment = self._fitting(size_bytes)
            if segment is None:
                segment = _Segment(self._made, size_bytes)
                self._made += 1
                self._segments.append(segment)
            segment.held = True
            segment.misses = 0
        lease = segment.data[:size_bytes]
        key = id(lease)

        def release(_: object) -> None:
            self._leases.pop(key, None)
            segment.held = False

        self._leases[key] = weakref.ref(lease, release)
        return lease

    def _fitting(self, size_bytes: int) -> _Segment | None:
        found: _Segment | None = None
        for segment in self._segments[:]:
            state = int(segment.data[segment.size_bytes])
            if segment.held or state == _LENT:
                continue
            fits = size_bytes <= segment.size_bytes <= size_bytes + size_bytes // _SLACK
            if found is None and fits and state == _FREE:
                found = segment
                continue
            segment.misses += 1 if fits else _MISSES_OF_OTHER_SIZES
            if state == _GONE or segment.misses > _MOST_MISSES:
                self._segments.remove(segment)
                self._retired.append(segment.number)
        return found

    def lend(self, tensor: torch.Tensor) -> Loan:
        """Hand a tensor over: as it is where an `array` lies beneath it, else a copy.

        Args:
            tensor: plain and dense, on the CPU.
        """
        address = tensor.data_ptr()
        with self._lock:
            for segment in self._segments:
                # Two tensors over one array are two loans: the second one's end must not free what the first one shows.
                free = segment.data[segment.size_bytes] == _FREE
                if segment.address == address and segment.held and free and tensor.is_contiguous():
                    segment.data[segment.size_bytes] = _LENT
                    loan = Loan(self, segment, tensor)
                    if self._loans is not None:
                        self._loans.append(loan)
                    return loan
        lease = self.array(tensor.numel() * tensor.element_size())
        copy = torch.from_numpy(lease).view(tensor.dtype).view(tensor.shape)
        copy.copy_(tensor)
        return self.lend(copy)

    def retired(self) -> list[int]:
        """Numbers of segments that are no more, each told once."""
        with self._lock:
            retired, self._retired = self._retired, []
            return retired

    def retire(self, numbers: Iterable[int]) -> None:
        """Tell of them after all."""
        with self._lock:
            self._retired.extend(numbers)


_lenders: dict[int, Lender] = {}  # by process: a forked one has no claim on its parent's


def lend_to(borrower: str) -> None:
    """Make this process's `lender`, unless it lends to this borrower already."""
    known = _lenders.get(os.getpid())
    if known is None or known.key[0] != borrower:
        _lenders[os.getpid()] = Lender(borrower)


def lender() -> Lender:
    """This process's lender; `lend_to` made it."""
    return _lenders[os.getpid()]


# --- in the trainer's process --------------------------------------------------------------------------------------------

_known: dict[tuple[str, int], dict[int, Bytes]] = {}  # by worker process, the segments that it has lent so far
_borrowed: dict[int, tuple[weakref.ref[Bytes], Bytes]] = {}  # arrays that are alive here, each with its segment


def _give_back(segment: Bytes, pid: int, getpid: Any = os.getpid) -> None:
    if pid == getpid() and segment[-1] == _LENT:  # a forked child has the same memory, and no say in it
        segment[-1] = _FREE


class Arrived:
    """Memory that was lent to this process; goes back when its tensor and all views of that are let go."""

    def __init__(self, segment: Bytes, shape: Sequence[int], dtype: torch.dtype) -> None:
        self._pid = os.getpid()
        self._segment: Bytes | None = segment
        self._shape = shape
        self._dtype = dtype

    def tensor(self) -> torch.Tensor:
        """The tensor; once."""
        segment, self._segment = self._segment, None
        if segment is None:
            raise LakehouseError("a batch was unpacked twice")
        lease = segment[: math.prod(self._shape) * self._dtype.itemsize]  # and not its slack, which torch.save would save
        _borrowed[id(lease)] = weakref.ref(lease, _releaser(id(lease), segment)), segment
        return torch.from_numpy(lease).view(self._dtype).view(tuple(self._shape))

    def pin_memory(self) -> torch.Tensor:
        """A copy in page-locked memory; called by torch's own thread for it."""
        return self.tensor().pin_memory()

    def __del__(self) -> None:
        if self._segment is not None:  # of a batch that nobody wanted any more
            _give_back(self._segment, self._pid)


def _releaser(key: int, segment: Bytes) -> Any:
    # What it uses is bound here: it may run when the interpreter has taken this module apart.
    def release(_: object, pid: int = os.getpid(), borrowed: Any = _borrowed, give_back: Any = _give_back) -> None:
        borrowed.pop(key, None)
        give_back(segment, pid)

    return release


def _arrive(
    key: tuple[str, int],
    number: int,
    passed: tuple[Any, int] | None,
    retired: Sequence[int],
    shape: Sequence[int],
    dtype: torch.dtype,
) -> Arrived:
    known = _known.setdefault(key, {})
    for old in retired:
        known.pop(old, None)
    if passed is not None:
        handle, size_bytes = passed
        fd = handle.detach()
        try:
            known[number] = np.frombuffer(mmap.mmap(fd, size_bytes + 1), np.uint8)
        finally:
            os.close(fd)
    return Arrived(known[number], shape, dtype)


def forget(borrower: str) -> None:
    """Unmap what was lent to a loader that is gone; arrays that are alive stay."""
    for key in [key for key in _known if key[0] == borrower]:
        _known.pop(key, None)


def _keep_borrowed() -> None:
    """A forked child shows the same memory: what is alive at the fork may never be written to again by a worker."""
    for reference, segment in list(_borrowed.values()):
        if reference() is not None:
            segment[-1] = _GONE


if SUPPORTED:
    os.register_at_fork(before=_keep_borrowed)
