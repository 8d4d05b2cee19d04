"""Raw bytes of 5,000 JPEGs of 320x240, every row once in random order, warm files: this loader against pypaimon's own."""

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

ROWS, BATCH, EPOCHS = 5_000, 64, 8


def table_of(args: argparse.Namespace) -> Any:
    import lakehouse as lh

    return lh.connect(warehouse=str(args.data)).table("default.raw")


def prepare(args: argparse.Namespace) -> str:
    import pyarrow as pa

    import lakehouse as lh

    catalog = lh.connect(warehouse=str(args.data))
    if "default.raw" not in catalog.tables():
        schema = pa.schema([("id", pa.int64()), ("jpg", pa.large_binary())])
        drawn = _pictures.drawn(ROWS, 320, 240)
        catalog.create_table("default.raw", schema).append({"id": i, "jpg": data} for i, data in enumerate(drawn))
    index = table_of(args).latest().query().select("jpg").index()
    return (
        f"{len(index):,} JPEGs of 320x240, {index.blobs('jpg').total_bytes / len(index):,.0f} bytes on average, batch {BATCH}"
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


if __name__ == "__main__":
    variants = {"pypaimon map-style": pypaimon_map_style, "lakehouse": lakehouse, "os.pread loop (limit)": pread_loop}
    _bench.main("raw bytes, random rows", variants, prepare, "lakehouse-bench-raw")
