"""Copying records from old ``.blob`` files into new ones, as the bytes they are.

A record carries its length and checksum, so copying it whole keeps both: damage, where there is any, stays as visible as it
was. Neighbouring records are copied as one range, in pieces, so memory does not grow with the size of a BLOB.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lakehouse.blobfile import MAGIC_BYTES, NULL, RECORD_OVERHEAD_BYTES, blob_index
from lakehouse.compaction.ids import Ids
from lakehouse.errors import FetchError, cause_line
from lakehouse.scan import Locator

_CHUNK_ROWS = 65_536
_PIECE_BYTES = 8 * 1024 * 1024
_OPEN_SOURCES = 8


class Sources:
    """Old files, of which the few used last stay open."""

    def __init__(self, file_io: Any, where: str) -> None:
        self._io = file_io
        self._where = where
        self._open: OrderedDict[str, Any] = OrderedDict()

    def copy(self, path: str, offset: int, length: int, out: Any) -> None:
        """Append a byte range to ``out``.

        Raises:
            FetchError: the file is missing or ends before the range does.
        """
        try:
            stream = self._stream(path)
            stream.seek(offset)
            left = length
            while left:
                piece = stream.read(min(left, _PIECE_BYTES))
                if not piece:
                    break
                out.write(piece)
                left -= len(piece)
        except OSError as error:
            raise FetchError(f"{self._where}: can't copy {offset}+{length} of {path} ({cause_line(error)})") from error
        if left:
            raise FetchError(f"{self._where}: {path} ends {left} bytes before the range {offset}+{length}; restore the file")

    def _stream(self, path: str) -> Any:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        while len(self._open) >= _OPEN_SOURCES:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        self._open[path] = self._io.new_input_stream(path)
        return self._open[path]

    def close(self) -> None:
        """Close what is open."""
        while self._open:
            self._open.popitem()[1].close()


def copy_column(
    locator: Locator, ids: Ids, target_bytes: int, new_file: Callable[[], tuple[str, Any]], done: Callable[[int], None]
) -> Iterator[tuple[str, int, int, int]]:
    """Copy one BLOB column of chosen rows.

    Args:
        locator: of the column, over the groups that hold the rows.
        ids: which rows.
        target_bytes: a new file is ended once it has this many.
        new_file: opens one: its path and its stream.
        done: told of bytes as they are copied.

    Yields:
        Path, bytes, first position in ``ids`` and rows of each new file, once it is whole.
    """
    sources = Sources(locator.version.paimon.file_io, f"{locator.version} column {locator.column}")
    position = 0
    out: _Out | None = None
    try:
        for chunk in ids.chunks(_CHUNK_ROWS):
            uri_ids, offsets, lengths = locator.locate(chunk)
            records = np.where(uri_ids < 0, NULL, lengths + RECORD_OVERHEAD_BYTES)
            sizes = np.where(uri_ids < 0, 0, records)
            ends = np.cumsum(sizes)
            start = 0
            while start < len(chunk):
                if out is None:
                    out = _Out(*new_file(), position + start)
                before = int(ends[start - 1]) if start else 0
                # As many rows as fit, and the one that goes beyond, as the engine's own writer does.
                stop = min(int(np.searchsorted(ends, before + target_bytes - out.bytes, side="left")) + 1, len(chunk))
                for at, last in _runs(uri_ids, offsets, sizes, start, stop):
                    begin = int(offsets[at]) - MAGIC_BYTES
                    length = int(ends[last]) - (int(ends[at - 1]) if at else 0)
                    sources.copy(locator.uris[int(uri_ids[at])], begin, length, out.stream)
                    done(length)
                out.add(records[start:stop], int(ends[stop - 1]) - before)
                start = stop
                if out.bytes >= target_bytes:
                    yield out.close()
                    out = None
            position += len(chunk)
        if out is not None:
            yield out.close()
            out = None
    finally:
        sources.close()
        if out is not None:
            with contextlib.suppress(OSError):
                out.stream.close()


def _runs(
    uri_ids: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], start: int, stop: int
) -> Iterator[tuple[int, int]]:
    """First and last row of each run of records that follow each other in one file; rows without a record are left out."""
    held = np.flatnonzero(uri_ids[start:stop] >= 0) + start
    if not len(held):
        return
    follows = (uri_ids[held[1:]] == uri_ids[held[:-1]]) & (offsets[held[1:]] == offsets[held[:-1]] + sizes[held[:-1]])
    cuts = np.flatnonzero(~follows)
    firsts = held[np.concatenate([[0], cuts + 1])]
    lasts = held[np.concatenate([cuts, [len(held) - 1]])]
    yield from zip(firsts.tolist(), lasts.tolist(), strict=True)


class _Out:
    """A new ``.blob`` file while it is written."""

    def __init__(self, path: str, stream: Any, position: int) -> None:
        self.path = path
        self.stream = stream
        self.bytes = 0
        self._position = position
        self._records: list[npt.NDArray[np.int64]] = []

    def add(self, records: npt.NDArray[np.int64], size: int) -> None:
        self._records.append(records)
        self.bytes += size

    def close(self) -> tuple[str, int, int, int]:
        records = np.concatenate(self._records)
        tail = blob_index(records)
        self.stream.write(tail)
        self.stream.close()
        return self.path, self.bytes + len(tail), self._position, len(records)
