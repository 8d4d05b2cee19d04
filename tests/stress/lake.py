"""The table that races and crashes happen to, its rows, and what lies in its folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakehouse as lh
from tests.lake_files import folder_of

SCHEMA = pa.schema([("id", pa.int64()), ("channel", pa.string()), ("frame", pa.large_binary())])
CHANNELS = 3


def made(warehouse: Path, name: str) -> lh.Table:
    """The table, made when absent."""
    return lh.connect(warehouse=str(warehouse)).create_table(name, SCHEMA, partition_by=["channel"], exist_ok=True)


def row(number: int) -> dict[str, Any]:
    """A row whose bytes follow from its id."""
    return {"id": number, "channel": f"C{number % CHANNELS}", "frame": b"frame %d " % number * (1 + number % 50)}


def rows(numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Rows of these ids."""
    return [row(number) for number in numbers]


def held(table: lh.Table) -> list[dict[str, Any]]:
    """All rows of the latest snapshot, by id, with their bytes."""
    found: list[dict[str, Any]] = table.latest().arrow(blobs="bytes").sort_by("id").to_pylist()
    return found


def named_files(table: lh.Table) -> set[Path]:
    """Every file that a snapshot or a tag needs, and the files that name those."""
    from pypaimon.manifest.index_manifest_file import IndexManifestFile
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    paimon, root = table.paimon, folder_of(table)
    lists, manifests = ManifestListManager(paimon), ManifestFileManager(paimon)
    snapshots = paimon.snapshot_manager().list_snapshots() + [paimon.tag_manager().get(name) for name in table.tags()]
    metadata, data = set(), set()
    for snapshot in snapshots:
        named = (snapshot.base_manifest_list, snapshot.delta_manifest_list, snapshot.index_manifest)
        metadata |= {name for name in named if name}
        for manifest in lists.read_all(snapshot):
            if manifest.file_name not in metadata:
                metadata.add(manifest.file_name)
                data |= {entry.file.file_name for entry in manifests.read(manifest.file_name)}
        if snapshot.index_manifest:
            data |= {entry.index_file.file_name for entry in IndexManifestFile(paimon).read(snapshot.index_manifest)}
    kept = {root / "manifest" / name for name in metadata}
    kept |= (found := {path for path in root.rglob("*") if path.name in data})
    kept |= {path for path in root.rglob("*") if path.parent.name in ("schema", "lakehouse") and path.is_file()}
    kept |= set(root.glob("snapshot/snapshot-*")) | set(root.glob("tag/tag-*"))
    kept |= {root / "snapshot" / hint for hint in ("LATEST", "EARLIEST") if (root / "snapshot" / hint).exists()}
    missing = data - {path.name for path in found}
    missing |= {path.name for path in kept if path.parent.name == "manifest" and not path.exists()}
    assert not missing, f"named and not there: {sorted(missing)}"
    return kept


def orphans(table: lh.Table) -> set[Path]:
    """Files of the table's folder that nothing names."""
    root = folder_of(table)
    return {path for path in root.rglob("*") if path.is_file()} - named_files(table)
