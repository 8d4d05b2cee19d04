"""Writing batches into new files, and publishing them as one snapshot.

Files are written first and belong to nobody; the commit names them. A failed or interrupted write is aborted and leaves
the table as it was.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import CommitError, CommitUnknownError, LakehouseError, NotFoundError, SchemaError, cause_line
from lakehouse.schema import Columns
from lakehouse.upstream import LinkingSnapshotCommit

logger = logging.getLogger(__name__)

COMMIT_ID = "lakehouse.commit-id"
_MAX_OPEN_PARTITIONS = 256
_RESERVED_FILES = 64  # sockets, manifests, and whatever the caller opens meanwhile
# Bytes of scalar columns that the engine may hold before its files are finished. It looks at its own limit only when its
# row count happens to be a multiple of 1,000, which for batches of other sizes may be never.
_BUFFERED_BYTES = 128 * 1024 * 1024
# Bytes of batches that wait to be sorted by partition when there are more partitions than may be open.
_WAITING_BYTES = 128 * 1024 * 1024

_Keys = frozenset[tuple[Any, ...]]


class Writer:
    """Writes the batches of one commit, with a bound on memory and on files open at once.

    The engine keeps one file per BLOB column open for each partition that it met. While the partitions fit, batches pass
    through. When they are more, batches wait, are sorted by partition and written some partitions at a time; files written
    so far are finished in between. Row order inside a partition stays.
    """

    def __init__(self, paimon: Any, columns: Columns) -> None:
        self._paimon = paimon
        self._columns = columns
        self._scalars = [i for i, item in enumerate(columns.arrow) if item.name not in set(columns.blobs) - columns.inline]
        self._write = paimon.new_batch_write_builder().new_write()
        self._open: _Keys = frozenset()
        self._buffered_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._messages: list[Any] = []
        self._max_open = max_open_partitions(1 + len(columns.arrow) - len(self._scalars))
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write one batch that has exactly the table's columns.

        Raises:
            CommitError: its files can't be written.
            SchemaError: a partition value that is too long for a folder's name.
        """
        self.rows += batch.num_rows
        if not self._columns.partition_by:
            self._put(batch, frozenset())
            return
        keys = frozenset(_partitions(batch, self._columns.partition_by)[0])
        if not self._waiting and len(self._open | keys) <= self._max_open:
            self._put(batch, keys)
            return
        self._waiting.append(batch)
        if sum(waiting.nbytes for waiting in self._waiting) >= _WAITING_BYTES:
            self._put_waiting()

    def finish(self) -> list[Any]:
        """Close all files; the commit messages that name them."""
        self._put_waiting()
        self._close()
        return self._messages

    def abort(self) -> None:
        """Delete every file written. Never raises: it runs while another error is on its way."""
        try:
            self._write.abort()
            self._write.close()
            if self._messages:
                discard(self._paimon, self._messages)
        except Exception:
            logger.warning("%s: files of a failed append are left behind", _name(self._paimon), exc_info=True)

    def _put(self, batch: pa.RecordBatch, keys: _Keys) -> None:
        with _as_ours(self._paimon):
            self._write.write_arrow(batch)
        self._open |= keys
        self._buffered_bytes += sum(batch.column(i).nbytes for i in self._scalars)
        if self._buffered_bytes >= _BUFFERED_BYTES:
            self._rotate()

    def _put_waiting(self) -> None:
        if not self._waiting:
            return
        (batch,) = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()
        self._waiting = []
        keys, codes = _partitions(batch, self._columns.partition_by)
        order = np.argsort(codes, kind="stable")  # [rows] grouped by partition
        starts = range(0, len(keys), self._max_open)
        ends = np.searchsorted(codes[order], [*starts[1:], len(keys)]).tolist()
        for start, first, stop in zip(starts, [0, *ends], ends, strict=False):
            members = frozenset(keys[start : start + self._max_open])
            if len(self._open | members) > self._max_open:
                self._rotate()
            self._put(batch.take(pa.array(order[first:stop])), members)

    def _rotate(self) -> None:
        self._close()
        self._write = self._paimon.new_batch_write_builder().new_write()
        self._open = frozenset()
        self._buffered_bytes = 0

    def _close(self) -> None:
        with _as_ours(self._paimon):
            messages = self._write.prepare_commit()
            self._write.close()
        for message in messages:
            for file in message.new_files:
                # The commit numbers a file by its snapshot where this is 0. The engine leaves row counts here in the second and
                # later .blob files of a column; once above a later snapshot's number, they would hide updates for ever.
                file.min_sequence_number = file.max_sequence_number = 0
        self._messages.extend(messages)


