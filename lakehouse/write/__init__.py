"""From a caller's rows to a snapshot: rows -> values, blobs -> writer -> commit."""

from lakehouse.write.blobs import Describer
from lakehouse.write.commit import COMMIT_ID, discard, latest_id, name_of, publish
from lakehouse.write.rows import to_batches
from lakehouse.write.writer import Writer

__all__ = ["COMMIT_ID", "Describer", "Writer", "discard", "latest_id", "name_of", "publish", "to_batches"]
