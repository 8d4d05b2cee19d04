"""What a snapshot's files hold: which files, which rows, and where each BLOB lies.

A `Version` is one snapshot of one table, resolved once. `plan` lists its file groups in ascending row id, `read` streams
scalar columns of chosen groups with their row ids, and `locate` finds the byte range of a BLOB column for chosen rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.blobfile import NULL, OLDER, BlobIndex, first_read_bytes, read_blob_index
from lakehouse.errors import FetchError, NotFoundError, SchemaError, cause_line
from lakehouse.fetch import BlobRef, BlobRefs, Fetcher
from lakehouse.schema import Columns
from lakehouse.stores import Store
from lakehouse.upstream import is_local, local_path, pinned_snapshot

ROW_ID = "_ROW_ID"
# Rows a batch of the file reader holds. Its default of 1,024 fits rows with BLOBs inside; ours have none.
READ_BATCH_ROWS = 16_384
# Ends of `.blob` files on a store that are read at a time: some KB each.
_TAILS = 256


@dataclass(frozen=True, eq=False)
class Version:
    """One snapshot of one table: everything after it is a function of this.

    Attributes:
        paimon: pypaimon table handle that holds the snapshot (`lakehouse.upstream.pinned`).
        name: ``database.table``, with ``$branch_x`` on a branch.
        snapshot_id: None for a table without a snapshot: zero rows, for ever.
        uuid: identity of the table, other for a table of the same name made later.
        roots: folders and URL prefixes outside the table's own from which BLOBs may be read.
        reopen: makes ``paimon`` again, or says that its snapshot is gone. A pickle carries this instead of the handle, which
            holds credentials in clear.
        store: reads what is not on a local disk; None: nothing does.
    """

    paimon: Any
    name: str
    snapshot_id: int | None
    uuid: str
    roots: tuple[str, ...]
    reopen: Callable[[], Any]
    store: Store | None = None

    @property
    def path(self) -> str:
        """The table's own folder."""
        return str(self.paimon.table_path).rstrip("/")

    @cached_property
    def columns(self) -> Columns:
        """The columns at this snapshot."""
        return Columns.of(self.paimon)

    @property
    def snapshot(self) -> Any:
        """Pypaimon's snapshot, or the tag that stands for it; None for a table without one."""
        return pinned_snapshot(self.paimon)

    @property
    def snapshot_uuid(self) -> str:
        """The snapshot's identity: engines whose rollback deletes snapshots give their numbers out again."""
        return "" if self.snapshot is None else snapshot_identity(self.snapshot)

    def __str__(self) -> str:
        return f"{self.name}@{self.snapshot_id}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.name, self.snapshot_id, self.uuid, self.roots, self.reopen, self.store)


def snapshot_identity(snapshot: Any) -> str:
    """What tells a pypaimon snapshot from another one of its number: its uuid, or the name of its own manifest list."""
    return str(snapshot.uuid or snapshot.delta_manifest_list)


def _reopened(
    name: str, snapshot_id: int | None, uuid: str, roots: tuple[str, ...], reopen: Callable[[], Any], store: Store | None
) -> Version:
    return Version(reopen(), name, snapshot_id, uuid, roots, reopen, store)


@dataclass(frozen=True, eq=False)
class Group:
    """Files that hold the same range of row ids, column by column.

    Attributes:
        first_row_id: first row id of the range.
        rows: row ids in the range, deleted ones included.
        deleted: how many of them are deleted.
        split: what pypaimon's reader takes.
        partition: partition values in order of the partition columns.
    """

    first_row_id: int
    rows: int
    deleted: int
    split: Any
    partition: tuple[Any, ...]

    @property
    def stop_row_id(self) -> int:
        """One past the last row id."""
        return self.first_row_id + self.rows


@dataclass(frozen=True, eq=False)
class Groups:
    """Chosen file groups of a version, in ascending row id."""

    groups: tuple[Group, ...]

    @property
    def rows(self) -> int:
        """Rows that are not deleted."""
        return sum(group.rows - group.deleted for group in self.groups)

    @property
    def files(self) -> int:
        """Data files of the groups."""
        return sum(len(group.split.files) for group in self.groups)

    @property
    def partitions(self) -> int:
        """Distinct partitions."""
        return len({group.partition for group in self.groups})

    def blob_bytes(self, columns: Iterable[str]) -> int:
        """Bytes of the ``.blob`` files that hold any of ``columns``."""
        wanted = set(columns)
        return sum(
            file.file_size
            for group in self.groups
            for file in group.split.files
            if _is_blob_file(file) and wanted.intersection(file.write_cols or ())
        )

    def where(self, keep: Callable[[Group], bool]) -> Groups:
        """The groups that ``keep`` accepts."""
        return Groups(tuple(group for group in self.groups if keep(group)))


