"""A version of a table as a Daft data source.

pypaimon's own source hands columns over in the order in which Daft asked for them, while Daft expects them in table order:
natural queries on BLOB tables give wrong rows. This one always emits table order, reads every column that a filter needs,
keeps the null mask of BLOB references, puts no credentials into them, and leaves every filter to Daft.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pyarrow as pa
from daft.io.pushdowns import Pushdowns
from daft.io.source import DataSource, DataSourceTask
from daft.recordbatch import RecordBatch
from daft.schema import Schema

from lakehouse.query.daft_types import daft_schema, for_daft
from lakehouse.query.engine import daft
from lakehouse.query.evaluate import pruned
from lakehouse.query.walk import columns_of
from lakehouse.references import FILE_TYPE, file_structs, inline_structs, parse_descriptors
from lakehouse.scan import ROW_ID, Group, Groups, Locator, Version, read

# A task's rows and groups: enough that starting one does not show, few enough that both cores get some.
_TASK_ROWS = 131_072
_TASK_GROUPS = 64


class LakeSource(DataSource):
    """Reads one version.

    Args:
        version: what to read.
        row_ids: add a ``_ROW_ID`` column.
    """

    def __init__(self, version: Version, *, row_ids: bool = False) -> None:
        self._version = version
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
        """Tasks in ascending row id. Daft applies filters and limits to what they yield."""
        wanted = None if pushdowns.columns is None else set(pushdowns.columns)
        filters = [] if pushdowns.filters is None else [pushdowns.filters]
        if wanted is not None and filters:
            wanted |= columns_of(filters[0], self._version.columns)
        names = [item.name for item in self._schema if wanted is None or item.name in wanted]
        for groups in _cut(pruned(self._version, [f for f in filters if ROW_ID not in columns_of(f, self._version.columns)])):
            yield _LakeTask(self._version, groups, names, self._schema)


def _cut(groups: Groups) -> Iterator[Groups]:
    held: list[Group] = []
    rows = 0
    for group in groups.groups:
        held.append(group)
        rows += group.rows
        if rows >= _TASK_ROWS or len(held) >= _TASK_GROUPS:
            yield Groups(tuple(held))
            held, rows = [], 0
    if held:
        yield Groups(tuple(held))


class _LakeTask(DataSourceTask):
    def __init__(self, version: Version, groups: Groups, names: Sequence[str], schema: Schema) -> None:
        self._version = version
        self._groups = groups
        self._names = list(names)
        kinds = {item.name: item.dtype for item in schema}
        self._schema = Schema.from_field_name_and_types([(name, kinds[name]) for name in names])

    @property
    def schema(self) -> Schema:
        return self._schema

    async def read(self) -> AsyncIterator[RecordBatch]:
        columns = self._version.columns
        located = {name: Locator(self._version, self._groups, name) for name in self._names if _in_blob_files(columns, name)}
        in_rows = [name for name in self._names if name not in located and name != ROW_ID]
        for batch in read(self._version, self._groups, in_rows):
            if not self._names:
                yield _only_rows(batch.num_rows)
                continue
            row_ids = batch.column(batch.num_columns - 1).to_numpy()
            series = {}
            for item in self._schema:
                if item.name in located:
                    found = located[item.name]
                    uri_ids, offsets, lengths = found.locate(row_ids)
                    array = file_structs(found.uris, uri_ids, offsets, lengths)
                elif item.name in columns.lazy:
                    array = _inline_files(batch.column(in_rows.index(item.name)))
                elif item.name == ROW_ID:
                    array = batch.column(batch.num_columns - 1)
                else:
                    array = for_daft(batch.column(in_rows.index(item.name)))
                series[item.name] = daft.Series.from_arrow(array, name=item.name).cast(item.dtype)
            yield RecordBatch.from_pydict(series)


def _only_rows(rows: int) -> RecordBatch:
    """A batch of no columns: Daft can't build one, so a column is made and projected away."""
    batch = pa.RecordBatch.from_pydict({"rows": pa.nulls(rows, pa.int8())})
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
