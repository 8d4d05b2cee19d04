"""`Mixture`: the rows of several indexes, drawn by shares."""

from __future__ import annotations

import hashlib
import math
import numbers
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from lakehouse.errors import ConfigError, SchemaError
from lakehouse.index import RowIndex
from lakehouse.mixture.joined import JoinedFetcher, JoinedIds, JoinedRefs, Stretches
from lakehouse.mixture.mixed import MAX_WINDOW, MixedOrder, subseed
from lakehouse.mixture.weighted import Weighted, draws_of, whole_length
from lakehouse.order import Shuffle, order_of

Part: TypeAlias = "RowIndex | Weighted | Mixture"

_SOURCE = pa.dictionary(pa.int8(), pa.string())


class Mixture:
    """Rows of several indexes, each as often as its weight says: ``Mixture({"day": (day, 0.7), "night": (night, 0.3)})``.

    Give it to `Dataset` in place of an index. Of the draws before any multiple of 1,024 positions, each part has its share,
    rounded by less than one; in between the parts are shuffled. (Windows are longer where a share is below 1 in 1,024.)

    A part is gone through in its own order, again and again, and where one epoch leaves off the next one goes on: no row of
    a part comes a second time before all of them came once, save for what ``tail`` takes off an epoch's end. So small parts
    repeat within an epoch, and large ones take several epochs.

    Rows are numbered through all parts, in their order; `len` counts them, `length` the draws of an epoch.

    Args:
        parts: name to (index, weight). Weights are shares of their sum, 0 is never drawn; floats count as they are written,
            so 0.7 and 0.3 are 7 and 3. A part may be a `Weighted`, or another Mixture. Columns must agree in name and type.
        length: draws in an epoch. Default: the lengths of all parts that have a weight, added up.
        source_column: name of a text column to add to batches, with the name of each row's part.

    Raises:
        ConfigError: no parts, an empty one, or a weight that is negative, not finite, or less than 1 in 2**20 of the sum.
        SchemaError: columns that differ; names the first.

    Example:
        >>> mixture = Mixture({"day": (day, 0.7), "night": (night, 0.3)})  # doctest: +SKIP
        >>> loader = Loader(Dataset(mixture, batch_size=64, seed=7))  # doctest: +SKIP
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[Part, float]],
        *,
        length: int | None = None,
        source_column: str | None = None,
    ) -> None:
        self._parts = _checked_parts(parts)
        self._weights = _whole_weights({name: weight for name, (_, weight) in parts.items()})
        # Each table once for each part, in order, with the name of that part.
        self._tables = [(name, table) for name, part in self._parts.items() for table in tables_of(part)]
        self._rows = Stretches([len(table) for _, table in self._tables])
        self._schema = _common_schema(self._tables)
        self._source_column = source_column
        if source_column is not None:
            if source_column in self._schema.names or not isinstance(source_column, str):
                raise ConfigError(f"source_column must be a name that no column has, got {source_column!r}")
            self._schema = self._schema.append(pa.field(source_column, _SOURCE))
        whole = sum(draws_of(part) for part, weight in zip(self._parts.values(), self._weights, strict=True) if weight)
        self._length = whole if length is None else whole_length(length)

    # --- what it is ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Rows of all parts together."""
        return len(self._rows)

    @property
    def length(self) -> int:
        """Draws in an epoch."""
        return self._length

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts by name."""
        return dict(self._parts)

    @property
    def shares(self) -> Mapping[str, float]:
        """Each part's share of the draws."""
        return {name: weight / sum(self._weights) for name, weight in zip(self._parts, self._weights, strict=True)}

    @cached_property
    def fingerprint(self) -> str:
        """``sha256:...`` over the parts, their weights and the length."""
        digest = hashlib.sha256(f"lakehouse-mixture-1\0{self._length}\0".encode())
        for (name, part), weight in zip(self._parts.items(), self._weights, strict=True):
            digest.update(f"{name}\0{part.fingerprint}\0{weight}\0".encode())
        return f"sha256:{digest.hexdigest()}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, in the order of the first part."""
        return tuple(self._schema.names)

    @property
    def schema(self) -> pa.Schema:
        """Types of the columns."""
        return self._schema

    @property
    def blob_columns(self) -> tuple[str, ...]:
        """Those of `columns` that are BLOBs."""
        return self._tables[0][1].blob_columns

    def __repr__(self) -> str:
        shares = ", ".join(f"{name}: {share:.3g} of {len(self._parts[name]):,} rows" for name, share in self.shares.items())
        return f"Mixture({shares}; {self._length:,} draws an epoch)"

    # --- what a data set asks ------------------------------------------------------------------------------------------

    def order(self, seed: int, shuffle: Shuffle) -> MixedOrder:
        """Which row stands where: see the class."""
        sizes = Stretches([len(part) for part in self._parts.values()])
        return MixedOrder(
            n=self._length,
            seed=seed,
            shuffle=shuffle,
            parts=tuple(
                order_of(part, subseed(seed, f"part {number}"), shuffle) for number, part in enumerate(self._parts.values())
            ),
            starts=tuple(sizes.starts[:-1].tolist()),
            weights=self._weights,
        )

    @property
    def row_ids(self) -> JoinedIds:
        """Each row's id in its own table."""
        return JoinedIds([table.row_ids for _, table in self._tables], self._rows)

    def column(self, name: str) -> pa.ChunkedArray:
        """A column that is not a BLOB: one chunk for each table, none of them copied.

        Raises:
            NotFoundError: there is no such column.
            SchemaError: a BLOB column.
        """
        if name == self._source_column:
            # Zeros that nobody wrote take no memory.
            return pa.chunked_array(
                [
                    pa.DictionaryArray.from_arrays(np.zeros(len(table), np.int8), pa.array([part], pa.string()))
                    for part, table in self._tables
                ],
                _SOURCE,
            )
        return pa.chunked_array([table.column(name) for _, table in self._tables])

    def blobs(self, name: str) -> JoinedRefs:
        """Where the bytes of a BLOB column are.

        Raises:
            NotFoundError: there is no such column.
            SchemaError: not a BLOB column.
        """
        refs = [table.blobs(name) for _, table in self._tables]
        uris, firsts, _ = self._uris
        return JoinedRefs(refs, self._rows, uris, [first[name] for first in firsts])

    def where(self, i: int, column: str | None = None) -> str:
        """Where row ``i`` is, in its own table: ``default.frames@41 row 88123 column frame_jpg (uri 4096+18211)``."""
        item, at = self._rows.place(i)
        return self._tables[item][1].where(at, None if column == self._source_column else column)

    def fetcher(self) -> JoinedFetcher:
        """What reads the bytes: each table's by that table's own fetcher."""
        uris, _, owned = self._uris
        return JoinedFetcher([table for _, table in self._tables], uris, owned)

    @cached_property
    def _uris(self) -> tuple[tuple[str, ...], list[dict[str, int]], list[int]]:
        """Uris of all tables; for each table where each column's begin, and how many it has."""
        uris: list[str] = []
        firsts: list[dict[str, int]] = []
        owned: list[int] = []
        for _, table in self._tables:
            firsts.append({})
            begin = len(uris)
            for name in self.blob_columns:
                firsts[-1][name] = len(uris)
                uris += table.blobs(name).uris
            owned.append(len(uris) - begin)
        return tuple(uris), firsts, owned


