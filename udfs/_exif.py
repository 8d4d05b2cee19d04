"""EXIF without a decoder: where the block is in a file, and what its directories hold.

Written for data that lies: every offset and count is checked against what is there, and what can't be read is left out.
"""

from __future__ import annotations

import math
import struct
from typing import Any

_ORDERS = {b"II": "<", b"MM": ">"}
_HEADER = b"Exif\0\0"
_MAX_STEPS = 2000  # segments, chunks or entries: far above any real file
_EXIF_POINTER, _GPS_POINTER = 0x8769, 0x8825
_ORIENTATION = 0x0112
# Pointers, thumbnails and the makers' private data say nothing outside the file.
_LEFT_OUT = {0x014A, 0x8769, 0x8825, 0xA005, 0x927C, 0xC4A5, 0x0201, 0x0202, 0x0111, 0x0117, 0x02BC, 0x8773, 0x83BB}
_MAX_VALUE_BYTES = 4096

# TIFF 6.0, field types: struct format of one value.
_FORMATS = {1: "B", 3: "H", 4: "I", 5: "II", 6: "b", 8: "h", 9: "i", 10: "ii", 11: "f", 12: "d", 13: "I"}
_TEXT, _UNDEFINED = 2, 7


def find(data: bytes) -> bytes | None:
    """The EXIF block (a TIFF header and what follows) of a JPEG, PNG, WebP or TIFF; None where there is none."""
    if data.startswith(b"\xff\xd8"):
        return _in_jpeg(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _in_chunks(data, 8, ">I4s", b"eXIf", 4)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _in_chunks(data, 12, "<4sI", b"EXIF", 0)
    if data[:4] in (b"II*\0", b"MM\0*"):
        return data
    return None


def orientation(data: bytes) -> int:
    """How a picture is stored, 1 to 8; 1 (upright) where nothing sensible is said."""
    block = find(data)
    value = _directory(block, _first(block)).get(_ORIENTATION) if block else None
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def read(data: bytes) -> dict[str, Any]:
    """Names to values, all of JSON's types; GPS in a dict of its own under ``"GPSInfo"``."""
    block = find(data)
    if block is None:
        return {}
    from PIL.ExifTags import GPSTAGS, TAGS

    main = _directory(block, _first(block))
    pointers = {tag: main.get(tag) for tag in (_EXIF_POINTER, _GPS_POINTER)}
    inner = pointers[_EXIF_POINTER]
    if isinstance(inner, int):
        main = {**_directory(block, inner), **main}
    found = {TAGS.get(tag, f"0x{tag:04x}"): value for tag, value in sorted(main.items()) if tag not in _LEFT_OUT}
    place = pointers[_GPS_POINTER]
    gps = _directory(block, place) if isinstance(place, int) else {}
    if gps:
        found["GPSInfo"] = {GPSTAGS.get(tag, f"0x{tag:04x}"): value for tag, value in sorted(gps.items())}
    return found


def _in_jpeg(data: bytes) -> bytes | None:
    position = 2
    for _ in range(_MAX_STEPS):
        if position + 4 > len(data) or data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF or 0xD0 <= marker <= 0xD8 or marker == 0x01:
            position += 1 if marker == 0xFF else 2
            continue
        (length,) = struct.unpack_from(">H", data, position + 2)
        if marker in (0xDA, 0xD9) or length < 2:
            return None
        if marker == 0xE1 and data[position + 4 : position + 10] == _HEADER:
            return data[position + 10 : position + 2 + length]
        position += 2 + length
    return None


def _in_chunks(data: bytes, position: int, layout: str, wanted: bytes, checksum_bytes: int) -> bytes | None:
    for _ in range(_MAX_STEPS):
        if position + 8 > len(data):
            return None
        first, second = struct.unpack_from(layout, data, position)
        name, length = (second, first) if isinstance(first, int) else (first, second)
        if name == wanted:
            return data[position + 8 : position + 8 + length].removeprefix(_HEADER)
        # WebP pads a chunk to an even length; PNG ends it with a checksum instead.
        position += 8 + length + (checksum_bytes or length % 2)
    return None


def _first(block: bytes) -> int:
    order = _ORDERS.get(block[:2])
    return struct.unpack_from(order + "I", block, 4)[0] if order and len(block) >= 8 else len(block)


def _directory(block: bytes, start: int) -> dict[int, Any]:
    order = _ORDERS.get(block[:2])
    if order is None or start + 2 > len(block):
        return {}
    (entries,) = struct.unpack_from(order + "H", block, start)
    found: dict[int, Any] = {}
    first = start + 2
    # An entry is tag u16, type u16, count u32, and the value or its offset in 4 bytes.
    for at in range(first, min(first + 12 * min(entries, _MAX_STEPS), len(block) - 11), 12):
        tag, kind, count = struct.unpack_from(order + "HHI", block, at)
        size = count * (1 if kind in (_TEXT, _UNDEFINED) else struct.calcsize("=" + _FORMATS.get(kind, "")))
        if not 0 < size <= _MAX_VALUE_BYTES:
            continue
        place = at + 8 if size <= 4 else struct.unpack_from(order + "I", block, at + 8)[0]
        if place + size <= len(block):
            found[tag] = _value(block[place : place + size], order, kind, count)
    return found


def _value(raw: bytes, order: str, kind: int, count: int) -> Any:
    if kind in (_TEXT, _UNDEFINED):
        text = raw.rstrip(b"\0")
        readable = all(32 <= byte < 127 for byte in text)
        return text.decode("utf-8", "replace") if kind == _TEXT or readable else raw.hex()
    one = _FORMATS[kind]
    numbers: tuple[Any, ...] = struct.unpack(order + one * count, raw)
    if len(one) == 2:  # a fraction; some cameras write 0/0 for "unknown"
        numbers = tuple(a / b if b else None for a, b in zip(numbers[::2], numbers[1::2], strict=True))
    values = [None if isinstance(number, float) and not math.isfinite(number) else number for number in numbers]
    return values[0] if len(values) == 1 else values
