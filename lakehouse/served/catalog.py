"""pypaimon's REST catalog with bounded waits and one session per process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from pypaimon.api.api_response import ConfigResponse
from pypaimon.api.client import HttpClient
from pypaimon.api.resource_paths import ResourcePaths
from pypaimon.api.rest_api import RESTApi
from pypaimon.api.rest_util import RESTUtil
from pypaimon.catalog.catalog_context import CatalogContext
from pypaimon.catalog.rest.rest_catalog import RESTCatalog
from pypaimon.catalog.rest.rest_catalog_loader import RESTCatalogLoader
from pypaimon.catalog.rest.rest_token import RESTToken
from pypaimon.catalog.rest.rest_token_file_io import RESTTokenFileIO
from pypaimon.common.options import Options
from pypaimon.filesystem.caching_file_io import CachingFileIO

from lakehouse.errors import ConfigError
from lakehouse.served.client import bound

_REPLACED = (
    (HttpClient, "_execute_request"),
    (RESTCatalog, "file_io_for_data"),
    (RESTCatalog, "catalog_loader"),
    (RESTTokenFileIO, "refresh_token"),
    (RESTTokenFileIO, "_is_token_expired"),
    (RESTTokenFileIO, "_build_cache_key"),
)


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
    _check_auth(options)
    return ServedCatalog(CatalogContext.create_from_options(Options(dict(options))))


def _check_auth(options: Mapping[str, str]) -> None:
    """Refuses what upstream takes for a request without a name, or with the token ``None``."""
    provider = options.get("token.provider")
    if provider is None:
        raise ConfigError("token.provider is missing, which metastore rest needs: bear (with token), or dlf (with dlf.*)")
    if provider == "bear" and not options.get("token"):
        raise ConfigError("token is missing, which token.provider bear needs")
    keys = {"dlf.access-key-id", "dlf.access-key-secret"}
    if provider == "dlf" and not keys <= options.keys() and not {"dlf.token-path", "dlf.token-loader"} & options.keys():
        raise ConfigError(
            "token.provider dlf needs dlf.access-key-id and dlf.access-key-secret, or dlf.token-path, or dlf.token-loader"
        )


class ServedCatalog(RESTCatalog):
    """pypaimon's REST catalog over a `BoundedClient`; the one of its process for all that is loaded from it."""

    def __init__(self, context: CatalogContext, config_required: bool = True) -> None:
        if config_required:
            context = context.with_options(_configured(context.options))
        super().__init__(context, config_required=False)
        bound(self.rest_api)

    def catalog_loader(self) -> RESTCatalogLoader:
        """One that gives this catalog, as long as it is in the process that made it."""
        return ServedLoader(self.context, self)

    def file_io_for_data(self, table_path: str, identifier: Any) -> Any:
        """As upstream; tokens are fetched through this catalog's client."""
        if not self.data_token_enabled or self.fuse_enabled:
            return super().file_io_for_data(table_path, identifier)
        file_io = ServedTokenFileIO(identifier, table_path, self.context.options)
        file_io.api_instance = self.rest_api
        return CachingFileIO.wrap_with_caching_if_needed(file_io, self.context.options, self._cache_manager)


class ServedTokenFileIO(RESTTokenFileIO):
    """Files by a table's own token, which is renewed before it expires.

    Upstream takes a token for expired an hour ahead: of one that is given for an hour or less it asks anew for every file.
    Here it is renewed when a quarter of its time is left, at the latest an hour ahead. And upstream keeps the tokens of a
    process by who asks and the table's name: a table of the same name on another server would be read with this one's.
    """

    def _build_cache_key(self) -> str:
        options = self.properties.to_map()
        return f"{options.get('uri')} {options.get('warehouse')} {super()._build_cache_key()}"

    token: Any  # upstream's attribute

    def refresh_token(self) -> None:
        """Ask the server for a new token."""
        super().refresh_token()
        given: Any = self.token
        self.token = ServedToken(given.token, given.expire_at_millis)

    def _is_token_expired(self, token: Any, minimum_validity_millis: int = 0) -> bool:
        if not isinstance(token, ServedToken):
            return bool(super()._is_token_expired(token, minimum_validity_millis))
        return bool(token.left_millis() < max(token.margin_millis, minimum_validity_millis))


class ServedToken(RESTToken):
    """A token that knows how long before its end it is to be renewed."""

    def __init__(self, token: dict[str, str], expire_at_millis: int) -> None:
        super().__init__(token, expire_at_millis)
        self.margin_millis = min(RESTApi.TOKEN_EXPIRATION_SAFE_TIME_MILLIS, max(0, self.left_millis()) // 4)

    def left_millis(self) -> int:
        """How long it is still valid."""
        return int(self.expire_at_millis - time.time() * 1000)


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


def _configured(options: Options) -> Options:
    """The options with what the server adds and overrides."""
    warehouse = options.get("warehouse") if isinstance(options, dict) else options.to_map()["warehouse"]
    api = RESTApi(options, False)
    bound(api)
    query = {"warehouse": RESTUtil.encode_string(warehouse)}
    answer = api.client.get_with_params(ResourcePaths.config(), query, ConfigResponse, api.rest_auth_function)
    return answer.merge(options)
