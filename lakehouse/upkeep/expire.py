"""Expiry: old snapshots go, and the files that only they need.

The order makes a stop at any moment harmless. Commit ids are carried forward first; then the hint of the earliest
snapshot; then tags and snapshots go, oldest first, so that nothing new can be pinned to them; then everything that still
names files is read again, and only what none of it reaches is deleted. What a stop leaves behind is orphans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from operator import index
from typing import Any

from lakehouse.durable import publish_file
from lakehouse.errors import CommitError, ConfigError, cause_line
from lakehouse.upkeep.alone import alone
from lakehouse.upkeep.files import Manifests, load_roots, needed_names
from lakehouse.upkeep.progress import Meter, Progress
from lakehouse.upkeep.remove import Doomed, Places, by_kind, delete, only_of, total_bytes
from lakehouse.upkeep.report import ExpireReport, Left
from lakehouse.upkeep.roots import Root, consumed_from
from lakehouse.upkeep.store import Store, store_of
from lakehouse.upkeep.tags import tag_info
from lakehouse.upstream import is_local, is_served, local_path
from lakehouse.write import Published, ours, remember

_MAIN = "main"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Rule:
    """Which snapshots are old.

    Attributes:
        before_millis: only those committed before this time; None: any.
        keep_last: not the latest so many.
    """

    before_millis: int | None
    keep_last: int


def rule_of(older_than: datetime | timedelta | None, keep_last: int | None, now: datetime) -> Rule:
    """The rule that a caller's arguments make.

    Raises:
        ConfigError: neither is given, or one can't be used.
    """
    if older_than is None and keep_last is None:
        raise ConfigError("expire() takes older_than, keep_last or both; e.g. expire(older_than=timedelta(days=30))")
    before = None
    if isinstance(older_than, timedelta):
        if older_than < timedelta(0):
            raise ConfigError(f"older_than is a time span of zero or more, got {older_than!r}")
        try:
            before = now - older_than
        except OverflowError:  # before the year 1: no snapshot is as old
            before = datetime.min.replace(tzinfo=timezone.utc)
    elif isinstance(older_than, datetime):
        if older_than.utcoffset() is None:
            raise ConfigError(f"older_than has a time zone, got {older_than!r}; e.g. datetime.now(timezone.utc)")
        before = older_than
    elif older_than is not None:
        raise ConfigError(f"older_than is a datetime or a timedelta, got {older_than!r}")
    if keep_last is None:
        keep_last = 1
    else:
        try:
            keep_last = 0 if isinstance(keep_last, bool) else index(keep_last)
        except TypeError:
            keep_last = 0
        if keep_last < 1:
            raise ConfigError("keep_last is a number of snapshots of at least 1: the latest one always stays")
    return Rule(None if before is None else (before - _EPOCH) // timedelta(milliseconds=1), keep_last)


def old_snapshots(snapshots: Sequence[Root], rule: Rule, consumed: int | None = None) -> list[Root]:
    """The snapshots that a rule lets go: the oldest ones, without a gap, so that history stays in one piece.

    Args:
        snapshots: those of a branch, by number.
        rule: which are old.
        consumed: the earliest snapshot that a streaming reader still needs.
    """
    old: list[Root] = []
    for root in snapshots[: max(0, len(snapshots) - rule.keep_last)]:
        if rule.before_millis is not None and root.time_millis >= rule.before_millis:
            break
        if consumed is not None and root.id >= consumed:
            break
        old.append(root)
    return old


def overdue_tags(roots: Sequence[Root], now: datetime) -> list[Root]:
    """The tags whose time is over."""
    infos = ((root, tag_info(root.tag, root.content)) for root in roots if root.tag is not None)
    return [root for root, info in infos if info.keep_until is not None and info.keep_until <= now]


def expire(
    paimon: Any,
    name: str,
    *,
    older_than: datetime | timedelta | None,
    keep_last: int | None,
    dry_run: bool,
    progress: Progress,
) -> ExpireReport:
    """See `Table.expire`."""
    now = datetime.now(timezone.utc)
    rule = rule_of(older_than, keep_last, now)
    check_own_history(paimon, "expire")
    branch = str(paimon.current_branch())
    work = _Work(paimon, store_of(paimon), name, "" if branch == _MAIN else branch, rule, now)
    if dry_run:
        return _expire(work, dry_run=True, progress=progress)
    with alone(paimon, "expire"):
        return _expire(work, dry_run=False, progress=progress)


def check_own_history(paimon: Any, what: str) -> None:
    """Refuse a table whose snapshots a server keeps.

    Raises:
        ConfigError: it is one.
    """
    if is_served(paimon):
        raise ConfigError(
            f"{paimon.identifier.get_full_name()}: its catalog server keeps the snapshots and tags, so {what} can't know which "
            "files are needed; use the server's own upkeep"
        )


@dataclass(frozen=True)
class _Work:
    paimon: Any
    store: Store
    name: str
    branch: str
    rule: Rule
    now: datetime


def _expire(work: _Work, *, dry_run: bool, progress: Progress) -> ExpireReport:
    store, manifests, places = work.store, Manifests(work.store), Places(work.paimon, work.store)
    roots = load_roots(store, manifests)
    own = [root for root in roots if root.branch == work.branch]
    snapshots = [root for root in own if root.tag is None]
    old = old_snapshots(snapshots, work.rule, consumed_from(store, work.branch))
    tags = overdue_tags(own, work.now)
    going = {root.path for root in (*old, *tags)}
    if not going:
        return ExpireReport(work.name, (), (), {}, 0, dry_run=dry_run)
    needed = needed_names(manifests, (root for root in roots if root.path not in going))
    sizes = {entry.name: entry.size_bytes for folder in ("manifest", "statistics") for entry in store.list(folder)}
    doomed, left = only_of((*old, *tags), needed, manifests, places, sizes)
    if not dry_run:
        _drop(work, old, tags, snapshots)
        doomed, stayed = _sweep(work, manifests, doomed, snapshots[len(old) :], progress)
        left += stayed
    return ExpireReport(
        work.name,
        tuple(root.id for root in old),
        tuple(str(root.tag) for root in tags),
        by_kind(doomed),
        total_bytes(doomed),
        tuple(left),
        dry_run,
    )


def _drop(work: _Work, old: Sequence[Root], tags: Sequence[Root], snapshots: Sequence[Root]) -> None:
    """Remove tags and snapshots, after all that must outlive them is written."""
    remember(work.paimon, [published(root) for root in old])
    if old:
        _point_earliest(work, snapshots[len(old)].id)
    root = None
    try:
        for root in (*tags, *old):
            work.store.delete(root.path)
    except OSError as error:
        raise CommitError(
            f"{work.name}: {root} can't be removed ({cause_line(error)}); what came before it is gone, its files are left for "
            "remove_orphans"
        ) from error


def published(root: Root) -> Published:
    """What a snapshot's file says of its commit."""
    return Published(root.id, root.time_millis, str(root.content.get("commitKind")), ours(root.properties))


