"""What snapshots say about their commits, and the commits that a table's latest content comes from, newest first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from lakehouse.upstream import is_local, local_path

# Properties that this package writes into snapshots.
COMMIT_ID = "lakehouse.commit-id"
OPERATION = "lakehouse.operation"
ROWS = "lakehouse.rows"
BYTES = "lakehouse.bytes"
RESTORED = "lakehouse.restored-snapshot"  # of a rollback's snapshot: the number of the one whose content it has again

_THREADS = 16
_FEW = 32  # so many snapshots are read one after the other


@dataclass(frozen=True)
class Published:
    """A snapshot that was published, by the names that pypaimon's ``Snapshot`` has for the same things.

    Attributes:
        id: snapshot number.
        time_millis: when it was committed, milliseconds since 1970 in UTC.
        commit_kind: ``APPEND``, ``OVERWRITE``, ...
        properties: of the snapshot; of an expired one those that this package wrote.
    """

    id: int
    time_millis: int
    commit_kind: str
    properties: Mapping[str, str]

    @staticmethod
    def of(snapshot: Any) -> Published:
        """Of a pypaimon snapshot."""
        properties = dict(snapshot.properties or {})
        return Published(int(snapshot.id), int(snapshot.time_millis), str(snapshot.commit_kind), properties)


@dataclass(frozen=True)
class _Line:
    """What is kept of one snapshot. A snapshot's file never changes; ``mark`` tells it from another of the same number."""

    mark: str
    commit_id: str | None
    parent: int


# By the snapshots' folder: an import of n commits reads n snapshot files in all, not n each time.
_KNOWN: dict[str, dict[int, _Line]] = {}


def commits(paimon: Any) -> Iterator[tuple[int, str | None]]:
    """(snapshot number, commit id) of the snapshots that can be read and that the latest content comes from, newest first.

    A rollback's snapshot has the content of an earlier one: what was committed between the two is undone, and left out.

    Raises:
        RuntimeError, OSError, ValueError: they can't be read.
    """
    manager = paimon.snapshot_manager()
    latest = manager.get_latest_snapshot()
    if latest is None:
        return
    lines = _lines(paimon, int(latest.id))
    number, oldest = int(latest.id), min(lines, default=0)
    while number >= oldest and number > 0:
        line = lines.get(number)
        if line is None:  # it expired while newer ones stay
            number -= 1
            continue
        yield number, line.commit_id
        number = line.parent


def _lines(paimon: Any, latest: int) -> dict[int, _Line]:
    manager = paimon.snapshot_manager()
    read = partial(_line, paimon)
    known = _KNOWN.setdefault(str(manager.snapshot_dir), {})
    newest = max(known, default=None)
    if newest is not None and read(newest) != known[newest]:
        # Expired, or history was cut back by another engine and went on with the same numbers.
        known.clear()
    numbers = [int(name[9:]) for name in _names(paimon) if name.startswith("snapshot-") and name[9:].isdecimal()]
    for gone in known.keys() - set(numbers):
        known.pop(gone, None)
    missing = sorted(number for number in {*numbers, latest} if number not in known)
    if len(missing) <= _FEW or is_local(manager.snapshot_dir):
        found = [read(number) for number in missing]
    else:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="lakehouse-snapshots") as pool:
            found = list(pool.map(read, missing))
    known.update({number: line for number, line in zip(missing, found, strict=True) if line is not None})
    return dict(known)


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
    properties = stored.get("properties") or {}
    restored = str(properties.get(RESTORED, ""))
    parent = min(int(restored), number - 1) if restored.isdecimal() else number - 1
    return _Line(str(stored.get("deltaManifestList")), properties.get(COMMIT_ID), parent)
