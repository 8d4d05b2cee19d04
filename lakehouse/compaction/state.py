"""What a version's files are, as a rewrite needs to know them: groups with their live rows, and the manifest's entries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lakehouse.compaction.ids import Ids
from lakehouse.compaction.plan import Item
from lakehouse.errors import SchemaError, cause_line
from lakehouse.scan import Group, Version, plan

_DELETION_VECTORS = "DELETION_VECTORS"


@dataclass(frozen=True, eq=False)
class Source:
    """A file group and what is live in it.

    Attributes:
        group: as `lakehouse.scan` knows it.
        item: as planning knows it.
        files: names of its files.
    """

    group: Group
    item: Item
    files: frozenset[str]

    def same_as(self, other: Source | None) -> bool:
        """Whether the other one has the same files and the same rows deleted."""
        return other is not None and self.files == other.files and self.item.live == other.item.live


def sources(version: Version) -> list[Source]:
    """The groups of a version in ascending row id.

    Raises:
        SchemaError: files or columns that can't be rewritten here.
        NotFoundError: the snapshot is gone.
    """
    _check_table(version)
    return [_source(version, group) for group in plan(version).groups]


def live_ids(version: Version, group: Group) -> Ids:
    """Ids of the rows of a group that are not deleted."""
    whole = Ids([(group.first_row_id, group.stop_row_id)])
    deletions = [deletion for deletion in group.split.data_deletion_files or () if deletion is not None]
    for deletion in deletions:
        from pypaimon.deletionvectors.deletion_vector import DeletionVector

        positions = DeletionVector.read(version.paimon.file_io, deletion).bit_map().to_list()
        whole = whole.without(Ids.of(np.array(sorted(positions), np.int64) + group.first_row_id))
    return whole


def without_deletions(group: Group) -> Group:
    """The same files with all their rows."""
    from pypaimon.read.split import DataSplit

    split = group.split
    bare = DataSplit(
        files=split.files,
        partition=split.partition,
        bucket=split.bucket,
        raw_convertible=split.raw_convertible,
        snapshot_id=split.snapshot_id,
    )
    return replace(group, split=bare, deleted=0)


def schema_identity(version: Version) -> str:
    """What tells a version's columns from others: branches give one schema number and one field id to different columns."""
    from pypaimon.common.json_util import JSON

    return str(JSON.to_json(version.paimon.table_schema))


def entries(paimon: Any, snapshot: Any) -> dict[str, Any]:
    """The manifest entries of a snapshot's files, with their statistics, by file name."""
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    manifests = ManifestListManager(paimon).read_all(snapshot)
    if not manifests:
        return {}
    found = ManifestFileManager(paimon).read_entries_parallel(manifests, drop_stats=False)
    return {entry.file.file_name: entry for entry in found}


def _source(version: Version, group: Group) -> Source:
    files = group.split.files
    for file in files:
        if file.file_name.endswith(".video") or ".vector." in file.file_name or file.extra_files:
            raise SchemaError(
                f"{version}: {file.file_path} is a file of a kind that can't be rewritten here (video, vector or row sidecar); "
                "compact this table with the engine that wrote it"
            )
    live = live_ids(version, group)
    row_files = [file for file in files if not file.file_name.endswith(".blob")]
    clean = len(live) == group.rows and len(row_files) == 1 and not _overlap(files, version.columns.blobs)
    item = Item(group.first_row_id, sum(file.file_size for file in files), clean, live)
    return Source(group, item, frozenset(file.file_name for file in files))


def _overlap(files: Iterable[Any], columns: Iterable[str]) -> bool:
    """Whether two files hold values of one BLOB column for one row, or a file holds a column that is no more."""
    seen = dict.fromkeys(columns, -1)
    for file in sorted(files, key=lambda file: file.first_row_id):
        if not file.file_name.endswith(".blob"):
            continue
        name = file.write_cols[0]
        if name not in seen or file.first_row_id < seen[name]:
            return True
        seen[name] = file.first_row_id + file.row_count
    return False


def _check_table(version: Version) -> None:
    paimon, columns = version.paimon, version.columns
    options = paimon.options
    if not options.data_evolution_enabled():
        raise SchemaError(f"{version}: only tables with data-evolution.enabled=true can be rewritten here")
    nested = sorted(columns.inline - columns.references)
    if nested:
        raise SchemaError(
            f"{version}: column {nested[0]} holds BLOB views, or lists or maps of BLOBs, which can't be rewritten here"
        )
    if options.variant_shredding_schema() or options.with_vector_format() or options.data_evolution_row_sidecar_enabled(False):
        raise SchemaError(f"{version}: its options ask for shredded, vector or sidecar files, which can't be written here")
    if paimon.path_factory().external_paths:
        raise SchemaError(
            f"{version}: its data files lie outside its folder (data-file.external-paths): can't be rewritten here"
        )


def check_indexes(version: Version, snapshot: Any) -> list[Any]:
    """The index manifest's entries.

    Raises:
        SchemaError: it has an index over values, made by another engine, which would go on naming rows that moved.
    """
    from pypaimon.manifest.index_manifest_file import IndexManifestFile

    if not snapshot.index_manifest:
        return []
    try:
        found = IndexManifestFile(version.paimon).read(snapshot.index_manifest)
    except (RuntimeError, OSError, ValueError) as error:
        raise SchemaError(f"{version}: its index manifest can't be read ({cause_line(error)})") from error
    for entry in found:
        if entry.index_file.index_type != _DELETION_VECTORS:
            raise SchemaError(
                f"{version}: it has a {entry.index_file.index_type} index, made by another engine, which names rows by id; "
                "drop the index first"
            )
    return list(found)
