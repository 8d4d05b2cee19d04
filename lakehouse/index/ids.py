"""Row ids as bytes: a Parquet file of one column, so that any engine can read it.

Delta-encoded and compressed: a run of neighbouring rows takes next to nothing, a random tenth of a table about a byte a row.
Order and repetitions are kept.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

ROW_ID = "row_id"
_ROWS = 1 << 20  # written and read at once


def write_ids(row_ids: npt.NDArray[np.int64], path: Path) -> None:
    """Write row ids to a file."""
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field(ROW_ID, pa.int64(), nullable=False)])
    with pq.ParquetWriter(
        path, schema, compression="zstd", use_dictionary=False, column_encoding={ROW_ID: "DELTA_BINARY_PACKED"}
    ) as writer:
        for start in range(0, len(row_ids), _ROWS):
            writer.write_table(pa.table([pa.array(row_ids[start : start + _ROWS], pa.int64())], schema=schema))


def read_ids(data: bytes) -> npt.NDArray[np.int64]:
    """The row ids that `write_ids` wrote."""
    import pyarrow.parquet as pq

    return np.asarray(pq.read_table(pa.BufferReader(data)).column(ROW_ID).to_numpy(), np.int64)
