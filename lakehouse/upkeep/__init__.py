"""Upkeep of a table's history and files: roots -> files -> expire, orphans."""

from lakehouse.upkeep.alone import alone
from lakehouse.upkeep.expire import check_own_history, expire
from lakehouse.upkeep.files import DataFile, IndexFile, Manifests, avro_records, data_file, load_roots, needed_names
from lakehouse.upkeep.orphans import remove_orphans
from lakehouse.upkeep.partitions import drop_empty_partitions
from lakehouse.upkeep.progress import Meter, Progress
from lakehouse.upkeep.remove import Places, kind_of
from lakehouse.upkeep.report import ExpireReport, Left, OrphanReport
from lakehouse.upkeep.roots import Root, read_roots
from lakehouse.upkeep.store import Store, store_of
from lakehouse.upkeep.tags import TagInfo, extras, tag_info

__all__ = [
    "DataFile",
    "ExpireReport",
    "IndexFile",
    "Left",
    "Manifests",
    "Meter",
    "OrphanReport",
    "Places",
    "Progress",
    "Root",
    "Store",
    "TagInfo",
    "alone",
    "avro_records",
    "check_own_history",
    "data_file",
    "drop_empty_partitions",
    "expire",
    "extras",
    "kind_of",
    "load_roots",
    "needed_names",
    "read_roots",
    "remove_orphans",
    "store_of",
    "tag_info",
]
