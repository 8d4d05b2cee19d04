"""The HTTP client of a catalog server: it gives up in time, and its errors show nothing of what authorised a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pypaimon.api.client import HttpClient
from pypaimon.api.rest_api import RESTApi
from pypaimon.api.rest_exception import (
    ForbiddenException,
    NoSuchResourceException,
    NotAuthorizedException,
    RESTException,
)
from pypaimon.catalog.catalog_exception import (
    CatalogException,
    DatabaseNoPermissionException,
    TableNoPermissionException,
)

from lakehouse.errors import ConfigError, LakehouseError, NotFoundError, cause_line

_NO_PERMISSION = (DatabaseNoPermissionException, TableNoPermissionException)
_LEAST_SECRET = 6  # characters: shorter header values are versions and flags
_SHOWN = {"accept", "content-type", "host", "user-agent"}  # headers whose values an error may repeat
_CREDENTIAL = re.compile(r"Credential=([^/,]+)|acs ([^:]+):|^Bearer (.+)$|Signature=(\w+)")
_ERRNO = re.compile(r"\[Errno -?\d+\] [^'\")>]+")


class Unanswered(RESTException):
    """No answer came, so that nobody knows whether the server did what it was asked to."""


class Unreachable(Unanswered):
    """The request was never sent."""


class BoundedClient(HttpClient):
    """An HTTP client that gives up in time, and whose errors show no credentials."""

    # Upstream: "callers who need to tune them can subclass".
    _CONNECT_TIMEOUT_SECONDS = 10
    _READ_TIMEOUT_SECONDS = 60

    def _execute_request(
        self, method: str, url: str, data: str | None = None, headers: dict[str, str] | None = None, response_type: Any = None
    ) -> Any:
        try:
            return super()._execute_request(method, url, data, headers, response_type)
        except RESTException as error:
            found = error.__cause__
            if found is None:
                error.args = (f"{method} {url} answered: {_masked(str(error), headers or {})}",)
                raise
            cause = found
        silent = _silence(cause)
        # Not from the cause: that carries the request, and what authorised it.
        raise silent(f"{method} {url}: {_why(cause, self._timeout)}")


def bound(api: RESTApi) -> None:
    """Give an API a `BoundedClient` instead of upstream's, which waits three minutes for a connection and for an answer."""
    upstream = api.client
    api.client = BoundedClient(upstream.uri, upstream.session.headers["User-Agent"])
    api.client.session.auth = _as_it_is
    upstream.session.close()


def _as_it_is(request: Any) -> Any:
    """No further credentials: else `requests` puts those that ~/.netrc has for the host in the place of the token."""
    return request


def explained(error: BaseException, who: str) -> LakehouseError | None:
    """What a server's refusal or silence means, as an error of ours; None for what is neither."""
    if isinstance(error, CatalogException) and not isinstance(error, _NO_PERMISSION):
        return None
    cause = error.__cause__ if isinstance(error.__cause__, RESTException) else error
    said = cause_line(cause)
    if isinstance(cause, NotAuthorizedException):
        return ConfigError(
            f"{who}: the server does not accept the credentials ({said}); check token or dlf.*, when they expire, and the clock"
        )
    if isinstance(cause, (ForbiddenException, *_NO_PERMISSION)):
        return ConfigError(f"{who}: these credentials may not do that ({said}); grant the right, or use others")
    if isinstance(cause, NoSuchResourceException):
        return NotFoundError(f"{who}: {said}")
    if isinstance(cause, Unreachable):
        return ConfigError(f"{who}: the server can't be reached ({said}); check uri and that it runs")
    return LakehouseError(f"{who}: {said}; try again") if isinstance(cause, RESTException) else None


def _silence(cause: BaseException) -> type[Unanswered]:
    never = ("ConnectTimeout", "NewConnectionError", "NameResolutionError")
    return Unreachable if any(name in _layers(cause) for name in never) else Unanswered


def _why(cause: BaseException, timeout: tuple[float, float]) -> str:
    """The one reason within the several layers that `requests` wraps it in."""
    layers = _layers(cause)
    if "ConnectTimeout" in layers:
        return f"no connection within {timeout[0]} s"
    if "ReadTimeout" in layers:
        return f"no answer within {timeout[1]} s"
    found = _ERRNO.search(layers)
    return found[0] if found else cause_line(cause)


def _layers(cause: BaseException) -> str:
    return f"{type(cause).__name__}: {cause}"


def _masked(text: str, headers: Mapping[str, str]) -> str:
    """The text without what authorised the request."""
    values = [str(value) for name, value in headers.items() if name.lower() not in _SHOWN]
    secrets = {part for value in values for match in _CREDENTIAL.finditer(value) for part in match.groups() if part}
    secrets.update(value for value in values if len(value) >= _LEAST_SECRET)
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
