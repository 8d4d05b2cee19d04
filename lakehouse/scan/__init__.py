"""What a snapshot's files hold: which files, which rows, and where each BLOB lies.

A `Version` is one snapshot of one table, resolved once. `plan` lists its file groups in ascending row id, `read` streams
scalar columns of chosen groups with their row ids, and a `Locator` finds the byte range of a BLOB column for chosen rows.
"""

from __future__ import annotations

from lakehouse.scan.groups import Group, Groups, plan
from lakehouse.scan.locate import Locator
from lakehouse.scan.rows import ROW_ID, read
from lakehouse.scan.version import Version, snapshot_identity

__all__ = ["ROW_ID", "Group", "Groups", "Locator", "Version", "plan", "read", "snapshot_identity"]
