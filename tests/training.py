"""Small real training sets: blobs in real files of Paimon's layout, and RowIndexes over them, without a catalog."""

from __future__ import annotations

import io
import json
import multiprocessing
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image as PILImage

from lakehouse.dataset import Dataset
from lakehouse.fetch import BlobRefs
from lakehouse.index import RowIndex, Source
from lakehouse.loader import Loader
from lakehouse.mixture import Mixture, Weighted
from tests.stores import place

# Worker processes under forkserver then need not import torch each.
multiprocessing.get_context("forkserver").set_forkserver_preload(["lakehouse.loader"])

MAGIC = struct.pack("<I", 1481511375)


def write_blobs(path: Path, values: Sequence[bytes | None]) -> BlobRefs:
    """A ``.blob`` file of these values, each as ``magic, payload, length, crc32``; None: null."""
    offsets, lengths = [], []
    out = bytearray()
    for value in values:
        if value is None:
            offsets.append(0)
            lengths.append(0)
            continue
        body = MAGIC + value + struct.pack("<Q", len(value) + 16)
        offsets.append(len(out) + 4)
        lengths.append(len(value))
        out += body + struct.pack("<I", zlib.crc32(body))
    ids = np.array([-1 if value is None else 0 for value in values], np.int32)
    return BlobRefs((place.write(path, bytes(out)),), ids, np.array(offsets, np.int64), np.array(lengths, np.int64))


def make_index(
    folder: Path,
    scalars: Mapping[str, Any] | None = None,
    blobs: Mapping[str, Sequence[bytes | None]] | None = None,
    *,
    table: str = "default.frames",
) -> RowIndex:
    """An index over scalar columns (Arrow arrays or lists) and BLOB columns (bytes, written to files under ``folder``)."""
    columns = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in (scalars or {}).items()}
    refs = {name: write_blobs(folder / f"{name}.blob", values) for name, values in (blobs or {}).items()}
    fields = [pa.field(name, array.type) for name, array in columns.items()]
    fields += [pa.field(name, pa.large_binary()) for name in refs]
    n = len(next(iter([*columns.values(), *refs.values()])))
    source = Source(table, "00000000-0000-0000-0000-000000000001", 3, place.location(folder), store=place.reader())
    return RowIndex(source, pa.schema(fields), np.arange(n) + 1000, columns, refs)


def payload(i: int) -> bytes:
    """Bytes of a length of its own, for row ``i``."""
    return bytes([i % 251]) * (i % 37) + i.to_bytes(4, "little")


def raw_index(folder: Path, n: int) -> RowIndex:
    """``id`` and raw bytes."""
    return make_index(folder, {"id": pa.array(range(n), pa.int64())}, {"data": [payload(i) for i in range(n)]})


def jpeg(i: int, height: int = 24, width: int = 32) -> bytes:
    """A small JPEG that differs for every ``i``."""
    rng = np.random.default_rng(i)
    small = PILImage.fromarray(rng.integers(0, 255, (3, 4, 3), dtype=np.uint8))
    file = io.BytesIO()
    small.resize((width, height), PILImage.Resampling.BILINEAR).save(file, "JPEG", quality=90)
    return file.getvalue()


def image_index(folder: Path, n: int, shape: Callable[[int], tuple[int, int]] = lambda _: (24, 32)) -> RowIndex:
    """``id`` and JPEGs."""
    images = [jpeg(i, *shape(i)) for i in range(n)]
    return make_index(folder, {"id": pa.array(range(n), pa.int64())}, {"image": images})


def one(index: RowIndex, **options: Any) -> Dataset:
    """A data set of one rank in stored order, unless said otherwise."""
    return Dataset(index, **{"batch_size": 4, "rank": 0, "world": 1, "shuffle": None, **options})


def noisy(batch: dict[str, Any], rngs: Any) -> dict[str, Any]:
    """Draws twice for some rows, in an order of its own, and not at all for others."""
    draws = torch.zeros(len(rngs), dtype=torch.float64)
    for i in reversed(range(0, len(rngs), 2)):
        draws[i] = rngs[i].random() + rngs[i].random()
    return {**batch, "draw": draws}


def own_draw(data: bytes, rng: np.random.Generator) -> float:
    return float(rng.random())


class Maker:
    """Makes loaders over one index, as `lakehouse.testing` asks for them; can be sent to other processes."""

    def __init__(self, index: RowIndex | Mixture | Weighted, start_method: str | None = None, **options: Any) -> None:
        self.index = index
        self.start_method = start_method
        self.options = options

    def __call__(self, **overrides: Any) -> Loader:
        workers = overrides.pop("workers", 0)
        options = {"rank": 0, "world": 1, **self.options, **overrides}
        return Loader(Dataset(self.index, **options), workers=workers, start_method=self.start_method)  # type: ignore[arg-type]


def stored(state: Any) -> Any:
    """As it comes back from a checkpoint."""
    return json.loads(json.dumps(state))


def ids(batches: Any, column: str = "id") -> list[list[int]]:
    """The ids of each batch."""
    return [batch[column].tolist() for batch in batches]


def same(one: Any, other: Any) -> bool:
    """Whether two batches are equal, tensors by value and type."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        return both and one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if type(one) in (list, tuple) and type(one) is type(other):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(type(one) is type(other) and one == other)
