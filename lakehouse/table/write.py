"""Writing batches into new files, and publishing them as one snapshot.

Files are written first and belong to nobody; the commit names them. A failed or interrupted write is aborted and leaves
the table as it was.
"""

from __future__ import annotations

import os
import resource
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import CommitError, CommitUnknownError, FetchError, cause_line
from lakehouse.fetch import BlobRef
from lakehouse.schema import Columns
from lakehouse.upstream import is_local, local_path

COMMIT_ID = "lakehouse.commit-id"
_MAX_OPEN_PARTITIONS = 256
_RESERVED_FILES = 64  # sockets, manifests, and whatever the caller opens meanwhile


class Writer:
    """Writes batches of one commit, with a bound on files open at once.

    The engine keeps a row file and one file per BLOB column open for each partition. When the partitions met would need
    more files than the process may open, those written so far are finished and later rows of theirs go to new files.
    """

    def __init__(self, paimon: Any, columns: Columns) -> None:
        self._paimon = paimon
        self._columns = columns
        self._builder = paimon.new_batch_write_builder()
        self._write = self._builder.new_write()
        self._open: set[tuple[Any, ...]] = set()
        self._messages: list[Any] = []
        self._max_open = max_open_partitions(1 + len(columns.blobs))
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write one batch that has exactly the table's columns."""
        for part, partitions in self._parts(batch):
            if self._open and len(self._open | partitions) > self._max_open:
                self._rotate()
            self._write.write_arrow(part)
            self._open |= partitions
        self.rows += batch.num_rows

    def finish(self) -> list[Any]:
        """Close all files; the commit messages that name them."""
        self._rotate(last=True)
        return self._messages

    def abort(self) -> None:
        """Delete every file written."""
        self._write.abort()
        self._write.close()
        if self._messages:
            commit = self._builder.new_commit()
            commit.abort(self._messages)
            commit.close()

    def _rotate(self, *, last: bool = False) -> None:
        self._messages.extend(self._write.prepare_commit())
        self._write.close()
        self._open = set()
        if not last:
            self._write = self._paimon.new_batch_write_builder().new_write()

    def _parts(self, batch: pa.RecordBatch) -> list[tuple[pa.RecordBatch, set[tuple[Any, ...]]]]:
        """Cut a batch into parts that meet at most ``max_open`` partitions each, keeping row order inside a partition."""
        if not self._columns.partition_by:
            return [(batch, set())]
        keys, codes = _partition_codes(batch, self._columns.partition_by)
        if len(keys) <= self._max_open:
            return [(batch, set(keys))]
        order = np.argsort(codes, kind="stable")  # [rows] grouped by partition
        ends = np.searchsorted(codes[order], np.arange(self._max_open, len(keys) + self._max_open, self._max_open))
        parts = []
        start = 0
        for number, end in enumerate(ends.tolist()):
            members = set(keys[number * self._max_open : (number + 1) * self._max_open])
            parts.append((batch.take(pa.array(order[start:end])), members))
            start = end
        return parts


