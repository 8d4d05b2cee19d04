"""Writing one row file of any length in bounded memory, with the metadata that the engine's own writer would give it.

The engine holds a file's rows in memory until it is finished, which would bound the size of a file by that.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_GROUP_BYTES = 64 * 1024 * 1024  # of rows in memory, after which a row group is written


class RowFile:
    """A parquet file while it is written.

    Args:
        paimon: the table's handle, for its options.
        path: where.
        schema: of the rows.
    """

    def __init__(self, paimon: Any, path: str, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq
        from pypaimon.write.writer.parquet_writer_options import create_parquet_writer_options

        self._paimon = paimon
        self.path = path
        self.schema = schema
        options = paimon.options
        compression = options.file_compression()
        level = options.file_compression_zstd_level() if compression.lower() == "zstd" else None
        self._raw = paimon.file_io.new_output_stream(path)
        self._sink = pa.PythonFile(self._raw, mode="w")
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression=compression, compression_level=level, **create_parquet_writer_options(options)
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._stats = {item.name: _Stats(item.type) for item in schema} if options.metadata_stats_enabled() else {}
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self.rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        for name, stats in self._stats.items():
            stats.add(batch.column(name))
        if self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def finish(self) -> Any:
        """Close the file; its metadata, without row ids."""
        self._flush()
        self._writer.close()
        self._close()
        return self._meta()

    def abort(self) -> None:
        """Close what is open; the file is whoever asked for it to delete."""
        try:
            self._writer.close()
        finally:
            self._close()

    def _close(self) -> None:
        self._sink.close()
        self._raw.close()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self.schema))
            self._waiting, self._waiting_bytes = [], 0

    def _meta(self) -> Any:
        from pypaimon.manifest.schema.simple_stats import SimpleStats
        from pypaimon.table.row.generic_row import GenericRow

        fields = [self._paimon.field_dict[name] for name in self._stats]
        stats = SimpleStats(
            GenericRow([each.low for each in self._stats.values()], fields),
            GenericRow([each.high for each in self._stats.values()], fields),
            [each.nulls for each in self._stats.values()],
        )
        return new_meta(
            self._paimon,
            self.path,
            self.rows,
            stats if fields else SimpleStats.empty_stats(),
            write_cols=self.schema.names,
            stats_cols=list(self._stats),
        )


def blob_meta(paimon: Any, path: str, column: str, rows: int) -> Any:
    """Metadata of a ``.blob`` file, as the engine's own writer gives it."""
    from pypaimon.manifest.schema.simple_stats import SimpleStats
    from pypaimon.table.row.generic_row import GenericRow

    fields = [paimon.field_dict[column]]
    stats = SimpleStats(GenericRow([None], fields), GenericRow([None], fields), [0])
    return new_meta(paimon, path, rows, stats, write_cols=[column], stats_cols=None)


def new_meta(paimon: Any, path: str, rows: int, stats: Any, *, write_cols: list[str], stats_cols: list[str] | None) -> Any:
    """Metadata of a new file that has no row ids and no sequence numbers yet."""
    from pypaimon.data.timestamp import Timestamp
    from pypaimon.manifest.schema.data_file_meta import DataFileMeta
    from pypaimon.manifest.schema.simple_stats import SimpleStats
    from pypaimon.table.row.generic_row import GenericRow

    return DataFileMeta.create(
        file_name=path.rsplit("/", 1)[-1],
        file_size=int(paimon.file_io.get_file_size(path)),
        row_count=rows,
        min_key=GenericRow([], []),
        max_key=GenericRow([], []),
        key_stats=SimpleStats.empty_stats(),
        value_stats=stats,
        min_sequence_number=0,
        max_sequence_number=0,
        schema_id=paimon.table_schema.id,
        level=0,
        extra_files=[],
        creation_time=Timestamp.now(),
        delete_row_count=0,
        file_source=1,  # made by compaction; 0 is an append
        value_stats_cols=stats_cols,
        external_path=None,
        first_row_id=None,
        write_cols=list(write_cols),
        file_path=path,
    )


class _Stats:
    """Least and greatest value and nulls of a column, as batches come."""

    def __init__(self, kind: pa.DataType) -> None:
        self._ordered = not (pa.types.is_nested(kind) or pa.types.is_large_binary(kind))
        self.low: Any = None
        self.high: Any = None
        self.nulls = 0

    def add(self, column: pa.Array) -> None:
        self.nulls += column.null_count
        if not self._ordered or column.null_count == len(column):
            return
        kind = column.type
        known = pa.array([self.low, self.high], kind)
        self.low = pc.min(pa.chunked_array([column, known])).as_py()
        self.high = pc.max(pa.chunked_array([column, known])).as_py()
