"""5 % of the rows of a table, chosen by a filter, read in block order: bytes read over bytes referenced.

Counted twice: by the loader (`loader.stats`), and by the system for the whole process while the epoch runs
(``rchar`` of /proc/self/io, every byte that any read returned). The query itself is counted apart: it reads metadata and the
one column that is filtered on.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import _bench

BLOB_BYTES, BATCH = 14_000, 64


def table_of(args: argparse.Namespace) -> Any:
    import lakehouse as lh

    return lh.connect(warehouse=str(args.data)).table("default.filtered")


def prepare(args: argparse.Namespace) -> str:
    import pyarrow as pa

    import lakehouse as lh

    catalog = lh.connect(warehouse=str(args.data))
    if "default.filtered" not in catalog.tables():
        rng = np.random.default_rng(0)
        schema = pa.schema([("label", pa.int32()), ("blob", pa.large_binary())])
        lengths = rng.integers(BLOB_BYTES // 2, BLOB_BYTES * 3 // 2, args.rows).tolist()
        rows = ({"label": int(rng.integers(100)), "blob": rng.bytes(length)} for length in lengths)
        catalog.create_table("default.filtered", schema).append(rows)
    snapshot = table_of(args).latest()
    chosen = snapshot.query().where("label < 5").count_rows()
    return f"{snapshot.count_rows():,} BLOBs of {BLOB_BYTES:,} bytes on average, {chosen:,} chosen by label < 5, batch {BATCH}"


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def fetcher_of(kind: str) -> Any:
    """None: the index's own, which reads local files range by range."""
    from lakehouse.fetch import RangeFetcher

    if kind == "local":
        return None
    return RangeFetcher(read_range) if kind == "merged" else RangeFetcher(read_range, gap_bytes=0)


def read_range(uri: str, offset: int, length: int) -> bytes:
    """Stands in for an object store. Not fsspec's local files: Python reads those in blocks, 16,384 bytes for 14,000."""
    descriptor = os.open(uri.removeprefix("file://"), os.O_RDONLY)
    try:
        return os.pread(descriptor, length, offset)
    finally:
        os.close(descriptor)


def epoch(kind: str, shuffle: Any, args: argparse.Namespace) -> dict[str, float]:
    import lakehouse as lh

    table = table_of(args)
    before = bytes_read()
    index = table.latest().query().where("label < 5").select("blob").index()
    query = bytes_read() - before
    chosen = fetcher_of(kind)
    (chosen or index.fetcher()).fetch(index.blobs("blob").take([0]))  # what is imported for it is read before counting
    loader = lh.Loader(lh.Dataset(index, batch_size=BATCH, seed=1, shuffle=shuffle, tail="pad", fetcher=chosen))
    before = bytes_read()
    start = time.perf_counter()
    rows = sum(len(batch["blob"]) for batch in loader)
    seconds = time.perf_counter() - start
    read = bytes_read() - before
    stats = loader.stats
    return {
        "rows": rows,
        "referenced": stats.bytes_referenced,
        "fetched": stats.bytes_fetched,
        "read": read,
        "fetched/ref": stats.bytes_fetched / stats.bytes_referenced,
        "read/ref": read / stats.bytes_referenced,
        "requests": stats.requests,
        "query reads": query,
        "seconds": seconds,
    }


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=20_000)


def report(results: _bench.Runs) -> None:
    columns = ("rows", "referenced", "fetched", "read", "fetched/ref", "read/ref", "requests", "query reads", "seconds")
    _bench.values(results, columns)
    print("\nwanted: fetched/ref and read/ref at most 1.05")


if __name__ == "__main__":
    variants: dict[str, _bench.Variant] = {
        "blocks, local files": functools.partial(epoch, "local", "blocks"),
        "blocks, merged reads": functools.partial(epoch, "merged", "blocks"),
        "blocks, merged, gap 0": functools.partial(epoch, "exact", "blocks"),
        "stored order, merged reads": functools.partial(epoch, "merged", None),
    }
    folder = "lakehouse-bench-filter-{}".format
    _bench.main(
        "bytes of a 5 % filter", variants, prepare, lambda args: folder(args.rows), runs=3, options=options, report=report
    )
