"""Several tables behind each other: their references and row ids as one, and a fetcher that hands each range to its own table.

A range must be read by the fetcher of the table that refers to it: another one may not read it, or may read it with other
rights. So the uris of all tables stand in one tuple, table after table, and the number of a uri says whose it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lakehouse.errors import FetchError
from lakehouse.fetch import BlobRef, BlobRefs, Fetched, Fetcher, FetchStats
from lakehouse.index import RowIndex

Ints = npt.NDArray[np.int64]


class Stretches:
    """Numbers that run on from one item to the next: rows of tables, or uris of tables.

    Args:
        lengths: of the items.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.starts = np.array([0, *itertools.accumulate(lengths)], np.int64)  # [items + 1]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def item_of(self, numbers: npt.ArrayLike) -> Ints:
        """The item that each number belongs to."""
        return np.searchsorted(self.starts, numbers, side="right") - 1

    def place(self, number: int) -> tuple[int, int]:
        """The item that a number belongs to, and which one of that item's it is.

        Raises:
            IndexError: there is no such number.
        """
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} of {len(self)} rows")
        number %= len(self)
        item = int(self.item_of(number))
        return item, number - int(self.starts[item])


@dataclass(frozen=True, eq=False)
class JoinedIds:
    """Row ids of several tables; which table is told by `Mixture.where`."""

    ids: Sequence[npt.NDArray[np.int64]]
    rows: Stretches

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> int:
        item, at = self.rows.place(row)
        return int(self.ids[item][at])


@dataclass(frozen=True, eq=False)
class JoinedRefs:
    """References of one BLOB column of several tables, as `BlobRefs` answers.

    Attributes:
        refs: of each table.
        rows: of the tables.
        uris: of all tables and all their BLOB columns.
        first_uris: where the column's uris of each table begin among them.
    """

    refs: Sequence[BlobRefs]
    rows: Stretches
    uris: tuple[str, ...]
    first_uris: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def total_bytes(self) -> int:
        """Bytes referenced, without the ranges of unknown length."""
        return sum(refs.total_bytes for refs in self.refs)

    def __getitem__(self, row: int) -> BlobRef | None:
        item, at = self.rows.place(row)
        return self.refs[item][at]

    def take(self, rows: npt.ArrayLike) -> BlobRefs:
        """The references at these rows, in this order."""
        wanted = np.asarray(rows, np.int64)  # [k]
        items = self.rows.item_of(wanted)  # [k]
        columns = np.empty((3, len(wanted)), np.int64)  # [uri_ids, offsets and lengths; k]
        for item in np.unique(items).tolist():
            here = items == item
            taken = self.refs[item].take(wanted[here] - self.rows.starts[item])
            columns[0, here] = np.where(taken.uri_ids < 0, -1, taken.uri_ids + np.int64(self.first_uris[item]))
            columns[1, here] = taken.offsets
            columns[2, here] = taken.lengths
        return BlobRefs(self.uris, *columns)


class JoinedFetcher:
    """Hands each range to the fetcher of the table that refers to it.

    Args:
        indexes: of the tables.
        uris: of all of them, table after table, as `JoinedRefs` has them.
        owned: how many of them are each table's.
    """

    def __init__(self, indexes: Sequence[RowIndex], uris: tuple[str, ...], owned: Sequence[int]) -> None:
        self._uris = uris
        self._owners = Stretches(owned)
        self._fetchers: list[Fetcher] = [index.fetcher() for index in indexes]

    @property
    def whole_steps(self) -> bool:
        """Whether any table's fetcher gains from seeing a whole step's ranges at once."""
        return any(bool(getattr(fetcher, "whole_steps", False)) for fetcher in self._fetchers)

    def fetch(self, refs: BlobRefs) -> Fetched:
        """Read every range; one that can't be read is a FetchError among the values."""
        ids = refs.uri_ids if refs.uris is self._uris or refs.uris == self._uris else self._known(refs)
        owners = np.where(ids < 0, -1, self._owners.item_of(ids))  # [k]; -1: null, or nobody's
        fetched = Fetched([None] * len(refs), FetchStats())
        for owner in np.unique(owners).tolist():
            here = np.flatnonzero(owners == owner)
            if owner >= 0:
                part = self._fetchers[owner].fetch(refs.take(here))
            else:
                part = Fetched([_nobodys(refs[row]) for row in here.tolist()], FetchStats())
            for row, value in zip(here.tolist(), part.values, strict=True):
                fetched.values[row] = value
            fetched = Fetched(fetched.values, fetched.stats + part.stats)
        return fetched

    @property
    def folders(self) -> tuple[str, ...]:
        """The local folders that the tables' fetchers may read."""
        return tuple(folder for fetcher in self._fetchers for folder in getattr(fetcher, "folders", ()))

    def identity(self, uri: str) -> str | None:
        """What tells an object's content from another one under the same uri, as the fetcher of its table says."""
        number = self._first.get(uri)
        if number is None:
            return None
        ask = getattr(self._fetchers[int(self._owners.item_of(np.array([number]))[0])], "identity", None)
        return ask(uri) if callable(ask) else None

    def _known(self, refs: BlobRefs) -> npt.NDArray[np.int64]:
        """Numbers of uris for references that were not taken from the mixture, such as one `BlobRef`."""
        numbers = np.array([self._first.get(uri, -1) for uri in refs.uris], np.int64)
        return np.where(refs.uri_ids < 0, -1, numbers[refs.uri_ids])

    @cached_property
    def _first(self) -> dict[str, int]:
        return {uri: number for number, uri in reversed(list(enumerate(self._uris)))}


def _nobodys(ref: BlobRef | None) -> FetchError | None:
    if ref is None:
        return None
    return FetchError(f"can't read {ref.uri}: no table of the mixture refers to it; read it through its own table")
