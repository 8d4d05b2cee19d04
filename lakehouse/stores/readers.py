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

from lakehouse.fetch import TO_END, ReadError, Verdict
from lakehouse.stores.s3 import S3Access, arrow_of, obstore_of
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
        with self._lock:
            store = self._stores.get(bucket)
            if store is None:
                store = self._stores[bucket] = obstore_of(self._access, bucket)
        try:
            if length == TO_END:
                got = store.get(key, options={"range": {"offset": offset}} if offset else None)
                return memoryview(got.bytes())
            return memoryview(store.get_range(key, start=offset, length=length))
        except Exception as error:  # noqa: BLE001 - the client's classes tell less than its text
            failure = obstore_error(error, uri)
        raise failure

    def renew(self) -> None:
        """Ask for keys anew."""
        with self._lock:
            self._stores.clear()


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


class ArrowReader:
    """Reads with files that a pyarrow file system, or a FileIO of Paimon's, opens; they are kept open.

    Args:
        open_file: from uri to a file with ``read_at`` or with ``seek`` and ``read``.
        renewable: files opened anew may be opened with other keys.
        renew: called before that.
    """

    def __init__(
        self, open_file: Callable[[str], Any], *, renewable: bool = False, renew: Callable[[], None] | None = None
    ) -> None:
        self.renewable = renewable
        self._open_file = open_file
        self._renew = renew
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
        if self._renew is not None:
            self._renew()


def s3_arrow_reader(access: S3Access) -> ArrowReader:
    """S3 by pyarrow."""
    held: list[Any] = []

    def open_file(uri: str) -> Any:
        if not held:
            held.append(arrow_of(access))
        _, bucket, key = split_url(uri)
        return held[0].open_input_file(f"{bucket}/{key}")

    return ArrowReader(open_file, renewable=access.renewable, renew=held.clear)


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
