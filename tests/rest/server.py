"""The HTTP face of the test catalog, and the faults it can be told to show."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from tests.rest.identity import Identity, Request
from tests.rest.lake import Answer, Lake

PREFIX = "drives"


@dataclass
class Fault:
    """What goes wrong with the next ``times`` requests whose ``METHOD path`` ends with ``on``.

    Attributes:
        on: ``"POST commit"``: the method and the last part of the path.
        status: answer this instead of asking the lake.
        message: its text.
        lost: do what is asked, then close the connection without an answer.
        late: answer ``status`` now; what is asked is done by `RestServer.catch_up`.
        stall_s: wait so long before the answer.
        then: called once, after the request was dealt with.
    """

    on: str
    status: int | None = None
    times: int = 1
    message: str = "it went wrong"
    lost: bool = False
    late: bool = False
    stall_s: float = 0.0
    then: Callable[[], Any] | None = None


@dataclass
class RestServer:
    """A catalog server on a free loopback port.

    Attributes:
        lake: what it serves.
        identity: whom it serves.
        config: overrides that ``/v1/config`` gives clients.
        table_token: makes (token, expiry in ms) of a table's data token.
        faults: to come.
        seen: ``METHOD last-part-of-path`` of every request answered, in order.
        role_token: what ``/role/NAME`` answers, as a machine's metadata service does.
        keys_seen: access key ids or bearer tokens of the requests.
    """

    lake: Lake
    identity: Identity
    config: dict[str, str] = field(default_factory=dict)
    table_token: Callable[[], tuple[dict[str, str], int]] | None = None
    faults: list[Fault] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    late: list[Callable[[], Any]] = field(default_factory=list)
    role_token: Callable[[], dict[str, str]] | None = None
    keys_seen: list[str] = field(default_factory=list)
    uri: str = ""

    @classmethod
    @contextmanager
    def run(cls, lake: Lake | Path, **bearer_or_keys: Any) -> Iterator[RestServer]:
        """Serve a lake, or one kept in a folder, while the block runs."""
        server = cls(lake if isinstance(lake, Lake) else Lake(lake), Identity(**bearer_or_keys))

        class Handler(_Handler):
            owner = server

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        http.daemon_threads = True
        server.uri = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            http.server_close()
            thread.join()

    def options(self, **more: str) -> dict[str, str]:
        """What `connect` takes for a bearer token of this server."""
        token = next(iter(self.identity.bearer), "none")
        return {"metastore": "rest", "uri": self.uri, "warehouse": "lake", "token.provider": "bear", "token": token, **more}

    def count(self, what: str) -> int:
        """How many requests of this ``METHOD last-part`` were seen."""
        return self.seen.count(what)

    def take_fault(self, what: str) -> Fault | None:
        """The fault that the request meets, used up once."""
        for fault in self.faults:
            if fault.times > 0 and what == fault.on:
                fault.times -= 1
                return fault
        return None

    def catch_up(self) -> list[tuple[int, Any]]:
        """Do what was answered with an error before; what would have been answered."""
        done = [late() for late in self.late]
        self.late.clear()
        return done

    def answer(self, request: Request, parts: list[str]) -> tuple[int, Any]:
        """Status and body of a request that may be made."""
        try:
            return 200, self._route(request.method, parts, json.loads(request.body) if request.body else {}, request)
        except Answer as error:
            said = {"message": error.message, "resourceType": error.kind, "resourceName": error.name, "code": error.status}
            return error.status, said

    def _route(self, method: str, parts: list[str], body: Mapping[str, Any], request: Request) -> Any:
        lake = self.lake
        if parts == ["v1", "config"]:
            if unquote_plus(request.parameters.get("warehouse", "")) != "lake":
                raise Answer(404, "UNKNOWN", "warehouse", "no such warehouse")
            return {"defaults": {"prefix": PREFIX}, "overrides": self.config}
        if parts[:3] != ["v1", PREFIX, "databases"]:
            raise Answer(404, "UNKNOWN", "/".join(parts), "no such path")
        where = parts[3:]
        shape = (method, len(where), *where[3:4], *where[5:6])
        if shape == ("GET", 0):
            return _page("databases", lake.databases(), request)
        if shape == ("POST", 0):
            return lake.create_database(body["name"], body.get("options"))
        if len(where) == 1:
            by_method = {"GET": lake.database, "DELETE": lake.drop_database}
            return by_method[method](where[0])
        if len(where) == 2:
            return _page("tables", lake.tables(where[0]), request) if method == "GET" else lake.create_table(where[0], body)
        return self._table(method, where[0], where[2], where[3:], body, request)

    def _table(self, method: str, database: str, table: str, rest: list[str], body: Mapping[str, Any], request: Request) -> Any:
        lake = self.lake
        pair = (database, table)
        routes: dict[tuple[str, int, str], Callable[[], Any]] = {
            ("GET", 0, ""): lambda: lake.table(*pair),
            ("POST", 0, ""): lambda: lake.alter_table(*pair, body["changes"]),
            ("DELETE", 0, ""): lambda: lake.drop_table(*pair),
            ("POST", 1, "commit"): lambda: {"success": lake.commit(*pair, body)},
            ("POST", 1, "rollback"): lambda: lake.rollback(*pair, body),
            ("GET", 1, "snapshot"): lambda: {"snapshot": _with_statistics(lake.snapshot(*pair))},
            ("GET", 2, "snapshots"): lambda: {"snapshot": lake.snapshot(*pair, rest[1])},
            ("GET", 1, "token"): lambda: self._token(pair),
            ("GET", 1, "tags"): lambda: _page("tags", lake.tags(*pair), request),
            ("POST", 1, "tags"): lambda: lake.create_tag(*pair, body),
            ("GET", 2, "tags"): lambda: lake.tag(*pair, rest[1]),
            ("DELETE", 2, "tags"): lambda: lake.delete_tag(*pair, rest[1]),
            ("GET", 1, "branches"): lambda: {"branches": lake.branches(*pair)},
            ("POST", 1, "branches"): lambda: lake.create_branch(*pair, body),
            ("DELETE", 2, "branches"): lambda: lake.drop_branch(*pair, rest[1]),
        }
        route = routes.get((method, len(rest), rest[0] if rest else ""))
        if route is None:
            raise Answer(501, "UNKNOWN", "/".join(rest), "this server does not have that")
        return route()

    def _token(self, pair: tuple[str, str]) -> dict[str, Any]:
        self.lake.table(*pair)
        if self.table_token is None:
            raise Answer(501, "UNKNOWN", "token", "this server gives no tokens")
        token, expiry = self.table_token()
        return {"token": token, "expiresAtMillis": expiry}


class _Handler(BaseHTTPRequestHandler):
    owner: RestServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes

    def _handle(self) -> None:
        url = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        request = Request(self.command, url.path, url.query, headers, body)
        parts = [unquote_plus(part) for part in url.path.split("/") if part]
        what = f"{self.command} {parts[-1] if parts else ''}"
        owner = self.owner
        owner.seen.append(what)
        if parts[:1] == ["role"] and owner.role_token is not None:
            self._send(200, owner.role_token())
            return
        authorization = headers.get("authorization", "")
        owner.keys_seen.append(_who(authorization))
        fault = owner.take_fault(what)
        if fault is not None and fault.stall_s:
            time.sleep(fault.stall_s)
        then = None if fault is None else fault.then
        if fault is not None:
            fault.then = None
        refusal = owner.identity.refuse(request)
        if refusal is not None:
            self._send(401, {"message": f"{refusal}: {authorization}", "code": 401})  # an echo, as careless servers give
        elif fault is not None and fault.status is not None:
            if fault.late:
                owner.late.append(partial(owner.answer, request, parts))
            if then is not None:
                then()
            self._send(fault.status, {"message": f"{fault.message} {authorization}", "code": fault.status})
        else:
            status, said = owner.answer(request, parts)
            if then is not None:
                then()
            if fault is not None and fault.lost:
                self.close_connection = True
                self.connection.close()
                return
            self._send(status, said)

    do_GET = do_POST = do_DELETE = _handle

    def _send(self, status: int, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        with contextlib.suppress(ConnectionError):  # a client that would not wait
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Silent."""


def _who(authorization: str) -> str:
    """The bearer token, or the access key id, of an Authorization header."""
    scheme, _, rest = authorization.partition(" ")
    return rest if scheme == "Bearer" else rest.removeprefix("Credential=").replace(":", "/").partition("/")[0]


def _page(name: str, items: list[str], request: Request, size: int = 3) -> dict[str, Any]:
    """One page of a list; pages are short, so that clients have to ask for the next."""
    first = int(request.parameters.get("pageToken", "0"))
    last = first + int(request.parameters.get("maxResults", size))
    return {name: items[first:last], "nextPageToken": str(last) if last < len(items) else None}


def _with_statistics(snapshot: dict[str, Any]) -> dict[str, Any]:
    return {"snapshot": snapshot, "recordCount": 0, "fileSizeInBytes": 0, "fileCount": 0, "lastFileCreationTime": 0}
