"""What snapshots say about their commits: each snapshot file is read once per process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from sys import intern
from typing import Any

from lakehouse.upstream import is_local, local_path

# Properties that this package writes into snapshots.
COMMIT_ID = "lakehouse.commit-id"
OPERATION = "lakehouse.operation"
ROWS = "lakehouse.rows"
BYTES = "lakehouse.bytes"
RESTORED = "lakehouse.restored-snapshot"  # of a rollback's snapshot: the number of the one whose content it has again

_OURS = "lakehouse."
_THREADS = 16
_FEW = 32  # so many snapshots are read one after the other


@dataclass(frozen=True)
class Published:
    """A snapshot that was published, by the names that pypaimon's ``Snapshot`` has for the same things.

    Attributes:
        id: snapshot number.
        time_millis: when it was committed, milliseconds since 1970 in UTC.
        commit_kind: ``APPEND``, ``OVERWRITE``, ...
        properties: of the snapshot, those that this package wrote.
    """

    id: int
    time_millis: int
    commit_kind: str
    properties: Mapping[str, str]

    @staticmethod
    def of(snapshot: Any) -> Published:
        """Of a pypaimon snapshot."""
        return Published(int(snapshot.id), int(snapshot.time_millis), str(snapshot.commit_kind), ours(snapshot.properties))

    @property
    def commit_id(self) -> str | None:
        """The id that its writer gave; None where another engine wrote it."""
        return self.properties.get(COMMIT_ID)

    @property
    def is_rollback(self) -> bool:
        """Whether it has the content of an earlier snapshot again."""
        return str(self.properties.get(RESTORED, "")).isdecimal()

    @property
    def parent(self) -> int:
        """The number of the snapshot that its content comes from: the one before; of a rollback, the one gone back to."""
        return min(int(self.properties[RESTORED]), self.id - 1) if self.is_rollback else self.id - 1


def ours(properties: Mapping[str, str] | None) -> dict[str, str]:
    """The properties that this package wrote. Their names are held once, whatever the number of snapshots."""
    return {intern(name): value for name, value in (properties or {}).items() if name.startswith(_OURS)}


@dataclass(frozen=True)
class _Line:
    """What is kept of one snapshot. A snapshot's file never changes; ``mark`` tells it from another of the same number."""

    mark: str
    published: Published


# By the snapshots' folder: an import of n commits reads n snapshot files in all, not n each time.
_KNOWN: dict[str, dict[int, _Line]] = {}


def snapshots_there(paimon: Any) -> dict[int, Published]:
    """The snapshots whose files can be read, by number.

    Raises:
        RuntimeError, OSError, ValueError: they can't be read.
    """
    folder = str(paimon.snapshot_manager().snapshot_dir)
    read = partial(_line, paimon)
    known = _KNOWN.setdefault(folder, {})
    newest = max(known, default=None)
    if newest is not None and read(newest) != known[newest]:
        # Expired, or history was cut back by another engine and went on with the same numbers.
        known.clear()
    numbers = [int(name[9:]) for name in _names(paimon) if name.startswith("snapshot-") and name[9:].isdecimal()]
    for gone in known.keys() - set(numbers):
        known.pop(gone, None)
    missing = sorted(number for number in numbers if number not in known)
    if len(missing) <= _FEW or is_local(folder):
        found = [read(number) for number in missing]
    else:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="lakehouse-snapshots") as pool:
            found = list(pool.map(read, missing))
    known.update({number: line for number, line in zip(missing, found, strict=True) if line is not None})
    return {number: line.published for number, line in list(known.items())}


def _names(paimon: Any) -> list[str]:
    folder = str(paimon.snapshot_manager().snapshot_dir)
    if is_local(folder):  # upstream's list looks at each file, too: 100 us instead of 5
        found = local_path(folder)
        return [path.name for path in found.iterdir()] if found.is_dir() else []
    return [str(status.path).rpartition("/")[2] for status in paimon.file_io.list_status(folder)]


def _line(paimon: Any, number: int) -> _Line | None:
    path = str(paimon.snapshot_manager().get_snapshot_path(number))
    try:
        stored = json.loads(local_path(path).read_bytes() if is_local(path) else paimon.file_io.read_file_utf8(path))
    except FileNotFoundError:
        return None
    except OSError:
        if paimon.file_io.exists(path):
            raise
        return None
    published = Published(number, int(stored["timeMillis"]), str(stored["commitKind"]), ours(stored.get("properties")))
    return _Line(str(stored.get("deltaManifestList")), published)
