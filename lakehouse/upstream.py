"""The remedies for faults of pypaimon 2.1 that need a class of its own to be replaced, all in this one module.

Each remedy is a subclass that is put in place on a table handle of ours; nothing is patched. `remedied` checks that the
classes still have the methods that the remedies replace, so that an upgrade fails here, by name, instead of quietly
losing a remedy. ``tests/upstream/`` shows each fault and turns red when it heals.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pypaimon.catalog.catalog_environment import CatalogEnvironment
from pypaimon.common.json_util import JSON
from pypaimon.schema.schema_manager import SchemaManager
from pypaimon.snapshot.renaming_snapshot_commit import RenamingSnapshotCommit
from pypaimon.snapshot.snapshot_manager import SnapshotManager
from pypaimon.table.file_store_table import FileStoreTable
from pypaimon.write.commit.conflict_detection import ConflictDetection
from pypaimon.write.file_store_commit import FileStoreCommit

from lakehouse.durable import publish_file
from lakehouse.errors import CommitError, ConfigError
from lakehouse.served import ServedEnvironment, ServedTags

_SNAPSHOT = re.compile(r"snapshot-(\d+)")
_TRIES = 5
_REPLACED = (
    (RenamingSnapshotCommit, "commit"),
    (RenamingSnapshotCommit, "_commit_latest_hint"),
    (CatalogEnvironment, "snapshot_commit"),
    (FileStoreTable, "copy_without_time_travel"),
    (SnapshotManager, "get_latest_snapshot"),
    (SnapshotManager, "get_snapshot_by_id"),
    *(
        (FileStoreCommit, method)  # by `lakehouse.write.engine`
        for method in ("_try_commit_once", "_write_manifest_files", "_is_duplicate_commit", "_commit_retry_wait")
    ),
    (ConflictDetection, "check_conflicts"),
)


class LinkingSnapshotCommit(RenamingSnapshotCommit):
    """Publishes a snapshot by ``link``, which fails when the name exists.

    Upstream asks whether the file exists and then renames over it: of two processes that meet in between, both report
    success and one loses its rows (measured: 2 of 1,599 commits). What the snapshot names is to be on the disk by then:
    see `lakehouse.write.engine`, by which everything of this package is committed.
    """

    def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: list[Any]) -> bool:  # noqa: ARG002
        """True when this snapshot id is ours, False when another writer took it first."""
        target = local_path(self.snapshot_manager.get_snapshot_path(snapshot.id))
        if not publish_file(target, JSON.to_json(snapshot, indent=2)):
            return False
        self._commit_latest_hint(snapshot.id)
        return True


class ConditionalSnapshotCommit(RenamingSnapshotCommit):
    """Publishes a snapshot on an object store, where only the first writer of a key succeeds: `lakehouse.upstream_store`."""

    def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: list[Any]) -> bool:  # noqa: ARG002
        """True when this snapshot id is ours, False when another writer took it first."""
        path = self.snapshot_manager.get_snapshot_path(snapshot.id)
        if not self.file_io.try_to_write_atomic(path, JSON.to_json(snapshot, indent=2)):
            return False
        self._commit_latest_hint(snapshot.id)
        return True

    def verdict(self, error: Exception) -> str:
        """What an error of `commit` means for the snapshot; see `lakehouse.write.engine`."""
        return "refused" if isinstance(error, CommitError) else str(getattr(error, "outcome", "doubt"))


class OwnEnvironment(CatalogEnvironment):
    """The environment of a table whose files alone say which snapshot is the latest.

    Upstream asks the catalog first, by opening it anew each time, only to hear that it keeps no snapshots: with a JDBC
    catalog that is a connection, never closed, for each look at the table.
    """

    def snapshot_loader(self) -> None:
        """None: no catalog is asked."""


class ConditionalEnvironment(OwnEnvironment):
    """A catalog environment of a warehouse on an object store, committed to as `ConditionalSnapshotCommit` does."""

    def snapshot_commit(self, snapshot_manager: Any) -> Any:
        """The commit that `ConditionalSnapshotCommit` describes."""
        return ConditionalSnapshotCommit(snapshot_manager)


class LinkingEnvironment(OwnEnvironment):
    """A catalog environment of a local warehouse whose snapshots are published by ``link``."""

    def snapshot_commit(self, snapshot_manager: Any) -> Any:
        """The commit that `LinkingSnapshotCommit` describes."""
        return LinkingSnapshotCommit(snapshot_manager)


def remedied(table: Any) -> Any:
    """A handle of the same table with the remedies in place.

    Raises:
        ConfigError: the installed pypaimon no longer has what a remedy replaces.
    """
    for owner, method in _REPLACED:
        if not callable(getattr(owner, method, None)):
            raise ConfigError(
                f"the installed pypaimon has no {owner.__name__}.{method}, which a remedy replaces; install pypaimon >=2.1,<2.2"
            )
    # By default a filter on a column that has a global index finds only rows that the index knows: later appends are missing.
    table = table.copy_without_time_travel({"global-index.enabled": "false"})
    environment = table.catalog_environment
    kind = _environment_of(table)
    if kind is not None and type(environment) is CatalogEnvironment:
        table.catalog_environment = kind(
            identifier=environment.identifier,
            uuid=environment.uuid,
            catalog_loader=environment.catalog_loader,
            supports_version_management=environment.supports_version_management,
            rest_table_response=environment.rest_table_response,
        )
    return table


def _environment_of(table: Any) -> type[CatalogEnvironment] | None:
    if is_served(table):
        return ServedEnvironment
    if is_local(str(table.table_path)):
        return LinkingEnvironment
    return ConditionalEnvironment if creates(table) else None


def is_served(table: Any) -> bool:
    """Whether a catalog server decides what is committed to the table, wherever its files lie."""
    environment = table.catalog_environment
    return environment.catalog_loader is not None and bool(environment.supports_version_management)


def creates(table: Any) -> bool:
    """Whether the table's FileIO is one of ours, which lets the store decide who wrote a file first."""
    return hasattr(getattr(table.file_io, "_delegate", table.file_io), "check_creates")


