"""Scalar columns of a version's rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakehouse.scan.groups import Groups
from lakehouse.scan.version import Version

ROW_ID = "_ROW_ID"
# Rows a batch of the file reader holds. Its default of 1,024 fits rows with BLOBs inside; ours have none.
READ_BATCH_ROWS = 16_384


def read(version: Version, groups: Groups, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Stream columns with their row ids, in ascending row id, deleted rows left out.

    Args:
        version: whose rows.
        groups: which of its groups.
        columns: columns kept in row files; a column in `Columns.inline` comes as serialised descriptors.

    Yields:
        Batches of ``columns`` in that order, then ``_ROW_ID`` (int64).
    """
    if not groups.groups:
        return
    table = version.paimon.copy_without_time_travel({"blob-as-descriptor": "true", "read.batch-size": str(READ_BATCH_ROWS)})
    # The row id is always read: a projection of only columns that old files lack yields none of their rows upstream.
    builder = table.new_read_builder().with_projection([*columns, ROW_ID])
    reader = builder.new_read().to_arrow_batch_reader([group.split for group in groups.groups])
    try:
        for batch in reader:
            if batch.num_rows:
                yield batch.select([*columns, ROW_ID])
    finally:
        # pypaimon's closable reader stops its file readers; a plain Arrow reader has nothing to stop.
        close = getattr(reader, "close", None)
        if close is not None:
            close()
