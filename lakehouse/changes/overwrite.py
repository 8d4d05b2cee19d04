"""Replacing the rows of a table, or of some partitions, in one commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.changes.base import Base, Prepared
from lakehouse.errors import SchemaError
from lakehouse.scan import Group, Groups, plan
from lakehouse.schema import Columns, known_columns
from lakehouse.write import Describer, Writer, as_ours, column_values, to_batches


def checked_partition(partition: Mapping[str, Any] | None, columns: Columns, describe: Describer) -> dict[str, pa.Scalar]:
    """The partitions to replace: values of some or all partition columns; none of them: the whole table.

    Raises:
        NotFoundError: a column that does not exist.
        SchemaError: one that is no partition column, or a value of another type.
    """
    if partition is None:
        return {}
    if not isinstance(partition, Mapping) or not partition:
        raise SchemaError(
            f"partition is a mapping of partition columns to values, got {partition!r}; leave it out for all rows"
        )
    known_columns(partition, columns.arrow)
    for name in partition:
        if name not in columns.partition_by:
            by = ", ".join(columns.partition_by) or "none"
            raise SchemaError(f"column {name} is no partition column (these are: {by}); overwrite() replaces partitions")
    return {name: column_values([value], columns.arrow.field(name), columns, describe)[0] for name, value in partition.items()}


def written(base: Base, data: Any, partition: Mapping[str, pa.Scalar]) -> tuple[list[Any], int]:
    """Write the new rows; the commit messages, and how many rows they are.

    Raises:
        SchemaError: rows of other partitions, or what `Table.append` refuses.
        FetchError, CommitError: as for `Table.append`.
    """
    writer = Writer(base.paimon, base.columns)
    try:
        for batch in to_batches(data, base.columns, Describer(base.paimon)):
            for name, value in partition.items():
                outside = pc.invert(_same(batch.column(name), value))
                if pc.any(outside).as_py():
                    row = pc.index(outside, True).as_py()
                    raise SchemaError(
                        f"the data has a row with {name}={batch.column(name)[row].as_py()!r}, outside of the partition "
                        f"{name}={value.as_py()!r} that is replaced; nothing was written"
                    )
            writer.write(batch)
        return writer.finish(), writer.rows
    except BaseException:  # Ctrl-C too: files that no commit will name are deleted
        writer.abort()
        raise


def overwrite(base: Base, messages: list[Any], rows: int, partition: Mapping[str, pa.Scalar]) -> Prepared | None:
    """Put new rows in the place of those that are there.

    Args:
        base: whose rows are replaced.
        messages: of the new rows.
        rows: how many they are.
        partition: which partitions are replaced.
    """
    groups = plan(base.version)
    replaced = groups.where(lambda group: _lies_in(group, partition, base.columns)) if partition else groups
    if not rows and not replaced.groups:
        return None
    with as_ours(base.paimon):
        return Prepared([*messages, *removals(base, replaced)], rows or replaced.rows)


def removals(base: Base, groups: Groups) -> Iterator[Any]:
    """Commit messages that take whole partitions out of the table, with the marks of rows that were deleted there before."""
    from pypaimon.manifest.index_manifest_entry import IndexManifestEntry
    from pypaimon.manifest.index_manifest_file import IndexManifestFile
    from pypaimon.write.commit_message import CommitMessage

    files: dict[tuple[tuple[Any, ...], int], list[Any]] = {}
    for group in groups.groups:
        files.setdefault((tuple(group.partition), group.split.bucket), []).extend(group.split.files)
    snapshot = base.version.snapshot if files else None
    marks: dict[tuple[tuple[Any, ...], int], list[Any]] = {}
    if snapshot is not None and snapshot.index_manifest:
        for entry in IndexManifestFile(base.paimon).read(snapshot.index_manifest):
            if entry.kind == 0 and entry.index_file.index_type == IndexManifestFile.DELETION_VECTORS_INDEX:
                removed = IndexManifestEntry(1, entry.partition, entry.bucket, entry.index_file)
                marks.setdefault((tuple(entry.partition.values), entry.bucket), []).append(removed)
    for (partition, bucket), gone in files.items():
        yield CommitMessage(partition, bucket, [], deleted_files=gone, index_deletes=marks.get((partition, bucket), []))


def _lies_in(group: Group, partition: Mapping[str, pa.Scalar], columns: Columns) -> bool:
    for name, value in partition.items():
        own = group.partition[columns.partition_by.index(name)]
        if not _same(pa.array([own], value.type), value)[0].as_py():
            return False
    return True


def _same(values: pa.Array, value: pa.Scalar) -> pa.Array:
    """Whether each value is this one; null is null's equal."""
    if not value.is_valid:
        return pc.is_null(values)
    return pc.fill_null(pc.equal(values, value), fill_value=False)
