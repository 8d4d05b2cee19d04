"""Which rows of a table have the keys of given rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import SchemaError
from lakehouse.schema import Columns, known_columns

_Ints = npt.NDArray[np.int64]


def checked_key(key: Any, columns: Columns, given: Sequence[str]) -> list[str]:
    """The key columns.

    Raises:
        NotFoundError: one that does not exist.
        SchemaError: none, one twice, one that the data lacks, or of a type that can't be a key.
    """
    names = [key] if isinstance(key, str) else list(key)
    if not names or len(set(names)) != len(names):
        raise SchemaError(f"key is a list of one or more different columns, got {names}")
    known_columns(names, columns.arrow)
    for name in names:
        kind = columns.arrow.field(name).type
        if name in columns.lazy or pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise SchemaError(f"column {name}: {kind} can't be a key, since its values can't be told apart exactly")
        if name not in given:
            raise SchemaError(f"column {name} is in the key, and the data lacks it")
    return names


class Keys:
    """The keys of given rows, each once.

    Args:
        columns: the key columns of the rows, one array each.
        names: their names.

    Raises:
        SchemaError: a key that is null or there twice.
    """

    def __init__(self, columns: Sequence[pa.Array], names: Sequence[str]) -> None:
        for column, name in zip(columns, names, strict=True):
            if column.null_count:
                raise SchemaError(f"column {name} is in the key and null in {column.null_count} rows; a key has no nulls")
        self._names = names
        self._values = [pc.unique(column) for column in columns]
        codes = np.zeros(len(columns[0]), np.int64)
        self._steps: list[_Ints] = []  # after each column: the combined codes that are there, ascending
        for column, values in zip(columns, self._values, strict=True):
            combined = codes * len(values) + pc.index_in(column, values).to_numpy(zero_copy_only=False)
            known, codes = np.unique(combined, return_inverse=True)  # dense again, so that no product overflows
            self._steps.append(known)
        order = np.argsort(codes, kind="stable")
        twice = np.flatnonzero(np.diff(codes[order]) == 0)
        if len(twice):
            row = int(order[twice[0]])
            shown = ", ".join(f"{name}={column[row].as_py()!r}" for name, column in zip(names, columns, strict=True))
            raise SchemaError(f"the data has the key {shown} more than once; which of the rows is meant can't be known")
        self._row_of = order  # key code -> row

    def rows_of(self, table: pa.Table) -> _Ints:
        """For each row of a table with the key columns: the given row of the same key, or -1."""
        codes = np.zeros(table.num_rows, np.int64)
        there = np.ones(table.num_rows, np.bool_)
        for name, values, known in zip(self._names, self._values, self._steps, strict=True):
            code = pc.index_in(table.column(name).combine_chunks(), values).fill_null(-1).to_numpy(zero_copy_only=False)
            there &= code >= 0
            combined = codes * len(values) + code
            codes = np.minimum(np.searchsorted(known, combined), len(known) - 1)
            there &= known[codes] == combined
        return np.where(there, self._row_of[codes], -1).astype(np.int64)

    def range_predicate(self) -> Any:
        """A Daft expression that is true for every row with one of the keys, so that storage can be pruned by it."""
        from lakehouse.query.engine import daft

        parts = []
        for name, values in zip(self._names, self._values, strict=True):
            if pa.types.is_integer(values.type) or pa.types.is_string(values.type) or pa.types.is_date(values.type):
                bounds = pc.min_max(values).as_py()
                parts += [daft.col(name) >= bounds["min"], daft.col(name) <= bounds["max"]]
        return parts


def no_duplicates(rows: _Ints, shown: Any, where: str) -> None:
    """Check that no given row met two rows of the table.

    Raises:
        SchemaError: naming the key.
    """
    met = np.sort(rows)
    twice = np.flatnonzero(np.diff(met) == 0)
    if len(twice):
        raise SchemaError(
            f"{where} has the key {shown(int(met[twice[0]]))} in more than one row; which of them to update can't be known: "
            "delete the others first"
        )
