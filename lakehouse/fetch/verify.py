"""Checks the records of ``.blob`` files, which upstream's readers never do: a flipped byte comes back silently."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import numpy as np

from lakehouse.errors import FetchError
from lakehouse.fetch.refs import TO_END, BlobRef, BlobRefs, Fetched, Fetcher, Value, unread

_MAGIC = struct.Struct("<I")
_TAIL = struct.Struct("<QI")  # record length, crc32
_MAGIC_NUMBER = 1_481_511_375
_BEFORE_BYTES = _MAGIC.size
_AROUND_BYTES = _MAGIC.size + _TAIL.size
_DAMAGED = "restore the file from a copy, or leave the row out with on_error"


class VerifyingFetcher:
    """Checks magic number, length and crc32 of each record of a ``.blob`` file; other files are read as they are.

    Reads 16 bytes more per record. A reference into a ``.blob`` file that can't be a record's payload (no length, or no
    room for the magic number before it) is an error, not a value that went unchecked.

    Args:
        inner: reads the bytes.
    """

    def __init__(self, inner: Fetcher) -> None:
        self._inner = inner

    @property
    def whole_steps(self) -> bool:
        """As the inner fetcher's."""
        return bool(getattr(self._inner, "whole_steps", False))

    def fetch(self, refs: BlobRefs) -> Fetched:
        """Read every range; one that can't be read, or is damaged, is a FetchError among the values."""
        ids, inverse = np.unique(refs.uri_ids, return_inverse=True)
        blob_files = [uri_id >= 0 and refs.uris[uri_id].endswith(".blob") for uri_id in ids.tolist()]
        checked = np.array(blob_files, np.bool_)[inverse.reshape(-1)]  # [n]
        record = checked & (refs.offsets >= _BEFORE_BYTES) & (refs.lengths >= 0)
        record &= refs.lengths <= np.iinfo(np.int64).max - _AROUND_BYTES
        widened = BlobRefs(
            refs.uris,
            # What is no record is not read at all.
            np.where(checked & ~record, -1, refs.uri_ids),
            np.where(record, refs.offsets - _BEFORE_BYTES, refs.offsets),
            np.where(record, refs.lengths + _AROUND_BYTES, refs.lengths),
        )
        fetched = self._inner.fetch(widened)
        values = fetched.values
        for row in np.flatnonzero(checked).tolist():
            ref = BlobRef(refs.uris[refs.uri_ids[row]], int(refs.offsets[row]), int(refs.lengths[row]))
            values[row] = _payload(ref, values[row]) if record[row] else _no_record(ref)
        referenced = sum(len(value) for value in values if value is not None and not isinstance(value, FetchError))
        return Fetched(values, replace(fetched.stats, bytes_referenced=referenced))

    def __repr__(self) -> str:
        return f"VerifyingFetcher({self._inner!r})"


def _payload(ref: BlobRef, value: Value) -> Value:
    if isinstance(value, FetchError):
        # Its text names the widened range.
        return unread(ref, f"reading its record failed: {value}", "see there", value)
    data = memoryview(value or b"")
    expected = ref.length + _AROUND_BYTES
    if len(data) != expected:
        return unread(ref, f"got a record of {len(data)} bytes, expected {expected}", _DAMAGED)
    (magic,) = _MAGIC.unpack_from(data)
    record_bytes, crc = _TAIL.unpack_from(data, len(data) - _TAIL.size)
    if magic != _MAGIC_NUMBER:
        return unread(ref, f"no record starts there: magic number {magic}, expected {_MAGIC_NUMBER}", _DAMAGED)
    if record_bytes != expected:
        return unread(ref, f"the record says it has {record_bytes} bytes, expected {expected}", _DAMAGED)
    actual = zlib.crc32(data[:-4])
    if actual != crc:
        return unread(ref, f"damaged: its bytes have crc32 {actual:08x}, the record says {crc:08x}", _DAMAGED)
    return bytes(data[_BEFORE_BYTES : -_TAIL.size])


def _no_record(ref: BlobRef) -> FetchError:
    what = "its length is not known" if ref.length == TO_END else "no record's payload can be there"
    return unread(ref, f"it can't be verified: {what}", "correct the reference, or read without verify")
