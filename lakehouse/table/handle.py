"""A table's handle: its name, its schema, and how it is opened anew. The parts of `Table` stand on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lakehouse.identity import Opened
from lakehouse.schema import Columns
from lakehouse.stores import Store


class Handle:
    """What every part of a `Table` works on.

    Args:
        load: makes a fresh pypaimon handle: of the main branch, or of the named one. An `Opened` knows which table it is.
        name: ``database.table``.
        roots: where references outside the table's own folder may point.
        store: reads what is not on a local disk; None: nothing does.
    """

    def __init__(
        self, load: Callable[[str | None], Any], name: str, roots: tuple[str, ...] = (), store: Store | None = None
    ) -> None:
        self._load, self._paimon = (load, load(None)) if isinstance(load, Opened) else Opened.first(load, name)
        self._name = name
        self._roots = roots
        self._store = store

    @property
    def name(self) -> str:
        """``database.table``."""
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """The columns as the table holds them; BLOB columns are ``large_binary``."""
        return self._columns().arrow

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Names of the partition columns."""
        return tuple(self._paimon.partition_keys)

    @property
    def paimon(self) -> Any:
        """The pypaimon table underneath, as it is now."""
        return self._load(None)

    @property
    def is_tracked(self) -> bool:
        """Whether its rows have ids."""
        return bool(self._paimon.options.row_tracking_enabled())

    def _columns(self) -> Columns:
        self._paimon = self._load(None)
        return Columns.of(self._paimon)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._load, self._name, self._roots, self._store)

    def __repr__(self) -> str:
        by = f", partition_by={list(self.partition_by)}" if self.partition_by else ""
        return f"{type(self).__name__}({self.name}, {len(self._paimon.fields)} columns{by})"
