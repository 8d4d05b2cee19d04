"""Merging small files, and removing rows for good.

``plan`` says which groups become one, ``rewrite`` writes them, ``publish`` makes a snapshot that names the new files in place
of the old ones.
"""

from lakehouse.compaction.compact import TARGET_BYTES, compact
from lakehouse.compaction.purge import purge
from lakehouse.compaction.report import CompactReport, PurgeReport

__all__ = ["TARGET_BYTES", "CompactReport", "PurgeReport", "compact", "purge"]
