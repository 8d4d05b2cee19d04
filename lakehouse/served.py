"""A catalog behind a server that speaks Paimon's REST API (``metastore: rest``; DLF is one): what pypaimon's client lacks.

Each part is a subclass that is put in place on objects of ours; nothing is patched.

- Waits are bounded: upstream waits three minutes for a connection, and as long for an answer.
- One session per process: upstream makes a client, and a connection, for every look at a table's head.
- A commit that the server refuses is not tried again; one whose answer is missing is remembered as being in doubt.
- An error says what was asked of whom, and shows nothing of what authorised it, also when the server echoes that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from pypaimon.api.api_response import ConfigResponse
from pypaimon.api.client import HttpClient
from pypaimon.api.resource_paths import ResourcePaths
from pypaimon.api.rest_api import RESTApi
from pypaimon.api.rest_exception import (
    AlreadyExistsException,
    BadRequestException,
    ForbiddenException,
    NoSuchResourceException,
    NotAuthorizedException,
    NotImplementedException,
    RESTException,
)
from pypaimon.api.rest_util import RESTUtil
from pypaimon.catalog.catalog_context import CatalogContext
from pypaimon.catalog.catalog_environment import CatalogEnvironment
from pypaimon.catalog.catalog_exception import (
    DatabaseNoPermissionException,
    TableNoPermissionException,
    TableNotExistException,
)
from pypaimon.catalog.rest.rest_catalog import RESTCatalog
from pypaimon.catalog.rest.rest_catalog_loader import RESTCatalogLoader
from pypaimon.catalog.rest.rest_token_file_io import RESTTokenFileIO
from pypaimon.common.options import Options
from pypaimon.filesystem.caching_file_io import CachingFileIO
from pypaimon.snapshot.catalog_snapshot_commit import CatalogSnapshotCommit

from lakehouse.errors import ConfigError, LakehouseError, NotFoundError, cause_line

CONNECT_S, ANSWER_S = 10, 60
_TRIES_IN_DOUBT = 4
_LEAST_SECRET = 6  # characters: shorter header values are versions and flags
_REPLACED = ((HttpClient, "_execute_request"), (RESTCatalog, "file_io_for_data"), (RESTCatalog, "catalog_loader"))
_REFUSED = (
    *(AlreadyExistsException, BadRequestException, ForbiddenException, NoSuchResourceException, NotAuthorizedException),
    *(NotImplementedException, TableNoPermissionException, TableNotExistException),
)
_SHOWN = {"accept", "content-type", "host", "user-agent"}  # headers whose values an error may repeat
_CREDENTIAL = re.compile(r"Credential=([^/,]+)|acs ([^:]+):|^Bearer (.+)$|Signature=(\w+)")
_ERRNO = re.compile(r"\[Errno -?\d+\] [^'\")>]+")


def open_served(options: Mapping[str, str]) -> ServedCatalog:
    """Connect to a catalog server.

    Args:
        options: as `CatalogConfig.options` gives them.

    Raises:
        ConfigError: the installed pypaimon no longer has what is replaced here.
        RESTException: the server can't be reached, or refuses; `explained` makes an error of ours of it.
        ValueError: options that pypaimon can make no client of.
    """
    for owner, method in _REPLACED:
        if not callable(getattr(owner, method, None)):
            raise ConfigError(
                f"the installed pypaimon has no {owner.__name__}.{method}, which a remedy replaces; install pypaimon >=2.1,<2.2"
            )
    return ServedCatalog(CatalogContext.create_from_options(Options(dict(options))))


class Unanswered(RESTException):
    """No answer came, so that nobody knows whether the server did what it was asked to."""


class Unreachable(Unanswered):
    """The request was never sent."""


class BoundedClient(HttpClient):
    """An HTTP client that gives up in time, and whose errors show no credentials."""

    _CONNECT_TIMEOUT_SECONDS = CONNECT_S  # upstream: "callers who need to tune them can subclass"
    _READ_TIMEOUT_SECONDS = ANSWER_S

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
        raise silent(f"{method} {url}: {_why(cause)}")


class ServedCatalog(RESTCatalog):
    """pypaimon's REST catalog over a `BoundedClient`; the one of its process for all that is loaded from it."""

    def __init__(self, context: CatalogContext, config_required: bool = True) -> None:
        if config_required:
            context = context.with_options(_configured(context.options))
        super().__init__(context, config_required=False)
        _bound(self.rest_api)

    def catalog_loader(self) -> RESTCatalogLoader:
        """One that gives this catalog, as long as it is in the process that made it."""
        return ServedLoader(self.context, self)

    def file_io_for_data(self, table_path: str, identifier: Any) -> Any:
        """As upstream; tokens are fetched through this catalog's client."""
        if not self.data_token_enabled or self.fuse_enabled:
            return super().file_io_for_data(table_path, identifier)
        file_io = RESTTokenFileIO(identifier, table_path, self.context.options)
        file_io.api_instance = self.rest_api
        return CachingFileIO.wrap_with_caching_if_needed(file_io, self.context.options, self._cache_manager)


