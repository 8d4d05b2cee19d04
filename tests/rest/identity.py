"""Who may ask: bearer tokens, and signatures of DLF recomputed from what came over the wire.

Written from the canonical forms that the signers document, not with the client's code, so that a client that signs wrongly is
refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qsl, quote, unquote_plus

_SKEW = timedelta(minutes=15)
_V4 = re.compile(
    r"(\S+) Credential=([^/]+)/(\d{8})/([^/]+)/DlfNext/aliyun_v4_request,(?:SignedHeaders=([^,]*),)?Signature=(\w+)"
)
_ROA = re.compile(r"acs ([^:]+):(\S+)")


@dataclass(frozen=True)
class Request:
    """A request as it arrived; header names in lower case, path and query still encoded."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def parameters(self) -> dict[str, str]:
        """Query parameters, decoded once."""
        return dict(parse_qsl(self.query, keep_blank_values=True))


@dataclass
class Identity:
    """The secrets that the server knows.

    Attributes:
        bearer: tokens that are valid now.
        keys: access key id -> (secret, security token or None).
        region: of the DLF signatures.
    """

    bearer: set[str] = field(default_factory=set)
    keys: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    region: str = "cn-hangzhou"

    def refuse(self, request: Request) -> str | None:
        """Why the request is refused, None when it is not."""
        authorization = request.headers.get("authorization", "")
        if authorization.startswith("Bearer "):
            return None if authorization[7:] in self.bearer else "the token is unknown or has expired"
        match = _V4.fullmatch(authorization)
        if match is not None and match[1] == "DLF4-HMAC-SHA256":
            return self._refuse(request, match[2], match[6], lambda secret: self._dlf4(request, secret))
        if match is not None and match[1] == "ACS4-HMAC-SHA256":
            return self._refuse(request, match[2], match[6], lambda secret: self._acs4(request, secret, match[5]))
        roa = _ROA.fullmatch(authorization)
        if roa is not None:
            return self._refuse(request, roa[1], roa[2], lambda secret: _roa(request, secret))
        return "no credentials"

    def _refuse(self, request: Request, key_id: str, given: str, sign: object) -> str | None:
        if key_id not in self.keys:
            return "the access key is unknown or has expired"
        secret, token = self.keys[key_id]
        headers = request.headers
        if (headers.get("x-dlf-security-token") or headers.get("x-acs-security-token")) != token:
            return "the security token is not this key's"
        if not callable(sign) or not hmac.compare_digest(sign(secret), given):
            return "the signature does not match"
        return None

    def _dlf4(self, request: Request, secret: str) -> str:
        headers = request.headers
        stamp = headers["x-dlf-date"]
        _check_clock(datetime.strptime(stamp, "%Y%m%dT%H%M%SZ"))
        if request.body and headers.get("content-md5") != _md5(request.body):
            return ""
        signed = ("content-md5", "content-type", "x-dlf-content-sha256", "x-dlf-date", "x-dlf-version", "x-dlf-security-token")
        lines = [f"{name}:{headers[name].strip()}" for name in sorted(signed) if name in headers]
        if not request.body:  # a client library may send a Content-Type of its own accord
            lines = [line for line in lines if not line.startswith("content-")]
        query = "&".join(f"{key}={quote(value, safe='')}" for key, value in sorted(request.parameters.items()))
        canonical = "\n".join([request.method, request.path, query, *lines, headers["x-dlf-content-sha256"]])
        scope = f"{stamp[:8]}/{self.region}/DlfNext/aliyun_v4_request"
        text = "\n".join(["DLF4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        return self._v4_hex(secret, stamp[:8], text)

    def _acs4(self, request: Request, secret: str, names: str) -> str:
        headers = request.headers
        stamp = headers["x-acs-date"]
        _check_clock(datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))
        if headers["x-acs-content-sha256"] != hashlib.sha256(request.body).hexdigest():
            return ""
        signed = names.split(";")
        if not {name for name in headers if name.startswith("x-acs-")} <= set(signed):
            return ""
        block = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(signed))
        query = "&".join(
            f"{quote(key, safe='~')}={quote(value, safe='~')}" for key, value in sorted(request.parameters.items())
        )
        parts = [request.method, request.path, query, block, names, headers["x-acs-content-sha256"]]
        text = "ACS4-HMAC-SHA256\n" + hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return self._v4_hex(secret, stamp[:10].replace("-", ""), text)

    def _v4_hex(self, secret: str, date: str, text: str) -> str:
        key = f"aliyun_v4{secret}".encode()
        for part in (date, self.region, "DlfNext", "aliyun_v4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _roa(request: Request, secret: str) -> str:
    headers = request.headers
    _check_clock(datetime.strptime(headers["date"], "%a, %d %b %Y %H:%M:%S GMT"))
    if request.body and headers.get("content-md5") != _md5(request.body):
        return ""
    first = [
        headers.get(name, "") if request.body or name == "accept" else "" for name in ("accept", "content-md5", "content-type")
    ]
    acs = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers) if name.startswith("x-acs-"))
    resource = unquote_plus(request.path)
    if request.parameters:
        resource += "?" + "&".join(f"{key}={value}" if value else key for key, value in sorted(request.parameters.items()))
    text = "\n".join([request.method, *first, headers["date"], acs]) + resource
    return base64.b64encode(hmac.new(secret.encode(), text.encode(), hashlib.sha1).digest()).decode()


def _check_clock(stamp: datetime) -> None:
    if abs(datetime.now(timezone.utc) - stamp.replace(tzinfo=timezone.utc)) > _SKEW:
        raise ValueError("the request was signed at another time")


def _md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body).digest()).decode()
