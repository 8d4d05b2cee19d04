"""Ranges of objects by each client: ``(uri, offset, length) -> bytes``, as `lakehouse.fetch.RangeFetcher` calls it.

A client's own errors are turned into `ReadError`, which says whether another try may help. Its text is one line that names
what the store said, and never what was sent: Amazon's stores repeat session tokens in the answers that refuse them.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Any

from lakehouse.errors import cause_line
from lakehouse.fetch import TO_END, ReadError, Verdict
from lakehouse.stores.s3 import S3Access, botocore_of, obstore_of
from lakehouse.stores.settings import split_url

_MAX_FILES = 256
_STATUS = re.compile(r"status code: (\d{3})((?: [A-Z][A-Za-z-]*)*)")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
# Characters that are no part of a key for object_store, the library beneath obstore.
_UNFIT = re.compile(r"[\x00-\x1f\x7f]|//|(?:^|/)\.{1,2}(?:/|$)|^/|/$")
_BY_STATUS: dict[int, Verdict] = {
    **dict.fromkeys((401, 403), "denied"),
    **dict.fromkeys((404, 410), "gone"),
    **dict.fromkeys((429, 503), "throttled"),
    **dict.fromkeys((408, 425, 500, 502, 504), "transient"),
}
_EXPIRED = re.compile(r"expired.?token|token.?(has |is )?expired|invalid.?token|token.?refresh.?required", re.IGNORECASE)


class ObstoreReader:
    """Reads with obstore: a quarter of s3fs's CPU time per request, and no lock of the interpreter while it waits."""

    def __init__(self, access: S3Access) -> None:
        self.renewable = access.renewable
        self._access = access
        self._lock = threading.Lock()
        self._stores: dict[str, Any] = {}  # by bucket

    @staticmethod
    def reads(key: str) -> bool:
        """Whether obstore can name this key at all."""
        return _UNFIT.search(key) is None

    def __call__(self, uri: str, offset: int, length: int) -> bytes | memoryview:
        """Bytes of one range; fewer where the object ends."""
        _, bucket, key = split_url(uri)
        store = self._store_of(bucket)
        try:
            if length == TO_END:
                got = store.get(key, options={"range": {"offset": offset}} if offset else None)
                return memoryview(got.bytes())
            return memoryview(store.get_range(key, start=offset, length=length))
        except Exception as error:  # noqa: BLE001 - the client's classes tell less than its text
            failure = obstore_error(error, uri)
        raise failure

    def identity(self, uri: str) -> str:
        """The version of an object."""
        _, bucket, key = split_url(uri)
        try:
            found = self._store_of(bucket).head(key)
        except Exception as error:  # noqa: BLE001 - as in `__call__`
            failure = obstore_error(error, uri)
        else:
            return f"{found['e_tag']}-{found['size']}-{found['last_modified'].timestamp()}"
        raise failure

    def renew(self) -> None:
        """Ask for keys anew."""
        with self._lock:
            self._stores.clear()

    def _store_of(self, bucket: str) -> Any:
        with self._lock:
            store = self._stores.get(bucket)
            if store is None:
                store = self._stores[bucket] = obstore_of(self._access, bucket)
            return store


def obstore_error(error: Exception, uri: str) -> Exception:
    """What a failure of obstore means; one that tells of a mistake in a program stays as it is."""
    if isinstance(error, (TypeError, AttributeError)):
        return error
    text = str(error)
    line = text.split("\n", 1)[0].rpartition(" - ")[2][:300]  # before it: the object and the time, which others tell
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is not None:
        said = f" ({code[1]})" if code is not None else ""
        expired = code is not None and _EXPIRED.search(code[1])
        return ReadError(f"{status[1]}{status[2]}{said}", "denied" if expired else _BY_STATUS.get(int(status[1]), "range"))
    if isinstance(error, FileNotFoundError):
        return ReadError(line, "gone")
    if type(error).__module__.startswith("obstore"):
        return ReadError(line, "transient")  # no answer, or one that broke off or was about another range
    return ReadError(f"{uri}: {line}", "range")


