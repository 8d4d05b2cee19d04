"""What a snapshot's manifests say about rows: which row files it added and removed, which rows are marked as deleted."""

from __future__ import annotations

from typing import Any

from lakehouse.history.counts import Change, FileChange, counted

_ROW_FILES = (".parquet", ".orc", ".avro")  # others hold further columns of the same rows


def changes_of(paimon: Any, snapshot: Any, before: Any) -> Change:
    """Rows that a snapshot added and deleted. Reads the manifests of its own changes only.

    Args:
        paimon: pypaimon handle.
        snapshot: a pypaimon snapshot.
        before: the one before it; None where it has expired or never was.
    """
    first = int(snapshot.id) == 1
    next_row_id = 0 if first else None if before is None else int(before.next_row_id or 0)
    index = None if before is None else before.index_manifest
    try:
        changes = _file_changes(paimon, snapshot)
        if (before is not None or first) and index == snapshot.index_manifest and all(item.added for item in changes):
            return Change(counted(changes, next_row_id, {}, {}).added, 0)  # nothing but files came: the usual append
        known = counted(changes, next_row_id, _marks(paimon, index), _marks(paimon, snapshot.index_manifest))
    except (OSError, RuntimeError, ValueError):  # expired, or written by an engine whose manifests can't be read here
        return Change(None, None)
    return known if before is not None or first else Change(known.added, None)


def _file_changes(paimon: Any, snapshot: Any) -> list[FileChange]:
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    files = ManifestFileManager(paimon)
    return [
        FileChange(entry.file.file_name, entry.kind == 0, int(entry.file.first_row_id), int(entry.file.row_count))
        for manifest in ManifestListManager(paimon).read_delta(snapshot)
        for entry in files.read(manifest.file_name)
        if entry.file.file_name.endswith(_ROW_FILES) and entry.file.first_row_id is not None
    ]


def _marks(paimon: Any, index_manifest: str | None) -> dict[str, int | None]:
    """Rows marked as deleted, by data file."""
    from pypaimon.manifest.index_manifest_file import IndexManifestFile

    if index_manifest is None:
        return {}
    return {
        name: meta.cardinality
        for entry in IndexManifestFile(paimon).read(index_manifest)
        for name, meta in (entry.index_file.dv_ranges or {}).items()
    }