def check_commits(table: Any) -> None:
    """See, before anything is written, that the store can be committed to by more than one writer.

    Raises:
        CommitError: it can't.
    """
    path = str(table.table_path)
    if creates(table):
        table.file_io.check_creates(path)
    elif path.startswith("gs://") and not is_served(table):
        raise CommitError(
            f"{path} is not written to: Google Cloud Storage is written through pyarrow, which can't make a write fail where "
            "another writer was first, so commits could be lost without an error; write through a REST catalog"
        )


def check_creates(catalog: Any) -> None:
    """As `check_commits`, of a pypaimon catalog: before a database or table is made.

    Raises:
        CommitError: the store can't be written to safely.
    """
    file_io = getattr(catalog, "file_io", None)
    check = getattr(getattr(file_io, "_delegate", file_io), "check_creates", None)
    if check is not None:
        check(f"{str(catalog.warehouse).rstrip('/')}/")  # within it: rights may end there


def newest_schema(snapshots: Any) -> Any:
    """The table's newest schema, which a snapshot is to be read with; None: it has none, as a table that was dropped.

    Upstream takes the one that the writer began with: a column that was added meanwhile is gone from its snapshot.

    Args:
        snapshots: the table's ``SnapshotManager``.
    """
    look_anew = getattr(getattr(snapshots.file_io, "_delegate", snapshots.file_io), "look_anew", None)
    if look_anew is not None:
        look_anew()
    return SchemaManager(snapshots.file_io, snapshots.table_path, snapshots.branch).latest()


def pinned(table: Any, snapshot: Any) -> Any:
    """A copy of a table handle that reads one snapshot, tag or none (None), which it holds instead of looking for its number.

    Its columns are those of the handle.

    Upstream reads the snapshot of a number anew for each plan: of a table that was made again under its name in between, or
    whose snapshots were cut back, that is another one. What a snapshot names is named by UUIDs, which come only once.
    """
    held = table.copy_without_time_travel(
        {"scan.tag-name": None, "scan.snapshot-id": None if snapshot is None else str(snapshot.id)}
    )
    held._read_snapshot = snapshot  # noqa: SLF001 - as upstream's `_copy_with_snapshot` does; its plans look there first
    return held


def pinned_snapshot(table: Any) -> Any:
    """The snapshot or tag that a handle of `pinned` holds."""
    return table._read_snapshot  # noqa: SLF001


def write_tag(table: Any, name: str, snapshot: Any, *, replace: bool, extras: Mapping[str, Any] | None = None) -> bool:
    """Name a snapshot. False when the tag exists and is not to be replaced.

    Upstream asks whether the tag exists and then writes over it in place: of two processes both succeed, and a crash
    leaves a file that no one can list tags by.

    Args:
        table: whose snapshot.
        name: the tag's.
        snapshot: a pypaimon snapshot.
        replace: move a tag that exists.
        extras: further keys of the tag's JSON.
    """
    tags = served_tags(table)
    if tags is not None:
        return tags.write(name, int(snapshot.id), replace=replace)
    manager = table.tag_manager()
    path = str(manager.tag_path(name))
    text = json.dumps({**json.loads(JSON.to_json(snapshot)), **(extras or {})}, ensure_ascii=False)
    if is_local(path):
        return publish_file(local_path(path), text, replace=replace)
    if not replace and creates(table):
        return bool(table.file_io.try_to_write_atomic(path, text))
    if manager.tag_exists(name) and not replace:
        return False
    table.file_io.write_file(path, text, True)  # one PUT: readers see the old or the new text
    return True


