"""What outlives expired snapshots of their commits: one JSON file beside the snapshots, ``lakehouse/commits.json``.

Expiry calls `remember` before it deletes snapshots, so that repeating an append that was given a commit id stays a no-op
afterwards. Kept are commits under ids that a caller chose (those made here for a single attempt are nobody's to repeat), and
rollbacks: by them it is known which commits an earlier version's content comes from, also where a tag brings it back.
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
from lakehouse.write.published import Published, ours

# How an id that no caller chose begins.
AUTO_PREFIX = "auto-"
# Where the ledger of a table or branch lies, below its folder. Not in snapshot/ itself: other engines' orphan removal takes
# every file there that is no snapshot.
LEDGER = "lakehouse/commits.json"


def is_kept(commit: Published) -> bool:
    """Whether the ledger keeps a commit."""
    return commit.is_rollback or not (commit.commit_id or AUTO_PREFIX).startswith(AUTO_PREFIX)


def remember(paimon: Any, expired: Iterable[Published]) -> None:
    """Keep the commits of snapshots known. To be called before the snapshots are deleted.

    Args:
        paimon: the table, or a branch of it.
        expired: the snapshots that go.

    Raises:
        CommitError: the file can't be written; nothing was changed.
    """
    found = {commit.id: commit for commit in expired if is_kept(commit)}
    if not found:
        return
    with _changing(paimon) as commits:
        commits.update(found)


def kept(paimon: Any) -> dict[int, Published]:
    """The commits of expired snapshots, by snapshot number.

    Raises:
        CommitError: the file can't be read.
    """
    path = _path(paimon)
    try:
        if not paimon.file_io.exists(path):
            return {}
        stored = json.loads(paimon.file_io.read_file_utf8(path))
        entries = stored["snapshots"] if stored["format"] == 2 else stored["commits"].values()
        found = (
            Published(int(entry["snapshot"]), int(entry["time_millis"]), str(entry["kind"]), ours(entry["properties"]))
            for entry in entries
        )
        return {commit.id: commit for commit in found}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommitError(
            f"{_name(paimon)}: {path}, which holds the commit ids of expired snapshots, can't be read ({cause_line(error)})"
        ) from error


def ledger_text(commits: Mapping[int, Published]) -> str:
    """The file's text. Format 1 had only commits that no rollback had undone, by their ids."""
    snapshots = [
        {
            "snapshot": commit.id,
            "time_millis": commit.time_millis,
            "kind": commit.commit_kind,
            "properties": dict(commit.properties),
        }
        for _, commit in sorted(commits.items())
    ]
    return json.dumps({"format": 2, "snapshots": snapshots}, indent=1)


@contextlib.contextmanager
def _changing(paimon: Any) -> Iterator[dict[int, Published]]:
    """The ledger to change in place; written when the block ends. One process at a time where files can be locked."""
    path = _path(paimon)
    try:
        if not is_local(path):
            commits = kept(paimon)
            yield commits
            paimon.file_io.write_file(path, ledger_text(commits), True)  # one PUT: readers see the old or the new text
            return
        file = local_path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        with (file.parent / ".commits.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            commits = kept(paimon)
            yield commits
            publish_file(file, ledger_text(commits), replace=True)
    except OSError as error:
        raise CommitError(f"{_name(paimon)}: {path} can't be written ({cause_line(error)})") from error


def _path(paimon: Any) -> str:
    root = str(paimon.snapshot_manager().snapshot_dir).rstrip("/").rpartition("/")[0]
    return f"{root}/{LEDGER}"


def _name(paimon: Any) -> str:
    return str(paimon.identifier.get_full_name())
