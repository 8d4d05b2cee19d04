"""Orphans: files that crashed writers left and that no snapshot, tag or branch reaches.

Only names that writers make are looked at, in the folders where they make them; everything else is somebody else's. The
files are listed first and what is needed is read afterwards: a file that a commit made needed in between is seen as needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from lakehouse.errors import ConfigError
from lakehouse.upkeep.expire import check_own_history
from lakehouse.upkeep.files import Manifests, load_roots, needed_names
from lakehouse.upkeep.partitions import buckets, partition_folders
from lakehouse.upkeep.progress import Meter, Progress
from lakehouse.upkeep.remove import Doomed, by_kind, delete, kind_of, total_bytes
from lakehouse.upkeep.report import Left, OrphanReport
from lakehouse.upkeep.store import Entry, Store, store_of
from lakehouse.upkeep.unfinished import drop_empty, is_unfinished, unfinished_branches

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_MANIFEST = re.compile(rf"(index-manifest|manifest-list|manifest)-{_UUID}(-[\w-]+)?(\.avro\.sidecar)?")
_INDEX = re.compile(rf"(index-{_UUID}-\d+|[\w-]+-global-index-{_UUID}\.index)")
_STATISTICS = re.compile(rf"stat-{_UUID}(-\d+)?")
# A file that appears under its name whole is written beside it first: by us with eight letters, by pypaimon with a UUID.
_TEMPORARY = re.compile(
    rf"\.(snapshot-\d+|schema-\d+|tag-.+|EARLIEST|LATEST|commits\.json)\.([a-z0-9_]{{8}}|{_UUID}\.tmp)|\.clock\..+"
)
_TEMPORARY_DATA = re.compile(rf"\.(.+)\.{_UUID}\.tmp")
_OWN_FOLDERS = ("snapshot", "tag", "schema", "lakehouse")


def remove_orphans(
    paimon: Any, name: str, *, older_than: timedelta, dry_run: bool, progress: Progress, store: Store | None = None
) -> OrphanReport:
    """See `Table.remove_orphans`. ``store``: the table's folder, when not the one that the table itself names."""
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise ConfigError(f"older_than is a timedelta of zero or more, got {older_than!r}")
    check_own_history(paimon, "remove_orphans")
    store = store_of(paimon) if store is None else store
    before_s = store.now_s() - older_than.total_seconds()
    half_made = unfinished_branches(store)
    found = [*candidates(paimon, store), *(file for files in half_made.values() for file in files)]
    gone = [folder for folder, files in half_made.items() if all(modified_s <= before_s for _, modified_s in files)]
    manifests = Manifests(store)
    needed = needed_names(manifests, load_roots(store, manifests, without=gone))
    orphans = [(file, modified_s) for file, modified_s in found if file.path.rpartition("/")[2] not in needed]
    doomed = sorted(file for file, modified_s in orphans if modified_s <= before_s)
    spared = len(orphans) - len(doomed)
    left: list[Left] = []
    if not dry_run and (doomed or gone):
        with Meter(progress, len(doomed), f"orphans of {name}") as meter:
            # What names files goes before the files, so that a stop in between leaves nothing that can't be read.
            first, left = delete(store, [file for file in doomed if file.path.startswith("branch/")], meter)
            for folder in gone:
                drop_empty(store, folder)
            # Once more: a commit may have named some of them while the manifests were read.
            needed = needed_names(manifests, load_roots(store, manifests))
            others = [file for file in doomed if not file.path.startswith("branch/")]
            then, stayed = delete(store, [file for file in others if file.path.rpartition("/")[2] not in needed], meter)
            doomed, left = sorted([*first, *then]), [*left, *stayed]
    return OrphanReport(
        name, tuple(file.path for file in doomed), by_kind(doomed), total_bytes(doomed), spared, tuple(left), dry_run
    )


def candidates(paimon: Any, store: Store) -> Iterator[tuple[Doomed, float]]:
    """Files whose names and places are those that writers give, with the time each was last written."""
    for folder, names, kind in (
        ("manifest", _MANIFEST, "manifest"),
        ("index", _INDEX, "index"),
        ("statistics", _STATISTICS, "statistics"),
    ):
        for entry in _files(store, folder):
            if names.fullmatch(entry.name) or _is_temporary(entry.name, names):
                yield _doomed(folder, entry, kind if not entry.name.startswith(".") else "temporary")
    branches = [f"branch/{entry.name}/" for entry in store.list("branch") if entry.is_folder and not is_unfinished(entry.name)]
    for prefix in ("", *branches):
        for folder in _OWN_FOLDERS:
            for entry in _files(store, f"{prefix}{folder}"):
                if _TEMPORARY.fullmatch(entry.name):
                    yield _doomed(f"{prefix}{folder}", entry, "temporary")
    for entry in _files(store, ""):
        if entry.name.startswith(".clock."):
            yield _doomed("", entry, "temporary")
    yield from _data_files(paimon, store)


def _data_files(paimon: Any, store: Store) -> Iterator[tuple[Doomed, float]]:
    options = paimon.options
    prefix = re.escape(str(options.data_file_prefix()))
    names = re.compile(rf"({prefix}|changelog-){_UUID}-\d+(\.[\w.-]+)?")
    for folder in partition_folders(paimon, store)[-1]:
        for place in buckets(store, folder):
            for entry in _files(store, place):
                if _INDEX.fullmatch(entry.name) or (entry.name.endswith(".index") and names.fullmatch(entry.name)):
                    yield _doomed(place, entry, "index")
                elif names.fullmatch(entry.name):
                    yield _doomed(place, entry, kind_of(entry.name))
                elif _is_temporary(entry.name, names):
                    yield _doomed(place, entry, "temporary")


def _is_temporary(name: str, names: re.Pattern[str]) -> bool:
    match = _TEMPORARY_DATA.fullmatch(name)
    return match is not None and names.fullmatch(match[1]) is not None


def _files(store: Store, folder: str) -> Iterator[Entry]:
    return (entry for entry in store.list(folder) if not entry.is_folder)


def _doomed(folder: str, entry: Entry, kind: str) -> tuple[Doomed, float]:
    return Doomed(_joined(folder, entry.name), kind, entry.size_bytes), entry.modified_s


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
