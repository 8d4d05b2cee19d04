"""Cost of a RowIndex against its number of rows: build, disk, open, seek, step, memory.

Rows are made up: one BLOB column in files of 65,536 blobs, and one number a row, through the same `build_index` that queries
use, fed by a made-up locator, so that no blob needs to exist. Each part runs in a process of its own: build and save; open;
100 seeks to random places, then 1,000 steps (order, and references of the batch), and both once more: the second time the
mapped pages are there, so that no page faults ("faults") are in the time. "MiB anon" is memory that the process owns; its peak
RSS also counts pages of the mapped file, which the system takes back at will.

    python benchmarks/index_scale.py --rows 1000000 10000000 100000000 --data /tmp/scale     (3 GB at 100 M, deleted at the end)
"""

from __future__ import annotations

import argparse
import functools
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import _bench

BATCH, STEPS, CHUNK, FILE_ROWS, BLOB_BYTES = 64, 1_000, 262_144, 65_536, 18_000
LABEL_BYTES = 4  # a row; not counted as the index's own


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--keep", action="store_true", help="leave the files")


class Locator:
    """Where made-up blobs lie: in files of FILE_ROWS, one after another."""

    def __init__(self, n: int) -> None:
        self.uris = tuple(f"/lake/default.db/scale/bucket-0/data-{i:06d}.blob" for i in range(-(-n // FILE_ROWS)))

    def locate(self, row_ids: Any) -> tuple[Any, Any, Any]:
        place = row_ids % FILE_ROWS
        return row_ids // FILE_ROWS, place * (BLOB_BYTES + 16) + 4, BLOB_BYTES - place % 4_000


def version() -> Any:
    import pyarrow as pa

    schema = pa.schema([("label", pa.int32()), ("frame", pa.large_binary())])
    columns = SimpleNamespace(arrow=schema, blobs=("frame",))
    path = "/lake/default.db/scale"
    made_up = {"uuid": "made-up", "snapshot_id": 1, "snapshot_uuid": "", "path": path, "roots": (), "store": None}
    return SimpleNamespace(columns=columns, name="default.scale", **made_up)


class Catalog:
    """What `RowIndex.load` asks of a catalog."""

    def table(self, _: str) -> Any:
        return SimpleNamespace(at=lambda **_: SimpleNamespace(version=version()))


def build(n: int, args: argparse.Namespace) -> dict[str, float]:
    import pyarrow as pa

    from lakehouse.index.build import build_index

    imported = _bench.peak_mib()

    def chunks() -> Iterator[pa.Table]:
        for start in range(0, n, CHUNK):
            row_ids = np.arange(start, min(start + CHUNK, n))
            yield pa.table({"label": (row_ids % 1_000).astype(np.int32), "_ROW_ID": row_ids})

    tempfile.tempdir = str(args.data)  # what is spilled goes where there is room
    start = time.perf_counter()
    index = build_index(version(), chunks(), ["label", "frame"], {"frame": Locator(n)})
    built = time.perf_counter()
    index.save(path_of(args, n))
    saved = time.perf_counter()
    size = path_of(args, n).stat().st_size
    return {
        "build s": built - start,
        "save s": saved - built,
        "build ns/row": (built - start) / n * 1e9,
        "bytes/row": size / n - LABEL_BYTES,
        "build MiB peak": _bench.peak_mib() - imported,
        "build MiB anon": _bench.status_mib("RssAnon"),
    }


def use(n: int, args: argparse.Namespace) -> dict[str, float]:
    import lakehouse as lh
    from lakehouse.order import Order

    lh.RowIndex, lh.Dataset  # noqa: B018 - loads torch
    imported, anon = _bench.peak_mib(), _bench.status_mib("RssAnon")
    start = time.perf_counter()
    index = lh.RowIndex.load(path_of(args, n), Catalog())
    opened = time.perf_counter()
    ds = lh.Dataset(index, batch_size=BATCH, seed=7)
    ds.steps(0, 0)  # what a process opens before its first batch
    ready = time.perf_counter()
    refs = index.blobs("frame")
    rng = np.random.default_rng(0)
    measures: dict[str, float] = {}
    places = rng.integers(0, n - BATCH, STEPS // 10).tolist()
    for shuffle, name in (("blocks", ""), ("rows", " rows")):
        order = Order(n, 7, shuffle)
        order.rows(0, 0, BATCH)
        for visit in ("", " again"):
            for what, begins in (("seek", places), ("step", [step * BATCH for step in range(STEPS)])):
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                began = time.perf_counter()
                for at in begins:
                    refs.take(order.rows(1, at, at + BATCH))
                measures[f"{what}{name}{visit} us"] = (time.perf_counter() - began) / len(begins) * 1e6
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
                measures[f"{what}{name}{visit} faults"] = faults / len(begins)
    return {
        "open ms": (opened - start) * 1e3,
        "Dataset ms": (ready - opened) * 1e3,
        **measures,
        "use MiB peak": _bench.peak_mib() - imported,
        "use MiB anon": _bench.status_mib("RssAnon") - anon,
    }


def path_of(args: argparse.Namespace, n: int) -> Path:
    return args.data / f"{n}.idx"


def prepare(args: argparse.Namespace) -> str:
    args.data.mkdir(parents=True, exist_ok=True)
    return "made-up rows: one number, one BLOB reference"


def report(results: _bench.Runs) -> None:
    merged = {}
    for name, rows in results.items():
        n = name.split()[-1]
        merged.setdefault(n, [{} for _ in rows])
        merged[n] = [{**old, **new} for old, new in zip(merged[n], rows, strict=True)]
    for columns in (
        ("build s", "save s", "build ns/row", "bytes/row", "build MiB peak", "build MiB anon"),
        ("open ms", "Dataset ms", "use MiB peak", "use MiB anon"),
        *(
            tuple(f"{what}{name}{visit} {unit}" for visit in ("", " again") for unit in ("us", "faults"))
            for what in ("seek", "step")
            for name in ("", " rows")
        ),
    ):
        _bench.values(merged, columns)
    print("\nwanted: build linear, at most 24 bytes/row beside scalars, open below 100 ms, seek and step constant")


def variants(args: argparse.Namespace) -> dict[str, _bench.Variant]:
    parts = (("build", build), ("use", use))
    return {f"{name} {n:,}": functools.partial(part, n) for n in args.rows for name, part in parts}


def clean(args: argparse.Namespace) -> None:
    for n in args.rows:
        if not args.keep:
            path_of(args, n).unlink(missing_ok=True)


if __name__ == "__main__":
    what = "cost of an index against its rows"
    _bench.main(what, variants, prepare, "lakehouse-bench-scale", 1, warm_up=False, options=options, report=report, clean=clean)