def _partition_codes(batch: pa.RecordBatch, names: tuple[str, ...]) -> tuple[list[tuple[Any, ...]], np.ndarray[Any, Any]]:
    """Distinct partitions of a batch, and for each row the number of its own."""
    codes = np.zeros(batch.num_rows, np.int64)  # [rows]
    for name in names:
        encoded = pc.dictionary_encode(batch.column(name), null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        codes = np.unique(codes, return_inverse=True)[1]  # dense again, so that no product overflows
    _, first, dense = np.unique(codes, return_index=True, return_inverse=True)
    keys = [tuple(batch.column(name)[row].as_py() for name in names) for row in first.tolist()]
    return keys, dense


def max_open_partitions(files_each: int) -> int:
    """How many partitions may be written at once, from the process's limit on open files."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fds = Path("/proc/self/fd")
    used = len(list(fds.iterdir())) if fds.exists() else _RESERVED_FILES
    free = (1 << 20 if soft == resource.RLIM_INFINITY else soft) - used - _RESERVED_FILES
    return max(1, min(_MAX_OPEN_PARTITIONS, free // files_each))


def publish(paimon: Any, messages: list[Any], commit_id: str | None = None) -> int:
    """Make one snapshot of the messages; its id.

    Raises:
        CommitError: nothing was published; trying again is safe.
        CommitUnknownError: the store failed while it was published and can't be asked.
    """
    from pypaimon.write.commit_callback import CommitCallback

    class Remember(CommitCallback):
        snapshot_id: int | None = None

        def call(self, context: Any) -> None:
            self.snapshot_id = context.snapshot.id

    commit_id = commit_id or uuid.uuid4().hex
    before = latest_id(paimon)
    remember = Remember()
    commit = paimon.new_batch_write_builder().new_commit()
    commit.add_commit_callback(remember)
    try:
        commit.commit(messages, snapshot_properties={COMMIT_ID: commit_id})
    except Exception as error:
        found = _find(paimon, commit_id, before, error)
        if found is None:
            commit.abort(messages)
            raise CommitError(
                f"{paimon.identifier.get_full_name()}: the commit did not happen ({cause_line(error)}); try again"
            ) from error
        return found
    finally:
        commit.close()
    if remember.snapshot_id is None:
        raise CommitUnknownError(
            f"{paimon.identifier.get_full_name()}: the engine named no snapshot; look for {COMMIT_ID}={commit_id} in snapshots()"
        )
    return remember.snapshot_id


def latest_id(paimon: Any) -> int:
    """The latest snapshot's id, 0 for none."""
    snapshot = paimon.snapshot_manager().get_latest_snapshot()
    return 0 if snapshot is None else int(snapshot.id)


def _find(paimon: Any, commit_id: str, before: int, error: Exception) -> int | None:
    """After an error: the snapshot that carries our commit id, if it was published all the same."""
    try:
        manager = paimon.snapshot_manager()
        for number in range(before + 1, latest_id(paimon) + 1):
            snapshot = manager.get_snapshot_by_id(number)
            if snapshot is not None and (snapshot.properties or {}).get(COMMIT_ID) == commit_id:
                return number
    except Exception as lookup:  # noqa: BLE001 - whatever the store raises, the outcome is unknown
        raise CommitUnknownError(
            f"{paimon.identifier.get_full_name()}: the commit failed ({cause_line(error)}) and its outcome can't be looked up "
            f"({cause_line(lookup)}); look for {COMMIT_ID}={commit_id} in snapshots() before trying again"
        ) from error
    return None


class Describer:
    """Turns BlobRefs into the descriptors that the engine copies as streams, after checking that the bytes are there.

    The engine itself ends a copy at the end of a short source without an error.
    """

    def __init__(self, paimon: Any) -> None:
        self._paimon = paimon
        self._sizes: dict[str, int] = {}

    def __call__(self, ref: BlobRef, column: str) -> bytes:
        """The serialised descriptor of ``ref`` with its length resolved.

        Raises:
            FetchError: the source is missing or shorter than the reference says.
        """
        from pypaimon.table.row.blob import BlobDescriptor

        uri = str(local_path(ref.uri).absolute()) if is_local(ref.uri) else ref.uri
        size = self._size(uri, column)
        length = size - ref.offset if ref.length == -1 else ref.length
        if ref.offset < 0 or length < 0 or ref.offset + length > size:
            raise FetchError(
                f"column {column}: {uri} holds {size} bytes, the reference wants {ref.offset}+{ref.length}; nothing was written"
            )
        return bytes(BlobDescriptor(uri, ref.offset, length).serialize())

    def _size(self, uri: str, column: str) -> int:
        if uri not in self._sizes:
            try:
                if is_local(uri):
                    with open(uri, "rb") as file:  # opening also shows that it may be read
                        self._sizes[uri] = os.fstat(file.fileno()).st_size
                else:
                    self._sizes[uri] = int(self._paimon.file_io.get_file_size(uri))
            except OSError as error:
                raise FetchError(f"column {column}: can't read {uri} ({cause_line(error)}); nothing was written") from error
        return self._sizes[uri]
