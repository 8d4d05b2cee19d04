"""A proxy on loopback before an S3 server: delays every request, and spoils those that it is told to.

Runs in a thread with an event loop of its own. Signatures stay right: the request goes on byte by byte, with the ``Host`` that
the client signed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tests.stores.server import S3Server

Fault: TypeAlias = Literal[
    "500",
    "503",
    "429",
    "403",
    "404",
    "expired",
    "reset",
    "truncated",
    "stall",
    "stall-inside",
    "wrong-range",
    "whole",
    "lost-answer",
    "deaf",
]
# What to do with a request, None: nothing. Called in the proxy's thread, one request after the other.
Rule: TypeAlias = "Callable[[Request], Fault | None]"

_REASONS = {
    "500": ("500 Internal Server Error", "InternalError"),
    "503": ("503 Service Unavailable", "SlowDown"),
    "429": ("429 Too Many Requests", "TooManyRequests"),
    "403": ("403 Forbidden", "AccessDenied"),
    "404": ("404 Not Found", "NoSuchKey"),
    "expired": ("400 Bad Request", "ExpiredToken"),
}
_STALL_S = 3600.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ANSWERED = re.compile(rb"\r\ncontent-range: *bytes (\d+)-(\d+)/", re.IGNORECASE)
_ANSWERED_WHOLE = re.compile(rb"\r\ncontent-range:[^\r]*", re.IGNORECASE)
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Request:
    """A request as it came.

    Attributes:
        number: from 1 on.
        again: how often the same method, path and range had come before.
        head: its first line and headers.
    """

    method: str
    path: str
    range: tuple[int, int] | None
    number: int
    again: int
    head: bytes = b""


class Proxy:
    """Made by `running_proxy`.

    Attributes:
        rule: which requests to spoil, and how.
        rewrite: changes the head of a request that goes on to the server.
        delay_s: time that each request waits.
        requests: what came, in order.
        bytes_sent: of bodies, to clients.
        answered: when requests came and when their answers had been sent, in the order of the answers.
    """

    def __init__(self, server: S3Server, delay_s: float) -> None:
        self.rule: Rule | None = None
        self.rewrite: Callable[[bytes], bytes] | None = None
        self.delay_s = delay_s
        self.requests: list[Request] = []
        self.bytes_sent = 0
        self.answered: list[tuple[float, float]] = []
        self.faults: Counter[str] = Counter()
        self._upstream = server.port
        self._seen: Counter[tuple[object, ...]] = Counter()
        self._server = server
        self.port = 0

    @property
    def server(self) -> S3Server:
        """The server as clients see it through the proxy."""
        return replace(self._server, endpoint=f"http://127.0.0.1:{self.port}")

    def reset(self) -> None:
        """Forget what came, and the rule."""
        self.rule = None
        self.requests = []
        self.answered = []
        self.bytes_sent = 0
        self.faults.clear()
        self._seen.clear()

    @property
    def round_trips(self) -> int:
        """The longest chain of requests of which each came after the answer to the one before."""
        count, free_s = 0, -math.inf
        for came_s, answered_s in list(self.answered):
            if came_s >= free_s:
                count, free_s = count + 1, answered_s
        return count

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, with one to the server."""
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                if b"100-continue" in head.lower():
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    head = re.sub(rb"\r\nexpect:[^\r]*", b"", head, flags=re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                request, came_s = self._noted(head), time.monotonic()
                fault = self.rule(request) if self.rule is not None else None
                if fault is not None:
                    self.faults[fault] += 1
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if fault == "stall":
                    await asyncio.sleep(_STALL_S)
                if fault == "reset":
                    writer.transport.abort()
                    break
                if fault in _REASONS:
                    writer.write(_refusal(fault, request.method))
                    await writer.drain()
                    self.answered.append((came_s, time.monotonic()))
                    continue
                if upstream is None:
                    upstream = await asyncio.open_connection("127.0.0.1", self._upstream, limit=1 << 26)
                upstream[1].write((head if self.rewrite is None else self.rewrite(head)) + body)
                if fault == "lost-answer":
                    await self._answer(upstream[0], request.method)
                    writer.transport.abort()
                    break
                answer_head, answer = await self._answer(upstream[0], request.method)
                if fault == "deaf" and answer_head.startswith(b"HTTP/1.1 412"):
                    answer_head, answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""
                if fault == "wrong-range" and request.range is not None:
                    low, high = request.range
                    head = b"\r\nContent-Range: bytes %d-%d/" % (low + 1, high + 1)
                    answer_head, answer = _ANSWERED.sub(head, answer_head), answer[::-1]
                if fault == "whole":  # as a server that ignores ranges: another status, other bytes
                    answer_head = _ANSWERED_WHOLE.sub(b"", answer_head.replace(b" 206 Partial Content", b" 200 OK"))
                    answer = answer[::-1]
                if fault in ("truncated", "stall-inside"):
                    answer = answer[: len(answer) // 2]
                writer.write(answer_head + answer)
                await writer.drain()
                self.bytes_sent += len(answer)
                if fault == "stall-inside":
                    await asyncio.sleep(_STALL_S)
                self.answered.append((came_s, time.monotonic()))
                if fault == "truncated" and answer:
                    writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()
                    break
        for end in (writer, *((upstream[1],) if upstream else ())):
            end.close()

    async def _answer(self, reader: asyncio.StreamReader, method: str) -> tuple[bytes, bytes]:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            head = await reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        if method == "HEAD" or status in (204, 304):
            return head, b""
        length = _LENGTH.search(head)
        if length is not None:
            return head, await reader.readexactly(int(length[1]))
        parts = []
        while True:  # chunked
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            parts.append(line + await reader.readexactly(size + 2))
            if not size:
                return head, b"".join(parts)

    def _noted(self, head: bytes) -> Request:
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        found = _RANGE.search(head)
        asked = (int(found[1]), int(found[2])) if found else None
        key = (method, path, asked)
        request = Request(method, path, asked, len(self.requests) + 1, self._seen[key], head)
        self._seen[key] += 1
        self.requests.append(request)
        return request


def _refusal(fault: str, method: str) -> bytes:
    status, code = _REASONS[fault]
    text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>made by the proxy</Message></Error>'.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n\r\n".encode()
    return head if method == "HEAD" else head + text


@contextlib.contextmanager
def running_proxy(server: S3Server, delay_s: float = 0.0) -> Iterator[Proxy]:
    """Start one before a server, and stop it."""
    proxy = Proxy(server, delay_s)
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def listen() -> asyncio.Server:
        listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 26)
        proxy.port = listening.sockets[0].getsockname()[1]
        return listening

    def run() -> None:
        asyncio.set_event_loop(loop)
        listening = loop.run_until_complete(listen())
        started.set()
        loop.run_forever()
        listening.close()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=run, name="s3-proxy", daemon=True)
    thread.start()
    started.wait()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
