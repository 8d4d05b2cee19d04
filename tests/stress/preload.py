"""What every process of these tests loads: once, in the server that they are forked from. Not Daft, which does not outlive a fork."""

from __future__ import annotations

import pypaimon

import lakehouse.catalog
import lakehouse.compaction
import lakehouse.upkeep
import lakehouse.warehouse
import lakehouse.write.engine
import tests.stress.kill

__all__ = ["lakehouse", "pypaimon", "tests"]
