"""Publishing only on the snapshot that the work was made from.

An update, a delete, an overwrite and a compaction read a snapshot, work, and publish. What another writer committed in
between may concern the same rows, and the engine does not see all of it (deleted rows come back where their files are
replaced). So the rule here is exact instead of clever: another snapshot in between means that nothing is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.errors import CommitError, CommitUnknownError
from lakehouse.upstream import snapshot_of
from lakehouse.write.commit import discard, latest_id, name_of, publish_snapshot
from lakehouse.write.published import Published


class Moved(CommitError):  # noqa: N818 - what happened, as one reads it in an except
    """Another commit came first: nothing was published, and the work must be done again on fresh data."""


def publish_on(
    paimon: Any,
    messages: list[Any],
    base_snapshot_id: int | None,
    *,
    operation: str,
    properties: Mapping[str, str] | None = None,
    over_appends: bool = False,
    keep: bool = False,
) -> int:
    """Make one snapshot of the messages, if the latest snapshot is still the one that they were made from.

    Args:
        paimon: handle of the table, not pinned to a snapshot.
        messages: commit messages; none of them: a snapshot without new files.
        base_snapshot_id: the snapshot they were made from; None: the table had none.
        operation: what this is (``"update"``, ``"compact"``), kept in the snapshot's properties.
        properties: more of them.
        over_appends: let commits in between pass that only added rows. They touch no row that the messages touch, so the
            result is that of one after the other; not for work that depends on which rows are absent.
        keep: leave the messages' files where they are when nothing was published; else they are deleted.

    Returns:
        The new snapshot's id.

    Raises:
        Moved: another commit came first; nothing was published.
        CommitError: nothing was published for another reason; trying again is safe.
        CommitUnknownError: the store failed while it was published and can't be asked.

    Example:
        >>> publish_on(paimon, messages, 41, operation="compact")  # doctest: +SKIP
        42
    """
    return publish_snapshot_on(
        paimon,
        messages,
        base_snapshot_id,
        operation=operation,
        properties=properties,
        over_appends=over_appends,
        keep=keep,
    ).id


def publish_snapshot_on(
    paimon: Any,
    messages: list[Any],
    base_snapshot_id: int | None,
    *,
    operation: str,
    properties: Mapping[str, str] | None = None,
    over_appends: bool = False,
    keep: bool = False,
) -> Published:
    """As `publish_on`, but the snapshot with its time and properties."""
    base = base_snapshot_id or 0  # ids start at 1

    def passes(latest: int) -> bool:
        return latest == base or (over_appends and latest > base and only_appended(paimon, base, latest))

    def check(number: int) -> None:
        if not passes(number - 1):
            raise Moved(_moved_text(paimon, base_snapshot_id))

    try:
        check((latest_id(paimon) or 0) + 1)
    except Moved:
        if not keep:
            discard(paimon, messages)
        raise
    try:
        return publish_snapshot(
            paimon.copy({"snapshot.ignore-empty-commit": "false"}),
            messages,
            properties=properties,
            operation=operation,
            check=check,
            keep=keep,
        )
    except (CommitUnknownError, Moved):
        raise
    except CommitError as error:
        if not passes(latest_id(paimon) or 0):  # the engine refused because of what came in between
            raise Moved(_moved_text(paimon, base_snapshot_id)) from error
        raise


def _moved_text(paimon: Any, base: int | None) -> str:
    return (
        f"{name_of(paimon)}: another commit came after snapshot {base}, from which this one was made; "
        "nothing was published, do it again on fresh data"
    )


def only_appended(paimon: Any, base: int, latest: int) -> bool:
    """Whether the snapshots after ``base`` up to ``latest`` added new rows and did nothing else; False of expired ones."""
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    manager = paimon.snapshot_manager()
    lists, files = ManifestListManager(paimon), ManifestFileManager(paimon)
    before = snapshot_of(manager, base) if base else None
    first_new_row_id = (before.next_row_id or 0) if before is not None else 0
    index = before.index_manifest if before is not None else None
    if base and before is None:
        return False
    for number in range(base + 1, latest + 1):
        snapshot = snapshot_of(manager, number)
        if snapshot is None or snapshot.commit_kind != "APPEND" or snapshot.index_manifest != index:
            return False
        try:
            entries = [entry for manifest in lists.read_delta(snapshot) for entry in files.read(manifest.file_name)]
        except FileNotFoundError:  # it expired this moment
            return False
        if any(one.kind != 0 or one.file.first_row_id is None or one.file.first_row_id < first_new_row_id for one in entries):
            return False
    return True
