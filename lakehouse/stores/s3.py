"""Clients of S3 and of what speaks it. Each belongs to the process that made it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Literal

from lakehouse.errors import ConfigError, cause_line
from lakehouse.stores.settings import S3Settings, split_url

_DEFAULT_REGION = "us-east-1"
_CONNECT_S = 10
_READ_S = 60
# The default chain is asked again this often: it knows itself when keys are due.
_CHAIN_AGE = timedelta(minutes=10)
_PUT_TRIES = 5
_CONNECTIONS = 64  # as many requests as a RangeFetcher has under way
_SHARED_CLIENTS = 16
_sharing = threading.Lock()


@dataclass(frozen=True)
class Keys:
    """What requests are signed with.

    Attributes:
        expires: when they end; None: never, as far as is known.
    """

    access_key: str
    secret_key: str
    session_token: str | None = None
    expires: datetime | None = None

    def __repr__(self) -> str:
        return f"Keys(expires={self.expires})"


class S3Access:
    """An account's settings and its keys of the moment.

    Args:
        settings: endpoint, region, addressing, and keys where they are fixed.
        keys: gives keys that change, such as a catalog server's tokens; asked again before they expire, and when the store
            refuses them. None: those of the settings, or Amazon's default chain where they have none.
    """

    def __init__(self, settings: S3Settings, keys: Callable[[], Keys] | None = None) -> None:
        self.settings = settings
        self._keys = keys or (self._fixed if settings.access_key else _DefaultChain())
        self.renewable = self._keys != self._fixed

    def keys(self) -> Keys:
        """The keys to sign with now.

        Raises:
            ConfigError: there are none.
        """
        return self._keys()

    @property
    def region(self) -> str:
        """The region to sign for; a store of one's own accepts any."""
        from_environment = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return self.settings.region or from_environment or _DEFAULT_REGION

    def _fixed(self) -> Keys:
        return Keys(self.settings.access_key or "", self.settings.secret_key or "", self.settings.session_token)

    def __repr__(self) -> str:
        return f"S3Access({self.settings})"