def snapshot_of(manager: Any, number: int) -> Any:
    """A snapshot by its number, None when there is none.

    Upstream asks whether the file is there and then reads it: of a snapshot that expires in between it says that its file is
    missing, and so do its lists of snapshots.
    """
    try:
        return manager.get_snapshot_by_id(number)
    except FileNotFoundError:
        return None


def latest_of(manager: Any) -> Any:
    """The latest snapshot, None when there is none.

    Upstream finds its number and then reads it. Where a commit and an expiry come in between, it is gone, and there is a later
    one.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return manager.get_latest_snapshot()
    return manager.get_latest_snapshot()


class ExpiredError(Exception):
    """The number of a snapshot was taken, and what had it has expired: whose it was can't be seen any more."""


def snapshot_under(manager: Any, number: int) -> Any:
    """Which snapshot has, or had, a number: None while nobody has taken it.

    Raises:
        ExpiredError: it is gone.
    """
    latest = latest_of(manager)  # first: a server may have files there that it did not publish
    if latest is None or latest.id < number:
        return None
    found = latest if latest.id == number else snapshot_of(manager, number)
    if found is None:
        raise ExpiredError(f"snapshot {number} was published, by this writer or another, and has expired since")
    return found


class SteadySnapshots(SnapshotManager):
    """The snapshots of a table that others expire meanwhile: see `snapshot_of` and `latest_of`."""

    @classmethod
    def of(cls, manager: SnapshotManager) -> SteadySnapshots:
        """In place of upstream's own."""
        return cls(manager.file_io, manager.table_path, manager.branch, manager.snapshot_loader)

    def get_latest_snapshot(self) -> Any:
        """As upstream, also while snapshots expire."""
        return latest_of(super())

    def get_snapshot_by_id(self, snapshot_id: int) -> Any:
        """As upstream, also while snapshots expire."""
        return snapshot_of(super(), snapshot_id)


def snapshot_at(manager: Any, time_millis: int) -> Any:
    """The latest snapshot committed at or before a time, or None.

    By the numbers that are there: upstream's search begins at a hint, which is wrong after a rollback, and takes it that no
    number is missing.
    """
    found = None
    numbers = snapshot_numbers(manager)
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        snapshot = snapshot_of(manager, numbers[middle])
        if snapshot is None:  # it expired since it was listed
            del numbers[middle]
            high -= 1
        elif snapshot.time_millis <= time_millis:
            found, low = snapshot, middle + 1
        else:
            high = middle
    return found


def snapshots_of(manager: Any) -> list[Any]:
    """The snapshots that are there, by number."""
    found = (snapshot_of(manager, number) for number in snapshot_numbers(manager))
    return [snapshot for snapshot in found if snapshot is not None]


def snapshot_numbers(manager: Any) -> list[int]:
    """Numbers of the snapshots that are there, ascending."""
    try:
        found = manager.file_io.list_status(manager.snapshot_dir)
    except FileNotFoundError:
        return []
    names = (str(status.base_name) for status in found or ())
    return sorted(int(match[1]) for name in names if (match := _SNAPSHOT.fullmatch(name)))


def served_tags(table: Any) -> ServedTags | None:
    """The tags of a table whose server keeps them; None where they are files of the table's folder."""
    return ServedTags(table) if is_served(table) else None


def tag_of(table: Any, name: str) -> Any:
    """What a tag says, None when there is none: like `snapshot_of`, also when it is deleted this moment."""
    served = served_tags(table)
    try:
        return table.tag_manager().get(name) if served is None else served.snapshot(name)
    except FileNotFoundError:
        return None


def is_local(path: str) -> bool:
    """Whether a path or URL names a file of this machine."""
    return urlparse(path).scheme in ("", "file") or path.startswith("/")


def local_path(path: str) -> Path:
    """The plain path of a local path or ``file:`` URL; ``%20`` stays as it is.

    Raises:
        ValueError: a file URL that names another host.
    """
    if not path.lower().startswith("file:"):
        return Path(path)
    rest = path[len("file:") :]
    if rest.startswith("//"):
        host, _, rest = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise ValueError(f"a file URL reads file:///absolute/path, got {path}")
        rest = f"/{rest}"
    return Path(rest)
