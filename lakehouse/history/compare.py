"""Comparing two versions, row by row, where their files differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.errors import SchemaError
from lakehouse.fetch import BlobRefs
from lakehouse.history.blobs import blobs_differ
from lakehouse.history.pairs import Pair, holders
from lakehouse.history.values import codes, differing
from lakehouse.index import table_fetcher
from lakehouse.scan import ROW_ID, Groups, Locator, Version, read

Ids = npt.NDArray[np.int64]
_SHOWN_KEYS = 3


@dataclass(frozen=True)
class Common:
    """A column of both versions.

    Attributes:
        id: the same in both versions.
        name: in the new version.
        old_name: in the old one; another one where it was renamed in between.
    """

    id: int
    name: str
    old_name: str


@dataclass
class Found:
    """What differs.

    Attributes:
        added: row ids in the new version, ascending.
        deleted: row ids in the old version, ascending.
        changed_old: row ids of the rows that differ, in the old version.
        changed_new: the same rows' ids in the new version, in the same order.
        masks: for each column that differs anywhere: in which of these rows, bool[changed rows].
    """

    added: Ids
    deleted: Ids
    changed_old: Ids
    changed_new: Ids
    masks: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)


class Comparison:
    """Two versions and the columns that they share.

    Args:
        old: a version.
        new: another one of the same table.
        columns: those to compare, without key columns.
    """

    def __init__(self, old: Version, new: Version, columns: Sequence[Common]) -> None:
        self._old = old
        self._new = new
        self._columns = columns
        self._schemas: dict[int, dict[str, int]] = {}  # schema -> name -> field id

    def by_row_id(self, pairs: Sequence[Pair]) -> Found:
        """Rows are the same ones where their ids are equal."""
        parts = [self._pair_by_row_id(pair) for pair in pairs]
        return _joined(parts)

    def by_key(self, pairs: Sequence[Pair], key: Sequence[Common]) -> Found:
        """Rows are the same ones where their keys are equal.

        Raises:
            SchemaError: two of the compared rows of one version have the same key.
        """
        old = Groups(tuple(group for pair in pairs for group in pair.old.groups))
        new = Groups(tuple(group for pair in pairs for group in pair.new.groups))
        tables = [
            _table(version, groups, [item.old_name if version is self._old else item.name for item in key])
            for version, groups in ((self._old, old), (self._new, new))
        ]
        ids = [table.column(ROW_ID).to_numpy() for table in tables]
        columns = [
            (tables[0].column(item.old_name).combine_chunks(), tables[1].column(item.name).combine_chunks()) for item in key
        ]
        numbers = codes(columns)
        for version, table, codes_ in zip((self._old, self._new), tables, numbers, strict=True):
            _check_unique(version, table.drop_columns([ROW_ID]), codes_)
        _, at_old, at_new = np.intersect1d(numbers[0], numbers[1], assume_unique=True, return_indices=True)
        order = np.argsort(ids[1][at_new])
        at_old, at_new = at_old[order], at_new[order]
        masks = {item.name: self._differ(item, (old, new), ids, (at_old, at_new)) for item in self._columns}
        return _found(np.delete(ids[1], at_new), np.delete(ids[0], at_old), ids[0][at_old], ids[1][at_new], masks)

    def _pair_by_row_id(self, pair: Pair) -> Found:
        sides = (pair.old, pair.new)
        ids = [_alive(version, groups) for version, groups in zip((self._old, self._new), sides, strict=True)]
        both, at_old, at_new = np.intersect1d(ids[0], ids[1], assume_unique=True, return_indices=True)
        masks = {}
        if len(both):
            for item in self._columns:
                held = [holders(groups, item.id, self._schemas_of(groups)) for groups in sides]
                if held[0] != held[1]:
                    masks[item.name] = self._differ(item, sides, ids, (at_old, at_new))
        return _found(np.delete(ids[1], at_new), np.delete(ids[0], at_old), both, both, masks)

    def _differ(
        self, item: Common, sides: tuple[Groups, Groups], ids: Sequence[Ids], at: tuple[Ids, Ids]
    ) -> npt.NDArray[np.bool_]:
        """Where a column differs, for rows at positions ``at`` of both sides' row ids."""
        in_blob_files = [
            name in version.columns.blobs and name not in version.columns.inline
            for name, version in ((item.old_name, self._old), (item.name, self._new))
        ]
        named = ((self._old, sides[0], item.old_name), (self._new, sides[1], item.name))
        if all(in_blob_files):
            refs = []
            for (version, groups, name), row_ids, places in zip(named, ids, at, strict=True):
                locator = Locator(version, groups, name)
                located = locator.locate(row_ids)
                refs.append(BlobRefs(locator.uris, *located).take(places))
            fetchers = (table_fetcher(self._old), table_fetcher(self._new))
            return blobs_differ(refs[0], refs[1], fetchers, f"{self._new} column {item.name}")
        values: list[pa.Array] = []
        for (version, groups, name), places in zip(named, at, strict=True):
            column = _table(version, groups, [name]).column(name).combine_chunks()
            values.append(column.take(pa.array(places)))
        return differing(values[0], values[1])

    def _schemas_of(self, groups: Groups) -> dict[int, dict[str, int]]:
        for group in groups.groups:
            for file in group.split.files:
                if file.schema_id not in self._schemas:
                    fields = self._new.paimon.schema_manager.get_schema(file.schema_id).fields
                    self._schemas[file.schema_id] = {item.name: int(item.id) for item in fields}
        return self._schemas


