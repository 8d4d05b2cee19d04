"""1 GB of BLOBs checked by crc, warm files: `Table.check` against reading the same files in 8 MB pieces and CRC-ing them plainly.

Both with as many threads as there are cores, a file each. ``--kb`` sets the size of a BLOB.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import _bench

PIECE_BYTES = 8 << 20


def table_of(args: argparse.Namespace) -> Any:
    import lakehouse as lh

    return lh.connect(warehouse=str(args.data)).table("default.blobs")


def prepare(args: argparse.Namespace) -> str:
    import pyarrow as pa

    import lakehouse as lh

    catalog = lh.connect(warehouse=str(args.data))
    if "default.blobs" not in catalog.tables():
        schema = pa.schema([("id", pa.int64()), ("blob", pa.large_binary())])
        table = catalog.create_table("default.blobs", schema)
        rng = np.random.default_rng(1)
        mean = args.kb * 1000
        count, batch = args.mb * 1_000_000 // mean, max(1, (32 << 20) // mean)

        def batches() -> Any:
            for start in range(0, count, batch):
                sizes = rng.integers(mean // 2, mean * 3 // 2, min(batch, count - start)).tolist()
                yield [{"id": start + i, "blob": rng.bytes(size)} for i, size in enumerate(sizes)]

        table.append(batches())
    paths = blob_files(args)
    return f"{sum(path.stat().st_size for path in paths) / 1e6:,.0f} MB in {len(paths)} .blob files, BLOBs of {args.kb} KB on average"


def blob_files(args: argparse.Namespace) -> list[Path]:
    return sorted(Path(args.data).rglob("*.blob"))


def plainly(args: argparse.Namespace) -> tuple[float, float]:
    def one(path: Path) -> int:
        memory = memoryview(bytearray(PIECE_BYTES))
        handle, at, crc = os.open(path, os.O_RDONLY), 0, 0
        while got := os.preadv(handle, [memory], at):
            crc = zlib.crc32(memory[:got], crc)
            at += got
        os.close(handle)
        return at

    start = time.perf_counter()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        done = sum(pool.map(one, blob_files(args)))
    return done / 1e6, time.perf_counter() - start


def check(args: argparse.Namespace) -> tuple[float, float]:
    table = table_of(args)
    start = time.perf_counter()
    report = table.check(verify="crc", progress=False)
    seconds = time.perf_counter() - start
    if not report.ok:
        sys.exit(str(report))
    return report.bytes_read / 1e6, seconds


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mb", type=int, default=1_000, help="size of all BLOBs")
    parser.add_argument("--kb", type=int, default=14, help="size of a BLOB on average, 1000 bytes")


if __name__ == "__main__":
    variants = {"read + crc32 plainly": plainly, "Table.check(verify='crc')": check}
    print("samples are MB")
    _bench.main(
        "1 GB of BLOBs checked by crc",
        variants,
        prepare,
        lambda args: f"lakehouse-bench-check-{args.mb}-{args.kb}",
        options=options,
    )
