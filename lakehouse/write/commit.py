"""Publishing what was written as one snapshot: all of it becomes visible at once, or nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from lakehouse.errors import CommitError, CommitUnknownError, ConfigError, NotFoundError, cause_line
from lakehouse.served import ServedSnapshotCommit
from lakehouse.upstream import LinkingSnapshotCommit
from lakehouse.write.ledger import AUTO_PREFIX, BYTES, COMMIT_ID, OPERATION, ROWS, Published, lookup
from lakehouse.write.lineage import in_force

_ID_CHARACTERS = 256
_ROW_FILES = (".parquet", ".orc", ".avro")  # others hold further columns of the same rows


def publish(
    paimon: Any,
    messages: list[Any],
    *,
    commit_id: str | None = None,
    properties: Mapping[str, str] | None = None,
    operation: str = "append",
) -> int:
    """Make one snapshot of the messages; its id. The one way by which anything of this package is committed.

    Args:
        paimon: the table's handle (`Table.paimon`), or a branch's.
        messages: what pypaimon's writers and updates prepared, at least one that is not empty. A message that replaces
            files (``deleted_files``) or that names row ids carries ``check_from_snapshot``, the snapshot that it was
            worked out from: upstream then refuses it when another writer changed the same files since.
        commit_id: the caller's own name for this commit (`checked_commit_id`), or a `new_commit_id`. When a snapshot of that
            id is there already, the files of these messages are deleted and that snapshot's number is returned. None: a new
            one.
        properties: further properties of the snapshot, such as ``{ROWS: "3"}``; `ROWS` and `BYTES` default to the rows and
            file bytes that the messages add.
        operation: what history shows: ``append``, ``update``, ``delete``, ``compact``, ...

    Raises:
        CommitError: nothing was published and the files of the messages are deleted; trying again is safe.
        CommitUnknownError: the store failed while it was published and can't be asked. Nothing was deleted.
    """
    return publish_snapshot(paimon, messages, commit_id=commit_id, properties=properties, operation=operation).id


def publish_snapshot(
    paimon: Any,
    messages: list[Any],
    *,
    commit_id: str | None = None,
    properties: Mapping[str, str] | None = None,
    operation: str = "append",
    prepare: Callable[[Any], None] | None = None,
    keep: bool = False,
) -> Published:
    """As `publish`, but the snapshot with its time and properties: those of the earlier one where the id was there.

    ``prepare`` is called with the engine's committer before it begins; ``keep`` leaves the messages' files where they are
    when nothing was published.
    """
    from pypaimon.write.commit_callback import CommitCallback

    class Remember(CommitCallback):
        snapshot: Published | None = None

        def call(self, context: Any) -> None:
            self.snapshot = Published.of(context.snapshot)

    if commit_id is None:
        commit_id = new_commit_id()
    elif not commit_id.startswith(AUTO_PREFIX):
        earlier = find_commit(paimon, commit_id)
        if earlier is not None:
            discard(paimon, messages)
            return earlier
    files = [file for message in messages for file in message.new_files]
    rows = sum(file.row_count for file in files if file.file_name.endswith(_ROW_FILES))
    stored = {
        ROWS: str(rows),
        BYTES: str(sum(file.file_size for file in files)),
        **(properties or {}),
        OPERATION: operation,
        COMMIT_ID: commit_id,
    }
    before = latest_id(paimon)
    remember = Remember()
    commit = paimon.new_batch_write_builder().new_commit()
    commit.add_commit_callback(remember)
    engine = commit.file_store_commit
    store = engine.snapshot_commit
    if isinstance(store, LinkingSnapshotCommit | ServedSnapshotCommit):
        store.on_error = lambda: setattr(engine, "commit_max_retries", 0)
    if prepare is not None:
        prepare(engine)
    try:
        commit.commit(messages, snapshot_properties=stored)
    except BaseException as error:
        found = _find(paimon, commit_id, before, error)
        in_doubt = found is None and _in_doubt(paimon, store)
        if found is None and not keep and not in_doubt:
            discard(paimon, messages)
        if not isinstance(error, Exception):  # Ctrl-C: either all of it happened, or nothing
            raise
        why = cause_line(error.__cause__ or error)
        if in_doubt:
            raise CommitUnknownError(
                f"{name_of(paimon)}: the server left the commit without an answer ({why}) and may still publish it; "
                f"look for {COMMIT_ID}={commit_id} in snapshots() before trying again"
            ) from error
        if found is None:
            raise CommitError(f"{name_of(paimon)}: the commit did not happen ({why}); try again") from error
        return found
    finally:
        commit.close()
    if remember.snapshot is None:
        raise CommitUnknownError(
            f"{name_of(paimon)}: the engine named no snapshot; look for {COMMIT_ID}={commit_id} in snapshots()"
        )
    return remember.snapshot


def new_commit_id() -> str:
    """An id that no other commit has."""
    return f"{AUTO_PREFIX}{uuid.uuid4().hex}"


def checked_commit_id(commit_id: str) -> str:
    """The id itself, when it can be one.

    Raises:
        ConfigError: it is blank, too long, has characters that can't be printed, or looks like one that was made here.
    """
    if (
        not isinstance(commit_id, str)
        or not commit_id.strip()
        or len(commit_id) > _ID_CHARACTERS
        or not commit_id.isprintable()
    ):
        raise ConfigError(f"commit_id is 1 to {_ID_CHARACTERS} printable characters, got {commit_id!r:.300}")
    if commit_id.startswith(AUTO_PREFIX):
        raise ConfigError(f"commit_id {commit_id!r}: ids that begin with {AUTO_PREFIX!r} are made for appends without one")
    return commit_id


def find_commit(paimon: Any, commit_id: str) -> Published | None:
    """The snapshot that carries a commit id, also when it has expired; None where there is none that a rollback left.

    Raises:
        NotFoundError, CommitError: the snapshots, or the ids carried forward, can't be read.
    """
    try:
        for snapshot in in_force(paimon.snapshot_manager().list_snapshots()):
            if (snapshot.properties or {}).get(COMMIT_ID) == commit_id:
                return Published.of(snapshot)
    except (RuntimeError, OSError, ValueError) as error:
        raise NotFoundError(f"{name_of(paimon)}: its snapshots can't be read ({cause_line(error)})") from error
    return lookup(paimon, commit_id)  # after the snapshots: expiry writes here first, and deletes then


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


def _find(paimon: Any, commit_id: str, before: int | None, error: BaseException) -> Published | None:
    """After an error: the snapshot that carries our commit id, if it was published all the same."""
    try:
        manager = paimon.snapshot_manager()
        for number in range((before or 0) + 1, (latest_id(paimon) or 0) + 1):
            snapshot = manager.get_snapshot_by_id(number)
            if snapshot is not None and (snapshot.properties or {}).get(COMMIT_ID) == commit_id:
                return Published.of(snapshot)
    except Exception as unanswered:  # noqa: BLE001 - whatever the store raises, the outcome is unknown
        raise CommitUnknownError(
            f"{name_of(paimon)}: the commit failed ({cause_line(error)}) and its outcome can't be looked up "
            f"({cause_line(unanswered)}); look for {COMMIT_ID}={commit_id} in snapshots() before trying again"
        ) from error
    return None


def _in_doubt(paimon: Any, snapshot_commit: Any) -> bool:
    """Whether a server may still publish what it gave no answer to, so that its files have to stay."""
    return isinstance(snapshot_commit, ServedSnapshotCommit) and snapshot_commit.may_still_publish(latest_id(paimon))


def name_of(paimon: Any) -> str:
    """``database.table`` of a pypaimon handle, for messages."""
    return str(paimon.identifier.get_full_name())
