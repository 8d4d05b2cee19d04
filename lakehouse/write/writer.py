"""Writing batches into new files.

Files are written first and belong to nobody; the commit names them. A failed or interrupted write is aborted and leaves
the table as it was.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import CommitError, LakehouseError, SchemaError, cause_line, causes
from lakehouse.schema import Columns
from lakehouse.upstream import check_commits
from lakehouse.write.commit import discard, name_of

logger = logging.getLogger(__name__)

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
        check_commits(paimon)
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
            logger.warning("%s: files of a failed append are left behind", name_of(self._paimon), exc_info=True)

    def _put(self, batch: pa.RecordBatch, keys: _Keys) -> None:
        with as_ours(self._paimon):
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
        with as_ours(self._paimon):
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
def as_ours(paimon: Any) -> Iterator[None]:
    """Turn what the engine raises while it writes files into errors of this package."""
    try:
        yield
    except LakehouseError:
        raise
    except Exception as error:
        for cause in causes(error, contexts=True):
            if isinstance(cause, OSError) and cause.errno == errno.ENAMETOOLONG:
                raise SchemaError(
                    f"{name_of(paimon)}: a partition value is too long for a folder's name: {cause_line(cause)}; "
                    "partition by something shorter"
                ) from error
        raise CommitError(
            f"{name_of(paimon)}: the rows can't be written ({cause_line(error)}); nothing was committed, trying again is safe"
        ) from error
