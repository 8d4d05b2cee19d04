"""Rows by key: those that are there are updated, the others added, and those whose partition changes are moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.changes.base import Base, Prepared
from lakehouse.changes.column_files import column_files
from lakehouse.changes.delete import deletions, needs_deletion_vectors
from lakehouse.changes.keys import Keys, checked_key, no_duplicates
from lakehouse.changes.match import chosen_groups, matched, row_ids
from lakehouse.errors import CommitError, SchemaError
from lakehouse.fetch import BlobRef
from lakehouse.scan import Group, Groups, Locator
from lakehouse.schema import Columns
from lakehouse.write import Describer, Writer, discard, given_batches

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Given:
    """The rows to upsert.

    Attributes:
        rows: only the columns that the data has, in the form that the engine takes.
        key: the key columns.
        keys: their values, each once.
        columns: the table's columns that the rows were made for.
    """

    rows: pa.Table
    key: tuple[str, ...]
    keys: Keys
    columns: Columns

    @classmethod
    def of(cls, data: Any, key: Sequence[str] | str, base: Base) -> Given:
        """Check the rows. They are held in memory.

        Raises:
            NotFoundError, SchemaError: a column, a value or a key that doesn't fit.
            FetchError: a reference whose bytes are not there.
        """
        columns = base.columns
        names, batches = given_batches(data, columns, Describer(base.paimon))
        schema = pa.schema([columns.arrow.field(name) for name in names])
        rows = pa.Table.from_batches(batches, schema=schema)
        # Of data without rows and columns nothing can be checked, and nothing comes of it.
        key_names = checked_key(key, columns, names or columns.arrow.names)
        arrays = [rows.column(name).combine_chunks() if names else pa.nulls(0, pa.int64()) for name in key_names]
        return cls(rows, tuple(key_names), Keys(arrays, key_names), columns)

    def shown(self, row: int) -> str:
        """The key of a row, for errors."""
        return ", ".join(f"{name}={self.rows.column(name)[row].as_py()!r}" for name in self.key)


@dataclass(frozen=True, eq=False)
class _Hits:
    """Rows of one group that are among the given ones: their ids, and which of the given rows each is."""

    group: Group
    ids: _Ints
    given: _Ints


def upsert(base: Base, given: Given) -> Prepared | None:
    """Update, add and move rows.

    Raises:
        SchemaError: a key that several rows of the table have; a column that new rows need; rows to be moved in a table without
            deletion vectors.
        CommitError: the new files can't be written, or the table's columns changed meanwhile.
    """
    if base.columns != given.columns:
        raise CommitError(f"{base.version.name}: its columns changed meanwhile; nothing was committed, try again")
    if not given.rows.num_rows:
        return None
    groups = chosen_groups(base.version, given.keys.range_predicate())
    hits = _hits(base, groups, given)
    staying, moving = [], []
    for hit in hits:
        moves = _moves(hit, given)
        staying.append(_Hits(hit.group, hit.ids[~moves], hit.given[~moves]))
        moving.append(_Hits(hit.group, hit.ids[moves], hit.given[moves]))
    moved_ids = np.concatenate([np.empty(0, np.int64), *(hit.ids for hit in moving)])
    if len(moved_ids):
        needs_deletion_vectors(base, "moving rows to another partition")
    absent = np.ones(given.rows.num_rows, np.bool_)
    for hit in hits:
        absent[hit.given] = False
    added = np.flatnonzero(absent)
    if len(added):
        _complete(given)

    changed = [name for name in given.rows.column_names if name not in (*given.key, *given.columns.partition_by)]
    messages: list[Any] = []
    try:
        for hit in staying:
            if len(hit.ids) and changed:
                values = {name: _taken(given.rows, name, hit.given) for name in changed}
                messages += column_files(base.paimon, hit.group, base.snapshot_id or 0, hit.ids, values)
        messages += _written(base, given, groups, moving, added)
        if len(moved_ids):
            messages += deletions(base, moved_ids.tolist())
    except BaseException:  # Ctrl-C too: files that no commit will name are deleted
        discard(base.paimon, messages)
        raise
    rows = len(added) + len(moved_ids) + (sum(len(hit.ids) for hit in staying) if changed else 0)
    return Prepared(messages, rows) if rows else None


def _hits(base: Base, groups: Groups, given: Given) -> list[_Hits]:
    found: list[_Hits] = []
    for group, table in matched(base.version, groups, (), given.key):
        which = given.keys.rows_of(table)
        there = np.flatnonzero(which >= 0)
        if not len(there):
            continue
        hit = _Hits(group, row_ids(table)[there], which[there])
        if found and found[-1].group is group:
            last = found.pop()
            hit = _Hits(group, np.concatenate([last.ids, hit.ids]), np.concatenate([last.given, hit.given]))
        found.append(hit)
    no_duplicates(np.concatenate([np.empty(0, np.int64), *(hit.given for hit in found)]), given.shown, str(base.version))
    return found


def _moves(hit: _Hits, given: Given) -> npt.NDArray[np.bool_]:
    """Which of the rows are given another partition than they are in."""
    moves = np.zeros(len(hit.ids), np.bool_)
    for i, name in enumerate(given.columns.partition_by):
        if name in given.rows.column_names:
            new = _taken(given.rows, name, hit.given)
            old = pa.array([hit.group.partition[i]], new.type)[0]
            same = pc.is_null(new) if old.as_py() is None else pc.fill_null(pc.equal(new, old), fill_value=False)
            moves |= ~same.to_numpy(zero_copy_only=False)
    return moves


def _complete(given: Given) -> None:
    """Check that the given columns make whole rows."""
    for item in given.columns.arrow:
        if not item.nullable and item.name not in given.rows.column_names:
            raise SchemaError(f"column {item.name} may not be null, and the data, which has rows to add, lacks it")


def _written(base: Base, given: Given, groups: Groups, moving: Sequence[_Hits], added: _Ints) -> list[Any]:
    """Commit messages of the rows that are written whole: the added ones, and the moved ones with what they had."""
    moved = [hit for hit in moving if len(hit.ids)]
    if not moved and not len(added):
        return []
    writer = Writer(base.paimon, base.columns)
    try:
        if len(added):
            arrays = [
                _taken(given.rows, item.name, added)
                if item.name in given.rows.column_names
                else pa.nulls(len(added), item.type)
                for item in base.columns.arrow
            ]
            writer.write(pa.RecordBatch.from_arrays(arrays, schema=base.columns.arrow))
        kept = [name for name in base.columns.arrow.names if name not in given.rows.column_names]
        for hit in moved:
            old = _old_values(base, hit, groups, kept)
            arrays = [old[name] if name in old else _taken(given.rows, name, hit.given) for name in base.columns.arrow.names]
            writer.write(pa.RecordBatch.from_arrays(arrays, schema=base.columns.arrow))
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def _old_values(base: Base, hit: _Hits, groups: Groups, names: Sequence[str]) -> dict[str, pa.Array]:
    """What the moved rows hold in the columns that the data lacks. Bytes of BLOBs are copied later, as streams."""
    columns = base.columns
    in_files = [name for name in names if name in columns.blobs and name not in columns.inline]
    in_rows = [name for name in names if name not in in_files]
    part = groups.where(lambda group: group is hit.group)
    values: dict[str, pa.Array] = {}
    tables = []
    for _, table in matched(base.version, part, (), in_rows):
        tables.append(table.filter(pc.is_in(table.column("_ROW_ID"), pa.array(hit.ids))))
    rows = pa.concat_tables(tables)
    for name in in_rows:
        values[name] = rows.column(name).combine_chunks()
        if name in columns.inline - columns.references and values[name].null_count < len(hit.ids):
            raise SchemaError(
                f"column {name}: rows with BLOB views, lists or maps of BLOBs can't be moved to another partition"
            )
    describe = Describer(base.paimon)
    for name in in_files:
        locator = Locator(base.version, part, name)
        uri_ids, offsets, lengths = (places.tolist() for places in locator.locate(hit.ids))
        refs = [
            None if uri < 0 else describe(BlobRef(locator.uris[uri], offset, length), name)
            for uri, offset, length in zip(uri_ids, offsets, lengths, strict=True)
        ]
        values[name] = pa.array(refs, pa.large_binary())
    return values


def _taken(rows: pa.Table, name: str, which: _Ints) -> pa.Array:
    taken = rows.column(name).take(pa.array(which))
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken
