"""A table's folder: what lies in it, how old that is, and how it is deleted. Symbolic links are never followed."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lakehouse.upstream import is_local, local_path


@dataclass(frozen=True)
class Entry:
    """What a folder holds under one name.

    Attributes:
        name: within its folder.
        is_folder: else a plain file.
        size_bytes: of a file.
        modified_s: when it was last written, seconds since 1970 by the store's clock.
    """

    name: str
    is_folder: bool
    size_bytes: int
    modified_s: float


class Store(Protocol):
    """The files below a table's folder; all paths are relative to it, with ``/`` between names."""

    root: str
    has_empty_folders: bool  # a folder stays when what is in it goes

    def list(self, folder: str) -> list[Entry]:
        """What a folder holds, by name; nothing when it does not exist."""

    def read(self, path: str) -> bytes:
        """A whole file. Raises FileNotFoundError when it does not exist."""

    def delete(self, path: str) -> bool:
        """Remove a file; False when it is gone already."""

    def drop_folder(self, folder: str) -> None:
        """Remove a folder if it is empty."""

    def now_s(self) -> float:
        """The store's own time, seconds since 1970: the clock that `Entry.modified_s` is by."""


def store_of(paimon: Any) -> Store:
    """The folder of a pypaimon table."""
    root = str(paimon.table_path).rstrip("/")
    return LocalStore(local_path(root)) if is_local(root) else RemoteStore(paimon.file_io, root)


class LocalStore:
    """A folder of this machine, or one that it mounts."""

    has_empty_folders = True

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def list(self, folder: str) -> list[Entry]:
        """What a folder holds; symbolic links, sockets and the like are left out."""
        try:
            with os.scandir(Path(self.root, folder)) as found:
                return sorted(self._entries(found), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []

    @staticmethod
    def _entries(found: Iterator[os.DirEntry[str]]) -> Iterator[Entry]:
        for item in found:
            is_folder = item.is_dir(follow_symlinks=False)
            if not is_folder and not item.is_file(follow_symlinks=False):
                continue
            try:
                status = item.stat(follow_symlinks=False)
            except FileNotFoundError:  # deleted since it was listed
                continue
            yield Entry(item.name, is_folder, status.st_size, status.st_mtime)

    def read(self, path: str) -> bytes:
        """A whole file."""
        return Path(self.root, path).read_bytes()

    def delete(self, path: str) -> bool:
        """Remove a file, or a link itself."""
        try:
            Path(self.root, path).unlink()
        except FileNotFoundError:
            return False
        return True

    def drop_folder(self, folder: str) -> None:
        """Remove a folder if it is empty."""
        with contextlib.suppress(OSError):
            Path(self.root, folder).rmdir()

    def now_s(self) -> float:
        """The time that the file system gives to a file written now: a network share has a clock of its own."""
        try:
            with tempfile.NamedTemporaryFile(prefix=".clock.", dir=self.root) as file:
                return os.fstat(file.fileno()).st_mtime
        except OSError:  # a folder that can't be written, where nothing will be deleted either
            return time.time()


class RemoteStore:
    """A folder of an object store, through the catalog's own client and its credentials."""

    has_empty_folders = False

    def __init__(self, file_io: Any, root: str) -> None:
        self._io = file_io
        self.root = root

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def list(self, folder: str) -> list[Entry]:
        """What a folder holds."""
        from pyarrow.fs import FileType

        try:
            found = self._io.list_status(self._path(folder))
        except FileNotFoundError:
            return []
        entries = (
            Entry(str(item.base_name), item.type == FileType.Directory, int(item.size or 0), _seconds(item))
            for item in found or ()
        )
        return sorted(entries, key=lambda entry: entry.name)

    def read(self, path: str) -> bytes:
        """A whole object."""
        with self._io.new_input_stream(self._path(path)) as stream:
            return bytes(stream.read())

    def delete(self, path: str) -> bool:
        """Remove an object."""
        try:
            return bool(self._io.delete(self._path(path)))
        except FileNotFoundError:
            return False

    def drop_folder(self, folder: str) -> None:
        """Nothing: a store has no folders."""

    def now_s(self) -> float:
        """The time that the store gives to an object written now."""
        path = self._path(f".clock.{uuid.uuid4().hex}")
        self._io.write_file(path, "", True)
        try:
            return _seconds(self._io.get_file_status(path)) or time.time()
        finally:
            self._io.delete_quietly(path)


def _seconds(item: Any) -> float:
    """When an object was written; a store that does not say makes everything look new, so that nothing is deleted."""
    modified = getattr(item, "mtime_ns", None)
    return modified / 1e9 if modified else time.time()