class _DefaultChain:
    """Environment, profile, single sign-on, web identity, container, instance: as Amazon's own tools look for keys."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Any = None

    def __call__(self) -> Keys:
        with self._lock:
            if self._found is None:
                import botocore.session

                self._found = botocore.session.get_session().get_credentials()
            if self._found is None:
                raise ConfigError(
                    "no keys for S3: the catalog's configuration has no s3.access-key, and none were found in the "
                    "environment, a profile, or the machine's role"
                )
            frozen = self._found.get_frozen_credentials()  # renews them when they are due
        return Keys(frozen.access_key, frozen.secret_key, frozen.token, datetime.now(timezone.utc) + _CHAIN_AGE)


def obstore_of(access: S3Access, bucket: str) -> Any:
    """An obstore client of one bucket. It retries nothing: `RangeFetcher` does, and counts.

    Whoever has the same keys, and they are fixed, gets the same client: to make one takes as long as a request, and its
    connections are open.
    """
    if access.renewable:
        return _new_obstore(access, bucket)
    with _sharing:
        return _shared_obstore(access.settings, access.region, bucket, os.getpid())


@lru_cache(_SHARED_CLIENTS)
def _shared_obstore(settings: S3Settings, region: str, bucket: str, _pid: int) -> Any:
    return _new_obstore(S3Access(replace(settings, region=region)), bucket)


def _new_obstore(access: S3Access, bucket: str) -> Any:
    from obstore.store import S3Store

    settings = access.settings
    # Each is set, because what is not set is taken from the environment, which may be about another account.
    config: Any = {"region": access.region, "virtual_hosted_style_request": not settings.path_style}
    if settings.endpoint is not None:
        scheme, _, host = settings.endpoint.partition("://")
        endpoint = settings.endpoint if settings.path_style else f"{scheme}://{bucket}.{host}"
        config |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}

    def keys() -> Any:
        held = access.keys()
        return {
            "access_key_id": held.access_key,
            "secret_access_key": held.secret_key,
            "token": held.session_token,
            "expires_at": held.expires,
        }

    return S3Store(
        bucket,
        config=config,
        client_options={
            "allow_http": (settings.endpoint or "").startswith("http://"),
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "timeout": timedelta(seconds=_READ_S),
        },
        retry_config={"max_retries": 0},
        credential_provider=keys,
    )


def botocore_of(access: S3Access, tries: int = _PUT_TRIES) -> Any:
    """A botocore client, for what the others lack: writes under a condition, in forked processes too.

    Args:
        access: whose.
        tries: of each request, by the client itself.
    """
    import botocore.session
    from botocore.config import Config

    keys, settings = access.keys(), access.settings
    style = "path" if settings.path_style else "virtual"
    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=access.region,
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        aws_session_token=keys.session_token,
        config=Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"mode": "standard", "total_max_attempts": tries},
            max_pool_connections=_CONNECTIONS,
            s3={"addressing_style": style},
            # Sums that older stores refuse, asked for since botocore 1.36 although the protocol carries its own.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


class WriteError(OSError):
    """An object that was not written, as far as is known.

    Attributes:
        outcome: ``"refused"``: it was not, and another try gives the same. ``"unsent"``: it was not. ``"doubt"``: it may have
            been, or may still be.
    """

    def __init__(self, text: str, outcome: Literal["refused", "unsent", "doubt"]) -> None:
        super().__init__(text)
        self.outcome = outcome

    def __reduce__(self) -> tuple[Any, ...]:
        return WriteError, (str(self), self.outcome)


def put_new(client: Any, url: str, data: bytes) -> bool:
    """Write an object unless its key is taken; False: another writer took it.

    The store decides (``If-None-Match: *``). A request that is repeated because its answer was lost may meet its own object:
    then the bytes tell, so let them be unlike those of any other writer.

    Raises:
        WriteError: the store refused or did not answer.
    """
    from botocore.exceptions import BotoCoreError, ClientError, ConnectTimeoutError, EndpointConnectionError

    _, bucket, key = split_url(url)
    for earlier in range(_PUT_TRIES):
        try:
            client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
        except ClientError as error:
            answer = error.response.get("ResponseMetadata", {})
            status = answer.get("HTTPStatusCode")
            if status == 409:  # another write of the key is under way: its outcome is not known yet
                continue
            if status == 412:
                repeated = earlier or answer.get("RetryAttempts")
                return bool(repeated) and _read(client, bucket, key, url) == data
            final = 400 <= (status or 0) < 500 and status not in (408, 429)
            raise WriteError(f"{url} can't be written: {cause_line(error)}", "refused" if final else "doubt") from error
        except BotoCoreError as error:
            unsent = isinstance(error, (EndpointConnectionError, ConnectTimeoutError))
            raise WriteError(f"{url} can't be written: {cause_line(error)}", "unsent" if unsent else "doubt") from error
        return True
    raise WriteError(f"{url} can't be written: other writes of the same key were under way {_PUT_TRIES} times", "doubt")


def drop_folder(client: Any, name: str) -> None:
    """Delete the object ``bucket/a/b/`` that stands for a folder; most stores have none, and none must."""
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = name.partition("/")
    with contextlib.suppress(BotoCoreError, ClientError):
        client.delete_object(Bucket=bucket, Key=f"{key}/")


def _read(client: Any, bucket: str, key: str, url: str) -> bytes | None:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return bytes(client.get_object(Bucket=bucket, Key=key)["Body"].read())
    except ClientError as error:
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
            return None  # deleted since
        raise WriteError(f"{url} is taken and can't be read: {cause_line(error)}", "doubt") from error
    except BotoCoreError as error:
        raise WriteError(f"{url} is taken and can't be read: {cause_line(error)}", "doubt") from error
