"""A local copy of the bytes that training referenced, so that a second epoch asks the store for none.

    fetcher ──misses──> inner fetcher          CachingFetcher decides what is kept under which name
       │ hits, puts
       └──> Store: one SQLite index, plain segment files       shared by all processes of a machine

`Cache` is what users name: a folder and a limit. It is opened in the process that uses it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lakehouse.cache.fetcher import CachingFetcher
from lakehouse.cache.store import Store
from lakehouse.errors import ConfigError

__all__ = ["Cache", "CachingFetcher"]

_LEAST_BYTES = 64 << 20  # below, the index and its log would be a large part of it


class Cache:
    """A folder that keeps what was read from a store, up to a limit. Give it to ``Dataset(cache=...)``.

    All processes of a machine may share one: ranks, worker processes, several trainings. It holds only ranges that rows
    referenced, under hashed names; no address or credential is written. What was used least recently leaves first, in
    segments of 1/64 of the limit (64 MiB at most). A process that is killed at any moment leaves a cache that works.
    Nothing that it did not write is ever deleted.

    Every value is checked against its CRC32 when it is read. Files of a table never change; an object outside a table's
    folder is asked once an epoch and process whether it is still the same (its ETag, or size and time); on OSS, GCS and HDFS,
    whose times are too coarse for that, such objects are not kept.

    Use a local disk: the index is SQLite in WAL mode, which network filesystems can't lock.

    Args:
        path: a folder of its own, made on first use. It may not lie in a warehouse, nor a warehouse in it.
        max_bytes: limit of the folder's size: values and index together. At least 64 MiB.

    Raises:
        ConfigError: the folder holds files of something else, or the limit is too small.

    Example:
        >>> cache = Cache("/tmp/lakehouse-cache-example", max_bytes=20 << 30)
        >>> cache
        Cache('/tmp/lakehouse-cache-example', max_bytes=21474836480)
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < _LEAST_BYTES:
            raise ConfigError(f"Cache: max_bytes is a whole number of at least {_LEAST_BYTES:,} bytes, got {max_bytes!r}")
        if not str(path).strip() or "://" in str(path):
            raise ConfigError(f"Cache: path is a local folder, got {str(path)!r}")
        self._path = os.path.realpath(Path(path).expanduser())
        self._max_bytes = max_bytes
        self._store = Store(self._path, max_bytes)

    @property
    def path(self) -> str:
        """The folder, absolute and without symbolic links."""
        return self._path

    @property
    def max_bytes(self) -> int:
        """Limit of the folder's size."""
        return self._max_bytes

    @property
    def store(self) -> Store:
        """What keeps the values; opens its files in the process that first uses them."""
        return self._store

    def used_bytes(self) -> int:
        """Bytes of the folder's files now; 0 where it does not exist yet."""
        return self._store.used_bytes()

    def clear(self) -> None:
        """Forget everything. Other processes that use the cache go on, with misses."""
        self._store.clear()

    def refuse_inside(self, folders: tuple[str, ...]) -> None:
        """Check that the cache lies apart from folders of data, and in no warehouse.

        Raises:
            ConfigError: it lies in one of them, or one of them in it: upkeep and eviction could meet each other's files.
        """
        around = [str(parent) for parent in Path(self._path).parents if next(parent.glob("*.db/*/schema/schema-0"), None)]
        for folder in (*around, *map(os.path.realpath, folders)):
            if os.path.commonpath((folder, self._path)) in (folder, self._path):
                raise ConfigError(
                    f"Cache: {self._path} and the data in {folder} lie in one another; choose a folder apart from the warehouse"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self._path, self._max_bytes)

    def __repr__(self) -> str:
        return f"Cache({self._path!r}, max_bytes={self._max_bytes})"
