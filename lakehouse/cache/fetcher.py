"""A fetcher that asks a cache first. What it keeps is named by object version and range, never by address alone."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from lakehouse.cache.store import Store
from lakehouse.errors import FetchError
from lakehouse.fetch import BlobRefs, Fetched, FetchStats


class Identifying(Protocol):
    """A fetcher that knows versions of objects."""

    def fetch(self, refs: BlobRefs) -> Fetched:
        """As `Fetcher`."""
        ...

    def identity(self, uri: str) -> str | None:
        """What tells an object's content from another one under the same uri; None: it can't be told, or must not be read."""
        ...


class CachingFetcher:
    """Answers from the cache what it can, and keeps what it had to fetch.

    Bytes that came from the cache count as referenced, not as fetched: a second epoch shows no requests.

    Args:
        inner: reads what is missing.
        store: keeps values.
    """

    def __init__(self, inner: Identifying, store: Store) -> None:
        self._inner = inner
        self._store = store
        self._identities: dict[str, str | None] = {}

    @property
    def whole_steps(self) -> bool:
        """As the inner fetcher's."""
        return bool(getattr(self._inner, "whole_steps", False))

    def begin_epoch(self) -> None:
        """Ask again whether objects outside the table changed, each when it is first used."""
        self._identities = {}

    def fetch(self, refs: BlobRefs) -> Fetched:
        """Read every range; one that can't be read is a FetchError among the values, and is not kept."""
        start = time.perf_counter()
        keys = self._keys(refs)
        held = self._store.get([key for key in set(keys) if key is not None])
        values: list[Any] = [held.get(key) if key is not None else None for key in keys]
        missing = np.array([value is None for value in values], np.bool_) & (refs.uri_ids >= 0)
        if not missing.any():
            referenced = sum(len(value) for value in values if value is not None)
            return Fetched(values, FetchStats(bytes_referenced=referenced, seconds=time.perf_counter() - start))
        fetched = self._inner.fetch(refs.take(missing))
        new: dict[bytes, bytes | memoryview] = {}
        for row, value in zip(np.flatnonzero(missing).tolist(), fetched.values, strict=True):
            values[row] = value
            key = keys[row]
            if key is not None and value is not None and not isinstance(value, FetchError):
                new[key] = value
        self._store.put(new)
        found = sum(len(values[row]) for row in np.flatnonzero(~missing & (refs.uri_ids >= 0)).tolist())
        stats = replace(
            fetched.stats, bytes_referenced=fetched.stats.bytes_referenced + found, seconds=time.perf_counter() - start
        )
        return Fetched(values, stats)

    def _keys(self, refs: BlobRefs) -> list[bytes | None]:
        """The name of each range's value, 16 bytes; None: not to be kept."""
        prefixes: dict[int, Any] = {-1: None}
        for uri_id in np.unique(refs.uri_ids).tolist():
            if uri_id >= 0:
                prefixes[uri_id] = self._prefix(refs.uris[uri_id])
        keys: list[bytes | None] = []
        ranges = np.column_stack((refs.offsets, refs.lengths)).astype("<i8", copy=False)  # [n, 2]
        for uri_id, pair in zip(refs.uri_ids.tolist(), ranges, strict=True):
            prefix = prefixes[uri_id]
            if prefix is None:
                keys.append(None)
                continue
            name = prefix.copy()
            name.update(pair.tobytes())
            keys.append(name.digest())
        return keys

    def _prefix(self, uri: str) -> Any:
        if uri not in self._identities:
            self._identities[uri] = self._inner.identity(uri)
        identity = self._identities[uri]
        if identity is None:
            return None
        # Lengths first, so that no two pairs of texts hash alike.
        return hashlib.blake2b(f"{len(uri)} {len(identity)} {uri}{identity}".encode("utf-8", "surrogatepass"), digest_size=16)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_identities": {}}

    def __repr__(self) -> str:
        return f"CachingFetcher({self._inner!r}, {self._store!r})"
