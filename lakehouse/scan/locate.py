"""Where the values of a BLOB column lie."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lakehouse.blobfile import NULL, OLDER, BlobIndex, first_read_bytes, read_blob_index
from lakehouse.errors import FetchError, cause_line
from lakehouse.fetch import BlobRef, BlobRefs, Fetcher
from lakehouse.scan.groups import Groups, is_blob_file
from lakehouse.scan.version import Version
from lakehouse.upstream import is_local, local_path

# Ends of `.blob` files on a store that are read at a time: some KB each.
_TAILS = 256


@dataclass
class Locator:
    """Byte ranges of one BLOB column, file by file, with the file indexes read once.

    Args:
        version: whose rows.
        groups: the groups that the rows come from.
        column: a BLOB column that is not in `Columns.inline`.
    """

    version: Version
    groups: Groups
    column: str
    _starts: npt.NDArray[np.int64] = field(init=False, repr=False)
    _uris: dict[str, int] = field(init=False, repr=False, default_factory=dict)
    _indexes: dict[int, list[tuple[int, int, BlobIndex]]] = field(init=False, repr=False, default_factory=dict)
    _tails: dict[str, tuple[int, Any]] = field(init=False, repr=False, default_factory=dict)
    _fetcher: Fetcher | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self._starts = np.array([group.first_row_id for group in self.groups.groups], np.int64)
        if not is_local(self.version.path) and self.version.store is not None:
            self._fetcher = self.version.store.fetcher()

    @property
    def uris(self) -> tuple[str, ...]:
        """The files met so far; ``uri_ids`` of `locate` point into it."""
        return tuple(self._uris)

    def locate(
        self, row_ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the BLOBs of ascending ``row_ids`` are.

        Returns:
            ``uri_ids`` int32[n] (-1: null), ``offsets`` int64[n], ``lengths`` int64[n].

        Raises:
            FetchError: a ``.blob`` file is missing or damaged.
        """
        uri_ids = np.full(len(row_ids), -1, np.int32)
        offsets = np.zeros(len(row_ids), np.int64)
        lengths = np.zeros(len(row_ids), np.int64)
        if not len(row_ids):
            return uri_ids, offsets, lengths
        owner = np.searchsorted(self._starts, row_ids, side="right") - 1  # [n] group of each row
        for number in np.unique(owner).tolist():
            low, high = np.searchsorted(owner, [number, number + 1]).tolist()
            ids = row_ids[low:high]
            # Oldest file first, so that a newer one writes over it, except where it says that an older one has the value.
            for first_row_id, uri_id, index in self._files(number):
                at = ids - first_row_id
                inside = np.flatnonzero((at >= 0) & (at < len(index.lengths)))
                at = at[inside]
                held = index.lengths[at]
                inside, at, held = (part[held != OLDER] for part in (inside, at, held))
                null = held == NULL
                target = low + inside
                uri_ids[target] = np.where(null, -1, uri_id)
                offsets[target] = np.where(null, 0, index.offsets[at])
                lengths[target] = np.where(null, 0, held)
            # Rows come in ascending order, so an earlier group is done with: memory stays that of one group's indexes.
            self._indexes = {number: self._indexes[number]}
        return uri_ids, offsets, lengths

    def _files(self, number: int) -> list[tuple[int, int, BlobIndex]]:
        if number not in self._indexes:
            files = self._blob_files(number)
            if self._fetcher is not None and any(_path_of(file) not in self._tails for file in files):
                self._read_tails(self._fetcher, number)
            self._indexes[number] = [self._index(file) for file in files]
        return self._indexes[number]

    def _blob_files(self, number: int) -> list[Any]:
        """The group's files of this column, the oldest first."""
        files = self.groups.groups[number].split.files
        files = [file for file in files if is_blob_file(file) and self.column in (file.write_cols or ())]
        return sorted(files, key=lambda file: (file.max_sequence_number, file.first_row_id))

    def _read_tails(self, fetcher: Fetcher, number: int) -> None:
        """Read the ends of this group's files and of those that follow, all at a time: a store takes its time for each."""
        files: list[Any] = []
        while number < len(self.groups.groups) and len(files) < _TAILS:
            files += self._blob_files(number)
            number += 1
        refs = [BlobRef(_path_of(file), file.file_size - _tail_bytes(file), _tail_bytes(file)) for file in files]
        values = fetcher.fetch(BlobRefs.of(refs)).values
        self._tails = {ref.uri: (ref.offset, value) for ref, value in zip(refs, values, strict=True)}

    def _index(self, file: Any) -> tuple[int, int, BlobIndex]:
        path = _path_of(file)
        uri_id = self._uris.setdefault(path, len(self._uris))
        try:
            index = self._read_index(path, file)
        except FetchError:
            raise
        except OSError as error:
            raise FetchError(
                f"{self.version} column {self.column}: can't read {path} ({cause_line(error)}); "
                "restore the file, or read a snapshot that does not need it"
            ) from error
        return file.first_row_id, uri_id, index

    def _read_index(self, path: str, file: Any) -> BlobIndex:
        name = f"{self.version} column {self.column} ({path})"
        if is_local(path):
            handle = os.open(local_path(path), os.O_RDONLY)
            try:
                size = os.fstat(handle).st_size
                return read_blob_index(lambda at, n: os.pread(handle, n, at), size, file.row_count, name)
            finally:
                os.close(handle)
        if self._fetcher is not None:
            return read_blob_index(partial(self._fetched, path), file.file_size, file.row_count, name)
        with self.version.paimon.file_io.new_input_stream(path) as stream:

            def read_range(offset: int, length: int) -> bytes:
                stream.seek(offset)
                return bytes(stream.read(length))

            return read_blob_index(read_range, file.file_size, file.row_count, name)

    def _fetched(self, path: str, offset: int, length: int) -> bytes:
        at, value = self._tails.get(path, (-1, None))
        if at != offset and self._fetcher is not None:  # an index that is longer than was thought
            (value,) = self._fetcher.fetch(BlobRefs.of([BlobRef(path, offset, length)])).values
        if isinstance(value, FetchError):
            raise value
        return bytes(value or b"")


def _path_of(file: Any) -> str:
    return str(file.external_path or file.file_path)


def _tail_bytes(file: Any) -> int:
    return first_read_bytes(file.file_size, file.row_count)
