"""A version's files, grouped by the rows that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import NotFoundError, SchemaError, cause_line
from lakehouse.scan.version import Version


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
            if is_blob_file(file) and wanted.intersection(file.write_cols or ())
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
            if not is_blob_file(file) and written & blobs:
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


def is_blob_file(file: Any) -> bool:
    """Whether it holds the values of BLOB columns."""
    return bool(file.file_name.endswith(".blob"))
