"""Publishing what was written as one snapshot: all of it becomes visible at once, or nothing."""

from __future__ import annotations

import uuid
from typing import Any

from lakehouse.errors import CommitError, CommitUnknownError, NotFoundError, cause_line
from lakehouse.upstream import LinkingSnapshotCommit

COMMIT_ID = "lakehouse.commit-id"


def publish(paimon: Any, messages: list[Any]) -> int:
    """Make one snapshot of the messages; its id.

    Raises:
        CommitError: nothing was published; trying again is safe.
        CommitUnknownError: the store failed while it was published and can't be asked.
    """
    from pypaimon.write.commit_callback import CommitCallback

    class Remember(CommitCallback):
        snapshot_id: int | None = None

        def call(self, context: Any) -> None:
            self.snapshot_id = context.snapshot.id

    commit_id = uuid.uuid4().hex
    before = latest_id(paimon)
    remember = Remember()
    commit = paimon.new_batch_write_builder().new_commit()
    commit.add_commit_callback(remember)
    engine = commit.file_store_commit
    if isinstance(engine.snapshot_commit, LinkingSnapshotCommit):
        engine.snapshot_commit.on_error = lambda: setattr(engine, "commit_max_retries", 0)
    try:
        commit.commit(messages, snapshot_properties={COMMIT_ID: commit_id})
    except BaseException as error:
        found = _find(paimon, commit_id, before, error)
        if found is None:
            discard(paimon, messages)
        if not isinstance(error, Exception):  # Ctrl-C: either all of it happened, or nothing
            raise
        if found is None:
            why = cause_line(error.__cause__ or error)
            raise CommitError(f"{name_of(paimon)}: the commit did not happen ({why}); try again") from error
        return found
    finally:
        commit.close()
    if remember.snapshot_id is None:
        raise CommitUnknownError(
            f"{name_of(paimon)}: the engine named no snapshot; look for {COMMIT_ID}={commit_id} in snapshots()"
        )
    return remember.snapshot_id


def discard(paimon: Any, messages: list[Any]) -> None:
    """Delete the files that the messages of an unpublished commit name."""
    commit = paimon.new_batch_write_builder().new_commit()
    commit.abort(messages)
    commit.close()


def latest_id(paimon: Any) -> int | None:
    """The latest snapshot's id.

    Raises:
        NotFoundError: there are snapshots, and the latest can't be read.
    """
    try:
        snapshot = paimon.snapshot_manager().get_latest_snapshot()
    except (RuntimeError, OSError, ValueError) as error:
        raise NotFoundError(f"{name_of(paimon)}: its latest snapshot can't be read ({cause_line(error)})") from error
    return None if snapshot is None else int(snapshot.id)


def _find(paimon: Any, commit_id: str, before: int | None, error: BaseException) -> int | None:
    """After an error: the snapshot that carries our commit id, if it was published all the same."""
    try:
        manager = paimon.snapshot_manager()
        for number in range((before or 0) + 1, (latest_id(paimon) or 0) + 1):
            snapshot = manager.get_snapshot_by_id(number)
            if snapshot is not None and (snapshot.properties or {}).get(COMMIT_ID) == commit_id:
                return number
    except Exception as lookup:  # noqa: BLE001 - whatever the store raises, the outcome is unknown
        raise CommitUnknownError(
            f"{name_of(paimon)}: the commit failed ({cause_line(error)}) and its outcome can't be looked up "
            f"({cause_line(lookup)}); look for {COMMIT_ID}={commit_id} in snapshots() before trying again"
        ) from error
    return None


def name_of(paimon: Any) -> str:
    """``database.table`` of a pypaimon handle, for messages."""
    return str(paimon.identifier.get_full_name())
