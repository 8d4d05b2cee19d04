"""Reading 2,000 rows in 200 commits of 5 partitions: before and after `Table.compact`, and the same rows in one commit."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

PARTITIONS, ROWS_EACH, BLOB_BYTES = 5, 2, 1_000
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.string()), ("img", pa.large_binary())])


def rows_of(commit: int) -> list[dict[str, Any]]:
    """Rows of one commit: some in each partition."""
    count = PARTITIONS * ROWS_EACH
    first = commit * count
    return [
        {"id": i, "p": f"P{i % PARTITIONS}", "v": f"scene {i // 40}", "img": i.to_bytes(4, "little") * (BLOB_BYTES // 4)}
        for i in range(first, first + count)
    ]


WAYS: dict[str, Callable[[Any], Any]] = {
    "plan (explain)": lambda table: table.latest().query().explain(),
    "scalars (arrow)": lambda table: table.latest().query().select("id", "v").arrow(),
    "all, BLOBs as references (arrow)": lambda table: table.latest().arrow(),
    "all with bytes (arrow)": lambda table: table.latest().arrow(blobs="bytes"),
    "index": lambda table: table.latest().query().index(),
    "frame (daft)": lambda table: table.latest().daft().to_arrow(),
    "one partition, index": lambda table: table.latest().query().where("p = 'P1'").index(),
}


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Median time."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Write, measure, compact, measure."""
    import lakehouse as lh

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--commits", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakehouse-bench-") as folder:
        catalog = lh.connect(warehouse=folder)
        many = catalog.create_table("default.many", SCHEMA, partition_by=["p"])
        one = catalog.create_table("default.one", SCHEMA, partition_by=["p"])
        start = time.perf_counter()
        for commit in range(args.commits):
            many.append(rows_of(commit))
        print(f"{args.commits} commits written in {time.perf_counter() - start:.1f} s")
        one.append([row for commit in range(args.commits) for row in rows_of(commit)])
        before = {name: seconds(lambda read=read: read(many), args.repeats) for name, read in WAYS.items()}
        start = time.perf_counter()
        report = many.compact()
        print(f"compacted in {time.perf_counter() - start:.1f} s: {report}")
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        print(f"table folders hold {size:,} bytes; old files stay until they are expired")
        print(f"{'':34}{'before':>10}{'after':>10}{'one commit':>12}{'before/after':>14}{'after/one':>11}")
        for name, read in WAYS.items():
            after, best = (
                seconds(lambda read=read: read(many), args.repeats),
                seconds(lambda read=read: read(one), args.repeats),
            )
            was = before[name]
            print(
                f"{name:34}{was * 1e3:8,.0f}ms{after * 1e3:8,.1f}ms{best * 1e3:10,.1f}ms{was / after:13.0f}x{after / best:10.2f}x"
            )


if __name__ == "__main__":
    main()
