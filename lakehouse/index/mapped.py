"""Files mapped into memory, and letting go of the part that has been read.

Reading all of a mapped file leaves all of it in the process's resident memory until the system needs the room: 3 GB for an
index of 100 M rows, which a limit on memory would count. What a pass has done with can be let go: the pages stay in the
system's cache, and come back when they are touched again.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# Address of the first byte to the mapping. Only what was mapped here is ever let go: the same call on memory that is no file's
# would empty it.
_mapped: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()


def map_file(path: Path) -> pa.Buffer:
    """A file's bytes, read-only.

    Raises:
        OSError: it can't be opened.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            return pa.py_buffer(b"")
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    buffer = pa.py_buffer(mapping)
    _mapped[buffer.address] = mapping
    return buffer


def let_go(values: npt.NDArray[Any] | pa.Buffer) -> None:
    """The pages of this part of a mapped file need not be resident any more. Anything else stays as it is."""
    address, size = (values.address, values.size) if isinstance(values, pa.Buffer) else (_address(values), values.nbytes)
    for start, mapping in list(_mapped.items()):
        if start <= address and address + size <= start + len(mapping):
            first = -(-(address - start) // mmap.PAGESIZE) * mmap.PAGESIZE
            length = address + size - start - first
            if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
                with contextlib.suppress(OSError):
                    mapping.madvise(mmap.MADV_DONTNEED, first, length)
            return


def _address(values: npt.NDArray[np.generic]) -> int:
    address: int = values.__array_interface__["data"][0]
    return address
