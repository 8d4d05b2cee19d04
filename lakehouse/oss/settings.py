"""What OSS clients need, from the catalog's options; and whether a bucket can be committed to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_EXTRA = 'pip install "lakehouse-sdk[oss]"'
DENIED = "denied"


@dataclass(frozen=True)
class OssSettings:
    """One OSS account and endpoint, for any number of buckets.

    Attributes:
        endpoint: with its scheme, ``https`` where none was given; None: unknown.
        region: ``cn-hangzhou``; None: unknown.
        access_key_id, access_key_secret, security_token: None: what the client finds by itself.

    Example:
        >>> OssSettings.of({"fs.oss.endpoint": "oss-cn-hangzhou.aliyuncs.com", "fs.oss.accessKeyId": "me"}).fsspec()
        {'endpoint': 'https://oss-cn-hangzhou.aliyuncs.com', 'key': 'me'}
    """

    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    access_key_secret: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> OssSettings:
        """From ``fs.oss.*``; ``dlf.oss-endpoint`` beats its endpoint, as in pypaimon."""
        endpoint = options.get("dlf.oss-endpoint") or options.get("fs.oss.endpoint")
        if endpoint is not None and "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        return cls(
            endpoint=endpoint,
            region=options.get("fs.oss.region") or options.get("dlf.region"),
            access_key_id=options.get("fs.oss.accessKeyId"),
            access_key_secret=options.get("fs.oss.accessKeySecret"),
            security_token=options.get("fs.oss.securityToken"),
        )

    def pypaimon(self) -> dict[str, str]:
        """Options of pypaimon's FileIO; without ``jindo``, which is another library and none that we test."""
        named = {
            "fs.oss.endpoint": self.endpoint,
            "fs.oss.region": self.region,
            "fs.oss.accessKeyId": self.access_key_id,
            "fs.oss.accessKeySecret": self.access_key_secret,
            "fs.oss.securityToken": self.security_token,
        }
        return _given(named)

    def fsspec(self) -> dict[str, str]:
        """Keyword arguments of ``fsspec.filesystem("oss", ...)`` (the library is ossfs)."""
        return _given(
            {
                "endpoint": self.endpoint,
                "key": self.access_key_id,
                "secret": self.access_key_secret,
                "token": self.security_token,
            }
        )

    def daft(self, bucket: str) -> dict[str, Any]:
        """Keyword arguments of ``daft.io.IOConfig`` for ``oss://bucket/...``, which Daft reads by OpenDAL."""
        return {
            "opendal_backends": {
                "oss": {
                    "bucket": bucket,
                    **_given(
                        {
                            "endpoint": self.endpoint,
                            "region": self.region,
                            "access_key_id": self.access_key_id,
                            "access_key_secret": self.access_key_secret,
                            "security_token": self.security_token,
                        }
                    ),
                }
            }
        }


def refusal(versioning: str | None, *, has_oss2: bool = True) -> str | None:
    """Why a bucket can't be committed to without a catalog server; None when it can.

    OSS refuses to overwrite (``x-oss-forbid-overwrite``) only in buckets that never had versions. In others upstream falls
    back to "does it exist, copy it over", by which two writers lose each other's rows.

    Args:
        versioning: the bucket's versioning: None: it never had any; ``Enabled``, ``Suspended``; `DENIED`: it may not be read.
        has_oss2: whether the library that asks for it, and writes under the condition, is installed.
    """
    if not has_oss2:
        return f"commits on OSS need the library oss2: {_EXTRA}"
    if versioning is None:
        return None
    if versioning == DENIED:
        return (
            "its versioning can't be read, and in a bucket with versions two writers would lose each other's commits without "
            "an error: grant oss:GetBucketVersioning, or write through a REST catalog (DLF)"
        )
    return (
        f"its versioning is {versioning}, and there OSS does not refuse to overwrite: two writers would lose each other's "
        "commits without an error. Use a bucket that never had versioning, or write through a REST catalog (DLF)"
    )


def _given(named: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in named.items() if value is not None}
