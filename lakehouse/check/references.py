"""Values that are references: that what they point at is there and long enough. One byte of each is read: the last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.check.report import Finding
from lakehouse.errors import FetchError
from lakehouse.fetch import BlobRefs, Fetcher
from lakehouse.references import inline_structs, refs_of
from lakehouse.scan import ROW_ID, Version, plan, read


def reference_findings(version: Version, fetcher: Fetcher) -> Iterator[Finding]:
    """Damage of the columns that store references, of live rows.

    Args:
        version: whose rows.
        fetcher: what reads the table's BLOBs; it refuses what lies outside the table and the catalog's ``blob_roots``.
    """
    columns = sorted(version.columns.inline)
    if not columns or version.snapshot_id is None:
        return
    proven: dict[str, int] = {}  # uri -> it has at least so many bytes
    for batch in read(version, plan(version), columns):
        row_ids = batch.column(ROW_ID).to_numpy(zero_copy_only=False)
        for name in columns:
            yield from _of_column(name, batch.column(name), row_ids, fetcher, proven)


def _of_column(name: str, column: pa.Array, row_ids: Any, fetcher: Fetcher, proven: dict[str, int]) -> Iterator[Finding]:
    refs, rows = _flat(inline_structs(column))
    held = np.flatnonzero(refs.uri_ids >= 0)
    ends = refs.offsets + np.maximum(refs.lengths, 0)
    unproven = np.array([ends[i] > proven.get(refs.uris[refs.uri_ids[i]], 0) for i in held.tolist()], np.bool_)
    wanted = held[unproven] if len(held) else held
    if not len(wanted):
        return
    last = BlobRefs(refs.uris, refs.uri_ids[wanted], ends[wanted] - 1, np.ones(len(wanted), np.int64))
    for i, value in zip(wanted.tolist(), fetcher.fetch(last).values, strict=True):
        uri = refs.uris[refs.uri_ids[i]]
        if isinstance(value, FetchError):
            cause = f"a reference to {refs.offsets[i]}+{refs.lengths[i]} can't be followed: {value}"
            yield Finding(
                uri,
                "reference",
                cause,
                name,
                np.array([row_ids[rows[i]]], np.int64),
                np.array([refs.offsets[i]], np.int64),
                np.zeros(1, np.uint8),
            )
        else:
            proven[uri] = max(proven.get(uri, 0), int(ends[i]))


def _flat(structs: pa.Array) -> tuple[BlobRefs, Any]:
    """References of one a row, or of lists or maps of them; int64[n], the row of each."""
    rows = np.arange(len(structs))
    if pa.types.is_map(structs.type):
        lists = pa.ListArray.from_arrays(structs.offsets, structs.items)
        return refs_of(structs.items), pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    if pa.types.is_list(structs.type):
        return refs_of(structs.flatten()), pc.list_parent_indices(structs).to_numpy(zero_copy_only=False)
    return refs_of(structs), rows
