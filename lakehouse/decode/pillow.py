"""Every other format, and JPEGs that libjpeg-turbo refuses, through Pillow.

`PIL.Image.open` is not used: on its way it warns of pictures that are large but allowed, and silencing a warning is not
thread-safe. The class of the format that the first bytes name is called directly, so no format outside the list (EPS
starts Ghostscript) is ever tried.
"""

from __future__ import annotations

import contextlib
import functools
import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lakehouse.decode.jpeg import SIGNATURE, UPRIGHT, Pixels, exif_orientation

if TYPE_CHECKING:
    from PIL import Image as PILImage
    from PIL.ImageFile import ImageFile

FORMATS = ("jpeg", "png", "webp", "tiff", "bmp", "gif", "mpo")

_SIGNATURES = (
    (SIGNATURE, "jpeg"),  # an MPO is a JPEG with more pictures behind it; the first is the one wanted
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),  # BigTIFF
    (b"MM\0+", "tiff"),
    (b"BM", "bmp"),
)
_EXIF = b"Exif\0\0"
_TIFF_ORIENTATION = 274


class Opened(NamedTuple):
    """A picture whose header was read: its size as stored, before its orientation is applied."""

    image: ImageFile
    height: int
    width: int
    orientation: int


def sniff(data: bytes | memoryview) -> str | None:
    """The format that the first bytes name, None when it is none of `FORMATS`."""
    head = bytes(data[:16])
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    return None


@functools.cache
def data_errors() -> tuple[type[Exception], ...]:
    """What Pillow raises for data that it can't read.

    Its parsers fail in as many ways as data can be wrong; arguments are checked before they run.
    """
    from PIL import Image as PILImage

    return (
        *(OSError, ValueError, SyntaxError, EOFError, LookupError, ArithmeticError, TypeError, AttributeError),
        *(struct.error, zlib.error, Warning, PILImage.DecompressionBombError),
    )


@functools.cache
def _classes() -> dict[str, type[ImageFile]]:
    from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

    return {
        "jpeg": JpegImagePlugin.JpegImageFile,
        "png": PngImagePlugin.PngImageFile,
        "gif": GifImagePlugin.GifImageFile,
        "tiff": TiffImagePlugin.TiffImageFile,
        "bmp": BmpImagePlugin.BmpImageFile,
        "webp": WebPImagePlugin.WebPImageFile,
    }


def open_header(data: bytes | memoryview, kind: str) -> Opened:
    """Read the header, not the pixels.

    Raises:
        Exception: one of `data_errors`.
    """
    image = _classes()[kind](io.BytesIO(data))
    width, height = image.size
    if kind == "tiff":
        from PIL.TiffImagePlugin import TiffImageFile

        tag = image.tag_v2.get(_TIFF_ORIENTATION) if isinstance(image, TiffImageFile) else None
        orientation = tag if isinstance(tag, int) and 1 <= tag <= 8 else UPRIGHT
        if orientation >= 5:  # Pillow already names the size that loading will give
            height, width = width, height
    else:
        exif = image.info.get("exif")
        orientation = exif_orientation(exif.removeprefix(_EXIF)) if isinstance(exif, bytes) else UPRIGHT
    return Opened(image, height, width, orientation)


def load(opened: Opened, mode: str) -> PILImage.Image:
    """Decode the first frame as stored, 8 bits a channel.

    Alpha is dropped, not composited, unless ``mode`` is RGBA: Pillow's own rule for ``convert``.

    Raises:
        Exception: one of `data_errors`.
    """
    image: PILImage.Image = opened.image
    with _without_size_warning(opened):
        image.load()
    if opened.image.format == "TIFF" and opened.orientation != UPRIGHT:
        image = image.transpose(_undo(opened.orientation))  # loading a TIFF turned it upright
    if image.mode.startswith("I;16"):
        # `convert` would clip at 255. The high byte is what Pillow itself takes of 16-bit RGB.
        image = _from_array((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"samples of mode {image.mode} (32 bits) have no agreed scale to 8 bits; decode them yourself")
    if mode != "RGBA":
        # Without alpha the transparent colour means nothing, and Pillow warns of a palette that has several.
        image.info.pop("transparency", None)
    if image.mode == "PA" and mode != "RGBA":
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)


def resize(
    image: PILImage.Image,
    height: int,
    width: int,
    resample: str,
    box: tuple[float, float, float, float] | None = None,
) -> PILImage.Image:
    """Stretch to ``height`` x ``width``; the filters average over what they shrink."""
    from PIL import Image as PILImage

    if image.size == (width, height) and box is None:
        return image
    return image.resize((width, height), PILImage.Resampling[resample.upper()], box=box)


def resize_array(pixels: Pixels, height: int, width: int, resample: str, box: tuple[float, float, float, float]) -> Pixels:
    """`resize` for uint8[height, width, channels]; ``box`` is left, upper, right, lower."""
    image = _from_array(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return to_array(resize(image, height, width, resample, box))


def to_array(image: PILImage.Image) -> Pixels:
    """uint8[height, width, channels], without a copy where Pillow's layout allows."""
    pixels: Pixels = np.asarray(image)
    return pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels


def _from_array(pixels: Pixels) -> PILImage.Image:
    from PIL import Image as PILImage

    return PILImage.fromarray(pixels)


def _undo(orientation: int) -> PILImage.Transpose:
    from PIL.Image import Transpose

    return {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_90,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_270,
    }[orientation]


@contextlib.contextmanager
def _without_size_warning(opened: Opened) -> Iterator[None]:
    """Silences the warning that loading a large TIFF gives, in the rare case that it would.

    ``max_pixels`` has been checked by then. `warnings.catch_warnings` is not thread-safe, so it is left alone otherwise.
    """
    from PIL import Image as PILImage

    limit = PILImage.MAX_IMAGE_PIXELS
    if limit is None or opened.height * opened.width <= limit:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PILImage.DecompressionBombWarning)
        yield