def _alive(version: Version, groups: Groups) -> Ids:
    """Row ids that are not deleted, ascending. Reads only where some are deleted."""
    if not any(group.deleted for group in groups.groups):
        ranges = [np.arange(group.first_row_id, group.stop_row_id, dtype=np.int64) for group in groups.groups]
        return np.concatenate(ranges) if ranges else np.empty(0, np.int64)
    return _ids(_table(version, groups, []))


def _ids(table: pa.Table) -> Ids:
    return np.asarray(table.column(ROW_ID).to_numpy(), np.int64)


def _table(version: Version, groups: Groups, columns: Sequence[str]) -> pa.Table:
    schema = pa.schema([*(version.columns.arrow.field(name) for name in columns), pa.field(ROW_ID, pa.int64())])
    batches = [batch.cast(schema) for batch in read(version, groups, columns)]
    return pa.Table.from_batches(batches, schema)


def _check_unique(version: Version, keys: pa.Table, numbers: Ids) -> None:
    _, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    if (counts > 1).any():
        shown = [str(keys.slice(int(at), 1).to_pylist()[0]) for at in first[counts > 1][:_SHOWN_KEYS]]
        raise SchemaError(
            f"{version}: {', '.join(keys.column_names)} is no key: {int((counts > 1).sum())} values are those of several rows, "
            f"such as {', '.join(shown)}; name columns that tell rows apart, or leave key= out to compare by row id"
        )


def _found(added: Ids, deleted: Ids, old: Ids, new: Ids, masks: dict[str, npt.NDArray[np.bool_]]) -> Found:
    """With the rows that differ, and the columns that do."""
    masks = {name: mask for name, mask in masks.items() if mask.any()}
    changed = np.logical_or.reduce(list(masks.values())) if masks else np.zeros(len(old), np.bool_)
    return Found(
        np.sort(added), np.sort(deleted), old[changed], new[changed], {name: mask[changed] for name, mask in masks.items()}
    )


def _joined(parts: Sequence[Found]) -> Found:
    """Parts of ascending row ids as one."""
    names = dict.fromkeys(name for part in parts for name in part.masks)

    def whole(arrays: list[Ids]) -> Ids:
        return np.concatenate([np.empty(0, np.int64), *arrays])

    def mask(name: str) -> npt.NDArray[np.bool_]:
        return np.concatenate([part.masks.get(name, np.zeros(len(part.changed_new), np.bool_)) for part in parts])

    return Found(
        whole([part.added for part in parts]),
        whole([part.deleted for part in parts]),
        whole([part.changed_old for part in parts]),
        whole([part.changed_new for part in parts]),
        {name: mask(name) for name in names},
    )
