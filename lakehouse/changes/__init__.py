"""Changes of rows that exist: delete, update, upsert, overwrite.

Each is worked out from one snapshot (`Base`) into commit messages, and published only if no other writer touched that
snapshot meanwhile; else it is done again on fresh data (`committed`). Updates write column files beside the row files, so
no BLOB is written again unless it is the one that changes.
"""

from lakehouse.changes.base import Base, Prepared, committed
from lakehouse.changes.delete import delete
from lakehouse.changes.overwrite import checked_partition, overwrite, written
from lakehouse.changes.update import update
from lakehouse.changes.upsert import Given, upsert

__all__ = ["Base", "Given", "Prepared", "checked_partition", "committed", "delete", "overwrite", "update", "upsert", "written"]
