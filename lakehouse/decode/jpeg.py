"""JPEG: what a header says, found without a decoder, and pixels through libjpeg-turbo.

The walk over the segments takes about 2 us for size and orientation together; Pillow's ``open`` and ``getexif`` take 40.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

# bytes, or anything with the buffer protocol that `memoryview` can show as bytes.
Buffer: TypeAlias = "bytes | bytearray | memoryview"
Pixels: TypeAlias = npt.NDArray[np.uint8]

SIGNATURE = b"\xff\xd8\xff"
UPRIGHT = 1
COLORS = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}  # mode to simplejpeg's name of it

_SEGMENT = struct.Struct(">BBH")  # 0xff, marker, length (itself included, marker not)
_FRAME = struct.Struct(">BHHB")  # bits, height, width, components
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start of frame; the three are tables in the same range
_BARE = frozenset(range(0xD0, 0xD9)) | {0x01}  # markers without a length
_FILL, _APP1, _SCAN, _END = 0xFF, 0xE1, 0xDA, 0xD9
# Real headers have 5 to 40 segments, each at most 64 KiB; the bound keeps crafted data from running a long Python loop.
_MAX_STEPS = 2000
_EXIF = b"Exif\0\0"
_ORIENTATION_TAG = 0x0112
_BYTE_ORDERS = {b"II": "<", b"MM": ">"}
_VALUE_FORMATS = {3: "H", 4: "I"}  # SHORT, as the standard says, and LONG, as some cameras write

# Warnings after which pixels are missing or wrong (jerror.h). Others (a bad ICC marker, a few stray bytes before the end,
# as many cameras write) leave the picture whole.
_DAMAGE = re.compile(r"premature end|bad huffman|bad arithmetic|instead of RST", re.IGNORECASE)


class Header(NamedTuple):
    """The header of a JPEG: the picture as stored, before its orientation is applied."""

    height: int
    width: int
    bits: int
    components: int
    orientation: int


def read_header(data: bytes | memoryview) -> Header | None:
    """What the header says; None where no frame is found."""
    found = find_header(data)
    return None if found is None else found[0]


def find_header(data: bytes | memoryview) -> tuple[Header, int] | None:
    """Walk the segments up to the frame; EXIF stands before it, by its standard right at the start.

    Returns:
        The header, and its end: no byte behind that was looked at. None where no frame is found before the data ends or stops
        making sense: a second decoder may know more.
    """
    size = len(data)
    position = 2
    orientation = UPRIGHT
    for _ in range(_MAX_STEPS):
        if position + 10 > size:
            break
        lead, marker, length = _SEGMENT.unpack_from(data, position)
        if marker in _FRAMES and lead == _FILL:
            bits, height, width, components = _FRAME.unpack_from(data, position + 4)
            return Header(height, width, bits, components, orientation), position + 10
        if marker == _APP1 and orientation == UPRIGHT and data[position + 4 : position + 10] == _EXIF:
            orientation = exif_orientation(bytes(data[position + 10 : position + 2 + length]))
        if lead != _FILL or marker in (_SCAN, _END):
            break
        if marker == _FILL:  # any number of fill bytes may stand before a marker
            position += 1
        elif marker in _BARE:
            position += 2
        elif length < 2:
            break
        else:
            position += 2 + length
    return None


def exif_orientation(exif: bytes) -> int:
    """The orientation (1 to 8) in an EXIF block, a TIFF header and its first directory.

    Absent, damaged or out of range: 1, as viewers do.
    """
    order = _BYTE_ORDERS.get(exif[:2])
    if order is None or len(exif) < 8:
        return UPRIGHT
    (directory,) = struct.unpack_from(order + "I", exif, 4)
    if directory + 2 > len(exif):
        return UPRIGHT
    (entries,) = struct.unpack_from(order + "H", exif, directory)
    first = directory + 2
    entry = struct.Struct(order + "HH")
    # An entry is tag u16, type u16, count u32, value u32; the count of entries may promise more than there is.
    for at in range(first, min(first + 12 * entries, len(exif) - 11), 12):
        tag, kind = entry.unpack_from(exif, at)
        if tag == _ORIENTATION_TAG and kind in _VALUE_FORMATS:
            (value,) = struct.unpack_from(order + _VALUE_FORMATS[kind], exif, at + 8)
            return int(value) if 1 <= value <= 8 else UPRIGHT
    return UPRIGHT


def turbo_can(header: Header) -> bool:
    """Whether libjpeg-turbo gives this picture as Pillow would.

    Four components are CMYK in several dialects, which Pillow tells apart; simplejpeg counts bytes in 32 bits.
    """
    return header.bits == 8 and header.components in (1, 3) and 0 < header.height * header.width * 4 < 2**31


def scaled_size(header: Header, eighths: int) -> tuple[int, int]:
    """Height and width when decoded at ``eighths / 8``."""
    return -(-header.height * eighths // 8), -(-header.width * eighths // 8)


def pick_scale(header: Header, height: int, width: int) -> int:
    """The smallest scale, in eighths, that still gives at least ``height`` x ``width``.

    6/8 and 7/8 are never chosen: they have no fast inverse transform and take longer than decoding everything.
    """
    for eighths in range(1, 6):
        scaled_height, scaled_width = scaled_size(header, eighths)
        if scaled_height >= height and scaled_width >= width:
            return eighths
    return 8


@functools.cache
def turbo() -> Callable[..., Pixels]:
    """libjpeg-turbo's decode function, loaded on first use."""
    import simplejpeg

    decode_jpeg: Callable[..., Pixels] = simplejpeg.decode_jpeg
    return decode_jpeg


def decode(data: bytes | memoryview, header: Header, *, mode: str, eighths: int = 8, out: Pixels | None = None) -> Pixels:
    """Decode with libjpeg-turbo; the GIL is released meanwhile.

    Args:
        data: the file.
        header: of the same data.
        mode: ``"RGB"``, ``"RGBA"`` or ``"L"``.
        eighths: decode at this many eighths of the size, which takes a fraction of the time.
        out: C-contiguous memory to decode into, of just the size needed.

    Returns:
        uint8[height, width, channels], ``out``'s memory where it is given.

    Raises:
        ValueError: libjpeg-turbo's error or warning.
    """
    colors = COLORS[mode]
    pixels: Pixels
    if eighths == 8:
        height, width = header.height, header.width
        pixels = turbo()(data, colors, buffer=out)
    else:
        height, width = scaled_size(header, eighths)
        # simplejpeg takes the smallest scale that reaches both sides.
        pixels = turbo()(data, colors, min_height=height, min_width=width, buffer=out)
    if pixels.shape[:2] != (height, width):
        raise ValueError(f"got {pixels.shape[:2]} pixels where the header promises {(height, width)}")
    return pixels


def is_damage(error: ValueError) -> bool:
    """Whether an error of `decode` means that pixels are missing, so that no other decoder may try.

    Pillow shows such pictures half grey, without an error.
    """
    return _DAMAGE.search(str(error)) is not None
