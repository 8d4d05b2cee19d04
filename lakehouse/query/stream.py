"""The chosen rows of a version, streamed in ascending row id. Loads Daft only when there is a predicate to evaluate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.scan import ROW_ID, Group, Groups, Locator, Version, read


def rows(
    version: Version,
    groups: Groups,
    predicates: Sequence[Any],
    samples: Iterable[tuple[float, int]],
    columns: Sequence[str],
    only: npt.NDArray[np.int64] | None = None,
) -> Iterator[pa.Table]:
    """Stream the chosen rows in ascending row id.

    Args:
        version: whose rows.
        groups: what pruning left.
        predicates: all of which must be true.
        samples: (fraction, seed) pairs, all of which must take the row.
        columns: which to return, none of them a BLOB kept in ``.blob`` files; inline ones come as serialised descriptors.
        only: ascending row ids, int64[k]: no other rows. None: any.

    Yields:
        Tables of ``columns`` and ``_ROW_ID``.
    """
    tested, matching = _tests(predicates, version)
    in_files = [name for name in tested if name not in version.columns.blobs or name in version.columns.inline]
    needed = list(dict.fromkeys([*columns, *in_files]))
    locators = {name: Locator(version, groups, name) for name in tested if name not in in_files}
    for batch in read(version, groups if only is None else holding(groups, only), needed):
        table = pa.Table.from_batches([batch])
        row_ids = table.column(ROW_ID).combine_chunks().to_numpy()
        kept = np.arange(len(row_ids)) if only is None else np.flatnonzero(among(row_ids, only))
        for fraction, seed in samples:
            kept = kept[sampled(row_ids[kept], fraction, seed)]
        if predicates and len(kept):
            chosen = table.take(pa.array(kept)) if len(kept) < len(row_ids) else table
            facts = pa.table({name: _fact(chosen, name, locators, row_ids[kept], version) for name in tested})
            if not tested:  # a predicate without columns: one row more tells it how many rows there are
                facts = pa.table({"": pa.nulls(len(kept), pa.int8())})
            kept = kept[matching(facts, predicates)]
        if len(kept):
            result = table if len(kept) == table.num_rows else table.take(pa.array(kept))
            yield result.select([*columns, ROW_ID])


def holding(groups: Groups, row_ids: npt.NDArray[np.int64]) -> Groups:
    """The groups that any of these ascending row ids lie in."""

    def holds(group: Group) -> bool:
        low, high = np.searchsorted(row_ids, [group.first_row_id, group.stop_row_id])
        return bool(low < high)

    return groups.where(holds)


def among(row_ids: npt.NDArray[np.int64], ascending: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of the row ids are among the ascending ones, bool[n]."""
    if not len(ascending):
        return np.zeros(len(row_ids), np.bool_)
    at = np.searchsorted(ascending, row_ids)
    return np.asarray(ascending[np.minimum(at, len(ascending) - 1)] == row_ids, np.bool_)


def _tests(predicates: Sequence[Any], version: Version) -> tuple[list[str], Any]:
    """The columns that predicates read, and what evaluates them."""
    if not predicates:
        return [], None
    from lakehouse.query.evaluate import matching
    from lakehouse.query.walk import columns_of

    return sorted(set().union(*(columns_of(predicate, version.columns) for predicate in predicates))), matching


def _fact(table: pa.Table, name: str, locators: dict[str, Locator], row_ids: npt.NDArray[np.int64], version: Version) -> Any:
    """What predicates see of a column: of a BLOB only whether it is null."""
    if name in locators:
        uri_ids, _, _ = locators[name].locate(row_ids)
        return pa.array(np.zeros(len(row_ids), np.int8), mask=uri_ids < 0)
    if name in version.columns.lazy:
        column = table.column(name).combine_chunks()
        return pa.array(np.zeros(len(row_ids), np.int8), mask=column.is_null().to_numpy(zero_copy_only=False))
    return table.column(name)


_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15))


def hashed(numbers: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each number: the finaliser of splitmix64 (Steele, Lea and Flood 2014), twice, keyed by ``seed``."""
    with np.errstate(over="ignore"):
        value = numbers.astype(np.uint64) + np.uint64(seed % 2**64) * _MIX[2] + _MIX[2]
        for _ in range(2):
            value = (value ^ (value >> np.uint64(30))) * _MIX[0]
            value = (value ^ (value >> np.uint64(27))) * _MIX[1]
            value ^= value >> np.uint64(31)
            value += _MIX[2]
    return value


def sampled(row_ids: npt.NDArray[np.int64], fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which rows a sample takes: those whose hash lies in the first ``fraction`` of all hashes."""
    if fraction >= 1:
        return np.ones(len(row_ids), np.bool_)
    return hashed(row_ids, seed) < np.uint64(int(fraction * 2**64))
