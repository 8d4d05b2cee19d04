"""Pictures that tests draw: plausible road scenes, and the odd kinds that real collections hold."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image, ImageDraw


def draw_road(seed: int, width: int = 1280, height: int = 720) -> Image.Image:
    """A front camera's view: sky, verge, road, lane marks, cars, and sensor noise, so that JPEGs have a real one's size."""
    rng = np.random.default_rng(seed)
    light = rng.uniform(0.35, 1.1)
    horizon = int(height * rng.uniform(0.4, 0.55))
    rows = np.linspace(0, 1, height)[:, np.newaxis]  # [height, 1]
    sky = np.array([120, 165, 215]) * (0.7 + 0.5 * rows)
    verge = np.array([70, 105, 55]) * (0.6 + 0.6 * rows)
    base = np.where(np.arange(height)[:, np.newaxis] < horizon, sky, verge) * light  # [height, channel]
    scene = np.repeat(base[:, np.newaxis, :], width, axis=1)
    image = Image.fromarray(scene.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    vanish = (int(width * rng.uniform(0.4, 0.6)), horizon)
    asphalt, paint = int(85 * light), int(215 * light)
    draw.polygon([vanish, (-width // 5, height), (width + width // 5, height)], fill=(asphalt, asphalt, asphalt + 6))
    for lane in (-0.05, 0.35, 0.65, 1.05):
        for near in np.arange(0.05, 1.0, 0.12):  # 0: at the horizon, 1: at the camera
            far = max(near - 0.06, 0.0)
            points = [(vanish[0] + (lane * width - vanish[0]) * t, horizon + (height - horizon) * t) for t in (far, near)]
            draw.line(points, fill=(paint, paint, int(paint * 0.85)), width=max(1, int(width * 0.008 * near)))
    for _ in range(int(rng.integers(1, 5))):
        depth = rng.uniform(0.1, 0.7)
        left = int(vanish[0] + (rng.uniform(0.0, 1.0) * width - vanish[0]) * depth)
        bottom = int(horizon + (height - horizon) * depth)
        side = max(2, int(width * 0.14 * depth))
        color = tuple(int(value) for value in rng.integers(20, 230, 3) * min(light, 1.0))
        draw.rectangle((left, bottom - side * 3 // 4, left + side, bottom), fill=color)
    noise = rng.normal(0, 2.2, (height, width, 1)) + rng.normal(0, 0.7, (height, width, 3))
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """``image`` written by Pillow in the format ``kind``."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg_bytes(image: Image.Image, quality: int = 90, **options: Any) -> bytes:
    return encoded(image, "JPEG", quality=quality, **options)


def oriented(orientation: int) -> Image.Exif:
    """An EXIF block to pass as ``exif=``."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header promises ``width`` x ``height``."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (png_chunk(b"IHDR", header), png_chunk(b"IDAT", zlib.compress(b"\0" * 100)), png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def jpeg_bomb(width: int, height: int) -> bytes:
    """A JPEG of a few hundred bytes whose frame promises ``width`` x ``height``."""
    data = bytearray(jpeg_bytes(Image.new("RGB", (16, 16))))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def with_segment(jpeg: bytes, marker: int, body: bytes, *, length: int | None = None) -> bytes:
    """``jpeg`` with one more segment at its start; ``length`` may lie."""
    stated = len(body) + 2 if length is None else length
    return jpeg[:2] + struct.pack(">BBH", 0xFF, marker, stated) + body + jpeg[2:]
