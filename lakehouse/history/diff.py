"""Diff: what became of a table's rows between two versions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.errors import ConfigError, SchemaError
from lakehouse.history.compare import Common, Comparison, Found
from lakehouse.history.pairs import pairs
from lakehouse.history.rollback import Field, fields_of
from lakehouse.query import query_of_rows
from lakehouse.scan import Version, plan, snapshot_identity
from lakehouse.schema import known_columns
from lakehouse.upstream import snapshot_of

if TYPE_CHECKING:
    import daft

Kind = Literal["added", "deleted", "changed"]
Side = Literal["old", "new"]
CHANGED = "_changed"
_KINDS = ("added", "deleted", "changed")


class Diff:
    """The difference between two versions of one table. Made by `Table.diff`; nothing is read until it is asked for.

    Files that both versions have are not read at all, and of the others only the columns that may differ. BLOBs are compared by
    where they lie; where bytes have moved without being known to be the same, by length and the CRC32 kept beside them, so no
    payload is read. (Two BLOBs of one length and one CRC32 count as equal: one in 4 billion of those that really differ.)

    Attributes:
        old: the earlier version.
        new: the later one.
        key: the columns that tell rows apart; empty: rows are told apart by row id.
        columns_added: columns that only the new version has.
        columns_dropped: columns that only the old version has.
        columns_renamed: old name to new name.
        columns_retyped: name in the new version to (type before, type now).
    """

    def __init__(self, old: Version, new: Version, key: Sequence[str] = ()) -> None:
        self.old = old
        self.new = new
        self.key = tuple(key)
        then, now = fields_of(old.paimon, old.columns), fields_of(new.paimon, new.columns)
        shared = _shared(then, now)
        self.columns_added = tuple(item.name for item in now if item.id not in shared)
        self.columns_dropped = tuple(item.name for item in then if item.id not in shared)
        self.columns_renamed = {a.name: b.name for a, b in shared.values() if a.name != b.name}
        self.columns_retyped = {b.name: (a.type, b.type) for a, b in shared.values() if a.type != b.type}
        self._shared = {b.name: Common(b.id, b.name, a.name) for a, b in shared.values()}
        self._check()

    def _check(self) -> None:
        if self.old.uuid != self.new.uuid:
            raise ConfigError(f"diff() takes two versions of one table, got {self.old} and {self.new}")
        known_columns(self.key, self.new.columns.arrow)
        if len(set(self.key)) != len(self.key):
            raise ConfigError(f"diff(): key names a column twice: {', '.join(self.key)}")
        for name in self.key:
            if name not in self._shared:
                raise SchemaError(f"diff(): key column {name} is not in {self.old}; name columns that both versions have")
            if name in self.new.columns.lazy or pa.types.is_nested(self.new.columns.arrow.field(name).type):
                raise SchemaError(
                    f"diff(): key column {name} is no plain value; name columns of numbers, strings, dates or times"
                )
        if (
            not self.key
            and self.old.name != self.new.name
            and not (_descends(self.old, self.new) or _descends(self.new, self.old))
        ):
            raise ConfigError(
                f"diff(): {self.old} and {self.new} were both written since they parted, so equal row ids are different rows; "
                "pass key= with the columns that tell rows apart"
            )

    # --- counts ----------------------------------------------------------------------------------------------------------

    @property
    def added(self) -> int:
        """Rows that only the new version has."""
        return len(self._found.added)

    @property
    def deleted(self) -> int:
        """Rows that only the old version has."""
        return len(self._found.deleted)

    @property
    def changed(self) -> dict[str, int]:
        """For each column of both versions that differs: in how many rows. Key columns can't."""
        masks = self._found.masks
        return {name: int(masks[name].sum()) for name in self.new.columns.arrow.names if name in masks}

    @property
    def changed_rows(self) -> int:
        """Rows of both versions that differ in any column."""
        return len(self._found.changed_new)

    @property
    def is_empty(self) -> bool:
        """Whether the rows are the same; columns may still have come or gone."""
        return not (self.added or self.deleted or self.changed_rows)

    @property
    def files_shared(self) -> int:
        """Data files that both versions have and that are not read."""
        return self._pairs[1]

    # --- rows ------------------------------------------------------------------------------------------------------------

    def rows(
        self,
        kind: Kind,
        *,
        side: Side = "new",
        columns: Sequence[str] | None = None,
        blobs: Literal["ref", "bytes"] = "ref",
    ) -> pa.Table:
        """The rows themselves, in ascending row id.

        Args:
            kind: ``"added"``: as they are in the new version; ``"deleted"``: as they were in the old one; ``"changed"``: as
                ``side`` says, with a last column ``_changed`` that lists the names of the columns that differ. The rows of
                both sides come in the same order.
            side: of changed rows, the old or the new version.
            columns: which, in which order; None: all of that version.
            blobs: as in `Snapshot.arrow`.

        Raises:
            ConfigError: another kind or side.
            NotFoundError: a column that does not exist in that version.
        """
        version, wanted = self._side(kind, side)
        ascending = np.unique(wanted)
        table = query_of_rows(version, ascending, columns).arrow(blobs=blobs)
        if kind != "changed":
            return table
        table = table.take(pa.array(np.searchsorted(ascending, wanted)))
        return table.append_column(CHANGED, self._changed_names())

    def daft(self, kind: Kind, *, side: Side = "new", columns: Sequence[str] | None = None) -> daft.DataFrame:
        """The rows as a lazy Daft frame, with BLOB columns as ``daft.File``; see `rows`. Without the column ``_changed``."""
        version, wanted = self._side(kind, side)
        return query_of_rows(version, np.unique(wanted), columns).daft()

    def row_ids(self, kind: Kind, *, side: Side = "new") -> npt.NDArray[np.int64]:
        """Row ids of the rows that `rows` gives, in its order, int64[n]."""
        return self._side(kind, side)[1]

    def _side(self, kind: str, side: str) -> tuple[Version, npt.NDArray[np.int64]]:
        if kind not in _KINDS or side not in ("old", "new"):
            raise ConfigError(
                f'a diff has rows of kind "added", "deleted", "changed", on side "old" or "new"; got {kind!r}, {side!r}'
            )
        if kind == "added":
            return self.new, self._found.added
        if kind == "deleted":
            return self.old, self._found.deleted
        return (self.old, self._found.changed_old) if side == "old" else (self.new, self._found.changed_new)

    def _changed_names(self) -> pa.Array:
        names = list(self.changed)
        masks = np.array([self._found.masks[name] for name in names], np.bool_).reshape(len(names), self.changed_rows).T
        ends = np.concatenate([[0], np.cumsum(masks.sum(axis=1))])  # [rows + 1]
        return pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()), pa.array(names, pa.string()).take(pa.array(np.nonzero(masks)[1]))
        )

    # --- the work --------------------------------------------------------------------------------------------------------

    @cached_property
    def _pairs(self) -> tuple[list[Any], int]:
        return pairs(plan(self.old), plan(self.new))

    @cached_property
    def _found(self) -> Found:
        compared = [item for name, item in self._shared.items() if name not in self.key]
        comparison = Comparison(self.old, self.new, compared)
        if self.key:
            return comparison.by_key(self._pairs[0], [self._shared[name] for name in self.key])
        return comparison.by_row_id(self._pairs[0])

    def __str__(self) -> str:
        parts = [f"{self.added:,} rows added", f"{self.deleted:,} deleted", f"{self.changed_rows:,} changed"]
        if self.changed:
            parts[-1] += f" ({', '.join(f'{name}: {count:,}' for name, count in self.changed.items())})"
        parts += [f"columns added: {', '.join(self.columns_added)}"] if self.columns_added else []
        parts += [f"columns dropped: {', '.join(self.columns_dropped)}"] if self.columns_dropped else []
        parts += [f"column {old} renamed to {new}" for old, new in self.columns_renamed.items()]
        parts += [f"column {name} was {old} and is {new}" for name, (old, new) in self.columns_retyped.items()]
        return f"{self.old} to {self.new}: {'; '.join(parts)}"

    def __repr__(self) -> str:
        key = f", key={list(self.key)}" if self.key else ""
        return f"Diff({self.old}, {self.new}{key})"


def _shared(then: Sequence[Field], now: Sequence[Field]) -> dict[int, tuple[Field, Field]]:
    """Columns of both versions, by their identity."""
    earlier = {item.id: item for item in then}
    return {item.id: (earlier[item.id], item) for item in now if item.id in earlier}


def _descends(one: Version, other: Version) -> bool:
    """Whether ``other``'s branch has ``one``'s snapshot, and goes on from it."""
    if one.snapshot_id is None:
        return True
    if other.snapshot_id is None or other.snapshot_id < one.snapshot_id:
        return False
    found = snapshot_of(other.paimon.snapshot_manager(), one.snapshot_id)
    return found is not None and snapshot_identity(found) == one.snapshot_uuid
