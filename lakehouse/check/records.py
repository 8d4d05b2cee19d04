"""The records of one ``.blob`` file: magic number, length and crc32 of each, read in one pass with bounded memory."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from lakehouse.blobfile import MAGIC_BYTES, RECORD_OVERHEAD_BYTES, BlobIndex
from lakehouse.check.source import Source

CHUNK_BYTES = 8 * 1024 * 1024
MAGIC = struct.pack("<I", 1_481_511_375)
_TAIL_BYTES = 12  # record length and crc32
_CRC_BYTES = 4

BAD_MAGIC = "no record begins here: its magic number is wrong"
BAD_LENGTH = "the record's own length differs from the file's index"
BAD_CRC = "the record's bytes don't have its crc32"
SHORT = "the file ends inside the record"

Damage = dict[str, list[int]]  # cause -> positions of records


class Buffer:
    """Memory for one thread's reads, used again for every chunk."""

    def __init__(self) -> None:
        self.memory = np.empty(CHUNK_BYTES, np.uint8)

    def view(self, size: int) -> memoryview:
        """The first ``size`` bytes of it."""
        return self.memory.data[:size]


def check_records(source: Source, index: BlobIndex, buffer: Buffer, done: Callable[[int], None]) -> Damage:
    """Read all records of a file and compare them with what they say of themselves.

    Args:
        source: the file.
        index: its index; records lie one after the other.
        buffer: memory to read into.
        done: called with the number of bytes after each chunk; may raise to stop.

    Returns:
        For each cause, the positions in the file's index of the records that have it; the first cause that holds.
    """
    positions = np.flatnonzero(index.lengths >= 0)  # [n] records that are there
    starts = index.offsets[positions] - MAGIC_BYTES
    sizes = index.lengths[positions] + RECORD_OVERHEAD_BYTES
    damage: Damage = {}
    for first, stop in _chunks(starts, sizes):
        if sizes[first] > CHUNK_BYTES:
            causes = _check_large(source, int(starts[first]), int(sizes[first]), buffer, done)
        else:
            causes = _check_chunk(source, starts[first:stop], sizes[first:stop], buffer)
            done(int(sizes[first:stop].sum()))
        for cause, found in causes.items():
            damage.setdefault(cause, []).extend(int(positions[first + at]) for at in found)
    return damage


def _chunks(starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Runs of records that fit into the buffer together; a larger record alone."""
    ends = starts + sizes
    first = 0
    while first < len(starts):
        stop = int(np.searchsorted(ends, starts[first] + CHUNK_BYTES, side="right"))
        stop = max(stop, first + 1)
        yield first, stop
        first = stop


def _check_chunk(source: Source, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], buffer: Buffer) -> Damage:
    at = starts - starts[0]  # [n] where each record begins in the buffer
    ends = at + sizes
    view = buffer.view(int(ends[-1]))
    got = source.read_into(view, int(starts[0]))
    whole = int(np.searchsorted(ends, got, side="right"))
    damage: Damage = {SHORT: list(range(whole, len(at)))} if whole < len(at) else {}
    if not whole:
        return damage
    at, ends, sizes = at[:whole], ends[:whole], sizes[:whole]
    raw = buffer.memory
    magic = raw[at[:, None] + np.arange(MAGIC_BYTES)]  # [n, 4]
    tail = raw[(ends - _TAIL_BYTES)[:, None] + np.arange(_TAIL_BYTES)]  # [n, 12]
    said = np.ascontiguousarray(tail[:, :8]).view("<u8").reshape(-1)
    stored = np.ascontiguousarray(tail[:, 8:]).view("<u4").reshape(-1)
    crc32 = zlib.crc32
    covered = zip(at.tolist(), (ends - _CRC_BYTES).tolist(), strict=True)
    actual = np.fromiter((crc32(view[low:high]) for low, high in covered), np.uint32, whole)
    bad_magic = (magic != np.frombuffer(MAGIC, np.uint8)).any(axis=1)
    bad_length = (said != sizes.astype(np.uint64)) & ~bad_magic
    bad_crc = (actual != stored) & ~bad_magic & ~bad_length
    for cause, bad in ((BAD_MAGIC, bad_magic), (BAD_LENGTH, bad_length), (BAD_CRC, bad_crc)):
        if bad.any():
            damage[cause] = np.flatnonzero(bad).tolist()
    return damage


def _check_large(source: Source, start: int, size: int, buffer: Buffer, done: Callable[[int], None]) -> Damage:
    """A record larger than the buffer, in pieces."""
    crc, at, tail, magic = 0, 0, b"", b""
    covered = size - _CRC_BYTES
    while at < size:
        want = min(CHUNK_BYTES, size - at)
        view = buffer.view(want)
        if source.read_into(view, start + at) < want:
            return {SHORT: [0]}
        if at == 0:
            magic = bytes(view[:MAGIC_BYTES])
        crc = zlib.crc32(view[: max(0, min(want, covered - at))], crc)
        tail = (tail + bytes(view[-_TAIL_BYTES:]))[-_TAIL_BYTES:]
        at += want
        done(want)
    said, stored = struct.unpack("<QI", tail)
    if magic != MAGIC:
        return {BAD_MAGIC: [0]}
    if said != size:
        return {BAD_LENGTH: [0]}
    return {} if crc == stored else {BAD_CRC: [0]}
