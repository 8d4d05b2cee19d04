"""Mapped files: what was read can be let go, and nothing but mapped files ever is."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.fetch import BlobRefs
from lakehouse.index import RowIndex, Source
from lakehouse.index.mapped import let_go, map_file
from lakehouse.index.storage import IndexFile

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20


def resident_bytes() -> int:
    """Of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssFile")).split()[1]) * 1024


def test_what_is_let_go_is_not_resident_and_reads_the_same(tmp_path: Path) -> None:
    expected = np.arange(8 * MIB // 8)
    expected.tofile(tmp_path / "numbers")
    values = np.frombuffer(map_file(tmp_path / "numbers"), np.int64)
    before = resident_bytes()
    assert int(values.sum()) == int(expected.sum())
    assert resident_bytes() - before > 6 * MIB
    let_go(values[: len(values) // 2])
    assert resident_bytes() - before < 6 * MIB
    let_go(values)
    assert resident_bytes() - before < 2 * MIB
    assert np.array_equal(values, expected)


def test_own_memory_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096 * 4))
    mapped = map_file(tmp_path / "file")
    own = np.arange(MIB)
    let_go(own)
    let_go(pa.py_buffer(own))
    let_go(own[:0])
    assert np.array_equal(own, np.arange(MIB))
    del mapped
    gc.collect()
    let_go(own)
    assert np.array_equal(own, np.arange(MIB))


def test_an_empty_file_maps_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert map_file(tmp_path / "empty").size == 0


def test_a_mapped_index_is_saved_without_being_held(tmp_path: Path) -> None:
    n = 1_500_000
    refs = BlobRefs(("/t/a.blob",), np.zeros(n, np.int32), np.arange(n) * 100, np.full(n, 90))
    schema = pa.schema([("label", pa.int32()), ("frame", pa.large_binary())])
    label = pa.array(np.arange(n, dtype=np.int32) % 7)
    index = RowIndex(Source("default.t", "u", 1, "/t"), schema, np.arange(n), {"label": label}, {"frame": refs})
    index.save(tmp_path / "one.idx")
    size = (tmp_path / "one.idx").stat().st_size
    mapped = RowIndex._mapped(IndexFile(tmp_path / "one.idx"), Source("default.t", "u", 1, "/t"))
    before = resident_bytes()
    mapped.save(tmp_path / "two.idx")
    assert (tmp_path / "two.idx").read_bytes() == (tmp_path / "one.idx").read_bytes()
    # Pieces of 8 MiB, and the last page of each.
    assert size > 35 * MIB
    assert resident_bytes() - before < 20 * MIB
