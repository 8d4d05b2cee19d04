"""Publishing a snapshot whose content is known already: that of an earlier snapshot, or of a branch's next one."""

from __future__ import annotations

import random
import time
import uuid
from typing import Any

from lakehouse.durable import sync_files
from lakehouse.errors import CommitError, CommitUnknownError, cause_line
from lakehouse.identity import check_same_table
from lakehouse.upstream import is_local, latest_of, local_path, snapshot_under
from lakehouse.write.commit import name_of
from lakehouse.write.ids import new_commit_id
from lakehouse.write.next_snapshot import following
from lakehouse.write.published import BYTES, COMMIT_ID, OPERATION, RESTORED, ROWS

_ATTEMPTS = 100
_LONGEST_WAIT_S = 1.0


def publish_restored(paimon: Any, target: Any) -> tuple[Any, Any]:
    """Make a new latest snapshot that holds what ``target`` holds.

    Nothing is deleted and no number used twice: snapshot ids and row ids go on from the latest snapshot's, so what was saved
    of any snapshot stays true. When another writer is first, the same is done on top of its snapshot. Ids of commits that
    are undone are free again.

    Args:
        paimon: pypaimon handle of the table or branch, its schema the latest.
        target: a pypaimon snapshot or tag.

    Returns:
        The new snapshot, and the one that it followed.

    Raises:
        CommitError: nothing was published; trying again is safe.
        CommitUnknownError: the store failed while it was published and can't be asked.
    """
    check_same_table(paimon)
    manager = paimon.snapshot_manager()
    properties = {ROWS: "0", BYTES: "0", OPERATION: "rollback", COMMIT_ID: new_commit_id(), RESTORED: str(target.id)}
    for attempt in range(_ATTEMPTS):
        latest = latest_of(manager)
        snapshot, lists = _restored(paimon, latest, target, properties)
        if is_local(lists[0]):  # what a snapshot names is on the disk before the snapshot is
            paths = [local_path(name) for name in lists]
            sync_files([*paths, paths[0].parent])
        if publish_one(paimon, snapshot, latest):
            return snapshot, latest
        for name in lists:
            paimon.file_io.delete_quietly(name)
        time.sleep(min(_LONGEST_WAIT_S, 0.01 * 2 ** min(attempt, 7)) * random.uniform(0.5, 1))
    raise CommitError(f"{name_of(paimon)}: {_ATTEMPTS} other commits were first; nothing was published, try again")


def publish_one(paimon: Any, snapshot: Any, latest: Any) -> bool:
    """Publish ``snapshot`` after ``latest`` (None: as the first); False when another writer took its number.

    Raises:
        CommitError: the store refuses; nothing was published.
        CommitUnknownError: the store failed and can't be asked whether it did.
    """
    manager = paimon.snapshot_manager()
    commit = paimon.catalog_environment.snapshot_commit(manager)
    try:
        with commit:
            return bool(commit.commit(None if latest is None else latest.uuid, snapshot, []))
    except Exception as error:
        try:
            found = snapshot_under(manager, snapshot.id)
        except Exception as lookup:  # noqa: BLE001 - whatever the store raises, the outcome is unknown
            raise CommitUnknownError(
                f"{name_of(paimon)}: publishing snapshot {snapshot.id} failed ({cause_line(error)}) and its outcome can't be "
                f"looked up ({cause_line(lookup)}); look at snapshots() before trying again"
            ) from error
        if found is not None and found.uuid == snapshot.uuid:
            return True
        raise CommitError(
            f"{name_of(paimon)}: snapshot {snapshot.id} was not published ({cause_line(error)}); try again"
        ) from error


def _restored(paimon: Any, latest: Any, target: Any, properties: dict[str, str]) -> tuple[Any, list[str]]:
    """The new snapshot, and the files written for it."""
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    lists = ManifestListManager(paimon)
    unique = uuid.uuid4()
    # Everything stands in the base list. As changes, files that were removed in between and are back would be listed as
    # removed and as added, and readers take what was ever removed for removed.
    base, delta = f"manifest-list-{unique}-0", f"manifest-list-{unique}-1"
    base_bytes = lists.write(base, lists.read_all(target))
    delta_bytes = lists.write(delta, [])
    snapshot = following(
        paimon,
        latest,
        (base, base_bytes),
        (delta, delta_bytes),
        kind="OVERWRITE",
        rows=target.total_record_count or 0,
        next_row_id=_later(latest.next_row_id, target.next_row_id),
        index_manifest=target.index_manifest,
        statistics=target.statistics,
        properties=properties,
    )
    return snapshot, [f"{lists.manifest_path}/{name}" for name in (base, delta)]


def _later(first: int | None, second: int | None) -> int | None:
    return max((number for number in (first, second) if number is not None), default=None)
