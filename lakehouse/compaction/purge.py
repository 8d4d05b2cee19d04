"""Removing rows for good: from the latest version, from tags, and from what history holds.

First the latest version of each branch gets files without the rows, then tags do, then the snapshots from before are dropped
and every file that nothing names any more is deleted. A stop in between leaves versions whole; what is left of the work is
done when it is called again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from lakehouse.compaction.compact import TARGET_BYTES, merge_manifests, publish_where_same
from lakehouse.compaction.ids import Ids
from lakehouse.compaction.matches import Finder, Held, Line, Matches
from lakehouse.compaction.plan import Bin
from lakehouse.compaction.publish import Change, in_place_of
from lakehouse.compaction.report import PurgeReport
from lakehouse.compaction.rewrite import NewGroup, Written, rewrite
from lakehouse.compaction.state import Source, check_indexes, entries, schema_identity
from lakehouse.errors import CommitError
from lakehouse.upkeep import (
    Manifests,
    check_own_history,
    drop_empty_partitions,
    expire,
    load_roots,
    needed_names,
    remove_orphans,
    store_of,
)
from lakehouse.write import Moved

_MAX_PASSES = 8
_MAX_RUNS = 16  # a group with more gaps than this gets new row ids, instead of a file for each run of rows


def purge(lines: Callable[[], Sequence[Line]], where: Any, *, dry_run: bool, orphans_older_than: timedelta) -> PurgeReport:
    """See `Table.purge`.

    Args:
        lines: the main branch, first, and all others, as they are now.
        where: a condition, as `Query.where` takes it.
        dry_run: only say what would be done.
        orphans_older_than: files that no version names are removed when they are older than this.
    """
    main = lines()[0]
    check_own_history(main.paimon, "purge")
    finder, report = Finder(where), PurgeReport(main.name, dry_run=dry_run)
    with _rewrites(main.paimon) as rewrites:
        for number in range(1, _MAX_PASSES + 1):
            found = finder.find(lines())
            touched = [held for held in found.held if found.touches(held)]
            if number == 1:
                report = _begun(report, found, touched)
            if dry_run or not touched:
                break
            try:
                report = _pass(found, touched, rewrites, report)
            except Moved:
                continue
        else:
            raise CommitError(
                f"{main.name}: rows that match were written or changed each of {_MAX_PASSES} times while they were removed; "
                "some of them are still there; stop their writer and purge again"
            )
    if dry_run:
        return report
    orphans = remove_orphans(main.paimon, main.name, older_than=orphans_older_than, dry_run=False, progress=False)
    removed = sum(orphans.files.values())
    drop_empty_partitions(main.paimon, store_of(main.paimon))
    return replace(
        report,
        files_removed=report.files_removed + removed,
        bytes_removed=report.bytes_removed + orphans.bytes,
        unnamed=orphans.spared,
        left=(*report.left, *(f"{item.path} ({item.why})" for item in orphans.left)),
    )


def _begun(report: PurgeReport, found: Matches, touched: Sequence[Held]) -> PurgeReport:
    latest = {held.line.name: held for held in found.held if held.tag is None}  # snapshots come in order
    lost = {held.label: found.lives(held) for held in touched}
    return replace(
        report,
        rows={name: found.lives(held) for name, held in latest.items() if found.lives(held)},
        versions={label: rows for label, rows in lost.items() if rows},
        tags=tuple(held.label for held in touched if held.tag is not None),
        snapshots_removed=tuple(held.label for held in found.held if held.tag is None and _goes(held, touched)),
        files_rewritten=len(
            {name for held in touched for source in held.sources if len(found.of(source)) for name in source.files}
        ),
    )


def _goes(held: Held, touched: Sequence[Held]) -> bool:
    """Whether a snapshot's branch loses its history."""
    return any(other.line.name == held.line.name and other.tag is None for other in touched)


