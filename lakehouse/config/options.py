"""Which options exist, which of them are secret, which are two spellings of one. The values are no matter here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from lakehouse.errors import ConfigError

BLOB_ROOTS = "blob_roots"
TOP_LEVEL = ("catalogs", "default")
METASTORES = ("filesystem", "jdbc", "rest")
SCHEMES = ("file", "gs", "hdfs", "oss", "s3", "s3a", "s3n", "viewfs")  # what pypaimon can open

# Options as pypaimon 2.1 reads them (pypaimon.common.options.config and its file systems); a test compares.
_PLAIN = (
    *(BLOB_ROOTS, "cache-enabled", "catalog-key", "metastore", "prefix", "sync-all-properties", "token", "uri"),
    "warehouse",
)
_S3 = (
    *("endpoint", "region", "access-key", "access.key", "secret-key", "secret.key", "session-token", "session.token"),
    *("security-token", "security.token", "path-style-access", "path.style.access"),
)
_OSS = (
    *("impl", "accessKeyId", "accessKeySecret", "securityToken", "endpoint", "region", "server-side-encryption"),
    *("server-side-encryption-key-id", "server-side-data-encryption", "server-side-encryption-algorithm"),
    *("user.agent.module", "user.agent.features", "user.agent.extended"),
)
# Nothing but pypaimon reads these families: a key that it doesn't know would have no effect, so it is refused.
_CLOSED: dict[str, tuple[str, ...]] = {
    "s3.": _S3,
    "fs.s3.": ("accessKeyId", "accessKeySecret", "securityToken", *_S3),
    "dlf.": (
        *("region", "access-key-id", "access-key-secret", "security-token", "token-path", "oss-endpoint"),
        *("token-loader", "token-ecs-role-name", "token-ecs-metadata-url", "signing-algorithm"),
        "access-tracking.extended-info",
    ),
    "token.": ("provider",),
    "data-token.": ("enabled",),
    "gcs.": ("access-token", "access-token.expiration", "project-id"),
    "cache.": ("blob-index.max-size", "expire-after-write"),
    "local-cache.": ("enabled", "dir", "max-size", "block-size", "whitelist"),
    "file-io.": ("read-coalesce.max-gap", "read-coalesce.max-block"),
    "file-format.": ("metadata-cache.max-size",),
    "resolving-file-io.": ("enabled",),
    "user-agent.": ("module", "features", "extended"),
    "hdfs.": ("client.impl", "client.fallback-to-pyarrow", "conf-dir"),
    "security.": (
        *("kerberos.login.principal", "kerberos.login.keytab", "kerberos.login.use-ticket-cache"),
        *("principal", "keytab"),
    ),
    "fuse.": ("enabled", "root", "validation-mode", "mode"),
}
# Hadoop, Jindo and database drivers have keys of their own here: only a near miss of a key listed is refused.
_OPEN: dict[str, tuple[str, ...]] = {
    "s3a.": _S3,
    "fs.s3a.": _S3,
    "fs.oss.": _OSS,
    "oss.": _OSS,
    "jdbc.": ("user", "username", "password", "host", "port", "database"),
}
_FREE = ("header.", "table-default.", "hdfs.config.")  # any key
_FAMILIES = {**_CLOSED, **_OPEN}
KNOWN = (*_PLAIN, *(family + name for family, names in _FAMILIES.items() for name in names))

# difflib ratios. In a closed family any resemblance helps; elsewhere a key that only looks alike must pass:
# `endpoint.region` beside `endpoint` (0.70), `fs.obs.endpoint` beside `fs.oss.endpoint` (0.93).
_ALIKE, _NEAR_MISS, _SAME_BUT_A_LETTER = 0.5, 0.8, 0.95

_NOT_SECRET = {
    *("token.provider", "data-token.enabled", "gcs.access-token.expiration"),
    *("dlf.token-path", "dlf.token-loader", "dlf.token-ecs-role-name", "dlf.token-ecs-metadata-url"),
    *("security.kerberos.login.use-ticket-cache", "fs.oss.server-side-encryption-key-id"),
}
_SECRET_PARTS = re.compile(
    r"secret|passw|passphrase|token|credential|signature|cookie|authoriz"
    r"|(?:access|account|api|auth|encryption|private|session|shared)key"
)
_SECRET_WORDS = re.compile(r"(?:^|[-._])(?:auth|pass|pwd|sas|sig)(?:[-._]|$)", re.IGNORECASE)

_S3_PREFIX = re.compile(r"(?:fs\.)?s3a?\.")
_S3_SAME = {"accesskeyid": "accesskey", "accesskeysecret": "secretkey", "securitytoken": "sessiontoken"}


def is_secret(key: str) -> bool:
    """Whether an option or environment variable of this name is, or smells like, a secret."""
    if key in _NOT_SECRET:
        return False
    joined = re.sub(r"[-._]", "", key).lower()
    return key.startswith("header.") or bool(_SECRET_PARTS.search(joined) or _SECRET_WORDS.search(key))


def meaning(key: str) -> str:
    """One text for all spellings of a setting.

    pypaimon takes an S3 setting under `s3.`, `s3a.`, `fs.s3.` or `fs.s3a.`, the first found: an override has to beat
    them all.
    """
    prefix = _S3_PREFIX.match(key)
    if not prefix:
        return key
    rest = re.sub(r"[-.]", "", key[prefix.end() :]).lower()
    return "s3 " + _S3_SAME.get(rest, rest)


def check_key(key: str, value: Any, where: str) -> None:
    """Refuses a misspelt option; another system's option passes.

    Raises:
        ConfigError: Naming the nearest known key.
    """
    if key in KNOWN or any(key.startswith(family) and key != family for family in _FREE):
        return
    what = f"Unknown option {key!r} in {where}"
    hint = None
    if isinstance(value, Mapping) and any(known.startswith(f"{key}.") for known in KNOWN):
        hint = f"options are not nested, write {key}.{next(iter(value), 'name')}: ..."
    family = max((family for family in _FAMILIES if key.startswith(family)), key=len, default=None)
    if family is not None:
        closed = family in _CLOSED
        near = nearest(key[len(family) :], _FAMILIES[family], _ALIKE if closed else _NEAR_MISS)
        if near or closed or key == family:
            refuse(what, near and family + near, [family + name for name in _FAMILIES[family]], hint)
    elif "." not in key:
        refuse(what, nearest(key, (*KNOWN, *TOP_LEVEL)), _PLAIN, hint)
    else:
        near = nearest(key, KNOWN, _SAME_BUT_A_LETTER)
        if near:
            refuse(what, near, (), hint)


def refuse(what: str, near: str | None, known: Iterable[str], hint: str | None = None) -> NoReturn:
    """Raises `ConfigError`: what is wrong, then a hint, the nearest known name, or all of them."""
    if hint is None:
        hint = f"did you mean {near!r}?" if near else f"there are {', '.join(known)}."
    raise ConfigError(f"{what}: {hint}")


def nearest(word: str, known: Iterable[str], cutoff: float = _ALIKE) -> str | None:
    """The known word most like this one, upper and lower case alike, or None."""
    by_lower = {key.lower(): key for key in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def kind(value: Any) -> str:
    """A value's type for an error's text, never the value."""
    return "nothing" if value is None else "an empty mapping" if value == {} else f"a {type(value).__name__}"
