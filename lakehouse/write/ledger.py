"""Commit ids of snapshots that have expired: one JSON file beside the snapshots, ``lakehouse/commits.json``.

Expiry calls `remember` before it deletes snapshots, so that repeating an append that was given a commit id stays a no-op
afterwards. Only ids that a caller chose are kept; those made here for a single attempt are nobody's to repeat.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lakehouse.durable import publish_file
from lakehouse.errors import CommitError, cause_line
from lakehouse.upstream import is_local, local_path
from lakehouse.write.published import Published, commits

# How an id that no caller chose begins.
AUTO_PREFIX = "auto-"

_OURS = "lakehouse."


def remember(paimon: Any, ids: Iterable[tuple[str, int]]) -> None:
    """Keep commit ids findable once their snapshots are gone. To be called before the snapshots are deleted.

    Args:
        paimon: the table, or a branch of it.
        ids: commit ids and snapshot numbers; an id that a rollback made free may be there again. Left out are ids that begin
            with ``auto-``, which no caller chose, and those of commits that a rollback undid.

    Raises:
        CommitError: the file can't be written, or a snapshot is gone already; nothing was changed.
    """
    chosen = [(commit_id, number) for commit_id, number in ids if not commit_id.startswith(AUTO_PREFIX)]
    if not chosen:
        return
    standing = {number for number, _ in commits(paimon)}
    manager = paimon.snapshot_manager()
    found: dict[str, Published] = {}
    for commit_id, number in chosen:
        snapshot = manager.get_snapshot_by_id(number)
        if snapshot is None:
            raise CommitError(
                f"{_name(paimon)}: snapshot {number} is gone, so commit id {commit_id!r} can't be carried forward"
            )
        if number in standing:
            found[commit_id] = Published.of(snapshot)
    if not found:
        return
    with _changing(paimon) as kept:
        kept.update(found)


def forget(paimon: Any, *, after: int) -> None:
    """Drop the ids of commits later than a snapshot. To be called by a rollback to that snapshot, which undoes them.

    Needed only where that snapshot itself has expired, and is reached by its tag.

    Raises:
        CommitError: the file can't be written; nothing was changed.
    """
    if not any(commit.id > after for commit in _read(paimon).values()):
        return
    with _changing(paimon) as kept:
        for commit_id in [commit_id for commit_id, commit in kept.items() if commit.id > after]:
            del kept[commit_id]


def lookup(paimon: Any, commit_id: str) -> Published | None:
    """The expired snapshot that a commit id names, or None.

    Raises:
        CommitError: the file can't be read.
    """
    return _read(paimon).get(commit_id)


@contextlib.contextmanager
def _changing(paimon: Any) -> Iterator[dict[str, Published]]:
    """The ledger to change in place; written when the block ends. One process at a time where files can be locked."""
    path = _path(paimon)
    try:
        if not is_local(path):
            kept = _read(paimon)
            yield kept
            paimon.file_io.write_file(path, _text(kept), True)  # one PUT: readers see the old or the new text
            return
        file = local_path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        with (file.parent / ".commits.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = _read(paimon)
            yield kept
            publish_file(file, _text(kept), replace=True)
    except OSError as error:
        raise CommitError(f"{_name(paimon)}: {path} can't be written ({cause_line(error)})") from error


def _read(paimon: Any) -> dict[str, Published]:
    path = _path(paimon)
    try:
        if not paimon.file_io.exists(path):
            return {}
        stored = json.loads(paimon.file_io.read_file_utf8(path))["commits"]
        return {
            commit_id: Published(int(entry["snapshot"]), int(entry["time_millis"]), str(entry["kind"]), entry["properties"])
            for commit_id, entry in stored.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommitError(
            f"{_name(paimon)}: {path}, which holds the commit ids of expired snapshots, can't be read ({cause_line(error)})"
        ) from error


def _text(kept: Mapping[str, Published]) -> str:
    commits = {
        commit_id: {
            "snapshot": commit.id,
            "time_millis": commit.time_millis,
            "kind": commit.commit_kind,
            "properties": {name: value for name, value in commit.properties.items() if name.startswith(_OURS)},
        }
        for commit_id, commit in kept.items()
    }
    return json.dumps({"format": 1, "commits": commits}, indent=1)


def _path(paimon: Any) -> str:
    # Not in snapshot/ itself: other engines' orphan removal takes every file there that is no snapshot.
    root = str(paimon.snapshot_manager().snapshot_dir).rstrip("/").rpartition("/")[0]
    return f"{root}/lakehouse/commits.json"


def _name(paimon: Any) -> str:
    return str(paimon.identifier.get_full_name())
