"""The rows that a predicate takes, with Query's own evaluation, group by group."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.query.stream import rows
from lakehouse.scan import ROW_ID, Group, Groups, Version, plan


def chosen_groups(version: Version, predicates: Sequence[Any]) -> Groups:
    """The groups that may hold rows that every predicate takes."""
    if not predicates:
        return plan(version)
    from lakehouse.query.evaluate import pruned

    return pruned(version, predicates)


def checked(where: Any, version: Version) -> tuple[Any, ...]:
    """A predicate as `Query.where` takes it.

    Raises:
        NotFoundError, SchemaError: as `Query.where` does.
    """
    from lakehouse.query.predicate import checked_predicate

    return (checked_predicate(where, version.columns),)


def matched(
    version: Version, groups: Groups, predicates: Sequence[Any], columns: Sequence[str]
) -> Iterator[tuple[Group, pa.Table]]:
    """Rows that every predicate takes, as tables that each lie in one group, in ascending row id.

    Args:
        version: whose rows.
        groups: what pruning left.
        predicates: all of which must be true.
        columns: which to return, none of them kept in ``.blob`` files.

    Yields:
        The group, and a table of ``columns`` and ``_ROW_ID``. A group may come several times in a row.
    """
    starts = np.array([group.first_row_id for group in groups.groups], np.int64)
    for table in rows(version, groups, predicates, (), list(columns)):
        owner = np.searchsorted(starts, row_ids(table), side="right") - 1  # [rows] group of each row
        cuts = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), table.num_rows]
        for first, stop in itertools.pairwise(cuts):
            yield groups.groups[int(owner[first])], table.slice(first, stop - first)


def row_ids(table: pa.Table) -> npt.NDArray[np.int64]:
    """The row ids of a table that `matched` gave, int64[rows]."""
    return np.asarray(table.column(ROW_ID).combine_chunks().to_numpy(), np.int64)