class ServedLoader(RESTCatalogLoader):
    """Gives the catalog it came from; in another process a new one. No socket crosses a fork."""

    def __init__(self, context: CatalogContext, catalog: ServedCatalog | None = None) -> None:
        super().__init__(context)
        self._made = None if catalog is None else (os.getpid(), catalog)

    def load(self) -> ServedCatalog:
        """The catalog of this process."""
        if self._made is None or self._made[0] != os.getpid():
            self._made = (os.getpid(), ServedCatalog(self._context, config_required=False))
        return self._made[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}


class ServedSnapshotCommit(CatalogSnapshotCommit):
    """Commits through the server, which alone decides.

    Attributes:
        on_error: called when another try would be of no use: the server refuses, or left several tries without an answer.
            Upstream takes every error for a lost race and tries again for a quarter of an hour.
        doubtful_id: the snapshot id of a try whose answer is missing; the server may still publish it while its head is
            below that. None: there is no such try.
    """

    on_error: Callable[[], None] | None = None
    doubtful_id: int | None = None
    _tries_in_doubt = 0

    def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: list[Any]) -> bool:
        """True when the server published it, False when another commit came first."""
        try:
            published = super().commit(base_snapshot_uuid, snapshot, statistics)
        except BaseException as error:
            cause = error.__cause__ or error
            if isinstance(cause, _REFUSED):
                self._stop()
            elif not isinstance(cause, Unreachable):
                self.doubtful_id = int(snapshot.id)
                self._tries_in_doubt += 1
                if self._tries_in_doubt >= _TRIES_IN_DOUBT:
                    self._stop()
            raise
        return bool(published)

    def _stop(self) -> None:
        if self.on_error is not None:
            self.on_error()


class ServedEnvironment(CatalogEnvironment):
    """The environment of a table whose server decides."""

    def snapshot_commit(self, snapshot_manager: Any) -> Any:  # noqa: ARG002 - the server knows the head
        """The commit that `ServedSnapshotCommit` describes."""
        return ServedSnapshotCommit(self.catalog_loader.load(), self.identifier, self.uuid)


def explained(error: BaseException, who: str) -> LakehouseError | None:
    """What a server's refusal or silence means, as an error of ours; None for what is neither."""
    cause = error.__cause__ if isinstance(error.__cause__, RESTException) else error
    said = cause_line(cause)
    if isinstance(cause, NotAuthorizedException):
        return ConfigError(
            f"{who}: the server does not accept the credentials ({said}); check token or dlf.*, when they expire, and the clock"
        )
    if isinstance(cause, ForbiddenException | TableNoPermissionException | DatabaseNoPermissionException):
        return ConfigError(f"{who}: these credentials may not do that ({said}); grant the right, or use others")
    if isinstance(cause, NoSuchResourceException):
        return NotFoundError(f"{who}: {said}")
    if isinstance(cause, Unanswered):
        return ConfigError(f"{who}: the server gives no answer ({said}); check uri and that it runs")
    if isinstance(cause, RESTException):
        return LakehouseError(f"{who}: {said}")
    return None


def _configured(options: Options) -> Options:
    """The options with what the server adds and overrides."""
    warehouse = options.get("warehouse") if isinstance(options, dict) else options.to_map()["warehouse"]
    api = RESTApi(options, False)
    _bound(api)
    query = {"warehouse": RESTUtil.encode_string(warehouse)}
    answer = api.client.get_with_params(ResourcePaths.config(), query, ConfigResponse, api.rest_auth_function)
    return answer.merge(options)


def _bound(api: RESTApi) -> None:
    upstream = api.client
    api.client = BoundedClient(upstream.uri, upstream.session.headers["User-Agent"])
    upstream.session.close()


def _silence(cause: BaseException) -> type[Unanswered]:
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import ConnectTimeout

    never = isinstance(cause, ConnectTimeout) or (isinstance(cause, NoConnection) and "NewConnectionError" in str(cause))
    return Unreachable if never or "NameResolutionError" in str(cause) else Unanswered


def _why(cause: BaseException) -> str:
    """The one reason within the several layers that `requests` wraps it in."""
    from requests.exceptions import ConnectTimeout, ReadTimeout

    if isinstance(cause, ConnectTimeout):
        return f"no connection within {CONNECT_S} s"
    if isinstance(cause, ReadTimeout):
        return f"no answer within {ANSWER_S} s"
    found = _ERRNO.search(str(cause))
    return found[0] if found else cause_line(cause)


def _masked(text: str, headers: Mapping[str, str]) -> str:
    """The text without what authorised the request."""
    values = [str(value) for name, value in headers.items() if name.lower() not in _SHOWN]
    secrets = {part for value in values for match in _CREDENTIAL.finditer(value) for part in match.groups() if part}
    secrets.update(value for value in values if len(value) >= _LEAST_SECRET)
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
