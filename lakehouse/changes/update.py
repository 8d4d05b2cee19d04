"""Setting columns of the rows that a predicate takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.changes.assign import Assignment, assignments, facts, locators_of
from lakehouse.changes.base import Base, Prepared
from lakehouse.changes.column_files import column_files
from lakehouse.changes.match import checked, chosen_groups, matched, row_ids
from lakehouse.scan import Group, Groups
from lakehouse.write import Describer, discard


def update(base: Base, where: Any, values: Mapping[str, Any]) -> Prepared | None:
    """Set columns of the rows for which ``where`` is true; None: of all rows.

    Raises:
        NotFoundError: a column that does not exist.
        SchemaError: a predicate or a value that doesn't fit, or a partition column.
        FetchError: a reference whose bytes are not there.
        CommitError: the new files can't be written.
    """
    assigned = assignments(values, base.columns, Describer(base.paimon))
    predicates = () if where is None else checked(where, base.version)
    groups = chosen_groups(base.version, predicates)
    messages: list[Any] = []
    rows = 0
    try:
        for group, found in groupby(_matched(base, groups, predicates, assigned), key=lambda item: item[0]):
            parts = [part for _, part in found]
            ids = np.concatenate([row_ids(part) for part in parts])
            new = {item.column: _joined([item.values(part) for part in parts]) for item in assigned}
            messages += column_files(base.paimon, group, base.snapshot_id or 0, ids, new)
            rows += len(ids)
    except BaseException:  # Ctrl-C too: files that no commit will name are deleted
        discard(base.paimon, messages)
        raise
    return Prepared(messages, rows) if rows else None


def _matched(
    base: Base, groups: Groups, predicates: tuple[Any, ...], assigned: list[Assignment]
) -> Iterator[tuple[Group, pa.Table]]:
    """The rows with what the assignments read."""
    columns = base.columns
    if all(item.reads is not None for item in assigned):
        needed = {name for item in assigned for name in item.reads or ()}
        yield from matched(base.version, groups, predicates, [name for name in columns.arrow.names if name in needed])
        return
    locators = locators_of(base.version, groups)
    for group, table in matched(base.version, groups, predicates, [n for n in columns.arrow.names if n not in locators]):
        yield group, facts(table, columns, locators)


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else pa.chunked_array(parts)
