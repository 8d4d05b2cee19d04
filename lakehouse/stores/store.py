"""A catalog's store: reads any uri that its tables refer to, with the catalog's own credentials."""

from __future__ import annotations

import contextlib
import math
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, TypeVar

from lakehouse.errors import ConfigError
from lakehouse.fetch import TO_END, Fetcher, PerProcess, RangeFetcher, classify, fsspec_read_range, persistently
from lakehouse.stores.readers import ArrowReader, BotocoreReader, ObstoreReader, may_use_tokio
from lakehouse.stores.s3 import Keys, S3Access
from lakehouse.stores.settings import S3_SCHEMES, S3Settings, split_url

T = TypeVar("T")

_REPLACE_S = 10.0

# What pypaimon's FileIO opens and this module has no client of its own for.
_FILE_IO_SCHEMES = ("gs", "hdfs", "oss", "viewfs")


class Store:
    """How bytes outside local disks are read for the tables of one catalog.

    Thread safe. Clients are made on first use, by each process for itself. A pickle holds the options as they pickle
    themselves: a catalog's leave their secrets out except on the way to a process that is being spawned.

    Args:
        options: the catalog's.
        load: opens the table (a pypaimon handle), for schemes that only its FileIO opens, and for tokens that a catalog
            server gives out by table. None: neither is there.
    """

    def __init__(self, options: Mapping[str, str], load: Callable[[], Any] | None = None) -> None:
        self._parts: tuple[Mapping[str, str], Callable[[], Any] | None] | bytes = (options, load)
        self._clients = PerProcess(self._open, keep_inherited=True)

    def fetcher(self) -> Fetcher:
        """Reads ranges of remote objects: merged, concurrent, repeated where that may help."""
        return RangeFetcher(_Ranges(self))

    def read_range(self, uri: str, offset: int, length: int) -> bytes | memoryview:
        """One range by the client of its scheme; fewer bytes where the object ends.

        Raises:
            OSError: it could not be read.
        """
        return self._clients.get().read(uri, offset, length)

    def read_object(self, uri: str) -> bytes:
        """A small object, whole; asked for again where that may help, since nobody above does.

        Raises:
            OSError: it could not be read.
        """
        return bytes(persistently(lambda: self.read_range(uri, 0, TO_END)))

    def identity(self, uri: str) -> str | None:
        """The version of an object, where its client knows one; None: it can't be told."""
        return self._clients.get().identity(uri)

    def _open(self) -> _Clients:
        if isinstance(self._parts, bytes):
            self._parts = pickle.loads(self._parts)  # noqa: S301 - what `__getstate__` wrote, in a pickle that is being trusted already
        return _Clients(*self._parts)

    def __getstate__(self) -> bytes:
        # Unpickled on first use only: who reads no bytes needs no secrets, and not to have them is an error only then.
        return self._parts if isinstance(self._parts, bytes) else pickle.dumps(self._parts)

    def __setstate__(self, state: bytes) -> None:
        self._parts = state
        self._clients = PerProcess(self._open, keep_inherited=True)

    def __repr__(self) -> str:
        return f"Store({'pickled' if isinstance(self._parts, bytes) else repr(self._parts[0])})"


class _Clients:
    """The clients of one process."""

    def __init__(self, options: Mapping[str, str], load: Callable[[], Any] | None) -> None:
        self._options = options
        self._load = load
        self._lock = threading.Lock()
        self._readers: dict[str, Any] = {}
        self._access: S3Access | None = None
        self._file_io: Any = None
        self._renewing = threading.Lock()
        self._replaced_s = -math.inf

    def read(self, uri: str, offset: int, length: int) -> bytes | memoryview:
        reader = self._reader_of(uri)
        data: bytes | memoryview = self._with_valid_keys(reader, lambda: reader(uri, offset, length))
        return data

    def identity(self, uri: str) -> str | None:
        reader = self._reader_of(uri)
        ask = getattr(reader, "identity", None)
        if not callable(ask):  # times of OSS and HDFS files are too coarse to tell one version from the next
            return None
        try:
            version: str | None = persistently(lambda: self._with_valid_keys(reader, lambda: ask(uri)))
        except OSError:
            return None
        return version

    def _with_valid_keys(self, reader: Any, act: Callable[[], T]) -> T:
        try:
            return act()
        except OSError as error:
            if not self._renewed(reader, error):
                raise
        return act()

    def _reader_of(self, uri: str) -> Any:
        scheme, _, key = split_url(uri)
        if scheme in S3_SCHEMES:
            scheme = "s3" if may_use_tokio() and ObstoreReader.reads(key) else "s3 by botocore"
        with self._lock:
            reader = self._readers.get(scheme)
            if reader is None:
                reader = self._readers[scheme] = self._open(scheme)
            return reader

    def _open(self, scheme: str) -> Any:
        if scheme.startswith("s3"):
            if self._access is None:
                self._access = self._s3_access()
            return ObstoreReader(self._access) if scheme == "s3" else BotocoreReader(self._access)
        if scheme in _FILE_IO_SCHEMES:
            file_io = self._table_io(scheme)
            return ArrowReader(file_io.new_input_stream, renewable=hasattr(file_io, "try_to_refresh_token"))
        return fsspec_read_range()

    def _renewed(self, reader: Any, error: OSError) -> bool:
        """Whether keys were refused that may have been replaced meanwhile."""
        if classify(error) != "denied" or not getattr(reader, "renewable", False):
            return False
        self._replace_token()
        reader.renew()
        return True

    def _replace_token(self) -> None:
        """Ask the catalog server for another token than one that the store refuses before its time.

        Seldom, because what is refused may be a right that no token gives, of thousands of rows.
        """
        refresh = getattr(self._file_io, "refresh_token", None)
        with self._renewing:
            if refresh is None or time.monotonic() < self._replaced_s + _REPLACE_S:
                return
            self._replaced_s = time.monotonic()
            with contextlib.suppress(Exception):  # then the refusal stands
                refresh()
                self._file_io._set_cached_token(self._file_io._build_cache_key(), self._file_io.token)  # noqa: SLF001 - upstream's, of the process

    def _s3_access(self) -> S3Access:
        if self._options.get("metastore") != "rest" or self._load is None:
            return S3Access(S3Settings.of(self._options))
        settings, _ = self._tokens()
        return S3Access(settings, self._token_keys)

    def _token_keys(self) -> Keys:
        settings, expires = self._tokens()
        return Keys(settings.access_key or "", settings.secret_key or "", settings.session_token, expires)

    def _tokens(self) -> tuple[S3Settings, datetime | None]:
        """What the server's token for this table says, over the catalog's options; it is renewed when due."""
        file_io = self._table_io("s3")
        if not hasattr(file_io, "try_to_refresh_token"):
            return S3Settings.of(self._options), None
        file_io.try_to_refresh_token()
        token = file_io.token
        if token is None:
            return S3Settings.of(self._options), None
        expires = datetime.fromtimestamp(token.expire_at_millis / 1000, timezone.utc)
        return S3Settings.of({**self._options, **token.token}), expires

    def _table_io(self, scheme: str) -> Any:
        if self._file_io is None:
            if self._load is None:
                raise ConfigError(f"{scheme}:// is read with a table's own client, and no table was given")
            self._file_io = self._load().file_io
        return self._file_io


class _Ranges:
    """A store's ranges and versions, as `RangeFetcher` asks for them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.identity = store.identity

    def __call__(self, uri: str, offset: int, length: int) -> bytes | memoryview:
        return self._store.read_range(uri, offset, length)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Ranges, (self._store,)

    def __repr__(self) -> str:
        return repr(self._store)
