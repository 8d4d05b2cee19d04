"""lakehouse: train models straight from lake tables.

A query at a pinned snapshot becomes an index; an index plus (seed, epoch) becomes an order; a position in the order becomes
byte ranges, then bytes, then arrays, then a batch. The position is the whole state.

Importing this package loads none of torch, Daft and pypaimon; each is loaded by the first name that needs it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from lakehouse.errors import (
    BadRowLimitError,
    CommitError,
    CommitUnknownError,
    ConfigError,
    DecodeError,
    FetchError,
    LakehouseError,
    NotFoundError,
    ResumeError,
    SchemaError,
)

if TYPE_CHECKING:
    from lakehouse.cache import Cache
    from lakehouse.catalog import Catalog, connect
    from lakehouse.check import CheckReport
    from lakehouse.compaction import CompactReport, PurgeReport
    from lakehouse.dataset import Dataset, MapDataset
    from lakehouse.decode import Decoder, Image, Raw
    from lakehouse.fetch import BlobRef, BlobRefs, Fetcher, fetch_blob
    from lakehouse.history import Diff, Rollback
    from lakehouse.index import RowIndex
    from lakehouse.loader import Loader
    from lakehouse.mixture import Mixture, Weighted
    from lakehouse.query import Plan, Query
    from lakehouse.registry import TrainingSet
    from lakehouse.schema import Blob, Schema
    from lakehouse.table import Commit, Snapshot, SnapshotInfo, Table
    from lakehouse.upkeep import ExpireReport, OrphanReport, TagInfo

try:
    __version__ = version("lakehouse-sdk")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

_HOME = {
    "connect": "catalog",
    "Catalog": "catalog",
    "Table": "table",
    "Snapshot": "table",
    "SnapshotInfo": "table",
    "Commit": "table",
    "CompactReport": "compaction",
    "CheckReport": "check",
    "PurgeReport": "compaction",
    "ExpireReport": "upkeep",
    "OrphanReport": "upkeep",
    "TagInfo": "upkeep",
    "Schema": "schema",
    "Blob": "schema",
    "Query": "query",
    "Plan": "query",
    "RowIndex": "index",
    "TrainingSet": "registry",
    "Diff": "history",
    "Rollback": "history",
    "BlobRef": "fetch",
    "BlobRefs": "fetch",
    "Fetcher": "fetch",
    "fetch_blob": "fetch",
    "Cache": "cache",
    "Image": "decode",
    "Raw": "decode",
    "Decoder": "decode",
    "Dataset": "dataset",
    "MapDataset": "dataset",
    "Mixture": "mixture",
    "Weighted": "mixture",
    "Loader": "loader",
}

__all__ = [
    "BadRowLimitError",
    "Blob",
    "BlobRef",
    "BlobRefs",
    "Cache",
    "Catalog",
    "CheckReport",
    "Commit",
    "CommitError",
    "CommitUnknownError",
    "CompactReport",
    "ConfigError",
    "Dataset",
    "DecodeError",
    "Decoder",
    "Diff",
    "ExpireReport",
    "FetchError",
    "Fetcher",
    "Image",
    "LakehouseError",
    "Loader",
    "MapDataset",
    "Mixture",
    "NotFoundError",
    "OrphanReport",
    "Plan",
    "PurgeReport",
    "Query",
    "Raw",
    "ResumeError",
    "Rollback",
    "RowIndex",
    "Schema",
    "SchemaError",
    "Snapshot",
    "SnapshotInfo",
    "Table",
    "TagInfo",
    "TrainingSet",
    "Weighted",
    "__version__",
    "connect",
    "fetch_blob",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"lakehouse.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'lakehouse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
