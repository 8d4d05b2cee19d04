"""A proxy on loopback that delays every request and takes next to nothing of the cores that it shares with what is measured.

A thread a connection. Heads are looked at; bodies of a known length go from socket to socket inside the kernel (``splice``).
For faults see ``tests/stores/proxy.py``, whose copies in Python took a twentieth of the processor time of the loader that was measured.

    with relaying(server.port, delay_s=0.02) as port: ...
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import threading
import time
from collections.abc import Iterator

_HEAD_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:[^\r]*", re.IGNORECASE)
_END = b"\r\n\r\n"


@contextlib.contextmanager
def relaying(port: int, delay_s: float) -> Iterator[int]:
    """The port of a proxy before the server on ``port``."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=_serve, args=(client, port, delay_s), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listening:
        yield listening.getsockname()[1]


def _serve(client: socket.socket, port: int, delay_s: float) -> None:
    """One client's connection, with one to the server."""
    with contextlib.ExitStack() as stack, contextlib.suppress(ConnectionError):
        stack.enter_context(client)
        pipe = os.pipe()
        for end in pipe:
            stack.callback(os.close, end)
        fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        server = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            head, begun = _head(client)
            if _EXPECT.search(head):
                client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                head = _EXPECT.sub(b"", head)
            length = _LENGTH.search(head)
            time.sleep(delay_s)
            server.sendall(head + begun)
            _pass(client, server, pipe, int(length[1]) - len(begun) if length else 0)
            method = head.split(b" ", 1)[0]

            head, begun = _head(server)
            client.sendall(head + begun)
            length = _LENGTH.search(head)
            if method == b"HEAD" or int(head[9:12]) in (204, 304):
                continue
            if length is not None:
                _pass(server, client, pipe, int(length[1]) - len(begun))
            elif _CHUNKED.search(head):
                _pass_chunks(server, client, begun)


def _head(source: socket.socket) -> tuple[bytes, bytes]:
    """A message's head, and what of its body came with it."""
    data = b""
    while _END not in data:
        more = source.recv(_HEAD_BYTES)
        if not more:
            raise ConnectionError
        data += more
    head, _, begun = data.partition(_END)
    return head + _END, begun


def _pass(source: socket.socket, sink: socket.socket, pipe: tuple[int, int], left: int) -> None:
    while left > 0:
        moved = os.splice(source.fileno(), pipe[1], min(left, _PIPE_BYTES))
        if not moved:
            raise ConnectionError
        left -= moved
        while moved:
            moved -= os.splice(pipe[0], sink.fileno(), moved)


def _pass_chunks(source: socket.socket, sink: socket.socket, begun: bytes) -> None:
    tail = begun[-5:]
    while not tail.endswith(b"0\r\n\r\n"):
        more = source.recv(_HEAD_BYTES)
        if not more:
            raise ConnectionError
        sink.sendall(more)
        tail = (tail + more)[-5:]
