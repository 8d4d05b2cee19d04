"""Merging the files of many small commits.

What is read is one snapshot. What is published replaces exactly the files that were read, and only where the latest snapshot
still has them with the same rows deleted: appends in between, and changes of other files, go on as they were. Else that part
of the work is thrown away and done again on what is there now.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakehouse.compaction.plan import Bin, merge
from lakehouse.compaction.publish import Change, publish
from lakehouse.compaction.report import CompactReport
from lakehouse.compaction.rewrite import Written, rewrite
from lakehouse.compaction.state import Source, check_indexes, entries, sources
from lakehouse.errors import CommitError, ConfigError, SchemaError
from lakehouse.scan import Version
from lakehouse.upkeep import Meter, Progress
from lakehouse.upstream import latest_of, pinned
from lakehouse.write import Moved

logger = logging.getLogger(__name__)

TARGET_BYTES = 256 * 1024 * 1024
# Work is published in parts of about so many files' worth, so that a conflict or Ctrl-C late costs only the last part.
_TARGETS_A_COMMIT = 16
_MAX_ATTEMPTS = 8
_MAX_RACES = 100


@dataclass(frozen=True)
class Work:
    """What there is to do at one version.

    Attributes:
        snapshot: the version's, as it was when this was worked out: a rollback lets another one have its number.
        sources: groups of the chosen partitions, in ascending row id.
        bins: what becomes one group each, counting ``sources`` by position.
        emptied: positions of groups without a live row.
        left: groups that only new row ids would merge.
    """

    snapshot: Any
    sources: Sequence[Source]
    bins: Sequence[Bin]
    emptied: Sequence[int]
    left: int


def compact(
    pin: Callable[[], Version],
    handle: Callable[[], Any],
    where: Any,
    target_bytes: int,
    *,
    keep_ids: bool,
    dry_run: bool,
    progress: Progress,
) -> CompactReport:
    """See `Table.compact`.

    Args:
        pin: the latest version, as it is now.
        handle: a pypaimon handle of the table that is not pinned.
        where: a condition on partition columns, or None.
        target_bytes: about how large a file may become.
        keep_ids: never give a row another id.
        dry_run: only say what would be done.
        progress: a bar, or a callback that is told of bytes done and of all.
    """
    if isinstance(target_bytes, bool) or not isinstance(target_bytes, int) or target_bytes < 1:
        raise ConfigError(f"target_size is a number of bytes, got {target_bytes!r}")
    version = pin()
    report = CompactReport(version.name, dry_run=dry_run)
    if version.snapshot_id is None:
        return report
    work = plan_work(version, where, target_bytes, keep_ids=keep_ids)
    manifests = manifests_of(version)
    report = replace(
        report,
        files_before=sum(len(source.files) for source in work.sources),
        manifests_before=manifests,
    )
    if dry_run:
        return _would(report, version, work)
    attempts = 1
    while work.bins or work.emptied:
        if attempts > _MAX_ATTEMPTS:
            raise CommitError(
                f"{version.name}: its rows changed each of {_MAX_ATTEMPTS} times while they were merged; what was merged in "
                f"snapshots {list(report.snapshots)} stays; try again when there are fewer changes"
            )
        with Meter(progress, sum(one.bytes for one in work.bins), f"compact {version.name}", "B") as meter:
            report, moved = _run(version, handle, work, target_bytes, report, meter)
        if not moved:
            break
        attempts += 1
        version = pin()
        work = plan_work(version, where, target_bytes, keep_ids=keep_ids)
    merged = merge_manifests(handle)
    latest = pin()
    return replace(
        report,
        snapshots=(*report.snapshots, *([merged] if merged is not None else [])),
        attempts=attempts,
        left=work.left,
        files_after=sum(len(source.files) for source in chosen_sources(latest, where)),
        manifests_after=manifests_of(latest),
    )


def plan_work(version: Version, where: Any, target_bytes: int, *, keep_ids: bool) -> Work:
    """What there is to do at a version. Reads metadata and deletion vectors only."""
    snapshot = version.snapshot
    check_indexes(version, snapshot)
    found = chosen_sources(version, where)
    by_partition: dict[tuple[Any, ...], list[int]] = {}
    for i, source in enumerate(found):
        by_partition.setdefault((source.group.partition, source.group.split.bucket), []).append(i)
    bins: list[Bin] = []
    emptied: list[int] = []
    left = 0
    for members in by_partition.values():
        merged = merge([found[i].item for i in members], target_bytes, keep_ids=keep_ids)
        bins += [replace(one, items=tuple(members[i] for i in one.items)) for one in merged.bins]
        emptied += [members[i] for i in merged.emptied]
        left += merged.left
    return Work(snapshot, found, bins, emptied, left)


def chosen_sources(version: Version, where: Any) -> list[Source]:
    """The groups of the partitions that ``where`` takes.

    Raises:
        SchemaError: it reads other columns than partition columns.
        NotFoundError: it names a column that does not exist.
    """
    found = sources(version)
    if where is None:
        return found
    from lakehouse.query.evaluate import matching
    from lakehouse.query.predicate import checked_predicate
    from lakehouse.query.walk import columns_of

    columns = version.columns
    predicate = checked_predicate(where, columns)
    others = sorted(columns_of(predicate, columns) - set(columns.partition_by))
    if others:
        by = ", ".join(columns.partition_by) or "none"
        raise SchemaError(
            f"{version}: compact(where=...) chooses whole partitions, and this reads {', '.join(others)}; "
            f"partition columns: {by}"
        )
    partitions = list(dict.fromkeys(source.group.partition for source in found))
    if not columns.partition_by or not partitions:
        return found
    values = pa.table(
        {
            name: pa.array([partition[i] for partition in partitions], columns.arrow.field(name).type)
            for i, name in enumerate(columns.partition_by)
        }
    )
    kept = {partitions[i] for i in matching(values, [predicate]).tolist()}
    return [source for source in found if source.group.partition in kept]


def _would(report: CompactReport, version: Version, work: Work) -> CompactReport:
    touched = sorted({i for one in work.bins for i in one.items} | set(work.emptied))
    blobs = len(set(version.columns.blobs) - version.columns.inline)
    gone = sum(len(work.sources[i].files) for i in touched)
    return replace(
        _counted(report, work, work.bins, work.emptied),
        files_after=report.files_before - gone + len(work.bins) * (1 + blobs),
        manifests_after=1,
        left=work.left,
    )


def _counted(report: CompactReport, work: Work, bins: Sequence[Bin], emptied: Iterable[int]) -> CompactReport:
    touched = sorted({i for one in bins for i in one.items} | set(emptied))
    chosen = [work.sources[i] for i in touched]
    return replace(
        report,
        partitions=report.partitions + len({source.group.partition for source in chosen}),
        rows=report.rows + sum(len(one.ids) for one in bins),
        renumbered=report.renumbered + sum(len(one.ids) for one in bins if not one.keep_ids),
        dropped=report.dropped + sum(source.group.rows - len(source.item.live) for source in chosen),
        bytes_read=report.bytes_read + sum(source.item.bytes for source in chosen),
    )


def _run(
    version: Version, handle: Callable[[], Any], work: Work, target_bytes: int, report: CompactReport, meter: Meter
) -> tuple[CompactReport, bool]:
    """Rewrite and publish part after part. True beside the report when rows of a part changed meanwhile."""
    listed = entries(version.paimon, work.snapshot)
    left = sum(one.bytes for one in work.bins)

    def done(size: int) -> None:  # new files may take more bytes than old ones did
        nonlocal left
        left -= (step := min(size, left))
        meter.add(step)

    for bins, emptied in _parts(work, target_bytes):
        written = rewrite(version, work.sources, bins, listed, target_bytes, done)
        touched = [work.sources[i] for i in sorted({i for one in bins for i in one.items} | set(emptied))]
        removed = [listed[name] for source in touched for name in sorted(source.files - written.reused)]
        try:
            change = Change("compact", removed=removed, groups=written.groups)
            made = publish_where_same(version, work.snapshot, handle(), touched, change)
        except BaseException as error:
            _discard(version, written, error)
            if isinstance(error, Moved):
                logger.info("%s", error)
                return report, True
            raise
        report = replace(
            _counted(report, work, bins, emptied),
            snapshots=(*report.snapshots, int(made.id)),
            bytes_written=report.bytes_written + written.bytes,
        )
    done(left)
    return report, False


def _discard(version: Version, written: Written, error: BaseException) -> None:
    """Delete new files unless a snapshot names them after all."""
    from lakehouse.errors import CommitUnknownError

    if isinstance(error, CommitUnknownError):
        return
    if not isinstance(error, Exception):  # Ctrl-C can come just after the snapshot was published
        paimon = version.paimon
        latest = latest_of(paimon.snapshot_manager())
        if latest is not None and {path.rsplit("/", 1)[-1] for path in written.paths} & entries(paimon, latest).keys():
            return
    written.discard()


def _parts(work: Work, target_bytes: int) -> Iterable[tuple[list[Bin], list[int]]]:
    """Bins that are published together. Bins that share a group stay together, since its files leave only once."""
    bins: list[Bin] = []
    emptied = list(work.emptied)
    size = 0
    for one in sorted(work.bins, key=lambda one: one.items[0]):
        shares = bool(bins) and bool(set(one.items) & {i for other in bins for i in other.items})
        if bins and size + one.bytes > _TARGETS_A_COMMIT * target_bytes and not shares:
            yield bins, emptied
            bins, emptied, size = [], [], 0
        bins.append(one)
        size += one.bytes
    if bins or emptied:
        yield bins, emptied


def publish_where_same(version: Version, seen: Any, paimon: Any, touched: Sequence[Source], change: Change) -> Any:
    """Publish on the latest snapshot, if it has the touched groups as the version has them.

    Args:
        version: what was read.
        seen: its snapshot, as it was then.
        paimon: a handle that is not pinned.
        touched: groups whose files leave.
        change: what to publish.

    Raises:
        Moved: it has not: rows were changed, deleted, overwritten or merged by someone else; nothing was published.
        CommitError: other commits came first each time.
    """
    for race in range(_MAX_RACES):
        latest = latest_of(paimon.snapshot_manager())
        if not same_snapshot(latest, seen):
            _check_same(version, paimon, latest, touched)
            seen = latest
        made = publish(paimon, latest, change)
        if made is not None:
            return made
        time.sleep(random.uniform(0, min(0.01 * 2**race, 1.0)))
    raise CommitError(f"{version.name}: other commits came first {_MAX_RACES} times; nothing was published, try again")


def _check_same(version: Version, paimon: Any, latest: Any, touched: Sequence[Source]) -> None:
    same = latest is not None and paimon.table_schema.id == version.paimon.table_schema.id
    if same:
        there = replace(version, paimon=pinned(paimon, latest), snapshot_id=int(latest.id))
        now = {source.item.first_row_id: source for source in sources(there)}
        same = all(source.same_as(now.get(source.item.first_row_id)) for source in touched)
    if not same:
        raise Moved(f"{version}: rows of the merged files were changed by another commit; nothing was published")


def merge_manifests(handle: Callable[[], Any], operation: str = "compact") -> int | None:
    """Publish a snapshot whose manifests list only what is there; None when there is nothing to gain.

    Args:
        handle: a pypaimon handle that is not pinned.
        operation: what this belongs to, kept in the snapshot's properties.

    Raises:
        CommitError: other commits came first each time.
    """
    for race in range(_MAX_RACES):
        paimon = handle()
        latest = latest_of(paimon.snapshot_manager())
        if latest is None or not _worth_merging(paimon, latest):
            return None
        made = publish(paimon, latest, Change(operation, merge_manifests=True))
        if made is not None:
            return int(made.id)
        time.sleep(random.uniform(0, min(0.01 * 2**race, 1.0)))
    raise CommitError(f"{paimon.identifier.get_full_name()}: other commits came first {_MAX_RACES} times; try again")


def _worth_merging(paimon: Any, snapshot: Any) -> bool:
    found = _manifests(paimon, snapshot)
    needed = max(1, sum(meta.file_size for meta in found) // paimon.options.manifest_target_size())
    return len(found) > needed or any(meta.num_deleted_files for meta in found)


def manifests_of(version: Version) -> int:
    """How many manifest files a version's lists name."""
    return len(_manifests(version.paimon, version.snapshot))


def _manifests(paimon: Any, snapshot: Any) -> list[Any]:
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    return list(ManifestListManager(paimon).read_all(snapshot))


def same_snapshot(one: Any, other: Any) -> bool:
    """Whether two are one. After a rollback another may have the same number, but no two share a manifest list."""
    if one is None or other is None:
        return one is other
    return bool((one.id, one.delta_manifest_list) == (other.id, other.delta_manifest_list))
