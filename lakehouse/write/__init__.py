"""From a caller's rows to a snapshot: rows -> values, blobs -> writer -> commit."""

from lakehouse.write.blobs import Describer
from lakehouse.write.commit import (
    checked_commit_id,
    discard,
    find_commit,
    latest_id,
    name_of,
    new_commit_id,
    publish,
    publish_snapshot,
)
from lakehouse.write.exclusive import Moved, publish_on, publish_snapshot_on
from lakehouse.write.ledger import BYTES, COMMIT_ID, OPERATION, ROWS, Published, forget, remember
from lakehouse.write.rows import to_batches
from lakehouse.write.writer import Writer

__all__ = [
    "BYTES",
    "COMMIT_ID",
    "OPERATION",
    "ROWS",
    "Describer",
    "Moved",
    "Published",
    "Writer",
    "checked_commit_id",
    "discard",
    "find_commit",
    "forget",
    "latest_id",
    "name_of",
    "new_commit_id",
    "publish",
    "publish_on",
    "publish_snapshot",
    "publish_snapshot_on",
    "remember",
    "to_batches",
]
