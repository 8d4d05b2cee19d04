"""Any media: what kind of data it is, a checksum, what a camera wrote about a picture.

Each function takes bytes, a ``daft.File``, None, or a Daft expression over a binary or File column, and the keywords
``on_error`` and ``key`` beside its own; see `udfs.Face`.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

from udfs import _exif
from udfs._face import MediaError, face
from udfs._pixels import described

__all__ = ["checksum", "content_type", "exif"]

_ALGORITHMS = ("sha256", "crc32")
_HEAD_BYTES = 512
_UNKNOWN = "application/octet-stream"

# Offset, bytes, type; the first that fits. Formats met in driving, robotics and image data.
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),  # after RIFF, as the next two
    (8, b"WAVE", "audio/wav"),
    (8, b"AVI ", "video/x-msvideo"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"II+\0", "image/tiff"),
    (0, b"MM\0+", "image/tiff"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypheic", "image/heic"),
    (4, b"ftypmif1", "image/heif"),
    (4, b"ftypqt", "video/quicktime"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "image/jp2"),
    (0, b"\x76\x2f\x31\x01", "image/x-exr"),
    (0, b"\x1a\x45\xdf\xa3", "video/x-matroska"),
    (0, b"\0\0\0\x01\x67", "video/h264"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\x89HDF\r\n\x1a\n", "application/x-hdf5"),
    (0, b"\x93NUMPY", "application/x-npy"),
    (0, b"PAR1", "application/vnd.apache.parquet"),
    (0, b"ARROW1", "application/vnd.apache.arrow.file"),
    (0, b"\x89MCAP0\r\n", "application/x-mcap"),
    (0, b"#ROSBAG V", "application/x-rosbag"),
    (0, b"LASF", "application/vnd.las"),
    (0, b"ply\n", "model/ply"),
    (0, b"# .PCD", "application/x-pcd"),
    (0, b"SQLite format 3\0", "application/vnd.sqlite3"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"%!PS", "application/postscript"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd"),
    (257, b"ustar", "application/x-tar"),
    (0, b"BM", "image/bmp"),  # two letters that also start words: after everything longer
)


@face(lambda types, _: types.string(), prefix_bytes=_HEAD_BYTES, threads=False, batch_rows=256)
def content_type(data: bytes) -> str:
    """The MIME type that the first bytes name; of a File only these are read.

    Text is ``"text/plain"``, no bytes at all ``"application/x-empty"``, anything unknown ``"application/octet-stream"``;
    no value is an error.
    """
    return _kind(data[:_HEAD_BYTES])


def _kind(head: bytes) -> str:
    if not head:
        return "application/x-empty"
    riff = head.startswith(b"RIFF")
    text = _is_text(head)
    for offset, magic, kind in _MAGIC:
        if head.startswith(magic, offset) and (offset != 8 or riff) and not (text and magic == b"BM"):
            return kind
    return "text/plain" if text else _UNKNOWN


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # a character may be cut at the end of what was read
            return False
        text = head[: error.start].decode("utf-8")
    return all(character >= " " or character in "\t\n\r\f\x1b" for character in text)


def _check_algorithm(algorithm: str) -> None:
    if algorithm not in _ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(map(repr, _ALGORITHMS))}, got {algorithm!r}")


@face(lambda types, _: types.string(), check=_check_algorithm, threads=False, batch_rows=256)
def checksum(data: bytes, *, algorithm: str = "sha256") -> str:
    """A checksum of all bytes, as lower-case hex digits; no value is an error.

    Args:
        data: any bytes.
        algorithm: ``"sha256"`` (64 digits: equal means the same data) or ``"crc32"`` (8 digits: finds accidents, 20 times
            as fast).
    """
    if algorithm == "crc32":
        return f"{zlib.crc32(data):08x}"
    return hashlib.sha256(data).hexdigest()


def _to_json(found: dict[str, Any]) -> str:
    return json.dumps(found, ensure_ascii=False, allow_nan=False)


@face(lambda types, _: types.string(), to_column=_to_json, threads=False, batch_rows=256)
def exif(data: bytes) -> dict[str, Any]:
    """What the camera wrote: tag names to values of JSON's types, GPS in a dict of its own under ``"GPSInfo"``.

    Fractions become numbers (None for a zero denominator, which cameras write for "unknown"); bytes become text where
    they are readable, else hex digits. Thumbnails and the makers' private notes are left out. A picture without EXIF gives
    ``{}``; of a damaged block, what can be read. Anything but a picture is an error.

    Returns:
        A dict; in Daft a string of JSON.
    """
    if not _kind(data[:_HEAD_BYTES]).startswith("image/"):
        raise MediaError(f"{described(data)} is no picture")
    return _exif.read(data)
