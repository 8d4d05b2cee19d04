"""The remedies for faults of pypaimon 2.1 on object stores.

Upstream writes a snapshot, schema or tag there by "does it exist, write a temporary object, copy it over": two writers that
meet both report success, and the rows of one are gone (measured: four writers of 5 appends lost 10 to 30 of 200 rows in four
of five runs). Here the store decides, by a write under the condition that the key is new.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
import uuid
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType
from pypaimon.common.identifier import Identifier
from pypaimon.filesystem.pyarrow_file_io import PyArrowFileIO
from pypaimon.snapshot.snapshot_manager import SnapshotManager

from lakehouse.errors import CommitError, cause_line
from lakehouse.fetch import PerProcess, classify
from lakehouse.stores import S3Settings, Store, put_new
from lakehouse.stores.s3 import S3Access, botocore_of, drop_folder
from lakehouse.stores.settings import S3_SCHEMES, split_url

_probed: dict[tuple[str, str], bool] = {}  # (endpoint, bucket) to whether it honours the condition
_probing = threading.Lock()

# Small files that are written once. Upstream asks for each "is it there", "how large is it", and its bytes, and often again a
# moment later, one request after the other; here all of that is one request.
ONCE = re.compile(r"/(?:snapshot|schema)-\d+$")
# Upstream asks whether a folder is there before it lists it or reads in it: two requests, for what the next one tells too.
_FOLDER = re.compile(r"/(?:snapshot|schema)$")
_HINT = re.compile(r"/(?:LATEST|EARLIEST)$")  # small, and written again and again
FRESH_S = 1.0
_FRESH_FILES = 256


class S3FileIO(PyArrowFileIO):
    """Upstream's FileIO for S3, but what must be written once is, and no folder is made or asked for before a file.

    Args:
        path: the warehouse.
        options: pypaimon's ``Options``.
    """

    def __init__(self, path: str, options: Any) -> None:
        super().__init__(path, options)
        self._begin()

    def _begin(self) -> None:
        options = self.properties.to_map()
        self._writer = PerProcess(partial(_writer_of, S3Settings.of(options)), keep_inherited=True)
        self._store = Store(options)
        self._fresh: dict[str, tuple[float, bytes]] = {}  # by path: when it was read, and what
        self._foreseen: dict[str, threading.Thread] = {}  # by path: who reads it

    def try_to_write_atomic(self, path: str, content: str) -> bool:
        """Write a file unless it is there; False: it is, by another writer's hand.

        Raises:
            CommitError: a store that would not notice.
            OSError: the store refused or did not answer; then it may have been written all the same.
        """
        self.check_creates(path)
        self._fresh.clear()
        return put_new(self._writer.get(), path, content.encode())

    def check_creates(self, path: str) -> None:
        """See that the store honours a write under a condition, by two writes of one key, once per bucket and process.

        Raises:
            CommitError: it does not, or can't be written at all.
        """
        settings = S3Settings.of(self.properties.to_map())
        if settings.endpoint is None:  # Amazon's own does, since 2024
            return
        _, bucket, _ = split_url(path)
        with _probing:
            honoured = _probed.get((settings.endpoint, bucket))
            if honoured is None:
                honoured = _probed[settings.endpoint, bucket] = _honours(self._writer.get(), path, bucket)
        if not honoured:
            raise CommitError(
                f"{settings.endpoint} ignores conditions on writes (If-None-Match), so two writers of bucket {bucket} could "
                "lose each other's commits without an error; write through a REST catalog, or to a store that honours them"
            )

    def to_filesystem_path(self, path: str) -> str:
        """``bucket/key``. Upstream drops what follows a ``#`` or ``?``: files are written there and never found again."""
        scheme, bucket, key = split_url(path)
        if scheme not in S3_SCHEMES:
            return str(super().to_filesystem_path(path))
        return f"{bucket}/{re.sub('/+', '/', key).lstrip('/')}".rstrip("/")

    def exists(self, path: str) -> bool:
        """As upstream, but one request for what is read next, and none for folders: a store has no need of them."""
        if _FOLDER.search(path):
            return True
        return self._once(path) is not None if ONCE.search(path) else bool(super().exists(path))

    def new_input_stream(self, path: str) -> Any:
        """As upstream, but one request for a small file."""
        is_hint = _HINT.search(path)
        if not is_hint and not ONCE.search(path):
            return super().new_input_stream(path)
        data = self._whole(path) if is_hint else self._once(path)
        if data is None:
            raise FileNotFoundError(f"{path} does not exist")
        return pa.BufferReader(data)

    def foresee(self, path: str) -> None:
        """Read a file that is written once in a thread, for one who asks for it within a moment, and waits for it then."""

        def read() -> None:
            with contextlib.suppress(Exception):  # who asks meets it again
                self._read_once(path)

        thread = threading.Thread(target=read, name="lakehouse-foresee", daemon=True)
        thread.start()
        self._foreseen[path] = thread

    def look_anew(self) -> None:
        """Ask for every file again: one that is written once is another one after its table was dropped and made again."""
        self._fresh.clear()

    def _once(self, path: str) -> bytes | None:
        foreseen = self._foreseen.pop(path, None)
        if foreseen is not None:
            foreseen.join()
        return self._read_once(path)

    def _read_once(self, path: str) -> bytes | None:
        read_s, held = self._fresh.get(path, (-math.inf, b""))
        if time.monotonic() - read_s < FRESH_S:
            return held
        data = self._whole(path)
        if data is None:
            return None
        if len(self._fresh) > _FRESH_FILES:
            self._fresh.clear()
        self._fresh[path] = (time.monotonic(), data)
        return data

    def _whole(self, path: str) -> bytes | None:
        """A file's bytes by one request; None: it is not there."""
        try:
            return self._store.read_object(path)
        except OSError as error:
            if classify(error) == "gone":
                return None
            raise

    def new_output_stream(self, path: str) -> Any:
        """A stream into a new object. There are no folders to make: upstream asks and makes, 3 requests a file."""
        return self.filesystem.open_output_stream(self.to_filesystem_path(path))

    def delete(self, path: str, recursive: bool = False) -> bool:
        """As upstream, and the empty folders too that some stores (SeaweedFS) keep: a dropped table would still be listed."""
        self._fresh.clear()
        name = self.to_filesystem_path(path)
        folders = [name]
        if recursive:
            found = self.filesystem.get_file_info(FileSelector(name, recursive=True, allow_not_found=True))
            folders += [info.path for info in found if info.type == FileType.Directory]
        deleted: bool = super().delete(path, recursive)
        if recursive:
            for folder in sorted(folders, key=lambda folder: folder.count("/"), reverse=True):
                drop_folder(self._writer.get(), folder)
        return deleted

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("_writer", "_store", "_fresh", "_foreseen")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin()


