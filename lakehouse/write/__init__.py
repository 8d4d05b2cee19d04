"""From a caller's rows to a snapshot: rows -> values, blobs -> writer -> commit."""

from lakehouse.write.blobs import Describer
from lakehouse.write.commit import discard, latest_id, latest_snapshot, name_of, publish, publish_snapshot
from lakehouse.write.exclusive import Moved, publish_on, publish_snapshot_on
from lakehouse.write.ids import checked_commit_id, find_commit, new_commit_id
from lakehouse.write.ledger import LEDGER, remember
from lakehouse.write.lineage import inherited
from lakehouse.write.next_snapshot import following
from lakehouse.write.published import BYTES, COMMIT_ID, OPERATION, RESTORED, ROWS, Published, ours
from lakehouse.write.restore import publish_one, publish_restored
from lakehouse.write.rows import column_values, given_batches, to_batches
from lakehouse.write.writer import Writer, as_ours

__all__ = [
    "BYTES",
    "COMMIT_ID",
    "LEDGER",
    "OPERATION",
    "RESTORED",
    "ROWS",
    "Describer",
    "Moved",
    "Published",
    "Writer",
    "as_ours",
    "checked_commit_id",
    "column_values",
    "discard",
    "find_commit",
    "following",
    "given_batches",
    "inherited",
    "latest_id",
    "latest_snapshot",
    "name_of",
    "new_commit_id",
    "ours",
    "publish",
    "publish_on",
    "publish_one",
    "publish_restored",
    "publish_snapshot",
    "publish_snapshot_on",
    "remember",
    "to_batches",
]