def _point_earliest(work: _Work, number: int) -> None:
    """Write the hint by which other engines find the earliest snapshot.

    Before the snapshots go: a hint that is too early makes upstream look for each missing number in between, and give up
    after 300.
    """
    path = f"{work.paimon.snapshot_manager().snapshot_dir}/EARLIEST"
    try:
        if is_local(path):
            publish_file(local_path(path), str(number), replace=True)
        else:
            work.paimon.file_io.write_file(path, str(number), True)
    except OSError as error:
        raise CommitError(f"{work.name}: {path} can't be written ({cause_line(error)}); nothing was removed") from error


def _sweep(
    work: _Work, manifests: Manifests, doomed: Sequence[Doomed], kept: Sequence[Root], progress: Progress
) -> tuple[list[Doomed], list[Left]]:
    """Delete what nothing reaches now: tags, branches and commits made meanwhile count."""
    roots = load_roots(work.store, manifests)
    numbers = {root.id for root in roots if root.tag is None and root.branch == work.branch}
    missing = sorted({root.id for root in kept} - numbers)
    if missing:
        raise CommitError(
            f"{work.name}: snapshot {missing[0]} went away while others expired (a rollback?); no data was deleted, "
            "remove_orphans will find what nothing needs"
        )
    needed = needed_names(manifests, roots)
    doomed = [file for file in doomed if file.path.rpartition("/")[2] not in needed]
    with Meter(progress, len(doomed), f"expire {work.name}") as meter:
        return delete(work.store, doomed, meter)