def with_store_remedies(catalog: Any) -> Any:
    """The same pypaimon catalog, its tables' files written by `S3FileIO` where they lie on S3 and no server commits."""
    file_io: Any = getattr(catalog, "file_io", None)
    inner: Any = getattr(file_io, "_delegate", file_io)  # beneath a cache
    warehouse = str(getattr(catalog, "warehouse", ""))
    if type(inner) is PyArrowFileIO and split_url(warehouse)[0] in S3_SCHEMES:
        safe = S3FileIO(warehouse, inner.properties)
        if inner is file_io:
            catalog.file_io = safe
        else:
            file_io._delegate = safe  # noqa: SLF001 - upstream has no other way to what the cache stands before
    return catalog


def foresee(catalog: Any, table: str, branch: str | None, snapshot: int) -> None:
    """Have a snapshot's file read while its table is opened, where the files lie on S3.

    Args:
        catalog: a pypaimon catalog.
        table: ``database.table``.
        branch: None: main.
        snapshot: its number.
    """
    file_io: Any = getattr(catalog, "file_io", None)
    inner: Any = getattr(file_io, "_delegate", file_io)
    if isinstance(inner, S3FileIO):
        manager = SnapshotManager(file_io, catalog.get_table_path(Identifier.from_string(table)), branch)
        inner.foresee(manager.get_snapshot_path(snapshot))


def _writer_of(settings: S3Settings) -> Any:
    return botocore_of(S3Access(settings))


def _honours(client: Any, path: str, bucket: str) -> bool:
    """Whether the second of two conditional writes is refused."""
    scheme, _, key = split_url(path)
    probe = f"{key.rpartition('/')[0]}/.lakehouse-probe-{os.getpid()}-{uuid.uuid4().hex}"
    url = f"{scheme}://{bucket}/{probe}"
    try:
        first, second = put_new(client, url, b"first"), put_new(client, url, b"second")
        client.delete_object(Bucket=bucket, Key=probe)
    except Exception as error:
        raise CommitError(f"{scheme}://{bucket} can't be written to ({cause_line(error)}); nothing was changed") from error
    return first and not second
