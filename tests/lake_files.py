"""Which files a table has, and which of them are needed: told by pypaimon's own readers, apart from our walk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pypaimon.manifest.index_manifest_file import IndexManifestFile
from pypaimon.manifest.manifest_list_manager import ManifestListManager

import lakehouse as lh
from tests.stores import place

# None of them can be a file's name everywhere.
BAD_NAMES = [
    "",
    " ",
    "a/b",
    "../x",
    "..",
    ".",
    ".x",
    "-x",
    "x y",
    "é",
    "a\nb",
    "x\n",
    "a:b",
    "a%2Fb",
    "x" * 129,
    "a\0b",
    "a\\b",
    None,
    5,
    b"x",
]


def folder_of(table: lh.Table) -> Path:
    """The table's own folder."""
    return place.path(table.paimon.table_path)


def everything_in(path: Path) -> dict[Path, bytes]:
    """All files below a folder, with what they hold."""
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def files_of(table: lh.Table) -> set[str]:
    """All files that hold data or name files, relative to the table's folder; no snapshots, schemas, tags, hints."""
    root = folder_of(table)
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {str(path) for path in found if path.parts[0] not in ("snapshot", "schema", "tag", "branch", "lakehouse")}


def needed_of(table: lh.Table) -> set[str]:
    """The files of `files_of` that main's snapshots and tags need, and those of all branches."""
    branches = table.paimon.branch_manager().branches()
    handles = [table.paimon, *(table._load(branch) for branch in branches)]
    root = f"{table.paimon.table_path}/"
    return {path.removeprefix(root) for handle in handles for path in _reached(handle)}


def _reached(handle: Any) -> Iterator[str]:
    tags = handle.tag_manager()
    # Upstream's list takes what a killed writer of a tag left (`.tag-kept.1a2b3c4d`) for a tag.
    names = [path.name.removeprefix("tag-") for path in place.path(tags.tag_directory()).glob("tag-*")]
    pinned = [({"scan.snapshot-id": str(found.id)}, found) for found in handle.snapshot_manager().list_snapshots()]
    pinned += [({"scan.tag-name": name}, tags.get(name)) for name in names]
    different = {(at.id, at.base_manifest_list, at.delta_manifest_list, at.index_manifest): (by, at) for by, at in pinned}
    for options, snapshot in different.values():
        at = handle.copy(options)
        for name in (snapshot.base_manifest_list, snapshot.delta_manifest_list):
            yield f"{handle.table_path}/manifest/{name}"
        for listed in ManifestListManager(handle).read_all(snapshot):
            yield f"{handle.table_path}/manifest/{listed.file_name}"
        for split in at.new_read_builder().new_scan().plan().splits():
            yield from split.file_paths
        if snapshot.index_manifest:
            yield f"{handle.table_path}/manifest/{snapshot.index_manifest}"
            for entry in IndexManifestFile(handle).read(snapshot.index_manifest):
                yield f"{handle.table_path}/index/{entry.index_file.file_name}"
