"""Values by key in one folder: payloads appended to segment files, an SQLite index over them.

A payload is written before the index names it, and carries a CRC32 in the index, so a process that dies at any moment
leaves nothing that could be taken for a value. Each process appends to a segment of its own; a segment that lost its
process is simply full. Room is reserved in the index, under its lock, before a byte is written: the limit holds for all
processes together. Eviction takes whole segments, least recently used first.

SQLite rather than a format of our own: it is what locks, survives kills and is shared between processes best. Payloads
stay outside it: a segment is read by one ``pread``, and an evicted one gives its space back at once. The known libraries
were weighed: diskcache unpickles what lies in its folder, fsspec's caches know no limit, LMDB evicts nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import sqlite3
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lakehouse.errors import ConfigError, cause_line

logger = logging.getLogger(__name__)

_INDEX = "index.sqlite3"
_APPLICATION = 0x4C484341  # "LHCA": the folder is one of ours
_FORMAT = 1
_MOST_SEGMENT_BYTES = 64 << 20
_SEGMENTS = 64  # about so many fill the limit
_OPEN_FILES = 128
_KEYS_AT_ONCE = 500  # SQLite's oldest limit of variables is 999
_TOUCH_S = 10.0  # how exact "recently used" is
_WAIT_S = 30.0  # for another process's transaction
_SEGMENT_NAME = re.compile(r"segment-\d{12}\.bin")
_TABLES = """
CREATE TABLE IF NOT EXISTS segments (id INTEGER PRIMARY KEY AUTOINCREMENT, bytes INTEGER NOT NULL, used REAL NOT NULL);
CREATE TABLE IF NOT EXISTS entries (
    key BLOB PRIMARY KEY, segment INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL, crc INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_of_segment ON entries (segment);
"""
# Connections that a fork brought along: using or closing one in the child would damage the parent's locks.
_inherited: list[sqlite3.Connection] = []


class Store:
    """Keys of 16 bytes to values. Thread safe; may be shared by processes; opens its files on first use in each.

    A cache must not stop a training: where the folder can't be read or written (full disk, damaged index), values are
    missing and nothing is kept, and a warning says so once.

    Args:
        path: the folder, absolute.
        max_bytes: limit of its size.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path = path
        self._folder = Path(path)
        self._max_bytes = max_bytes
        self._segment_bytes = min(_MOST_SEGMENT_BYTES, max_bytes // _SEGMENTS)
        self._most_wal_bytes = min(4 << 20, max_bytes // 8)
        self._check_folder()
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._index: sqlite3.Connection | None = None
        self._files: OrderedDict[int, _File] = OrderedDict()
        self._touched: dict[int, float] = {}
        self._segment: tuple[int, _File, int] | None = None  # the one that this process fills: id, file, end
        self._broken = False

    # --- values --------------------------------------------------------------------------------------------------------

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Those of the values that are held and whole."""
        found: list[tuple[bytes, int, int, int, int]] = []
        with self._guarded() as index:
            if index is not None:
                for start in range(0, len(keys), _KEYS_AT_ONCE):
                    part = keys[start : start + _KEYS_AT_ONCE]
                    marks = ",".join("?" * len(part))
                    query = f"SELECT key, segment, offset, length, crc FROM entries WHERE key IN ({marks})"  # noqa: S608 - marks
                    found += index.execute(query, part).fetchall()
                self._touch(index, {row[1] for row in found})
        values: dict[bytes, bytes] = {}
        damaged: list[bytes] = []
        for key, segment, offset, length, crc in sorted(found, key=lambda row: row[1:3]):
            value = self._read(segment, offset, length)
            if value is not None and len(value) == length and zlib.crc32(value) == crc:
                values[key] = value
            else:
                damaged.append(key)
        if damaged:
            with self._guarded() as index:
                if index is not None:
                    index.executemany("DELETE FROM entries WHERE key = ?", [(key,) for key in damaged])
        return values

    def put(self, values: Mapping[bytes, bytes | memoryview]) -> None:
        """Keep values; one that exceeds a segment is kept in a segment of its own, one that exceeds the limit is not."""
        waiting: dict[bytes, bytes | memoryview] = {}
        size = 0
        for key, value in values.items():
            if len(value) > self._max_bytes // 2:
                continue
            if waiting and size + len(value) > self._segment_bytes:
                self._put(waiting, size)
                waiting, size = {}, 0
            waiting[key] = value
            size += len(value)
        if waiting:
            self._put(waiting, size)

    def _put(self, values: Mapping[bytes, bytes | memoryview], size: int) -> None:
        with self._guarded() as index:
            if index is None:
                return
            segment, file, end = self._reserve(index, size)
            self._segment = (segment, file, end + size)
            rows = []
            offset = end
            for key, value in values.items():
                _write_all(file.fd, value, offset)
                rows.append((key, segment, offset, len(value), zlib.crc32(value)))
                offset += len(value)
            # Another process may have evicted the segment meanwhile; its file is gone, and nothing may name it.
            held = "SELECT ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM segments WHERE id = ?)"
            index.execute("BEGIN IMMEDIATE")
            index.executemany(f"INSERT OR IGNORE INTO entries {held}", [(*row, segment) for row in rows])
            index.execute("COMMIT")

    def _reserve(self, index: sqlite3.Connection, size: int) -> tuple[int, _File, int]:
        """Room at the end of this process's segment, counted before it is used."""
        if self._index_bytes("-wal") > self._most_wal_bytes:
            # Automatic checkpoints never shorten the log while readers of other processes overlap.
            index.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        index.execute("BEGIN IMMEDIATE")
        now = time.time()
        current = self._segment
        if current is not None:
            held = index.execute("SELECT 1 FROM segments WHERE id = ?", (current[0],)).fetchone()
            if held is None or current[2] + size > self._segment_bytes:
                current = None
        if current is None:
            number = int(index.execute("INSERT INTO segments (bytes, used) VALUES (0, ?)", (now,)).lastrowid or 0)
            end = 0
        else:
            number, _, end = current
        index.execute("UPDATE segments SET bytes = bytes + ?, used = ? WHERE id = ?", (size, now, number))
        evicted = self._evict(index, keep=number)
        index.execute("COMMIT")
        for old in evicted:
            self._unlink(old)
        file = current[1] if current is not None else _File(self._file_of(number), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        return number, file, end

    def _evict(self, index: sqlite3.Connection, *, keep: int | None) -> list[int]:
        """Segments that leave so that the folder stays within its limit; their entries are gone, their files not yet."""
        (held,) = index.execute("SELECT COALESCE(SUM(bytes), 0) FROM segments").fetchone()
        over = held + self._index_bytes() + self._max_bytes // 16 - self._max_bytes  # a part is kept for the index to grow
        evicted: list[int] = []
        if over > 0:
            for number, size in index.execute("SELECT id, bytes FROM segments ORDER BY used, id").fetchall():
                if over <= 0:
                    break
                if number == keep:
                    continue
                index.execute("DELETE FROM entries WHERE segment = ?", (number,))
                index.execute("DELETE FROM segments WHERE id = ?", (number,))
                evicted.append(number)
                over -= size
        return evicted

    def _touch(self, index: sqlite3.Connection, segments: set[int]) -> None:
        now = time.time()
        stale = [number for number in segments if now - self._touched.get(number, 0.0) > _TOUCH_S]
        if stale:
            index.executemany("UPDATE segments SET used = ? WHERE id = ?", [(now, number) for number in stale])
            self._touched.update(dict.fromkeys(stale, now))

    # --- files ---------------------------------------------------------------------------------------------------------

    def _file_of(self, segment: int) -> Path:
        return self._folder / f"segment-{int(segment):012d}.bin"

    def _read(self, segment: int, offset: int, length: int) -> bytes | None:
        with self._lock:
            file = self._files.get(segment)
            if file is not None:
                self._files.move_to_end(segment)
        try:
            if file is None:
                file = _File(self._file_of(segment), os.O_RDONLY)
                with self._lock:
                    self._files[segment] = file
                    if len(self._files) > _OPEN_FILES:
                        self._files.popitem(last=False)  # closes when its last reader is done
            return os.pread(file.fd, length, offset)
        except (OSError, ValueError, OverflowError, MemoryError):
            return None  # evicted a moment ago, or an index that names what can't be

    def _unlink(self, segment: int) -> None:
        """Called with the lock held."""
        self._files.pop(segment, None)
        self._file_of(segment).unlink(missing_ok=True)

    def used_bytes(self) -> int:
        """Bytes of the folder's files."""
        try:
            with os.scandir(self._path) as found:
                return sum(entry.stat().st_size for entry in found if entry.is_file(follow_symlinks=False))
        except FileNotFoundError:
            return 0

    def _index_bytes(self, *suffixes: str) -> int:
        total = 0
        for suffix in suffixes or ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                total += (self._folder / (_INDEX + suffix)).stat().st_size
        return total

    def clear(self) -> None:
        """Forget all values."""
        with self._guarded() as index:
            if index is None:
                return
            index.execute("BEGIN IMMEDIATE")
            numbers = [row[0] for row in index.execute("SELECT id FROM segments").fetchall()]
            index.execute("DELETE FROM entries")
            index.execute("DELETE FROM segments")
            index.execute("COMMIT")
            self._segment = None
            for number in numbers:
                self._unlink(number)

    # --- opening -------------------------------------------------------------------------------------------------------

    def _check_folder(self) -> None:
        try:
            names = {path.name for path in self._folder.iterdir()}
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"Cache: {self._path} can't be used ({cause_line(error)})") from error
        if not names:
            return
        try:
            with (self._folder / _INDEX).open("rb") as file:
                head = file.read(72)
        except OSError:
            head = b""
        # Bytes 68 to 71 of an SQLite file are its application's number; an empty file was left by a kill.
        if _INDEX in names and (not head or int.from_bytes(head[68:72], "big") in (_APPLICATION, 0)):
            return
        raise ConfigError(f"Cache: {self._path} holds files of something else; name an empty folder or a new one")

    def _open(self) -> sqlite3.Connection:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # One process at a time: a change of journal mode fails at once where others hold the file, it never waits, and
            # a file that is half set up looks like a stranger's.
            fcntl.flock(folder, fcntl.LOCK_EX)
            return self._open_alone()
        finally:
            fcntl.flock(folder, fcntl.LOCK_UN)  # closing is not enough where a process forked meanwhile has it open too
            os.close(folder)

    def _open_alone(self) -> sqlite3.Connection:
        index = sqlite3.connect(self._folder / _INDEX, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            (application,) = index.execute("PRAGMA application_id").fetchone()
            (tables,) = index.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            if application not in (0, _APPLICATION) or (tables and not application):
                raise ConfigError(f"Cache: {self._path} holds a database of something else; name another folder")
            # Listed before the rows are read: a file is made after its row, so one that no row names was evicted by a
            # process that was killed before it could remove it; ids are never used again.
            there = {path for path in self._folder.iterdir() if _SEGMENT_NAME.fullmatch(path.name)}
            index.execute("PRAGMA journal_mode = WAL")
            index.execute("PRAGMA synchronous = NORMAL")
            index.execute("PRAGMA wal_autocheckpoint = 64")
            index.execute("PRAGMA journal_size_limit = 0")
            index.execute("BEGIN IMMEDIATE")
            (version,) = index.execute("PRAGMA user_version").fetchone()
            if version not in (0, _FORMAT):
                raise ConfigError(f"Cache: {self._path} was made by another version (format {version}); name another folder")
            for statement in _TABLES.split(";\n"):
                index.execute(statement)
            index.execute(f"PRAGMA application_id = {_APPLICATION}")
            index.execute(f"PRAGMA user_version = {_FORMAT}")
            evicted = self._evict(index, keep=None)  # the limit may be lower than it was
            held = {self._file_of(row[0]) for row in index.execute("SELECT id FROM segments").fetchall()}
            index.execute("COMMIT")
            for path in (there - held) | {self._file_of(number) for number in evicted}:
                path.unlink(missing_ok=True)
        except BaseException:
            index.close()
            raise
        return index

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[sqlite3.Connection | None]:
        """The index, with this process's lock held; None when it can't be used."""
        if self._pid != os.getpid():
            if self._index is not None:
                _inherited.append(self._index)
            self._forget()
        with self._lock:
            if self._index is None and not self._broken:
                try:
                    self._index = self._open()
                except (OSError, sqlite3.Error) as error:
                    self._fail(error)
            try:
                yield None if self._broken else self._index
            except (OSError, sqlite3.Error) as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Go on without the cache; the training must not stop for it."""
        if self._index is not None and self._index.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._index.execute("ROLLBACK")
        self._segment = None
        self._broken = True
        logger.warning("cache %s is not used any more in this process: %s", self._path, cause_line(error))

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._path, self._max_bytes)

    def __repr__(self) -> str:
        return f"Store({self._path!r}, max_bytes={self._max_bytes})"


class _File:
    """A descriptor that closes when its last user lets go of it."""

    def __init__(self, path: Path, flags: int) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    # A default: while the interpreter ends, the names of this module may be gone before its last file is.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)


def _write_all(fd: int, value: bytes | memoryview, offset: int) -> None:
    rest = memoryview(value).cast("B")
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest = rest[written:]
        offset += written