def _pass(found: Matches, touched: Sequence[Held], rewrites: _Rewrites, report: PurgeReport) -> PurgeReport:
    """Take the rows out of everything that was found."""
    lines = {held.line.name: held.line for held in touched}
    for line in lines.values():
        snapshots = [held for held in found.held if held.tag is None and held.line is line]
        latest = max(snapshots, key=lambda held: held.version.snapshot_id or 0, default=None)
        if latest is None:
            continue
        change = rewrites.change(latest, found)
        if change.removed:
            gone = [source for source in latest.sources if len(found.of(source))]
            made = publish_where_same(latest.version, latest.version.snapshot, line.paimon, gone, change)
            rewrites.publish(latest, found)
            report = replace(report, snapshots=(*report.snapshots, int(made.id)))
        if latest.mentioned & found.rows.keys():
            merged = merge_manifests(lambda line=line: line.paimon, "purge")  # type: ignore[misc]
            report = replace(report, snapshots=(*report.snapshots, *([merged] if merged is not None else [])))
    for held in touched:
        if held.tag is not None:
            in_place_of(held.line.paimon, held.tag, held.version, rewrites.change(held, found))
            rewrites.publish(held, found)
    for line in lines.values():
        if any(held.line is line and held.tag is None for held in touched):
            dropped = expire(line.paimon, line.name, older_than=None, keep_last=1, dry_run=False, progress=False)
            report = replace(
                report,
                files_removed=report.files_removed + sum(dropped.files.values()),
                bytes_removed=report.bytes_removed + dropped.bytes,
                left=(*report.left, *(f"{item.path} ({item.why})" for item in dropped.left)),
            )
            here = {info.id for info in line.snapshots()}
            if any(held.version.snapshot_id in here for held in touched if held.line is line and held.tag is None):
                raise CommitError(
                    f"{line.name}: snapshots that hold the rows can't be dropped: a streaming reader (consumer/) still needs "
                    "them; end it, and purge again"
                )
    return report


@contextlib.contextmanager
def _rewrites(paimon: Any) -> Iterator[_Rewrites]:
    """What is written meanwhile; what no version came to name is deleted in the end."""
    made = _Rewrites()
    try:
        yield made
    except BaseException:  # it may have come just after a version was published
        unnamed = made.unnamed()
        if unnamed:
            store = store_of(paimon)
            manifests = Manifests(store)
            needed = needed_names(manifests, load_roots(store, manifests))
            unnamed = [one for one in unnamed if needed.isdisjoint(path.rpartition("/")[2] for path in one.paths)]
        for written in unnamed:
            written.discard()
        raise
    for written in made.unnamed():
        written.discard()


@dataclass
class _Rewrites:
    """Groups without the rows, written once for all versions that share them."""

    _made: dict[tuple[Any, ...], Written] = field(default_factory=dict)
    _named: set[tuple[Any, ...]] = field(default_factory=set)

    def unnamed(self) -> list[Written]:
        """What was written and no version names."""
        return [written for key, written in self._made.items() if key not in self._named]

    def change(self, held: Held, found: Matches) -> Change:
        """What takes the rows out of a version."""
        check_indexes(held.version, held.version.snapshot)
        listed = entries(held.version.paimon, held.version.snapshot)
        removed: list[Any] = []
        groups: list[NewGroup] = []
        for source in held.sources:
            if len(found.of(source)):
                written = self._written(held, source, found, listed)
                groups += written.groups
                removed += [listed[name] for name in sorted(source.files - written.reused)]
        return Change("purge", kind="OVERWRITE", removed=removed, groups=groups)

    def publish(self, held: Held, found: Matches) -> None:
        """A version names what was written for it."""
        self._named.update(_key(held, source, found) for source in held.sources if len(found.of(source)))

    def _written(self, held: Held, source: Source, found: Matches, listed: dict[str, Any]) -> Written:
        key = _key(held, source, found)
        if key not in self._made:
            left = source.item.live.without(found.of(source))
            runs = [Ids([span]) for span in left.ranges] if len(left.ranges) <= _MAX_RUNS else [left]
            bins = [Bin((0,), run, len(run.ranges) == 1, 0) for run in runs]
            self._made[key] = rewrite(held.version, [source], bins, listed, TARGET_BYTES, lambda size: None)  # noqa: ARG005
        return self._made[key]


def _key(held: Held, source: Source, found: Matches) -> tuple[Any, ...]:
    return source.files, source.item.live.without(found.of(source)).ranges, schema_identity(held.version)
