"""The footer index of .blob files, against the engine's own writer and against damage of every kind."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypaimon.common.delta_varint_compressor import DeltaVarintCompressor

from lakehouse import blobfile
from lakehouse.blobfile import NULL, OLDER, BlobIndex, decode_lengths, read_blob_index
from lakehouse.errors import FetchError

lengths = st.lists(st.one_of(st.integers(-2, 300), st.integers(-(2**62), 2**62)), max_size=200)


@given(lengths)
def test_numbers_are_decoded_as_the_engine_writes_them(values: list[int]) -> None:
    assert decode_lengths(DeltaVarintCompressor.compress(values)).tolist() == values


@pytest.mark.parametrize("packed", [b"\x80", b"\x02\x80", b"\x80" * 11 + b"\x00"])
def test_a_number_cut_short_or_too_long_is_an_error(packed: bytes) -> None:
    with pytest.raises(FetchError, match="number"):
        decode_lengths(packed)


def blob_file(payloads: Sequence[bytes | int]) -> bytes:
    """A file in Paimon's blob format, written independently of the engine; an int stands for a null or older marker."""
    out = io.BytesIO()
    records = []
    for payload in payloads:
        if isinstance(payload, int):
            records.append(payload)
            continue
        out.write(struct.pack("<I", 1481511375) + payload + struct.pack("<Q", len(payload) + 16) + b"crc!")
        records.append(len(payload) + 16)
    index = DeltaVarintCompressor.compress(records)
    out.write(index + struct.pack("<IB", len(index), 1))
    return out.getvalue()


def parse(data: bytes, rows: int) -> BlobIndex:
    return read_blob_index(lambda at, n: data[at : at + n], len(data), rows, "test.blob")


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([NULL, OLDER])), max_size=60))
def test_every_payload_is_found(payloads: list[bytes | int]) -> None:
    data = blob_file(payloads)
    index = parse(data, len(payloads))
    found = [data[at : at + n] if n >= 0 else n for at, n in zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)]
    assert found == payloads


def test_an_index_beyond_the_first_read_takes_a_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobfile, "_INDEX_BYTES_A_ROW", 0)  # real payloads that need more than 3 bytes a row fill gigabytes
    payloads: list[bytes | int] = [b"x" * (i % 300) for i in range(100_000)]
    data = blob_file(payloads)
    reads: list[tuple[int, int]] = []

    def read(at: int, n: int) -> bytes:
        reads.append((at, n))
        return data[at : at + n]

    index = read_blob_index(read, len(data), len(payloads), "test.blob")
    assert index.lengths.tolist() == [len(p) for p in payloads if isinstance(p, bytes)]
    assert len(reads) == 2
    assert sum(n for _, n in reads) < len(data) / 10


GOOD = blob_file([b"one", b"", NULL, b"three"])


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", 0),
        (b"abc", 1),
        (GOOD[:-1], 4),
        (GOOD[1:], 4),
        (GOOD[:-1] + b"\x02", 4),  # another version
        (GOOD[:-5] + struct.pack("<IB", 2**31, 1), 4),  # an absurd index length
        (GOOD[:-5] + struct.pack("<IB", 1, 1), 4),
        (GOOD, 3),
        (GOOD, 5),
        (b"junk" + GOOD, 4),
        (blob_file([b"x", -3]), 2),
        (blob_file([5]), 1),  # shorter than any record
    ],
)
def test_damage_is_an_error_that_names_the_file(data: bytes, rows: int) -> None:
    with pytest.raises(FetchError, match=r"test\.blob: not a whole \.blob file"):
        parse(data, rows)


def test_a_short_read_is_an_error() -> None:
    with pytest.raises(FetchError, match="got 2 of the last"):
        read_blob_index(lambda _at, _n: b"xx", len(GOOD), 4, "test.blob")


def test_arrays_have_fixed_types() -> None:
    index = parse(GOOD, 4)
    assert index.offsets.dtype == index.lengths.dtype == np.int64
