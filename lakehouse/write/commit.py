"""Publishing what was written as one snapshot: all of it becomes visible at once, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakehouse.errors import CommitError, CommitUnknownError, LakehouseError, NotFoundError, cause_line
from lakehouse.upstream import latest_of
from lakehouse.write.ids import find_commit, is_chosen, new_commit_id
from lakehouse.write.published import BYTES, COMMIT_ID, OPERATION, ROWS, Published

if TYPE_CHECKING:
    from lakehouse.write.engine import Check, Committer

_ROW_FILES = (".parquet", ".orc", ".avro")  # others hold further columns of the same rows
# How long other writers may be first before a commit gives up; the table option `commit.timeout` says otherwise.
_PATIENCE_S = 300.0
_BATCH = (1 << 63) - 1  # the identifier that upstream gives all commits of batch writers


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
    check: Check | None = None,
    keep: bool = False,
) -> Published:
    """As `publish`, but the snapshot with its time and properties: those of the earlier one where the id was there.

    ``check`` is called with the number that the snapshot would get, before each attempt; what it raises ends the commit.
    ``keep`` leaves the messages' files where they are when nothing was published.
    """
    from lakehouse.write.engine import Committer

    if commit_id is None:
        commit_id = new_commit_id()
    twin = _Twin(paimon, commit_id)
    if twin.look() is not None:
        if not keep:
            discard(paimon, messages)
        return twin.required()

    def checks(number: int) -> None:
        twin.check(number)
        if check is not None:
            check(number)

    files = [file for message in messages for file in message.new_files]
    rows = sum(file.row_count for file in files if file.file_name.endswith(_ROW_FILES))
    stored = {
        ROWS: str(rows),
        BYTES: str(sum(file.file_size for file in files)),
        **(properties or {}),
        OPERATION: operation,
        COMMIT_ID: commit_id,
    }
    committer = Committer(paimon, patience_s=_patience_s(paimon), check=checks)
    try:
        committer.commit([message for message in messages if not message.is_empty()], _BATCH, snapshot_properties=stored)
        if committer.published is None:
            raise CommitError(f"{name_of(paimon)}: there is nothing to commit")
    except BaseException as error:
        published = _settled(paimon, committer, commit_id, error)
        if not published and not keep:
            discard(paimon, messages)
        if isinstance(error, _ThereError):
            return twin.required()
        if not isinstance(error, Exception):  # Ctrl-C: either all of it happened, or nothing
            raise
        if not published:
            raise _as_ours(paimon, committer, error) from error
    finally:
        committer.close()
    return Published.of(committer.published)


class _ThereError(Exception):
    """A snapshot of the same commit id is there."""


class _Twin:
    """Another commit of the same id, made before or at the same time. Ids that no caller chose have none."""

    def __init__(self, paimon: Any, commit_id: str) -> None:
        self._paimon = paimon
        self._commit_id = commit_id
        self._chosen = is_chosen(commit_id)
        self._seen = 0  # the latest snapshot when this was looked for
        self._found: Published | None = None

    def look(self) -> Published | None:
        """Look through the table's history."""
        if self._chosen:
            self._seen = latest_id(self._paimon) or 0
            self._found = find_commit(self._paimon, self._commit_id)
        return self._found

    def check(self, number: int) -> None:
        """Look again, if anything was committed since."""
        if self._chosen and self._seen != number - 1 and self.look() is not None:
            raise _ThereError

    def required(self) -> Published:
        """The one that was found."""
        if self._found is None:
            raise CommitError(f"{name_of(self._paimon)}: no commit of id {self._commit_id!r}")
        return self._found


def _settled(paimon: Any, committer: Committer, commit_id: str, error: BaseException) -> bool:
    """After an error: whether the snapshot was published all the same."""
    from lakehouse.write.engine import UncertainError

    try:
        return committer.settle()
    except UncertainError as uncertain:
        raise CommitUnknownError(
            f"{name_of(paimon)}: it is not known whether the commit happened ({uncertain}). Nothing was deleted. "
            f"table.find_commit({commit_id!r}) finds it if it did; "
            + (
                "append again with the same commit_id when the store answers: what is there already is not added twice"
                if is_chosen(commit_id)
                else "try again only if it does not"
            )
        ) from error


def _as_ours(paimon: Any, committer: Committer, error: Exception) -> LakehouseError:
    """What the engine or the store raised, as an error of this package."""
    from lakehouse.write.engine import OutOfTimeError

    if isinstance(error, LakehouseError):
        return error
    name = name_of(paimon)
    if committer.conflict is not None:
        return CommitError(
            f"{name}: another writer changed the same rows meanwhile; nothing was committed, make the change again on the "
            f"latest snapshot ({cause_line(committer.conflict)})"
        )
    if isinstance(error, OutOfTimeError):
        return CommitError(f"{name}: nothing was committed: {error}; try again when fewer writers are at work")
    shown = (error.__cause__ if type(error) is RuntimeError else None) or error  # upstream's own wrapping tells less
    return CommitError(f"{name}: nothing was committed ({cause_line(shown)}); trying again is safe")


def _patience_s(paimon: Any) -> float:
    given = paimon.options.options.to_map().get("commit.timeout")
    return _PATIENCE_S if given is None else float(paimon.options.commit_timeout()) / 1000


def discard(paimon: Any, messages: list[Any]) -> None:
    """Delete the files that the messages of an unpublished commit name."""
    commit = paimon.new_batch_write_builder().new_commit()
    commit.abort(messages)
    commit.close()


def latest_snapshot(paimon: Any) -> Any:
    """Pypaimon's latest snapshot, None where there is none.

    Raises:
        NotFoundError: there are snapshots, and the latest can't be read.
    """
    try:
        return latest_of(paimon.snapshot_manager())
    except (RuntimeError, OSError, ValueError) as error:
        raise NotFoundError(f"{name_of(paimon)}: its latest snapshot can't be read ({cause_line(error)})") from error


def latest_id(paimon: Any) -> int | None:
    """The latest snapshot's id.

    Raises:
        NotFoundError: there are snapshots, and the latest can't be read.
    """
    snapshot = latest_snapshot(paimon)
    return None if snapshot is None else int(snapshot.id)


def name_of(paimon: Any) -> str:
    """``database.table`` of a pypaimon handle, for messages."""
    return str(paimon.identifier.get_full_name())
