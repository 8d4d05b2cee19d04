"""Cost of a RowIndex against its number of rows: build, disk, open, seek, step, memory.

Rows are made up: one BLOB column in files of 65,536 blobs, and one number a row, through the same `build_index` that queries
use, fed by a made-up locator, so that no blob needs to exist. Each part runs in a process of its own: build and save; open,
seek and step. A seek is what a resume costs: an order made anew, and the references of the batch at a random place. A step is
the next batch's. Both are this thread's processor time, that of page faults included, which other processes on the machine
disturb less than they do the clock. "cold": the file is in the system's cache, but not one of its pages is mapped yet, so that
each touched page costs a fault, the more of them the larger the file ("faults" counts them). "warm": the same rows again.
"anon" is memory that the process owns; its peak RSS also counts pages of the mapped file, which the system takes back at will.

    python benchmarks/index_scale.py --rows 1000000 10000000 100000000 --data /tmp/scale     (3 GB at 100 M, deleted at the end)
"""

from __future__ import annotations

import argparse
import functools
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import _bench

BATCH, SEEKS, STEPS, WARM_PASSES = 64, 100, 1_000, 3
SHUFFLES = ("blocks", "rows")
CHUNK, FILE_ROWS, BLOB_BYTES = 262_144, 65_536, 18_000
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

    def foresee(self, *_: Any) -> None: ...

    def table(self, _: str) -> Any:
        return SimpleNamespace(opened_at=lambda _: SimpleNamespace(version=version()))


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

    lh.RowIndex, lh.Dataset  # noqa: B018 - loads torch
    imported, anon = _bench.peak_mib(), _bench.status_mib("RssAnon")
    start = time.perf_counter()
    index = lh.RowIndex.load(path_of(args, n), Catalog())
    opened = time.perf_counter()
    ds = lh.Dataset(index, batch_size=BATCH, seed=7)
    ds.steps(0, 0)  # what a process opens before its first batch
    ready = time.perf_counter()
    measures = {"open ms": (opened - start) * 1e3, "Dataset ms": (ready - opened) * 1e3}
    places = np.random.default_rng(0).integers(0, n - BATCH, SEEKS).tolist()
    steps = [step * BATCH for step in range(STEPS)]
    for shuffle in SHUFFLES:
        measures |= timed(f"seek {shuffle}", lambda: refs_of(args, n), lambda shuffle=shuffle: order_for(n, shuffle), places)
        order = order_for(n, shuffle)
        order.rows(1, 0, BATCH)
        measures |= timed(f"step {shuffle}", lambda: refs_of(args, n), lambda order=order: order, steps)
    return {
        **measures,
        "use MiB peak": _bench.peak_mib() - imported,
        "use MiB anon": _bench.status_mib("RssAnon"),
        "above imports": _bench.status_mib("RssAnon") - anon,
    }


def order_for(n: int, shuffle: Any) -> Any:
    from lakehouse.order import Order

    return Order(n, 7, shuffle)


def refs_of(args: argparse.Namespace, n: int) -> Any:
    """References of a mapping of their own, none of whose pages is there yet."""
    import lakehouse as lh

    return lh.RowIndex.load(path_of(args, n), Catalog()).blobs("frame")


def timed(name: str, refs_of: Callable[[], Any], order_of: Callable[[], Any], begins: list[int]) -> dict[str, float]:
    """Microseconds of the batches that begin at these positions, cold and warm, and page faults of the former."""
    refs = refs_of()
    passes = []
    for _ in range(1 + WARM_PASSES):
        faults, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.thread_time()
        for at in begins:
            refs.take(order_of().rows(1, at, at + BATCH))
        seconds = time.thread_time() - began
        passes.append((seconds / len(begins) * 1e6, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults))
    (cold, faults), *warm = passes
    return {
        f"{name} cold us": cold,
        f"{name} cold faults": faults / len(begins),
        f"{name} warm us": min(us for us, _ in warm),
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
    _bench.values(merged, ("build s", "save s", "build ns/row", "bytes/row", "build MiB peak", "build MiB anon"))
    _bench.values(merged, ("open ms", "Dataset ms", "use MiB peak", "use MiB anon", "above imports"))
    for what in ("seek", "step"):
        for shuffle in SHUFFLES:
            name = f"{what} {shuffle}"
            _bench.values(merged, (f"{name} warm us", f"{name} cold us", f"{name} cold faults"))
    few, *_, many = merged
    print(f"\nratios {many} / {few}:")
    for key in (
        "build ns/row",
        "open ms",
        "use MiB anon",
        *(f"{what} {shuffle} {how} us" for what in ("seek", "step") for shuffle in SHUFFLES for how in ("warm", "cold")),
    ):
        print(f"  {key:<24}{_bench.median(merged[many], key) / _bench.median(merged[few], key):8.2f}")
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
