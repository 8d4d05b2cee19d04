"""Raw bytes of 5,000 JPEGs of 320x240, every row once in random order, warm files: this loader against pypaimon's own.

The table is what drives make of it: partitioned by camera, appended in five commits. ``--one-file`` puts all rows into one
file instead, pypaimon's best case.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import _bench
import _pictures

BATCH, EPOCHS = 64, 8
CHANNELS = ("CAM_FRONT", "CAM_FRONT_LEFT", "CAM_FRONT_RIGHT")


def table_of(args: argparse.Namespace) -> Any:
    import lakehouse as lh

    return lh.connect(warehouse=str(args.data)).table(name_of(args))


def name_of(args: argparse.Namespace) -> str:
    return "default.one_file" if args.one_file else "default.drives"


def prepare(args: argparse.Namespace) -> str:
    import pyarrow as pa

    import lakehouse as lh

    catalog = lh.connect(warehouse=str(args.data))
    if name_of(args) not in catalog.tables():
        schema = pa.schema([("id", pa.int64()), ("channel", pa.string()), ("jpg", pa.large_binary())])
        table = catalog.create_table(name_of(args), schema, partition_by=() if args.one_file else ["channel"])
        drawn = enumerate(_pictures.drawn(args.rows, 320, 240))
        rows = [{"id": i, "channel": CHANNELS[i % len(CHANNELS)], "jpg": data} for i, data in drawn]
        commits = 1 if args.one_file else 5
        for start in range(0, args.rows, args.rows // commits):
            table.append(rows[start : start + args.rows // commits])
    index = table_of(args).latest().query().select("jpg").index()
    return (
        f"{len(index):,} JPEGs of 320x240, {index.blobs('jpg').total_bytes / len(index):,.0f} bytes on average, "
        f"in {len(index.blobs('jpg').uris)} files, batch {BATCH}"
    )


def pypaimon_map_style(args: argparse.Namespace) -> tuple[int, float]:
    import torch

    builder = table_of(args).paimon.new_read_builder().with_projection(["id", "jpg"])
    dataset = builder.new_read().to_torch(builder.new_scan().plan().splits(), streaming=False)
    torch.manual_seed(1)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=list)
    start = time.perf_counter()
    seen = sum(len(batch) for batch in loader)
    return seen, time.perf_counter() - start


def lakehouse(args: argparse.Namespace) -> tuple[int, float]:
    import lakehouse as lh

    index = table_of(args).latest().query().select("jpg").index()
    loader = lh.Loader(lh.Dataset(index, batch_size=BATCH, seed=1, shuffle="rows", tail="pad"))
    start = time.perf_counter()
    seen = 0
    for _ in range(EPOCHS):  # one takes too little time to measure
        for batch in loader:
            seen += int(batch["valid"].sum())
    return seen, time.perf_counter() - start


def pread_loop(args: argparse.Namespace) -> tuple[int, float]:
    """The limit: os.pread at known places, in random order, nothing else."""
    refs = table_of(args).latest().query().select("jpg").index().blobs("jpg")
    order = np.random.default_rng(1).permutation(len(refs))
    files = [os.open(uri, os.O_RDONLY) for uri in refs.uris]
    places = list(zip(refs.uri_ids[order].tolist(), refs.lengths[order].tolist(), refs.offsets[order].tolist(), strict=True))
    start = time.perf_counter()
    seen = 0
    for _ in range(EPOCHS):
        for i, n, at in places:
            seen += len(os.pread(files[i], n, at)) > 0
    return seen, time.perf_counter() - start


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--one-file", action="store_true", help="all rows in one file")


if __name__ == "__main__":
    variants = {"pypaimon map-style": pypaimon_map_style, "lakehouse": lakehouse, "os.pread loop (limit)": pread_loop}
    _bench.main("raw bytes, random rows", variants, prepare, lambda args: f"lakehouse-bench-raw-{args.rows}", options=options)
