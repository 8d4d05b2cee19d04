"""JPEGs for the benchmarks: smooth random colours, about 14 KB at 320x240, which is what frames of that size take."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image


def drawn(rows: int, width: int, height: int, seed: int = 0) -> Iterator[bytes]:
    """JPEG files, the same for the same arguments."""
    rng = np.random.default_rng(seed)
    for _ in range(rows):
        noise = rng.integers(0, 256, (height // 20, width // 20, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        yield file.getvalue()


def folder_of(folder: Path, rows: int, width: int, height: int) -> list[Path]:
    """The same as files, written once."""
    paths = [folder / f"{i:06d}.jpg" for i in range(rows)]
    if not paths[-1].exists():
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in zip(paths, drawn(rows, width, height), strict=True):
            path.write_bytes(data)
    return paths
