"""Bytes of a table's files, for a check: size, age, and reads into memory that is used again."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from lakehouse.upstream import is_local, local_path


@dataclass(frozen=True)
class Status:
    """What a store says about a file.

    Attributes:
        size_bytes: of the file.
        changed: when it was last written; any number that is another one after a change.
    """

    size_bytes: int
    changed: int


class Source(Protocol):
    """An open file."""

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill ``view`` from ``offset`` on; how many bytes there were."""

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of a range; fewer at the end of the file."""


def status_of(file_io: Any, path: str) -> Status:
    """Size and age of a file.

    Raises:
        OSError: it does not exist, or can't be asked for.
    """
    if is_local(path):
        found = local_path(path).stat()
        return Status(found.st_size, found.st_mtime_ns)
    info = file_io.get_file_status(path)
    return Status(int(info.size), int(getattr(info, "mtime_ns", None) or 0))


def open_source(file_io: Any, path: str) -> LocalSource | StreamSource:
    """Open a file for reading; a context manager closes it.

    Raises:
        OSError: it can't be opened.
    """
    return LocalSource(path) if is_local(path) else StreamSource(file_io, path)


class LocalSource(AbstractContextManager["LocalSource"]):
    """A file of this machine."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(local_path(path), os.O_RDONLY)

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill ``view`` from ``offset`` on; how many bytes there were."""
        done = 0
        while done < len(view):
            count = os.preadv(self._handle, [view[done:]], offset + done)
            if not count:
                break
            done += count
        return done

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of a range."""
        data = bytearray(length)
        return bytes(data[: self.read_into(memoryview(data), offset)])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._handle)


class StreamSource(AbstractContextManager["StreamSource"]):
    """An object, through the catalog's own client."""

    def __init__(self, file_io: Any, path: str) -> None:
        self._stream = file_io.new_input_stream(path)

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill ``view`` from ``offset`` on; how many bytes there were."""
        data = self.read(offset, len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of a range."""
        self._stream.seek(offset)
        parts = []
        while length > 0:
            part = bytes(self._stream.read(length))
            if not part:
                break
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.close()
