"""Column files: new values of some columns for some rows of one file group, beside the files that are there.

A scalar column is written anew for the whole group into one small row file. Of a BLOB column only the changed bytes are
written, into a ``.blob`` file that says "older" for every other row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pypaimon.snapshot.snapshot import BATCH_COMMIT_IDENTIFIER
from pypaimon.table.special_fields import SpecialFields
from pypaimon.utils.range import Range
from pypaimon.write.row_id_file_index import RowIdFileIndex
from pypaimon.write.table_update_by_row_id import TableUpdateByRowId

from lakehouse.errors import ConfigError
from lakehouse.scan import ROW_ID, Group
from lakehouse.write import as_ours, discard

_REPLACED = ("_read_original_file_data", "_write_group", "_is_blob_column")


class _GroupUpdate(TableUpdateByRowId):
    """Upstream's writer of column files, for one group that is known already.

    Upstream's own reads all BLOBs of the group into memory, to learn how many rows there are.
    """

    def __init__(self, paimon: Any, group: Group, base_snapshot_id: int) -> None:
        known = RowIdFileIndex(
            snapshot_id=base_snapshot_id,
            first_row_ids=[group.first_row_id],
            first_row_id_index={group.first_row_id: (group.split, list(group.split.files))},
            valid_row_id_ranges=[Range(group.first_row_id, group.stop_row_id - 1)],
        )
        super().__init__(paimon, "lakehouse", BATCH_COMMIT_IDENTIFIER, _precomputed_files_info=known)
        self._group = group

    def _read_original_file_data(self, first_row_id: int, column_names: list[str]) -> pa.Table:
        scalars = [name for name in column_names if not self._is_blob_column(name)]
        if scalars:
            table = super()._read_original_file_data(first_row_id, scalars)
        else:
            table = pa.table({SpecialFields.ROW_ID.name: pa.nulls(self._group.rows, pa.int64())})
        for name in column_names:
            if name not in scalars:
                table = table.append_column(name, pa.nulls(table.num_rows, pa.large_binary()))
        return table.select(column_names)

    def write(self, values: pa.Table) -> list[Any]:
        """Commit messages of the group's new files.

        Scalar columns and each BLOB column are written apart: where one of several in a go fails, upstream leaves the files
        of the others behind.
        """
        names = [name for name in values.column_names if name != ROW_ID]
        blobs = [name for name in names if self._is_blob_column(name)]
        scalars = [name for name in names if name not in blobs]
        try:
            for part in ([scalars] if scalars else []) + [[name] for name in blobs]:
                chosen = values.select([ROW_ID, *part])
                self._write_group(self._group.split.partition, self._group.first_row_id, chosen, part)
        except BaseException:  # Ctrl-C too: files that no commit will name are deleted
            discard(self.table, self.commit_messages)
            raise
        for message in self.commit_messages:
            for file in message.new_files:
                # The commit numbers these by its snapshot, so that of two files of a column the later one holds.
                file.min_sequence_number = file.max_sequence_number = 0
        return list(self.commit_messages)


def column_files(
    paimon: Any, group: Group, base_snapshot_id: int, row_ids: npt.NDArray[np.int64], values: Mapping[str, Any]
) -> list[Any]:
    """Write new values of one group's rows.

    Args:
        paimon: handle of the table, not pinned to a snapshot.
        group: where the rows are.
        base_snapshot_id: the snapshot that the group is of.
        row_ids: int64[n], each once.
        values: by column n values in the form that the engine takes (`lakehouse.write.column_values`); those of BLOB columns
            may be dictionary-encoded.

    Returns:
        Commit messages.

    Raises:
        CommitError: the files can't be written.
        ConfigError: the installed pypaimon no longer has what this stands on.
    """
    for method in _REPLACED:
        if not callable(getattr(TableUpdateByRowId, method, None)):
            raise ConfigError(
                f"the installed pypaimon has no TableUpdateByRowId.{method}, which updates need; install pypaimon >=2.1,<2.2"
            )
    with as_ours(paimon):
        return _GroupUpdate(paimon, group, base_snapshot_id).write(pa.table({ROW_ID: row_ids, **values}))
