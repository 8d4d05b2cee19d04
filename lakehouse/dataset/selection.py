"""What is read of an index, and how: checked once, opened by every process for itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from lakehouse.cache import Cache, CachingFetcher
from lakehouse.dataset import options
from lakehouse.dataset.blobs import BlobColumn, Refs, Sizes
from lakehouse.dataset.columns import ScalarColumn, scalar_column
from lakehouse.dataset.memory import Memory, Place
from lakehouse.errors import ConfigError
from lakehouse.fetch import Fetcher, VerifyingFetcher


class Ids(Protocol):
    """The table's row id of each row."""

    def __getitem__(self, i: int, /) -> Any: ...


class Index(Protocol):
    """Rows to train from: a `RowIndex`, or what answers as one does, such as a `Mixture`.

    Where it has a method ``order(seed, shuffle)`` too, that says which of its rows an epoch visits.
    """

    def __len__(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Equal for the same rows in the same order."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        ...

    @property
    def blob_columns(self) -> tuple[str, ...]:
        """Those of them that are BLOBs."""
        ...

    @property
    def row_ids(self) -> Ids:
        """Each row's id in its table."""
        ...

    def column(self, name: str) -> pa.Array | pa.ChunkedArray:
        """The values of a column that is not a BLOB."""
        ...

    def blobs(self, name: str) -> Refs:
        """Where the bytes of a BLOB column are."""
        ...

    def where(self, i: int, column: str | None = None) -> str:
        """Where a row is, for errors."""
        ...

    def fetcher(self) -> Fetcher:
        """What reads the bytes."""
        ...


@dataclass(frozen=True)
class Selection:
    """Columns of an index and how they are read.

    Attributes:
        index: the rows.
        columns: in the order of a batch.
        decoders: of the BLOB columns.
        fill: column to the value that replaces null numbers.
        ragged: decoded arrays may differ in shape.
        verify: stored checksums are compared.
        own_fetcher: the user's, if any.
        cache: what keeps fetched bytes, if anything does.
    """

    index: Index
    columns: tuple[str, ...]
    decoders: Mapping[str, Callable[[Any, Any], Any]]
    fill: Mapping[str, Any]
    ragged: bool
    verify: bool
    own_fetcher: Fetcher | None
    cache: Cache | None

    @classmethod
    def of(
        cls,
        index: Index,
        *,
        columns: Sequence[str] | None,
        decode: Mapping[str, Callable[[Any, Any], Any]] | None,
        fill: Mapping[str, Any] | None,
        ragged: bool,
        verify: bool,
        fetcher: Fetcher | None,
        cache: Cache | None,
    ) -> Selection:
        """Check what the user gave.

        Raises:
            ConfigError: a value outside what is allowed.
            NotFoundError: a column that does not exist.
            SchemaError: a reserved column name, or an option that does not fit a column's type.
        """
        if not hasattr(index, "fingerprint") or not hasattr(index, "blob_columns"):
            raise ConfigError(f"a RowIndex, Mixture or Weighted is needed, got {type(index).__name__}; query.index() makes one")
        if fetcher is not None and not callable(getattr(fetcher, "fetch", None)):
            raise ConfigError(f"fetcher must have a method fetch(refs), got {fetcher!r}")
        if cache is not None:
            options.cache_for(cache, index.fetcher() if fetcher is None else fetcher)
        chosen = options.selected_columns(columns, index.schema)
        return cls(
            index=index,
            columns=chosen,
            decoders=options.decoders(decode, chosen, index.schema, index.blob_columns),
            fill=options.fills(fill, chosen, index.schema),
            ragged=options.flag("ragged", ragged),
            verify=options.flag("verify", verify),
            own_fetcher=fetcher,
            cache=cache,
        )

    def open(self, place: Place) -> Opened:
        """What this process reads with. None of it may cross a fork."""
        fetcher: Any = None
        caching = None
        if self.decoders:
            fetcher = self.own_fetcher if self.own_fetcher is not None else self.index.fetcher()
            if self.cache is not None:
                fetcher = caching = CachingFetcher(fetcher, self.cache.store)
            # Outside the cache, so that what is read from it is checked too.
            fetcher = VerifyingFetcher(fetcher) if self.verify else fetcher
        columns = {name: self._column(name) for name in self.columns}
        return Opened(os.getpid(), place, columns, fetcher, Memory(place), caching)

    def _column(self, name: str) -> ScalarColumn | BlobColumn:
        index = self.index
        if name in self.decoders:
            return BlobColumn(name, index.blobs(name), self.decoders[name], self.ragged, index.where, Sizes())
        return scalar_column(name, index.column(name), self.fill.get(name), index.where)


@dataclass(frozen=True)
class Opened:
    """Columns, fetcher and memory of one process.

    Attributes:
        fetcher: None where no BLOB is read.
        caching: the part of it that asks a cache, if any.
    """

    pid: int
    place: Place
    columns: Mapping[str, ScalarColumn | BlobColumn]
    fetcher: Fetcher | None
    memory: Memory
    caching: CachingFetcher | None

    def serves(self, place: Place) -> bool:
        """Whether it is this process's, and for arrays of that place."""
        return self.pid == os.getpid() and self.place == place