def _partitions(batch: pa.RecordBatch, names: tuple[str, ...]) -> tuple[list[tuple[Any, ...]], np.ndarray[Any, Any]]:
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


@contextlib.contextmanager
def _as_ours(paimon: Any) -> Iterator[None]:
    """Turn what the engine raises while it writes files into errors of this package."""
    try:
        yield
    except LakehouseError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno == errno.ENAMETOOLONG:
                raise SchemaError(
                    f"{_name(paimon)}: a partition value is too long for a folder's name: {cause_line(cause)}; "
                    "partition by something shorter"
                ) from error
            cause = cause.__cause__ or cause.__context__
        raise CommitError(
            f"{_name(paimon)}: the rows can't be written ({cause_line(error)}); nothing was committed, trying again is safe"
        ) from error


def publish(paimon: Any, messages: list[Any]) -> int:
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

    commit_id = uuid.uuid4().hex
    before = latest_id(paimon)
    remember = Remember()
    commit = paimon.new_batch_write_builder().new_commit()
    commit.add_commit_callback(remember)
    engine = commit.file_store_commit
    if isinstance(engine.snapshot_commit, LinkingSnapshotCommit):
        engine.snapshot_commit.on_error = lambda: setattr(engine, "commit_max_retries", 0)
    try:
        commit.commit(messages, snapshot_properties={COMMIT_ID: commit_id})
    except BaseException as error:
        found = _find(paimon, commit_id, before, error)
        if found is None:
            discard(paimon, messages)
        if not isinstance(error, Exception):  # Ctrl-C: either all of it happened, or nothing
            raise
        if found is None:
            why = cause_line(error.__cause__ or error)
            raise CommitError(f"{_name(paimon)}: the commit did not happen ({why}); try again") from error
        return found
    finally:
        commit.close()
    if remember.snapshot_id is None:
        raise CommitUnknownError(
            f"{_name(paimon)}: the engine named no snapshot; look for {COMMIT_ID}={commit_id} in snapshots()"
        )
    return remember.snapshot_id


def discard(paimon: Any, messages: list[Any]) -> None:
    """Delete the files that the messages of an unpublished commit name."""
    commit = paimon.new_batch_write_builder().new_commit()
    commit.abort(messages)
    commit.close()


def latest_id(paimon: Any) -> int | None:
    """The latest snapshot's id.

    Raises:
        NotFoundError: there are snapshots, and the latest can't be read.
    """
    try:
        snapshot = paimon.snapshot_manager().get_latest_snapshot()
    except (RuntimeError, OSError, ValueError) as error:
        raise NotFoundError(f"{_name(paimon)}: its latest snapshot can't be read ({cause_line(error)})") from error
    return None if snapshot is None else int(snapshot.id)


def _find(paimon: Any, commit_id: str, before: int | None, error: BaseException) -> int | None:
    """After an error: the snapshot that carries our commit id, if it was published all the same."""
    try:
        manager = paimon.snapshot_manager()
        for number in range((before or 0) + 1, (latest_id(paimon) or 0) + 1):
            snapshot = manager.get_snapshot_by_id(number)
            if snapshot is not None and (snapshot.properties or {}).get(COMMIT_ID) == commit_id:
                return number
    except Exception as lookup:  # noqa: BLE001 - whatever the store raises, the outcome is unknown
        raise CommitUnknownError(
            f"{_name(paimon)}: the commit failed ({cause_line(error)}) and its outcome can't be looked up "
            f"({cause_line(lookup)}); look for {COMMIT_ID}={commit_id} in snapshots() before trying again"
        ) from error
    return None


def _name(paimon: Any) -> str:
    return str(paimon.identifier.get_full_name())
