"""Ranges through fsspec: real file systems, a real HTTP client with kept-alive sockets, other processes."""

from __future__ import annotations

import http.server
import multiprocessing
import os
import pickle
import re
import signal
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lakehouse.errors import ConfigError, FetchError
from lakehouse.fetch import BlobRef, BlobRefs, Fetched, RangeFetcher, fsspec_read_range

DATA = np.random.default_rng(0).bytes(100_000)


def error_of(fetched: Fetched, row: int) -> str:
    value = fetched.values[row]
    assert isinstance(value, FetchError)
    return str(value)


@pytest.fixture
def memory() -> Iterator[str]:
    import fsspec

    fsspec.filesystem("memory").pipe("/bucket/object", DATA)
    yield "memory://bucket/object"
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_fsspec_reads_urls_with_a_scheme(memory: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    fetcher = RangeFetcher(fsspec_read_range(), retries=0)
    for uri in (memory, f"file://{tmp_path}/a", str(tmp_path / "a")):
        refs = BlobRefs.of(
            [BlobRef(uri, 5, 10), None, BlobRef(uri, 99_990), BlobRef(uri), BlobRef(uri, 7, 0), BlobRef(uri, 99_990, 20)]
        )
        fetched = fetcher.fetch(refs)
        assert fetched.values[:5] == [DATA[5:15], None, DATA[99_990:], DATA, b""]
        assert "got 10 bytes, expected 20" in error_of(fetched, 5)
    missing = fetcher.fetch(BlobRefs.of([BlobRef(f"{memory}/nothing", 0, 4), BlobRef(f"file://{tmp_path}/b", 0, 4)]))
    assert "FileNotFoundError" in error_of(missing, 0)
    assert "FileNotFoundError" in error_of(missing, 1)
    unknown = fetcher.fetch(BlobRefs.of([BlobRef("nosuchscheme://a/b", 0, 4)]))
    assert "nosuchscheme" in error_of(unknown, 0)


def test_options_by_scheme_and_their_secrecy(tmp_path: Path) -> None:
    import fsspec

    class Private(fsspec.implementations.memory.MemoryFileSystem):
        protocol = "private"

        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
            return f"{self.storage_options.get('secret')}".encode()[start:end]

    fsspec.register_implementation("private", Private, clobber=True)
    for options in ({"secret": "hunter2"}, {"private": {"secret": "hunter2"}}):
        reader = fsspec_read_range(options)
        assert reader("private://a", 0, -1) == b"hunter2"
        fetcher = RangeFetcher(reader)
        assert "hunter2" not in repr(fetcher)
        pickled = pickle.dumps(fetcher)
        assert b"hunter2" not in pickled
        with pytest.raises(ConfigError, match="storage_options were left out of a pickle"):
            pickle.loads(pickle.dumps(pickle.loads(pickled))).fetch(BlobRefs.of([BlobRef("private://a", 0, 3)]))


def _read_in_child(fetcher: RangeFetcher, uri: str) -> bytes:
    value = fetcher.fetch(BlobRefs.of([BlobRef(uri, 5, 10)])).values[0]
    return value if isinstance(value, bytes) else str(value).encode()


@pytest.mark.timeout(60)
def test_options_travel_to_a_spawned_process(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    fetcher = RangeFetcher(fsspec_read_range({"auto_mkdir": False}), retries=1, span_bytes=4)
    assert fetcher.fetch(BlobRefs.of([BlobRef(f"file://{tmp_path}/a", 5, 10)])).values == [DATA[5:15]]
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_check_in_child, args=(fetcher, f"file://{tmp_path}/a"))
    process.start()
    process.join(50)
    assert process.exitcode == 0


def _check_in_child(fetcher: RangeFetcher, uri: str) -> None:
    assert repr(fetcher).startswith("RangeFetcher(fsspec_read_range(<1 options>), gap_bytes=65536, span_bytes=4")
    assert _read_in_child(fetcher, uri) == DATA[5:15]


# ---- fsspec over HTTP: a real client with kept-alive sockets, a server that throttles and stalls


STALL_S = 8.0


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    block_on_close = False
    trouble: Callable[[int], int] = staticmethod(lambda number: 0)  # request number -> status, or -1 to stall

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.paths.append(self.path)
        status = server.trouble(len(server.paths))
        if status < 0:
            time.sleep(STALL_S)
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        body = DATA[int(match[1]) : int(match[2]) + 1 if match[2] else None] if match else DATA
        if self.path != "/object":
            status, body = 404, b""
        self.send_response(status if status > 0 else 206)
        self.send_header("Content-Length", str(0 if status > 0 else len(body)))
        self.end_headers()
        self.wfile.write(b"" if status > 0 else body)

    def log_message(self, *args: Any) -> None:
        """Nothing on stderr."""


@pytest.fixture
def server() -> Iterator[Server]:
    pytest.importorskip("aiohttp")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield running
        running.shutdown()


def test_a_real_client_against_a_server_that_throttles_and_stalls(server: Server) -> None:
    server.trouble = lambda number: 503 if number % 5 == 0 else 500 if number % 7 == 0 else -1 if number == 3 else 0
    uri = f"http://127.0.0.1:{server.server_port}/object"
    fetcher = RangeFetcher(fsspec_read_range(), gap_bytes=0, timeout_s=1.0, backoff_s=0.001, concurrency=8)
    refs = BlobRefs.of([BlobRef(uri, at, 100) for at in range(0, 90_000, 3_000)])
    began_s = time.monotonic()
    fetched = fetcher.fetch(refs)
    assert fetched.values == [DATA[at : at + 100] for at in range(0, 90_000, 3_000)]
    assert fetched.stats.retries >= 5
    assert time.monotonic() - began_s < STALL_S
    server.trouble = lambda number: 0
    missing = fetcher.fetch(BlobRefs.of([BlobRef(f"{uri}/none", 0, 4)]))
    assert "FileNotFoundError" in error_of(missing, 0)
    assert server.paths.count("/object/none") == 1


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_forked_from_a_process_with_a_used_client_read_their_own_bytes(server: Server) -> None:
    uri = f"http://127.0.0.1:{server.server_port}/object"
    fetcher = RangeFetcher(fsspec_read_range(), gap_bytes=0, backoff_s=0.001, concurrency=8)

    def right(seed: int) -> bool:
        offsets = np.random.default_rng(seed).permutation(9_000)[:30].tolist()
        fetched = fetcher.fetch(BlobRefs.of([BlobRef(uri, at * 10, 10) for at in offsets]))
        return fetched.values == [DATA[at * 10 : at * 10 + 10] for at in offsets]

    assert right(0)
    children = []
    for seed in range(1, 5):
        pid = os.fork()
        if pid == 0:  # a child of pytest leaves by os._exit only
            status = 3
            try:
                signal.alarm(30)
                status = 0 if all(right(10 * seed + i) for i in range(3)) else 2
            finally:
                os._exit(status)
        children.append(pid)
    assert all(right(100 + i) for i in range(3))  # the parent at the same time
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
