"""A version of a table as a Daft data source.

pypaimon's own source hands columns over in the order in which Daft asked for them, while Daft expects them in table order:
natural queries on BLOB tables give wrong rows. This one always emits table order, reads every column that a filter needs,
keeps the null mask of BLOB references, puts no credentials into them, and leaves every filter to Daft.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from daft.io.pushdowns import Pushdowns
from daft.io.source import DataSource, DataSourceTask
from daft.recordbatch import RecordBatch
from daft.schema import Schema

from lakehouse.query.daft_types import daft_schema, for_daft
from lakehouse.query.engine import Expression, daft
from lakehouse.query.evaluate import pruned
from lakehouse.query.stream import holding, rows
from lakehouse.query.walk import columns_of
from lakehouse.references import FILE_TYPE, file_structs, inline_structs, parse_descriptors
from lakehouse.scan import ROW_ID, Group, Groups, Locator, Version

# A task's rows and groups: enough that starting one does not show, few enough that both cores get some.
_TASK_ROWS = 131_072
_TASK_GROUPS = 64


class LakeSource(DataSource):
    """Reads the chosen rows of one version.

    Args:
        version: what to read.
        predicates: conditions that all hold for the rows. What the frame's user filters by comes on top, from Daft.
        samples: (fraction, seed) pairs that all take the rows.
        row_ids: add a ``_ROW_ID`` column.
        only: ascending row ids: no other rows. None: any.
    """

    def __init__(
        self,
        version: Version,
        predicates: Sequence[Expression] = (),
        samples: Sequence[tuple[float, int]] = (),
        *,
        row_ids: bool = False,
        only: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._only = only
        self._version = version
        self._predicates = tuple(predicates)
        self._samples = tuple(samples)
        self._schema = daft_schema(version.columns, row_ids=row_ids)

    @property
    def name(self) -> str:
        """For Daft's plans."""
        return f"LakeSource({self._version})"

    @property
    def schema(self) -> Schema:
        """Columns in table order; BLOB columns are File."""
        return self._schema

    async def get_tasks(self, pushdowns: Pushdowns) -> AsyncIterator[DataSourceTask]:
        """Tasks in ascending row id. Daft applies its filters and limits to what they yield."""
        filters = [] if pushdowns.filters is None else [pushdowns.filters]
        tested = set().union(*(columns_of(part, self._version.columns) for part in filters))
        wanted = set(self._schema.column_names()) if pushdowns.columns is None else tested | set(pushdowns.columns)
        names = [name for name in self._schema.column_names() if name in wanted]
        schema = Schema.from_field_name_and_types([(name, self._schema[name].dtype) for name in names])
        limit = None if filters else pushdowns.limit
        left = pruned(self._version, [*self._predicates, *(filters if ROW_ID not in tested else [])])
        for groups in _cut(left if self._only is None else holding(left, self._only)):
            yield _LakeTask(self._version, groups, self._predicates, self._samples, schema, limit, self._only)


def _cut(groups: Groups) -> Iterator[Groups]:
    held: list[Group] = []
    count = 0
    for group in groups.groups:
        held.append(group)
        count += group.rows
        if count >= _TASK_ROWS or len(held) >= _TASK_GROUPS:
            yield Groups(tuple(held))
            held, count = [], 0
    if held:
        yield Groups(tuple(held))


class _LakeTask(DataSourceTask):
    def __init__(
        self,
        version: Version,
        groups: Groups,
        predicates: Sequence[Expression],
        samples: Sequence[tuple[float, int]],
        schema: Schema,
        limit: int | None,
        only: npt.NDArray[np.int64] | None,
    ) -> None:
        self._only = only
        self._version = version
        self._groups = groups
        self._predicates = predicates
        self._samples = samples
        self._schema = schema
        self._limit = limit

    @property
    def schema(self) -> Schema:
        return self._schema

    async def read(self) -> AsyncIterator[RecordBatch]:
        """Reads in threads: Daft runs all tasks, and asynchronous functions inside predicates, on one event loop."""
        batches = self._batches()
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch

    def _batches(self) -> Iterator[RecordBatch]:
        columns = self._version.columns
        names = self._schema.column_names()
        located = {name: Locator(self._version, self._groups, name) for name in names if _in_blob_files(columns, name)}
        in_rows = [name for name in names if name not in located and name != ROW_ID]
        left = self._limit
        for table in rows(self._version, self._groups, self._predicates, self._samples, in_rows, self._only):
            if left is not None:
                if left <= 0:
                    return
                left -= table.num_rows
            if not names:
                yield _only_rows(table.num_rows)
                continue
            row_ids = table.column(ROW_ID).combine_chunks().to_numpy()
            series = {}
            for item in self._schema:
                if item.name in located:
                    places = located[item.name].locate(row_ids)  # which adds to the uris
                    array: Any = file_structs(located[item.name].uris, *places)
                elif item.name in columns.lazy:
                    array = _inline_files(table.column(item.name).combine_chunks())
                else:
                    array = for_daft(table.column(item.name).combine_chunks())
                series[item.name] = daft.Series.from_arrow(array, name=item.name).cast(item.dtype)
            yield RecordBatch.from_pydict(series)


def _only_rows(count: int) -> RecordBatch:
    """A batch of no columns: Daft can't build one, so a column is made and projected away."""
    batch = pa.RecordBatch.from_pydict({"rows": pa.nulls(count, pa.int8())})
    return RecordBatch.from_arrow_record_batches([batch], batch.schema).eval_expression_list([])


def _in_blob_files(columns: Any, name: str) -> bool:
    return name in columns.blobs and name not in columns.inline


def _inline_files(column: pa.Array) -> pa.Array:
    if pa.types.is_large_binary(column.type):
        refs = parse_descriptors(column)
        return file_structs(refs.uris, refs.uri_ids, refs.offsets, refs.lengths)
    return _as_files(inline_structs(column))


def _as_files(array: pa.Array) -> pa.Array:
    """``struct<uri, offset, length>`` inside lists and maps to Daft's File layout."""
    if pa.types.is_list(array.type):
        return pa.ListArray.from_arrays(array.offsets, _as_files(array.values), mask=array.is_null())
    if pa.types.is_map(array.type):
        return pa.MapArray.from_arrays(array.offsets, array.keys, _as_files(array.items))
    uris, offsets, lengths = array.flatten()
    parts = [uris.cast(pa.large_string()), pa.nulls(len(array), pa.large_binary()), offsets, lengths]
    return pa.StructArray.from_arrays(parts, fields=list(FILE_TYPE), mask=array.is_null())