def plan(version: Version, predicate: Any = None) -> Groups:
    """List the file groups of a version. Reads metadata only.

    Args:
        version: what to list.
        predicate: a pypaimon predicate. Groups whose statistics rule every row out are left out; of the others, all rows
            are kept, so the predicate must still be evaluated.

    Raises:
        NotFoundError: the snapshot is gone.
    """
    if version.snapshot_id is None:
        return Groups(())
    builder = version.paimon.new_read_builder()
    if predicate is not None:
        builder = builder.with_filter(predicate)
    try:
        planned = builder.new_scan().plan()
    except (ValueError, FileNotFoundError) as error:
        version.reopen()  # says it better: the table was dropped, the snapshot expired
        raise NotFoundError(
            f"{version}: this snapshot can no longer be read ({cause_line(error)}); tag snapshots that must stay"
        ) from error
    groups = [group for split in planned.splits() for group in _groups(split)]
    _check_deletions(version)
    _check_readable(version, groups)
    groups.sort(key=lambda group: group.first_row_id)
    return Groups(tuple(groups))


def _check_deletions(version: Version) -> None:
    """Refuse a plan that may have left out which rows are deleted: upstream takes a missing index manifest for an empty one.

    Raises:
        NotFoundError: it is missing, as when the snapshot expires while it is planned.
    """
    index = version.snapshot.index_manifest
    if index and not version.paimon.file_io.exists(f"{version.path}/manifest/{index}"):
        raise NotFoundError(
            f"{version}: this snapshot can no longer be read (the manifest of its deleted rows is gone); tag snapshots that "
            "must stay"
        )


def _check_readable(version: Version, groups: Iterable[Group]) -> None:
    """Refuse what other engines may leave behind and the engine reads as other values than are there.

    Raises:
        SchemaError: BLOBs in a row file, or a column whose older files know it by another name (upstream: null).
    """
    blobs = frozenset(version.columns.blobs) - version.columns.inline
    names = {item.id: item.name for item in version.paimon.fields}
    renamed: dict[int, dict[str, str]] = {version.paimon.table_schema.id: {}}  # schema -> old name -> new name
    for group in groups:
        files = group.split.files
        for file in files if len(files) > 1 else ():
            if file.schema_id not in renamed:
                fields = version.paimon.schema_manager.get_schema(file.schema_id).fields
                renamed[file.schema_id] = {i.name: names[i.id] for i in fields if names.get(i.id, i.name) != i.name}
            written = set(file.write_cols or ())
            if not _is_blob_file(file) and written & blobs:
                raise SchemaError(
                    f"{version} column {min(written & blobs)}: {file.file_path} holds its BLOBs in a row file, which can't be "
                    "read by reference; write the column again with an update that makes .blob files"
                )
            for old in sorted(renamed[file.schema_id].keys() & (written or renamed[file.schema_id].keys())):
                raise SchemaError(
                    f"{version} column {renamed[file.schema_id][old]} was renamed from {old}, which {file.file_path} still "
                    f"has: its values would read as null; rename it back, or copy them into a new column"
                )


def _groups(split: Any) -> Iterator[Group]:
    """Cut a split where no file crosses: into ranges of row ids whose files overlap only each other."""
    order = sorted(range(len(split.files)), key=lambda i: split.files[i].first_row_id)
    partition = tuple(split.partition.values)
    run: list[int] = []
    stop = -1
    for i in order:
        file = split.files[i]
        if run and file.first_row_id >= stop:
            yield _group(split, run, partition)
            run = []
        run.append(i)
        stop = max(stop, file.first_row_id + file.row_count) if len(run) > 1 else file.first_row_id + file.row_count
    if run:
        yield _group(split, run, partition)


def _group(split: Any, members: list[int], partition: tuple[Any, ...]) -> Group:
    files = [split.files[i] for i in members]
    chosen = {id(file) for file in files}
    first = min(file.first_row_id for file in files)
    stop = max(file.first_row_id + file.row_count for file in files)
    deletions = split.data_deletion_files or [None] * len(split.files)
    deleted = sum(deletions[i].cardinality or 0 for i in members if deletions[i] is not None)
    return Group(first, stop - first, deleted, split.filter_file(lambda file: id(file) in chosen), partition)


def read(version: Version, groups: Groups, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Stream columns with their row ids, in ascending row id, deleted rows left out.

    Args:
        version: whose rows.
        groups: which of its groups.
        columns: columns kept in row files; a column in `Columns.inline` comes as serialised descriptors.

    Yields:
        Batches of ``columns`` in that order, then ``_ROW_ID`` (int64).
    """
    if not groups.groups:
        return
    table = version.paimon.copy_without_time_travel({"blob-as-descriptor": "true", "read.batch-size": str(READ_BATCH_ROWS)})
    # The row id is always read: a projection of only columns that old files lack yields none of their rows upstream.
    builder = table.new_read_builder().with_projection([*columns, ROW_ID])
    reader = builder.new_read().to_arrow_batch_reader([group.split for group in groups.groups])
    try:
        for batch in reader:
            if batch.num_rows:
                yield batch.select([*columns, ROW_ID])
    finally:
        # pypaimon's closable reader stops its file readers; a plain Arrow reader has nothing to stop.
        close = getattr(reader, "close", None)
        if close is not None:
            close()


def _is_blob_file(file: Any) -> bool:
    return bool(file.file_name.endswith(".blob"))


def _path_of(file: Any) -> str:
    return str(file.external_path or file.file_path)


def _tail_bytes(file: Any) -> int:
    return first_read_bytes(file.file_size, file.row_count)


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
        files = [file for file in files if _is_blob_file(file) and self.column in (file.write_cols or ())]
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
