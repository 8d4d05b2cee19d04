"""The engine's commit loop, made to flush what it names, to leave nothing behind, and to know how it ended.

latest snapshot -> conflicts? -> manifests written -> flushed -> published under the next number
^                                                            |
+---- manifests removed, wait (exponential, jitter) <--------+ another writer took the number
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pypaimon.index.index_file_meta import IndexFileMeta
from pypaimon.snapshot.snapshot_commit import SnapshotCommit
from pypaimon.utils.file_store_path_factory import canonical_data_file_path
from pypaimon.write.commit.conflict_detection import ConflictDetection
from pypaimon.write.file_store_commit import FileStoreCommit

from lakehouse.durable import sync_files
from lakehouse.identity import check_same_table
from lakehouse.upstream import (
    LinkingSnapshotCommit,
    SteadySnapshots,
    is_local,
    is_served,
    local_path,
    newest_schema,
    snapshot_under,
)

# It reports each lost race as a warning; races are as usual here as they are harmless, and errors are raised.
_log = logging.getLogger(FileStoreCommit.__module__)
if _log.level == logging.NOTSET:
    _log.setLevel(logging.ERROR)

_FIRST_WAIT_S = 0.01
_LONGEST_WAIT_S = 1.0
_FAILURES = 8  # so often the store may be out of reach
_DOUBTS = 4  # so often it may leave an attempt without an answer
_ENTRIES_A_MANIFEST = 1000  # the engine looks whether a manifest is full once in so many entries


@dataclass
class _Attempt:
    """What was written for one attempt to publish."""

    snapshot: Any = None  # once it is made
    asked: bool = False  # the store was asked to publish it, and how that ended is not known yet
    manifests: list[str] = field(default_factory=list)  # names; not all of them need exist
    entries: list[Any] = field(default_factory=list)  # what the manifests list
    index_adds: list[Any] = field(default_factory=list)
    index_before: str | None = None  # the latest snapshot's index manifest

    def lists(self) -> Iterator[str]:
        """Names of what was written for the snapshot beside its manifests."""
        made = self.snapshot
        if made is None:
            return
        for name in (made.base_manifest_list, made.delta_manifest_list, made.changelog_manifest_list):
            if name:
                yield name
        if made.index_manifest and made.index_manifest != self.index_before:
            yield made.index_manifest


class OutOfTimeError(Exception):
    """Other writers took the next number again and again, until the time was over."""


class UncertainError(Exception):
    """The store failed while the snapshot was published and does not say whether it was."""


class Check(Protocol):
    """Asked before each attempt to publish a snapshot under a number; raises to stop the commit."""

    def __call__(self, number: int) -> None:
        """Look at what was committed before this number."""


class Committer(FileStoreCommit):
    """One commit of prepared messages.

    Differs from upstream's, which tries ten times, takes every failure of the store for a lost race, leaves the manifests
    of each lost race behind, and never flushes anything:

    - it tries until ``patience_s`` is over, with waits that spread the writers;
    - on a local disk every file that the snapshot names, and every folder above them, is on the disk before the snapshot is;
    - the manifests of an attempt that was not published are removed, unless its outcome is unknown;
    - how an attempt ended is found out before the next one. Only what is sure not to come is removed.

    The store's own commit may have a method ``verdict(error)``: ``"refused"`` (it did not happen, and another try is of no
    use), ``"unsent"`` (it did not happen), ``"doubt"`` (it may have happened, or may still; without the method: always).

    Attributes:
        published: the snapshot, once it is.
        conflict: what upstream found to be in the way, where that ended the commit.
        attempts: how often publishing was tried.
    """

    def __init__(self, table: Any, *, patience_s: float, check: Check | None = None) -> None:
        self._inner = inner = table.new_snapshot_commit()
        super().__init__(_Publishing(self, inner), table, table.new_batch_write_builder().commit_user)
        self.snapshot_manager: Any = SteadySnapshots.of(table.snapshot_manager())
        self.conflict_detection = _Detection(
            data_evolution_enabled=table.options.data_evolution_enabled(),
            snapshot_manager=self.snapshot_manager,
            manifest_list_manager=self.manifest_list_manager,
            table=table,
            commit_scanner=self.commit_scanner,
        )
        self.commit_max_retries = self.commit_timeout = 1 << 62  # `_commit_retry_wait` decides
        self.published: Any = None
        self.attempts = 0
        self._local = isinstance(inner, LinkingSnapshotCommit)
        self._check = check
        self._patience_s = patience_s
        self._started = time.monotonic()
        self._stop: Exception | None = None
        self._synced: set[Path] = set()
        self._attempt = _Attempt()
        self._doubtful: list[_Attempt] = []  # asked for, without an answer
        self._failures = 0

    @property
    def conflict(self) -> Exception | None:
        """What upstream found to be in the way, where that ended the commit."""
        return self.conflict_detection.found

    def settle(self) -> bool:
        """After any exception: whether the snapshot was published all the same. If not, its manifests are removed.

        Raises:
            UncertainError: that can't be known; nothing was removed.
        """
        if isinstance(self._stop, UncertainError):
            raise self._stop
        if self.published is None and self._attempt.asked:  # Ctrl-C while the store was working
            self._doubtful.append(self._attempt)
            self._attempt = _Attempt()
        self._look_at_doubtful()
        if self.published is None and self._doubtful:
            if not self._local:
                raise UncertainError(f"snapshot {self._doubtful[0].snapshot.id} is not there yet, and may still come")
            for attempt in self._doubtful:
                self._clean(attempt)
        if self.published is None:
            self._clean(self._attempt)
        return self.published is not None

    # ---- what upstream's loop calls

    def _try_commit_once(self, **given: Any) -> Any:
        self._attempt = attempt = _Attempt()
        latest = given.get("latest_snapshot")
        attempt.index_before = None if latest is None else latest.index_manifest
        attempt.index_adds = given.get("index_adds") or []
        try:
            return super()._try_commit_once(**given)
        except Exception:
            self._clean(attempt)
            raise

    def _write_manifest_files(self, commit_entries: Any, base_name: str) -> Any:
        possible = range(len(commit_entries) // _ENTRIES_A_MANIFEST + 1)
        self._attempt.manifests += [f"{base_name}-{number}" for number in possible]
        self._attempt.entries = list(commit_entries)
        return super()._write_manifest_files(commit_entries, base_name)

    def _is_duplicate_commit(self, *_: Any, **__: Any) -> bool:
        """Whether an earlier attempt, whose answer is missing, was published: asked before each further attempt."""
        self._look_at_doubtful()
        return self.published is not None

    def _commit_retry_wait(self, retry_count: int) -> None:
        if self._stop is not None:
            raise self._stop
        spent_s = time.monotonic() - self._started
        if spent_s >= self._patience_s:
            raise OutOfTimeError(f"other writers were first {self.attempts} times in {spent_s:.0f} s")
        longest_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(retry_count, 10))
        time.sleep(random.uniform(0, longest_s))

    def publish(self, commit: Callable[[], bool], snapshot: Any) -> bool:
        """Publish one attempt. False: it was not, as far as is known; `_commit_retry_wait` knows what is next."""
        self.attempts += 1
        attempt = self._attempt
        attempt.snapshot = snapshot
        try:
            if self._check is not None:
                self._check(snapshot.id)
            if not is_served(self.table):
                newest = newest_schema(self.snapshot_manager)
                check_same_table(self.table, newest)
                snapshot.schema_id = max(snapshot.schema_id, int(newest.id))
            if self._local:
                self._flush(attempt)
        except Exception as error:  # noqa: BLE001 - raised between attempts: upstream would take it for a lost race
            self._stop = error
            self._clean(attempt)
            return False
        attempt.asked = True
        try:
            # A store may say no to a request that its client repeated, after saying yes to it before.
            won = commit() or (not self._local and self._is_there(attempt))
        except UncertainError as error:
            self._stop = error
            return False
        except Exception as error:  # noqa: BLE001 - whatever the store raises
            return self._failed(attempt, error)
        if won:
            self._won(attempt)
        else:
            self._clean(attempt)
        return won

    # ---- how an attempt ended

    def _failed(self, attempt: _Attempt, error: Exception) -> bool:
        """The store raised an error: whether the snapshot is there all the same, and if not, what is next."""
        verdict = "doubt" if self._local else str(getattr(self._inner, "verdict", lambda _: "doubt")(error))
        self._failures += 1
        if verdict in ("refused", "unsent"):
            if verdict == "refused" or self._failures >= _FAILURES:
                self._stop = error
            self._clean(attempt)
            return False
        self._doubtful.append(attempt)
        self._attempt = _Attempt()
        try:
            self._look_at_doubtful()
        except UncertainError as unanswered:
            unanswered.args = (f"{type(error).__name__}: {error}; then {unanswered}",)
            self._stop = unanswered
            return False
        if self._local and self.published is not None:
            self.published = None
            self._stop = UncertainError(f"snapshot {attempt.snapshot.id} is there, but the disk does not confirm it: {error}")
            self._stop.__cause__ = error
            return False
        if self._local or self._failures >= _DOUBTS:
            self._stop = error
        return self.published is not None

    def _look_at_doubtful(self) -> None:
        """Find out what became of attempts whose answer is missing, as far as the numbers now taken say.

        Raises:
            UncertainError: the store can't be asked.
        """
        waiting, self._doubtful = self._doubtful, []
        for position, attempt in enumerate(waiting):
            try:
                there = self._is_there(attempt)
            except UncertainError:
                self._doubtful += waiting[position:]
                raise
            if there:
                self._won(attempt)
            elif self._taken(attempt) or self._local:
                self._clean(attempt)
            else:
                self._doubtful.append(attempt)

    def _is_there(self, attempt: _Attempt) -> bool:
        found = self._at(attempt.snapshot.id)
        return found is not None and found.delta_manifest_list == attempt.snapshot.delta_manifest_list

    def _taken(self, attempt: _Attempt) -> bool:
        return self._at(attempt.snapshot.id) is not None

    def _at(self, number: int) -> Any:
        """The snapshot of a number, as the store has it now, or None.

        Raises:
            UncertainError: it can't be read, or was there and has expired: to take it for another writer's might remove
                manifests that later snapshots name.
        """
        try:
            return snapshot_under(self.snapshot_manager, number)
        except Exception as error:
            raise UncertainError(f"snapshot {number} can't be looked up ({type(error).__name__}: {error})") from error

    def _won(self, attempt: _Attempt) -> None:
        self.published = attempt.snapshot
        if attempt is self._attempt:
            self._attempt = _Attempt()
        for other in self._doubtful:  # its number is taken, so they can't come any more
            self._clean(other)
        self._doubtful = []

    def _clean(self, attempt: _Attempt) -> None:
        """Remove what was written for an attempt that was not published."""
        for name in (*attempt.manifests, *attempt.lists()):
            self.table.file_io.delete_quietly(f"{self.manifest_file_manager.manifest_path}/{name}")
        if attempt is self._attempt:
            self._attempt = _Attempt()

    # ---- flushing

    def _flush(self, attempt: _Attempt) -> None:
        """Return when all that the snapshot names and earlier ones do not is on the disk, folders included."""
        root = local_path(str(self.table.table_path))
        manifests = local_path(str(self.manifest_file_manager.manifest_path))
        named = [manifests / name for name in attempt.lists()]
        named += [manifests / name for name in attempt.manifests if (manifests / name).exists()]
        written = [path for entry in attempt.entries if entry.kind == 0 for path in self._paths(entry)]
        written += [self._index_path(entry) for entry in attempt.index_adds]
        named += [local_path(path) for path in written if is_local(path)]  # others were complete when they were written
        named += [self._schema_file(number) for number in (self.table.table_schema.id, attempt.snapshot.schema_id)]
        folders = {folder for path in named for folder in path.parents if folder == root or root in folder.parents}
        folders |= {path.parent for path in named}
        waiting = {*named, *folders} - (self._synced - {manifests})
        sync_files(waiting)
        self._synced |= waiting

    def _schema_file(self, number: int) -> Path:
        return local_path(f"{self.table.schema_manager.schema_path}/schema-{number}")

    def _paths(self, entry: Any) -> list[str]:
        file = entry.file
        if not file.physical_path():
            file.file_path = canonical_data_file_path(self.table, tuple(entry.partition.values), entry.bucket, file.file_name)
        return [str(path) for path in file.collect_files()]

    def _index_path(self, entry: Any) -> str:
        index: IndexFileMeta = entry.index_file
        factory = self.table.path_factory()
        if index.index_type in ("DELETION_VECTORS", "HASH"):
            return str(factory.bucket_index_path(tuple(entry.partition.values), entry.bucket, index, self.table.file_io))
        return str(index.external_path or factory.global_index_path_factory().to_path(index.file_name))


class _Publishing(SnapshotCommit):
    """The store's own way of publishing a snapshot, with the committer round it."""

    def __init__(self, committer: Committer, inner: Any) -> None:
        self._committer = committer
        self._inner = inner

    def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: list[Any]) -> bool:
        return self._committer.publish(lambda: bool(self._inner.commit(base_snapshot_uuid, snapshot, statistics)), snapshot)

    def close(self) -> None:
        self._inner.close()


class _Detection(ConflictDetection):
    """Upstream's, which keeps what it found: upstream raises it as one RuntimeError among others."""

    found: Exception | None = None

    def check_conflicts(self, *given: Any, **named: Any) -> Any:
        self.found = super().check_conflicts(*given, **named)
        return self.found
