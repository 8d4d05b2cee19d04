"""How the files of a catalog's tables are reached: catalog options to clients, in one place.

    options ──S3Settings──> ObstoreReader      s3://, the fastest client measured (docs/decisions/002)
                       └──> BotocoreReader     the same in a process forked from one that used the first; odd keys
    the table's own FileIO ──> ArrowReader     oss://, gs://, hdfs://: whatever the catalog can open, with its tokens
    fsspec ──> any other scheme                memory://, hf://, with the environment's credentials

Clients belong to one process and are made on first use in it. A `Store` pickles as the catalog's options do: secrets travel
only to processes that are being spawned.
"""

from __future__ import annotations

from lakehouse.stores.s3 import put_new
from lakehouse.stores.settings import S3Settings
from lakehouse.stores.store import Store

__all__ = ["S3Settings", "Store", "put_new"]