def tables_of(part: Part) -> list[RowIndex]:
    """The indexes behind a part, in the order of its rows."""
    if isinstance(part, Mixture):
        return [table for _, table in part._tables]  # noqa: SLF001 - another one of its kind
    return [part.index if isinstance(part, Weighted) else part]


def _checked_parts(parts: object) -> dict[str, Part]:
    if not isinstance(parts, Mapping) or not parts:
        raise ConfigError(f'Mixture takes parts like {{"day": (index, 0.7), "night": (other_index, 0.3)}}, got {parts!r}')
    checked: dict[str, Part] = {}
    for name, pair in parts.items():
        if not isinstance(name, str):
            raise ConfigError(f"a part's name is a text, got {name!r}")
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], (RowIndex, Weighted, Mixture)):
            raise ConfigError(f"part {name!r} of the mixture is a pair (index, weight), got {pair!r}")
        part = pair[0]
        if not len(part):
            raise ConfigError(f"part {name!r} of the mixture has no rows: leave it out")
        if isinstance(part, Mixture) and part._source_column is not None:  # noqa: SLF001
            raise ConfigError(f"part {name!r} of the mixture has a source_column: only the outermost mixture may")
        checked[name] = part
    return checked


def _whole_weights(weights: Mapping[str, object]) -> tuple[int, ...]:
    """The weights as integers of the same ratios."""
    exact: list[Fraction] = []
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, numbers.Real) or not math.isfinite(weight) or weight < 0:
            raise ConfigError(f"the weight of part {name!r} is a finite number of 0 or more, got {weight!r}")
        # A float as it is written: 0.1 is a tenth, and not the double beside it.
        exact.append(Fraction(weight) if isinstance(weight, numbers.Rational) else Fraction(repr(float(weight))))
    if not any(exact):
        raise ConfigError("the weights of a mixture are all 0: nothing would be drawn")
    denominator = math.lcm(*(weight.denominator for weight in exact))
    scaled = [int(weight * denominator) for weight in exact]
    divisor = math.gcd(*scaled)
    whole = tuple(weight // divisor for weight in scaled)
    for name, weight in zip(weights, whole, strict=True):
        if weight and sum(whole) > weight * MAX_WINDOW:
            raise ConfigError(
                f"the weight of part {name!r} is {weight / sum(whole):.3g} of all weights, less than 1 in {MAX_WINDOW:,}: its "
                "rows would hardly ever come; leave it out, or give it more"
            )
    return whole


def _common_schema(tables: list[tuple[str, RowIndex]]) -> pa.Schema:
    """The first table's schema, once all others are seen to agree in names and types."""
    name, first = tables[0]
    for other_name, other in tables[1:]:
        missing = [column for column in first.columns if column not in other.columns]
        added = [column for column in other.columns if column not in first.columns]
        if missing or added:
            column, has, lacks = (missing[0], name, other_name) if missing else (added[0], other_name, name)
            raise SchemaError(
                f"parts of a mixture have the same columns: {has!r} has {column!r}, {lacks!r} has not; select the same "
                "columns in all queries"
            )
        for column in first.columns:
            one, two = _type_text(first, column), _type_text(other, column)
            if one != two:
                raise SchemaError(
                    f"parts of a mixture have the same types: column {column!r} is {one} in {name!r}, {two} in "
                    f"{other_name!r}; leave it out of the queries, or store it alike"
                )
    return first.schema


def _type_text(index: RowIndex, column: str) -> str:
    if column in index.blob_columns:
        return "a BLOB"
    return str(index.column(column).type)