class BotocoreReader:
    """Reads S3 with botocore, where obstore can't: in forked processes, and keys that it has no name for.

    At six times the CPU time. pyarrow is quicker, but takes whatever a store sends for the range that was asked for.
    """

    def __init__(self, access: S3Access) -> None:
        self.renewable = access.renewable
        self._access = access
        self._lock = threading.Lock()
        self._client: Any = None

    def __call__(self, uri: str, offset: int, length: int) -> bytes:
        """Bytes of one range; fewer where the object ends."""
        if length == 0:
            return b""
        _, bucket, key = split_url(uri)
        is_whole = offset == 0 and length == TO_END
        end = "" if length == TO_END else offset + length - 1
        client = self._client_of()
        try:
            answer = client.get_object(Bucket=bucket, Key=key, **({} if is_whole else {"Range": f"bytes={offset}-{end}"}))
            with answer["Body"] as body:
                data: bytes = body.read()
        except Exception as error:  # noqa: BLE001 - as of obstore
            failure = botocore_error(error)
        else:
            if is_whole or str(answer.get("ContentRange", "")).startswith(f"bytes {offset}-"):
                return data
            failure = ReadError("the store's answer was about another range", "transient")
        raise failure

    def identity(self, uri: str) -> str:
        """The version of an object."""
        _, bucket, key = split_url(uri)
        client = self._client_of()
        try:
            found = client.head_object(Bucket=bucket, Key=key)
        except Exception as error:  # noqa: BLE001 - as of obstore
            failure = botocore_error(error)
        else:
            return f"{found['ETag']}-{found['ContentLength']}-{found['LastModified'].timestamp()}"
        raise failure

    def renew(self) -> None:
        """Ask for keys anew."""
        with self._lock:
            self._client = None

    def _client_of(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = botocore_of(self._access, tries=1)
            return self._client


def botocore_error(error: Exception) -> Exception:
    """What a failure of botocore means; one that tells of a mistake in a program stays as it is."""
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    if isinstance(error, ClientError):
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = str(error.response.get("Error", {}).get("Code", ""))
        verdict = "denied" if _EXPIRED.search(code) else _BY_STATUS.get(status, "range")
        return ReadError(f"{status} ({code})", verdict)
    if isinstance(error, (HTTPClientError, OSError)) or type(error).__module__.startswith("urllib3"):
        return ReadError(type(error).__name__, "transient")  # no answer, or one that broke off
    if isinstance(error, BotoCoreError):
        return ReadError(cause_line(error), "transient" if "Read" in type(error).__name__ else "range")
    return error


class ArrowReader:
    """Reads with files that a FileIO of Paimon's opens; they are kept open.

    Args:
        open_file: from uri to a file with ``read_at`` or with ``seek`` and ``read``.
        renewable: files opened anew may be opened with other keys.
    """

    def __init__(self, open_file: Callable[[str], Any], *, renewable: bool = False) -> None:
        self.renewable = renewable
        self._open_file = open_file
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}  # the most recently used last

    def __call__(self, uri: str, offset: int, length: int) -> bytes:
        """Bytes of one range; fewer where the object ends."""
        with self._lock:
            file = self._files.pop(uri, None)
        if file is None:
            file = _File(self._open_file(uri))
        try:
            data = file.read(offset, length)
        except BaseException:
            file.close()  # an object that was replaced meanwhile, or keys that have expired
            raise
        with self._lock:
            self._files[uri] = file
            while len(self._files) > _MAX_FILES:
                self._files.pop(next(iter(self._files)))
        return data

    def renew(self) -> None:
        """Open files anew, with keys asked for anew."""
        with self._lock:
            self._files.clear()


class _File:
    """An open file. ``read_at`` needs no lock; a plain stream is one thread's at a time."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._at = getattr(stream, "read_at", None)

    def read(self, offset: int, length: int) -> bytes:
        if length == TO_END:
            size = self._stream.size()
            length = max(int(size) - offset, 0)
        if self._at is not None:
            return bytes(self._at(length, offset))
        with self._lock:
            self._stream.seek(offset)
            return bytes(self._stream.read(length))

    def close(self) -> None:
        self._stream.close()


_first_user: int | None = None


def may_use_tokio() -> bool:
    """Whether obstore works here: its threads don't follow a fork, so in the child of a process that used it, it hangs."""
    global _first_user  # noqa: PLW0603 - a fact of the process
    if _first_user is None:
        _first_user = os.getpid()
    return _first_user == os.getpid()
