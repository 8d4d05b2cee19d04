"""Byte ranges through fsspec: any URL that an installed file system serves."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from lakehouse.errors import ConfigError
from lakehouse.fetch.process import PerProcess
from lakehouse.fetch.reads import ReadRange
from lakehouse.fetch.refs import TO_END


def fsspec_read_range(storage_options: Mapping[str, Any] | None = None) -> ReadRange:
    """A ``read_range`` for `RangeFetcher` that reads URLs with a scheme (``s3://``, ``memory://``, ``file://``).

    One client per scheme and process, shared by its threads. A plain pickle leaves the options behind, because they may
    hold secrets; they travel while a process is being spawned.

    Args:
        storage_options: for fsspec's file systems: of every scheme, or by scheme (``{"s3": {"key": ...}}``). Default: what
            they find in the environment.
    """
    return _FsspecReader(storage_options)


class _FsspecReader:
    def __init__(self, storage_options: Mapping[str, Any] | None) -> None:
        self._options = dict(storage_options or {})
        self._withheld = False
        # A child never drops its parent's clients: closing them could end connections that the parent uses.
        self._clients = PerProcess(partial(_Clients, self._options), keep_inherited=True)

    def __call__(self, uri: str, offset: int, length: int) -> bytes:
        if self._withheld:
            raise ConfigError(
                "these storage_options were left out of a pickle, because they may hold secrets: make the fetcher in the "
                "process that uses it, or send it to a spawned process"
            )
        client = self._clients.get().of(uri)
        data: bytes = client.cat_file(uri, start=offset, end=None if length == TO_END else offset + length)
        return data

    def identity(self, uri: str) -> str | None:
        """What the file system says of the object: its ETag, or size and times; None where it can't be asked."""
        try:
            return str(self._clients.get().of(uri).ukey(uri))
        except Exception:  # noqa: BLE001 - whatever a file system raises: what can't be told apart is not kept
            return None

    def __getstate__(self) -> dict[str, Any]:
        from multiprocessing.context import get_spawning_popen

        withheld = self._withheld or (bool(self._options) and get_spawning_popen() is None)
        return {"options": {} if withheld else self._options, "withheld": withheld}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]
        self._withheld = state["withheld"]

    def __repr__(self) -> str:
        return f"fsspec_read_range(<{len(self._options)} options>)"


class _Clients:
    """The file systems of one process, by scheme."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._by_scheme: dict[str, Any] = {}

    def of(self, uri: str) -> Any:
        scheme, separator, _ = uri.partition("://")
        scheme = scheme.lower() if separator else "file"
        with self._lock:
            client = self._by_scheme.get(scheme)
            if client is None:
                import fsspec

                own = self._options.get(scheme)
                options = own if isinstance(own, Mapping) else self._options
                # Its own cache has one client per thread.
                client = fsspec.filesystem(scheme, skip_instance_cache=True, **options)
                self._by_scheme[scheme] = client
            return client
