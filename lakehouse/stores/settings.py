"""Catalog options to what an S3 client needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

S3_SCHEMES = ("s3", "s3a", "s3n")
_PREFIXES = ("s3.", "s3a.", "fs.s3.", "fs.s3a.")


@dataclass(frozen=True)
class S3Settings:
    """One S3 account and endpoint, for any number of buckets.

    Attributes:
        endpoint: URL of a store that speaks S3; None: Amazon's own, by region.
        region: None: what the environment says, else ``us-east-1``.
        access_key: None: the default chain of Amazon's tools (environment, profile, web identity, the machine's role).
        secret_key: beside ``access_key``.
        session_token: with temporary credentials.
        path_style: the bucket is a part of the path, not of the host's name.
    """

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> S3Settings:
        """As pypaimon reads them: the first found of the spellings ``s3. s3a. fs.s3. fs.s3a.`` with ``-`` or ``.`` inside."""
        endpoint = _first(options, ("endpoint",), "fs.s3.endpoint")
        if endpoint is not None and "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        path_style = (_first(options, ("path-style-access",)) or "", _first(options, ("path.style.access",)) or "")
        return cls(
            endpoint=endpoint.rstrip("/") if endpoint else None,
            region=_first(options, ("region",), "fs.s3.region"),
            access_key=_first(options, ("access-key", "access.key"), "fs.s3.accessKeyId"),
            secret_key=_first(options, ("secret-key", "secret.key"), "fs.s3.accessKeySecret"),
            session_token=_first(
                options, ("session-token", "session.token", "security-token", "security.token"), "fs.s3.securityToken"
            ),
            path_style=any(text.strip().lower() == "true" for text in path_style),
        )


def split_url(url: str) -> tuple[str, str, str]:
    """``s3a://bucket/a/b`` as (``s3a``, ``bucket``, ``a/b``)."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return scheme.lower(), bucket, key


def _first(options: Mapping[str, str], names: tuple[str, ...], legacy: str | None = None) -> str | None:
    for key in _spellings(names, legacy):
        if options.get(key):
            return str(options[key])
    return None


def _spellings(names: tuple[str, ...], legacy: str | None) -> Iterator[str]:
    if legacy is not None:
        yield legacy
    for prefix in _PREFIXES:
        for name in names:
            yield prefix + name
