"""One snapshot that replaces files by others, made on exactly the snapshot that it was worked out from.

The engine's own commit has no kind for it, refuses row ids that stay, and tries again on whatever came since. This one
writes the manifests, the lists and the snapshot itself, and hands the snapshot to the catalog's own commit: another writer
in between means that nothing was published, and that is all it decides.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lakehouse.compaction.rewrite import NewGroup
from lakehouse.compaction.state import entries
from lakehouse.durable import publish_file, sync_files
from lakehouse.errors import CommitError, CommitUnknownError, cause_line
from lakehouse.identity import check_same_table
from lakehouse.upstream import LinkingSnapshotCommit, is_local, local_path, snapshot_under
from lakehouse.write import BYTES, COMMIT_ID, OPERATION, ROWS, following, name_of, new_commit_id

_ADD, _DELETE = 0, 1
# What a snapshot's JSON may say and need not.
_OF_SNAPSHOTS = frozenset(
    {"changelogManifestList", "changelogManifestListSize", "changelogRecordCount", "indexManifest", "statistics", "uuid"}
)


@dataclass(frozen=True, eq=False)
class Change:
    """What the next snapshot does.

    Attributes:
        operation: what it is, kept in the snapshot's properties.
        kind: ``COMPACT`` where the rows stay the same, else ``OVERWRITE``.
        removed: manifest entries of files that leave.
        groups: new groups.
        merge_manifests: begin the snapshot with manifests that list only what is there, instead of all that ever happened.
        properties: more of the snapshot's.
    """

    operation: str
    kind: str = "COMPACT"
    removed: Sequence[Any] = ()
    groups: Sequence[NewGroup] = ()
    merge_manifests: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


def publish(paimon: Any, base: Any, change: Change) -> Any:
    """Make the snapshot that follows ``base``.

    Returns:
        The snapshot, or None when another writer's came first; nothing is left of it then.

    Raises:
        CommitError: it can't be written; nothing was published.
        CommitUnknownError: the store failed while it was published and can't be asked.
    """
    maker = _Maker(paimon)
    try:
        added, next_row_id = numbered(change.groups, base.id + 1, base.next_row_id or 0)
        changed = [*added, *(replace(entry, kind=_DELETE) for entry in change.removed)]
        gone = {entry.file.file_name for entry in change.removed}
        live = entries(paimon, base) if change.merge_manifests else None
        before = maker.manifests(_by_row_id(live.values())) if live is not None else maker.lists.read_all(base)
        rows = sum(entry.file.row_count if entry.kind == _ADD else -entry.file.row_count for entry in changed)
        snapshot = following(
            paimon,
            base,
            maker.listed(before),
            maker.listed(maker.manifests(changed)),
            kind=change.kind,
            rows=(base.total_record_count or 0) + rows,
            next_row_id=next_row_id,
            # Deletion vectors of files that left earlier make the engine refuse deletes: with them go those, too.
            index_manifest=maker.index(base.index_manifest, lambda name: name not in gone and (live is None or name in live)),
            statistics=base.statistics if change.kind == "COMPACT" else None,
            properties={
                **change.properties,
                COMMIT_ID: new_commit_id(),
                OPERATION: change.operation,
                ROWS: "0",
                BYTES: str(sum(entry.file.file_size for entry in added)),
            },
        )
    except BaseException as error:
        maker.discard()
        if isinstance(error, Exception):
            raise CommitError(
                f"{name_of(paimon)}: the manifests of this {change.operation} can't be written ({cause_line(error)}); "
                "nothing was published"
            ) from error
        raise
    return snapshot if _handed_over(paimon, base, snapshot, changed, maker) else None


def _handed_over(paimon: Any, base: Any, snapshot: Any, changed: Sequence[Any], maker: _Maker) -> bool:
    """Let the catalog publish a snapshot; False when another one took its number. Manifests stay only where they are named."""
    commit = paimon.catalog_environment.snapshot_commit(paimon.snapshot_manager())
    local = isinstance(commit, LinkingSnapshotCommit)  # who fails or succeeds at once; a server may take its time
    asked = False
    try:
        check_same_table(paimon)
        if is_local(str(paimon.table_path)):
            sync_files(maker.paths([entry for entry in changed if entry.kind == _ADD]))
        asked = True
        with commit:
            published = bool(commit.commit(base.uuid, snapshot, statistics(paimon, changed)))
        # A server may say no to a request that its client repeated, after saying yes to it before.
        published = published or (not local and _is_there(paimon, snapshot))
    except BaseException as error:
        published = asked and _is_there(paimon, snapshot, error)
        if local or not asked:
            settled = True
        else:  # a server may still publish what it was asked for
            verdict = getattr(commit, "verdict", lambda _: "doubt")
            settled = isinstance(error, Exception) and verdict(error) != "doubt"
        if not published and not settled:
            raise CommitUnknownError(
                f"{name_of(paimon)}: snapshot {snapshot.id} is not there ({cause_line(error)}), and may still come; look for "
                f"{COMMIT_ID}={snapshot.properties[COMMIT_ID]} in snapshots() before trying again"
            ) from error
        if not published:
            maker.discard()
        if not isinstance(error, Exception):
            raise
        if not published:
            raise CommitError(
                f"{name_of(paimon)}: snapshot {snapshot.id} can't be written ({cause_line(error)}); nothing was published"
            ) from error
        if local:
            raise CommitUnknownError(
                f"{name_of(paimon)}: snapshot {snapshot.id} is there, but the disk does not confirm it ({cause_line(error)})"
            ) from error
    if not published:
        maker.discard()
    return published


def _is_there(paimon: Any, snapshot: Any, error: BaseException | None = None) -> bool:
    """Whether the snapshot was published."""
    try:
        found = snapshot_under(paimon.snapshot_manager(), snapshot.id)
    except Exception as unanswered:
        raise CommitUnknownError(
            f"{name_of(paimon)}: the outcome of a commit can't be looked up ({cause_line(unanswered)}"
            f"{f', after {cause_line(error)}' if error else ''}); look for {COMMIT_ID}={snapshot.properties[COMMIT_ID]} in "
            "snapshots()"
        ) from unanswered
    return found is not None and found.delta_manifest_list == snapshot.delta_manifest_list


def in_place_of(paimon: Any, tag: str, version: Any, change: Change) -> None:
    """Let a tag name its version as it is after a change. Its number, time and properties stay.

    Args:
        paimon: a handle that is not pinned.
        tag: the tag's name.
        version: what it names now.
        change: what to do to it.

    Raises:
        CommitError: it can't be written; the tag names what it named.
    """
    from pypaimon.common.json_util import JSON

    base = version.snapshot
    maker = _Maker(paimon)
    try:
        added, next_row_id = numbered(change.groups, base.id, base.next_row_id or 0)
        gone = {entry.file.file_name for entry in change.removed}
        live = {name: entry for name, entry in entries(paimon, base).items() if name not in gone}
        live |= {entry.file.file_name: entry for entry in added}
        base_list, base_size = maker.listed(maker.manifests(_by_row_id(live.values())))
        delta_list, delta_size = maker.listed([])
        rows = sum(entry.file.row_count for entry in added) - sum(entry.file.row_count for entry in change.removed)
        snapshot = replace(
            base,
            base_manifest_list=base_list,
            base_manifest_list_size=base_size,
            delta_manifest_list=delta_list,
            delta_manifest_list_size=delta_size,
            total_record_count=(base.total_record_count or 0) + rows,
            delta_record_count=0,
            changelog_manifest_list=None,
            changelog_manifest_list_size=None,
            changelog_record_count=None,
            statistics=None,
            next_row_id=next_row_id,
            index_manifest=maker.index(base.index_manifest, lambda name: name in live),
            uuid=str(uuid.uuid4()),
        )
        path = str(paimon.tag_manager().tag_path(tag))
        if is_local(path):
            sync_files(maker.paths(added))
        # Beside the snapshot a tag's file says when it was made, how long it stays, and what its maker wrote.
        kept = json.loads(paimon.file_io.read_file_utf8(path))
        said = json.loads(JSON.to_json(snapshot))
        text = json.dumps({**{key: value for key, value in kept.items() if key not in _OF_SNAPSHOTS}, **said})
        if is_local(path):
            publish_file(local_path(path), text, replace=True)
        else:
            paimon.file_io.write_file(path, text, True)
    except BaseException as error:
        maker.discard()
        if isinstance(error, Exception):
            raise CommitError(
                f"{name_of(paimon)}: tag {tag!r} can't be written anew ({cause_line(error)}); it names what it named"
            ) from error
        raise


def numbered(groups: Sequence[NewGroup], snapshot_id: int, next_row_id: int) -> tuple[list[Any], int]:
    """Manifest entries of new groups with their row ids and sequence numbers, and the row id that is free after them."""
    from pypaimon.manifest.schema.manifest_entry import ManifestEntry

    made = []
    for group in groups:
        first = group.first_row_id
        if first is None:
            first, next_row_id = next_row_id, next_row_id + group.rows
        for meta, position in group.files:
            # By its snapshot's number a file stands above those it replaces and below every later update.
            file = meta.assign_first_row_id(first + position).assign_sequence_number(snapshot_id, snapshot_id)
            made.append(ManifestEntry(_ADD, group.partition, group.bucket, group.total_buckets, file))
    return made, next_row_id


def statistics(paimon: Any, changed: Sequence[Any]) -> list[Any]:
    """What a catalog server is told about the partitions that a commit touched."""
    from pypaimon.snapshot.snapshot_commit import PartitionStatistics

    totals: dict[tuple[Any, ...], list[Any]] = {}
    for entry in changed:
        totals.setdefault(tuple(entry.partition.values), []).append(entry)
    return [
        PartitionStatistics.create(
            partition_spec={key: str(value) for key, value in zip(paimon.partition_keys, partition, strict=True)},
            record_count=sum(_signed(entry, entry.file.row_count) for entry in found),
            file_count=sum(_signed(entry, 1) for entry in found),
            file_size_in_bytes=sum(_signed(entry, entry.file.file_size) for entry in found),
            last_file_creation_time=int(time.time() * 1000),
            total_buckets=found[0].total_buckets,
        )
        for partition, found in totals.items()
    ]


def _signed(entry: Any, amount: int) -> int:
    return amount if entry.kind == _ADD else -amount


def _by_row_id(found: Iterable[Any]) -> list[Any]:
    return sorted(found, key=lambda entry: (entry.file.first_row_id or 0, entry.file.file_name))


class _Maker:
    """Writes manifests and remembers them, to delete them when nobody comes to name them."""

    def __init__(self, paimon: Any) -> None:
        from pypaimon.manifest.manifest_file_manager import ManifestFileManager
        from pypaimon.manifest.manifest_list_manager import ManifestListManager

        self._paimon = paimon
        self._files = ManifestFileManager(paimon)
        self.lists = ManifestListManager(paimon)
        self._made: list[str] = []

    def manifests(self, found: Sequence[Any]) -> list[Any]:
        """Manifest files that hold these entries."""
        prefix = f"manifest-{uuid.uuid4()}"
        metas = self._files.rolling_write(list(found), self._paimon.options.manifest_target_size(), prefix)
        self._made += [meta.file_name for meta in metas]
        return list(metas)

    def listed(self, metas: Sequence[Any]) -> tuple[str, int]:
        """A manifest list of these files: its name and bytes."""
        name = f"manifest-list-{uuid.uuid4()}-0"
        self._made.append(name)
        return name, int(self.lists.write(name, list(metas)))

    def index(self, name: str | None, keep: Callable[[str], bool]) -> str | None:
        """The index manifest with the deletion vectors of just those files."""
        from pypaimon.manifest.index_manifest_file import IndexManifestFile

        if name is None:
            return None
        manifest = IndexManifestFile(self._paimon)
        adds, deletes = [], []
        for entry in manifest.read(name):
            ranges = entry.index_file.dv_ranges or {}
            left = {file: meta for file, meta in ranges.items() if keep(file)}
            if len(left) == len(ranges):
                continue
            deletes.append(entry)
            if left:
                adds.append(replace(entry, index_file=replace(entry.index_file, dv_ranges=left, row_count=len(left))))
        made = manifest.combine_changes(name, adds, deletes)
        if made is not None and made != name:
            self._made.append(made)
        return str(made) if made is not None else None

    def paths(self, added: Iterable[Any]) -> list[Path]:
        """What must be on the disk before a snapshot names it: manifests, data files, and the folders above them."""
        root = local_path(str(self._paimon.table_path))
        made = [local_path(f"{self._files.manifest_path}/{name}") for name in self._made]
        made += [local_path(entry.file.file_path) for entry in added]
        folders = {folder for path in made for folder in path.parents if folder == root or root in folder.parents}
        return [*made, *sorted(folders)]

    def discard(self) -> None:
        """Delete what was made."""
        for name in self._made:
            self._paimon.file_io.delete_quietly(f"{self._files.manifest_path}/{name}")
