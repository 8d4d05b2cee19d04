"""Faults of pypaimon 2.1 on object stores, each shown on a real server; remedies in `lakehouse.upstream_store`."""

from __future__ import annotations

import threading

import pytest
from pypaimon.common.options import Options
from pypaimon.filesystem.pyarrow_file_io import PyArrowFileIO

from lakehouse.upstream_store import S3FileIO
from tests.stores.fixtures import Lake, lake_on
from tests.stores.proxy import Proxy


def outcomes(kind: type[PyArrowFileIO], proxy: Proxy) -> list[bool]:
    """Of two writers that begin together to write one file "atomically", each request taking 0.2 s."""
    lake = lake_on(proxy.server)
    writers = [kind(lake.warehouse, Options(dict(lake.options))) for _ in range(2)]
    for number, writer in enumerate(writers):  # warm
        assert writer.try_to_write_atomic(f"{lake.warehouse}/warm-{number}", "")
    proxy.delay_s = 0.2
    begin = threading.Barrier(2)
    won: list[bool] = []

    def write(number: int) -> None:
        begin.wait()
        won.append(writers[number].try_to_write_atomic(f"{lake.warehouse}/snapshot-1", f"writer {number}"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(won)


def test_files_below_a_hash_or_question_mark_are_not_found_again(s3_lake: Lake) -> None:
    """What follows one in a path is dropped, by some calls and not by all."""
    upstream, ours = (kind(s3_lake.warehouse, Options(dict(s3_lake.options))) for kind in (PyArrowFileIO, S3FileIO))
    for name in ("a#b", "a?b=c"):
        path = f"{s3_lake.warehouse}/{name}/file"
        assert upstream.to_filesystem_path(path) == f"{s3_lake.warehouse.removeprefix('s3://')}/a"
        ours.write_file(path, name)
        assert ours.read_file_utf8(path) == name


def test_two_writers_are_both_told_that_they_were_first(s3_proxy: Proxy) -> None:
    """It asks whether the file is there, writes another one, and copies that over: snapshots are lost so."""
    assert outcomes(PyArrowFileIO, s3_proxy) == [True, True]


def test_ours_tells_one_of_them(s3_proxy: Proxy) -> None:
    assert outcomes(S3FileIO, s3_proxy) == [False, True]


@pytest.mark.parametrize(("size", "goes_on"), [(8, False), (4096, True)])  # right: True for both
def test_a_refusal_longer_than_the_read_is_final(s3_proxy: Proxy, size: int, goes_on: bool) -> None:
    """pyarrow 19 writes the refusal into the memory for the bytes. Remedy: none; docs/stores/s3.md says what to do."""
    lake = lake_on(s3_proxy.server)
    file_io = PyArrowFileIO(lake.warehouse, Options(dict(lake.options)))
    path = f"{lake.warehouse}/deleted-rows"
    with file_io.new_output_stream(path) as stream:
        stream.write(bytes(8192))
    s3_proxy.rule = lambda request: "503" if request.range is not None and not request.again else None
    with file_io.new_input_stream(path) as stream:
        if goes_on:
            assert stream.read(size) == bytes(size)
        else:
            with pytest.raises(OSError, match="Failed to flush response stream"):
                stream.read(size)
    assert s3_proxy.faults["503"] == 1
