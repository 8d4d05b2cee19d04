"""From a picture's bytes to its pixels, upright; damage is an error, never a picture that is grey below."""

from __future__ import annotations

import functools
import io
import re
import struct
import zlib
from typing import TYPE_CHECKING

from udfs import _exif
from udfs._face import MediaError

if TYPE_CHECKING:
    from PIL import Image as PILImage
    from PIL.Image import Transpose
    from PIL.ImageFile import ImageFile

MODES = ("RGB", "L", "RGBA")
# A small file may unfold to gigabytes. Twice Pillow's warning limit: half a gigabyte of RGB.
MAX_PIXELS = 178_956_970

# Offset and bytes that name a format. Never one that starts a program, as EPS does.
_SIGNATURES = (
    (0, b"\xff\xd8\xff", "JPEG"),  # MPO too: a JPEG with more pictures behind it
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (8, b"WEBP", "WEBP"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"II+\0", "TIFF"),
    (0, b"MM\0+", "TIFF"),
    (0, b"BM", "BMP"),
    (0, b"GIF87a", "GIF"),
    (0, b"GIF89a", "GIF"),
)
# libjpeg's warnings after which pixels are missing or wrong; Pillow swallows them.
_DAMAGE = re.compile(r"premature end|bad huffman|bad arithmetic|instead of RST", re.IGNORECASE)


def open_header(data: bytes) -> ImageFile:
    """Read a picture's header.

    Not by `PIL.Image.open`: it loads its formats on first use, which fails now and then when several threads come first,
    and it warns of pictures that are large but allowed.

    Raises:
        MediaError: not a picture of a known format, or more than `MAX_PIXELS`.
    """
    kind = next((name for offset, signature, name in _SIGNATURES if data.startswith(signature, offset)), None)
    if kind is None:
        known = ", ".join(dict.fromkeys(name for *_, name in _SIGNATURES))
        raise MediaError(f"{described(data)} is no picture: expected one of {known}")
    try:
        image = _classes()[kind](io.BytesIO(data))
    except _errors() as error:
        raise _damaged(data, error) from error
    width, height = image.size
    if height * width > MAX_PIXELS:
        raise MediaError(f"a picture of {len(data)} bytes unfolds to {height} x {width} pixels: the limit is {MAX_PIXELS}")
    return image


@functools.cache
def _classes() -> dict[str, type[ImageFile]]:
    from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

    return {
        "JPEG": JpegImagePlugin.JpegImageFile,
        "PNG": PngImagePlugin.PngImageFile,
        "WEBP": WebPImagePlugin.WebPImageFile,
        "TIFF": TiffImagePlugin.TiffImageFile,
        "BMP": BmpImagePlugin.BmpImageFile,
        "GIF": GifImagePlugin.GifImageFile,
    }


def upright_size(image: ImageFile, data: bytes) -> tuple[int, int]:
    """Height and width after the orientation is applied, from the header alone."""
    width, height = image.size
    # Pillow turns TIFF by itself.
    swapped = image.format != "TIFF" and _exif.orientation(data) >= 5
    return (width, height) if swapped else (height, width)


def picture(data: bytes, mode: str, *, at_least: tuple[int, int] | None = None) -> PILImage.Image:
    """Decode the first frame, turned as its EXIF block says.

    Args:
        data: the file.
        mode: one of `MODES`. Alpha is dropped unless it is RGBA, as Pillow's ``convert`` does; 16-bit grey is scaled.
        at_least: upright height and width; a JPEG that is much larger is decoded at a fraction of its size, at least this.

    Raises:
        MediaError: not a picture, or damaged.
    """
    from PIL import Image

    stored = open_header(data)
    turn = 1 if stored.format == "TIFF" else _exif.orientation(data)
    height, width = (at_least[::-1] if turn >= 5 else at_least) if at_least else (0, 0)
    image: PILImage.Image | None = None
    if stored.format == "JPEG" and stored.mode in ("L", "RGB"):
        import simplejpeg

        try:
            # A scale above 5/8 takes longer than decoding everything.
            pixels = simplejpeg.decode_jpeg(
                data, "GRAY" if mode == "L" else mode, min_height=height, min_width=width, min_factor=1.5 if at_least else 1
            )
        except ValueError as error:
            if _DAMAGE.search(str(error)):
                raise _damaged(data, error) from error
        else:
            image = Image.fromarray(pixels[:, :, 0] if mode == "L" else pixels)
    if image is None:
        try:
            image = _converted(stored, mode)
        except _errors() as error:
            raise _damaged(data, error) from error
    return image if turn == 1 else image.transpose(_turned(turn))


def described(data: bytes) -> str:
    """What the bytes look like, for errors."""
    if not data:
        return "an empty value (0 bytes)"
    head = data[:16]
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return f"text of {len(data)} bytes (starting {head.decode('ascii')!r})"
    return f"data of {len(data)} bytes (starting 0x{head[:8].hex()})"


def _converted(image: PILImage.Image, mode: str) -> PILImage.Image:
    from PIL import Image

    image.load()
    if image.mode.startswith("I;16"):
        import numpy as np

        # `convert` would clip at 255; the high byte is what Pillow itself takes of 16-bit RGB.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"samples of mode {image.mode} (32 bits) have no agreed scale to 8 bits")
    if mode != "RGBA":
        image.info.pop("transparency", None)  # it means nothing without alpha, and Pillow may warn of it
    return image.convert(mode)


def _turned(orientation: int) -> Transpose:
    from PIL.Image import Transpose

    return {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }[orientation]


def _errors() -> tuple[type[Exception], ...]:
    """What Pillow raises for data that it can't read: its parsers fail in as many ways as data can be wrong."""
    from PIL.Image import DecompressionBombError

    return (
        *(OSError, ValueError, SyntaxError, EOFError, LookupError, ArithmeticError, TypeError, AttributeError),
        *(struct.error, zlib.error, Warning, DecompressionBombError),
    )


def _damaged(data: bytes, error: Exception) -> MediaError:
    cause = " ".join(str(error).split())[:400]
    return MediaError(f"a picture of {len(data)} bytes can't be decoded: {type(error).__name__}: {cause}")
