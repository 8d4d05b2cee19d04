"""One file at a time: is it there, whole, and what it was when it was written?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lakehouse.blobfile import BlobIndex, read_blob_index
from lakehouse.check.held import Deletions, Held
from lakehouse.check.records import Buffer, check_records
from lakehouse.check.report import Finding
from lakehouse.check.rows import States, deleted_positions
from lakehouse.check.source import Source, Status, open_source, status_of
from lakehouse.errors import FetchError, cause_line

Verify = Literal["size", "crc"]

_PARQUET_BATCH_ROWS = 4096


@dataclass(frozen=True)
class Checked:
    """What one file's check gave.

    Attributes:
        findings: its damage.
        status: None: the file is not there.
        blobs: values whose place was found.
        bytes_read: of a BLOB file.
        resumed: an earlier run found it whole, and it has not changed since.
    """

    findings: tuple[Finding, ...]
    status: Status | None
    blobs: int = 0
    bytes_read: int = 0
    resumed: bool = False


class Files:
    """Checks files of one table. Thread safe.

    Args:
        file_io: the catalog's client.
        where: of the snapshot, for errors.
        verify: ``size`` or ``crc``.
        stop: set to give up between two chunks.
        done: called with bytes read.
    """

    def __init__(self, file_io: Any, where: str, verify: Verify, stop: threading.Event, done: Callable[[int], None]) -> None:
        self._io = file_io
        self._where = where
        self._verify = verify
        self._stop = stop
        self._done = done
        self._local = threading.local()
        self.states: States | None = None

    def status(self, path: str) -> Status:
        """Size and age of a file."""
        return status_of(self._io, path)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Bytes of a range of a file."""
        with open_source(self._io, path) as source:
            return source.read(offset, length)

    def index_of(self, file: Held) -> BlobIndex | None:
        """A BLOB file's index; None: it can't be read."""
        try:
            with open_source(self._io, file.path) as source:
                return self._index(source, file, file.size_bytes)
        except OSError:
            return None

    def plain(self, path: str, kind: str, size_bytes: int | None) -> Checked:
        """A file of which only existence and size are checked."""
        try:
            status = self.status(path)
        except OSError as error:
            return Checked((Finding(path, kind, _gone(error), whole_file=True),), None)
        if size_bytes is not None and status.size_bytes != size_bytes:
            return Checked((Finding(path, kind, _other_size(status, size_bytes), whole_file=True),), status)
        return Checked((), status)

    def deletions(self, parts: list[Deletions]) -> list[Finding]:
        """The deletion marks of index files."""
        return [finding for part in parts if (finding := self._marks(part)) is not None]

    def _marks(self, part: Deletions) -> Finding | None:
        try:
            deleted_positions(part, self.read)
        except Exception as error:  # noqa: BLE001 - the bitmap's own decoder raises what it likes
            return Finding(part.path, "index", cause_line(error), whole_file=True)
        return None

    def data(self, file: Held, status: Status) -> Checked:
        """A data file of the snapshot, which is there."""
        if status.size_bytes != file.size_bytes:
            return Checked((self._whole(file, _other_size(status, file.size_bytes)),), status)
        try:
            if file.name.endswith(".blob"):
                return self._blob(file, status)
            if file.name.endswith(".parquet"):
                self._parquet(file)
        except (FetchError, OSError, ValueError, ArithmeticError) as error:
            return Checked((self._whole(file, cause_line(error)),), status)
        return Checked((), status)

    def known(self, file: Held, status: Status) -> Checked:
        """A data file that an earlier run found whole."""
        self._done(file.size_bytes)
        return Checked((), status, resumed=True)

    def missing(self, file: Held, error: OSError) -> Checked:
        """A data file of the snapshot that can't be found."""
        return Checked((self._whole(file, _gone(error)),), None)

    def _whole(self, file: Held, cause: str) -> Finding:
        row_ids = (
            np.arange(file.first_row_id, file.stop_row_id, dtype=np.int64) if file.first_row_id >= 0 else np.empty(0, np.int64)
        )
        return self._finding(file, cause, row_ids, np.full(len(row_ids), -1, np.int64), whole_file=True)

    def _finding(self, file: Held, cause: str, row_ids: Any, offsets: Any, *, whole_file: bool = False) -> Finding:
        states = np.zeros(len(row_ids), np.uint8) if self.states is None else self.states.of(file, row_ids)
        column = file.columns[0] if file.kind == "blob" and file.columns else None
        return Finding(file.path, file.kind, cause, column, row_ids, offsets, states, whole_file)

    def _blob(self, file: Held, status: Status) -> Checked:
        with open_source(self._io, file.path) as source:
            index = self._index(source, file, status.size_bytes)
            blobs = int((index.lengths >= 0).sum())
            if self._verify == "size":
                return Checked((), status, blobs)
            damage = check_records(source, index, self._buffer(), self._chunk_done)
        findings = []
        for cause, positions in damage.items():
            at = np.array(sorted(positions), np.int64)
            findings.append(self._finding(file, cause, at + file.first_row_id, index.offsets[at]))
        return Checked(tuple(findings), status, blobs, status.size_bytes)

    def _index(self, source: Source, file: Held, size_bytes: int) -> BlobIndex:
        return read_blob_index(source.read, size_bytes, file.rows, f"{self._where} ({file.path})")

    def _parquet(self, file: Held) -> None:
        """Its footer; by crc also that every value decodes: row files have no checksums of ours."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self._io.new_input_stream(file.path) as stream:
            parquet = pq.ParquetFile(pa.PythonFile(stream, mode="r"), page_checksum_verification=True)
            metadata = parquet.metadata
            if metadata.num_rows != file.rows:
                raise ValueError(f"{metadata.num_rows} rows, the manifest says {file.rows}")
            lacking = sorted(set(file.columns) - set(parquet.schema_arrow.names) - _NOT_STORED)
            if lacking:
                raise ValueError(f"it lacks columns that the manifest says it has: {', '.join(lacking)}")
            if self._verify == "crc":
                for _ in parquet.iter_batches(_PARQUET_BATCH_ROWS):
                    self._chunk_done(0)
                self._chunk_done(file.size_bytes)

    def _buffer(self) -> Buffer:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = Buffer()
        held: Buffer = self._local.buffer
        return held

    def _chunk_done(self, size: int) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        self._done(size)


# Columns that manifests may name and that readers make up.
_NOT_STORED = {"_ROW_ID", "_SEQUENCE_NUMBER"}


def _gone(error: OSError) -> str:
    return (
        f"the file is missing ({cause_line(error)})"
        if isinstance(error, FileNotFoundError)
        else f"it can't be read ({cause_line(error)})"
    )


def _other_size(status: Status, expected: int) -> str:
    return f"the file has {status.size_bytes} bytes, expected {expected}"
