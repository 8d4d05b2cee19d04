"""Raw bytes of 5,000 JPEGs of 320x240, every row once in random order, warm files: this loader against pypaimon's own."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
import _bench

ROWS, BATCH = 5_000, 64


def prepare(folder: Path) -> str:
    import pyarrow as pa

    import lakehouse as lh

    catalog = lh.connect(warehouse=str(folder))
    if "default.raw" not in catalog.tables():
        rng = np.random.default_rng(0)

        def rows() -> Any:
            for i in range(ROWS):
                noise = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)
                file = io.BytesIO()
                Image.fromarray(noise).resize((320, 240), Image.Resampling.BICUBIC).save(file, "JPEG", quality=88)
                yield {"id": i, "jpg": file.getvalue()}

        catalog.create_table("default.raw", pa.schema([("id", pa.int64()), ("jpg", pa.large_binary())])).append(rows())
    index = catalog.table("default.raw").latest().query().select("jpg").index()
    mean = index.blobs("jpg").total_bytes / len(index)
    return f"{len(index):,} JPEGs of 320x240, {mean:,.0f} bytes on average"


def lakehouse_loader(folder: Path) -> tuple[int, float]:
    import lakehouse as lh

    index = lh.connect(warehouse=str(folder)).table("default.raw").latest().query().select("jpg").index()
    loader = lh.Loader(lh.Dataset(index, batch_size=BATCH, seed=1, shuffle="rows", tail="pad"))
    start = time.perf_counter()
    seen = 0
    for _ in range(4):  # epochs: one takes too little time to measure
        for batch in loader:
            seen += sum(batch["valid"].tolist())
    return seen, time.perf_counter() - start


def pypaimon_map_style(folder: Path) -> tuple[int, float]:
    import torch

    import lakehouse as lh

    table = lh.connect(warehouse=str(folder)).table("default.raw").paimon
    builder = table.new_read_builder().with_projection(["id", "jpg"])
    dataset = builder.new_read().to_torch(builder.new_scan().plan().splits(), streaming=False)
    torch.manual_seed(1)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=list)
    start = time.perf_counter()
    seen = sum(len(batch) for batch in loader)
    return seen, time.perf_counter() - start


def pread_loop(folder: Path) -> tuple[int, float]:
    """The limit: os.pread at known places, in random order, nothing else."""
    import os

    import lakehouse as lh

    refs = lh.connect(warehouse=str(folder)).table("default.raw").latest().query().select("jpg").index().blobs("jpg")
    order = np.random.default_rng(1).permutation(len(refs))
    files = [os.open(uri, os.O_RDONLY) for uri in refs.uris]
    places = list(zip(refs.uri_ids[order].tolist(), refs.lengths[order].tolist(), refs.offsets[order].tolist(), strict=True))
    start = time.perf_counter()
    seen = 0
    for _ in range(4):
        for i, n, at in places:
            seen += len(os.pread(files[i], n, at)) > 0
    return seen, time.perf_counter() - start


if __name__ == "__main__":
    variants = {"pypaimon map-style": pypaimon_map_style, "lakehouse": lakehouse_loader, "os.pread loop (limit)": pread_loop}
    _bench.main("raw bytes, random rows", variants, prepare, "lakehouse-bench-raw")
