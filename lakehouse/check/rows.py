"""Row ids: that each belongs to one row, that files hold all of them, and which rows readers need."""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakehouse.blobfile import OLDER, BlobIndex
from lakehouse.check.held import Content, Deletions, Held

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Files of one bucket whose rows are the same ones, column by column.

    Attributes:
        first: first row id.
        stop: one past the last.
        files: all of them.
    """

    first: int
    stop: int
    files: tuple[Held, ...]

    @property
    def row_files(self) -> list[Held]:
        """Those that hold scalar columns."""
        return [file for file in self.files if file.kind == "data"]


def groups_of(files: Sequence[Held]) -> list[Group]:
    """Cut a snapshot's files where no file crosses, bucket by bucket."""
    buckets: dict[tuple[bytes, int], list[Held]] = defaultdict(list)
    for file in files:
        buckets[file.bucket].append(file)
    groups = []
    for members in buckets.values():
        members.sort(key=lambda file: (file.first_row_id, -file.rows))
        run: list[Held] = []
        stop = 0
        for file in members:
            if run and file.first_row_id >= stop:
                groups.append(Group(run[0].first_row_id, stop, tuple(run)))
                run = []
            stop = max(stop, file.stop_row_id) if run else file.stop_row_id
            run.append(file)
        if run:
            groups.append(Group(run[0].first_row_id, stop, tuple(run)))
    return sorted(groups, key=lambda group: (group.first, group.stop))


def row_id_problems(groups: Sequence[Group], next_row_id: int | None) -> Iterator[str]:
    """What of the row ids does not fit together.

    Args:
        groups: of a snapshot, by first row id.
        next_row_id: the first id that the snapshot has not given out; None: not told.
    """
    before: Group | None = None
    for group in groups:
        if before is not None and group.first < before.stop:
            yield (
                f"row ids {group.first} to {min(group.stop, before.stop) - 1} belong to two rows each: "
                f"{before.files[0].path} and {group.files[0].path}"
            )
        if before is None or group.stop > before.stop:
            before = group
        if group.first < 0:
            yield f"{group.files[0].path} has no row ids"
            continue
        if next_row_id is not None and group.stop > next_row_id:
            yield f"row ids up to {group.stop - 1} are in use, but the snapshot says that {next_row_id} is the next one"
        for low, high in _gaps(group, group.row_files):
            yield f"rows {low} to {high - 1} have BLOBs in {group.files[0].path}, but no file holds their other columns"
        for column in sorted({name for file in group.files if file.kind == "blob" for name in file.columns}):
            files = [file for file in group.files if file.kind == "blob" and column in file.columns]
            for low, high in _gaps(group, files):
                yield f"rows {low} to {high - 1} have no file for BLOB column {column}, other rows of {files[0].path} do"


def _gaps(group: Group, files: Sequence[Held]) -> Iterator[tuple[int, int]]:
    """Ranges of a group's row ids that none of the files holds."""
    at = group.first
    for file in sorted(files, key=lambda file: file.first_row_id):
        if file.first_row_id > at:
            yield at, file.first_row_id
        at = max(at, file.stop_row_id)
    if at < group.stop:
        yield at, group.stop


class States:
    """Which rows and values readers need. Looks only when it is asked: damage is rare.

    Args:
        groups: of the snapshot.
        content: of the snapshot.
        read: ``(path, offset, length) -> bytes`` of an index file.
        index_of: a BLOB file's index; None: it can't be read.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        content: Content,
        read: Callable[[str, int, int], bytes],
        index_of: Callable[[Held], BlobIndex | None],
    ) -> None:
        self._group = {file.name: group for group in groups for file in group.files}
        self._content = content
        self._read = read
        self._index_of = index_of

    def of(self, file: Held, row_ids: Ids) -> npt.NDArray[np.uint8]:
        """For rows of a file: 0 readers need its values, 1 the row is deleted, 2 a newer file holds the value."""
        states = np.zeros(len(row_ids), np.uint8)
        group = self._group[file.name]
        if file.kind == "blob":
            newer = [other for other in group.files if other.kind == "blob" and set(other.columns) & set(file.columns)]
            for other in newer:
                if (other.sequence, other.first_row_id) > (file.sequence, file.first_row_id):
                    states[self._holds(other, row_ids)] = 2
        states[np.isin(row_ids, self.deleted(group))] = 1
        return states

    def _holds(self, file: Held, row_ids: Ids) -> npt.NDArray[np.bool_]:
        index = self._index_of(file)
        if index is None:
            return np.zeros(len(row_ids), np.bool_)
        at = row_ids - file.first_row_id
        inside = (at >= 0) & (at < len(index.lengths))
        held = np.zeros(len(row_ids), np.bool_)
        held[inside] = index.lengths[at[inside]] != OLDER
        return held

    def deleted(self, group: Group) -> Ids:
        """Row ids of a group that are deleted; those whose marks can't be read count as not deleted."""
        found = []
        for file in group.row_files:
            deletions = self._content.deletions.get(file.name)
            if deletions is not None:
                try:
                    found.append(deleted_positions(deletions, self._read) + file.first_row_id)
                except (OSError, ValueError, struct.error):
                    continue  # the index file has a finding of its own
        return np.concatenate(found) if found else np.empty(0, np.int64)


def deleted_positions(deletions: Deletions, read: Callable[[str, int, int], bytes]) -> Ids:
    """Positions in a data file of its deleted rows, with length and crc32 of the bitmap checked.

    Raises:
        ValueError: they can't be read, or don't agree.
        OSError: nor can the file.
    """
    from pypaimon.deletionvectors.bitmap_deletion_vector import BitmapDeletionVector

    data = read(deletions.path, deletions.offset, deletions.length + 8)
    if len(data) != deletions.length + 8:
        raise ValueError(f"{len(data)} of {deletions.length + 8} bytes of deletion marks at {deletions.offset}")
    (length,) = struct.unpack_from(">i", data)
    magic, bitmap, (crc,) = data[4:8], data[8:-4], struct.unpack(">I", data[-4:])
    if length != deletions.length or struct.unpack(">i", magic)[0] != BitmapDeletionVector.MAGIC_NUMBER:
        raise ValueError(f"no deletion marks at {deletions.offset}: length {length}, expected {deletions.length}")
    if zlib.crc32(data[4:-4]) != crc:
        raise ValueError(f"the deletion marks at {deletions.offset} don't have their crc32")
    vector = BitmapDeletionVector.deserialize_from_bytes(bitmap)
    positions = np.fromiter(vector.bit_map(), np.int64)
    if deletions.rows is not None and len(positions) != deletions.rows:
        raise ValueError(f"{len(positions)} deletion marks at {deletions.offset}, the manifest says {deletions.rows}")
    return positions
