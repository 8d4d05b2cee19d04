"""Which files an earlier run of a check found whole: a file of JSON lines, one for each."""

from __future__ import annotations

import json
import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from lakehouse.check.source import Status
from lakehouse.errors import ConfigError, cause_line

_FORMAT = "lakehouse-check-1"


class Ledger(AbstractContextManager["Ledger"]):
    """Files that are known to be whole.

    A file counts as checked only while its size and the time of its last change are those that were noted: one that was
    written to since is checked anew. Damaged files are never noted. It does not notice what a disk does to bytes on its own:
    for that, check without it.

    Args:
        path: the file; made when absent, added to otherwise. None: nothing is kept.
        table: identity of the table: another one's file is refused.
        verify: how thoroughly files are checked; what was checked by crc counts for size, too.

    Raises:
        ConfigError: the file can't be read or written, or belongs to another table.
    """

    def __init__(self, path: str | os.PathLike[str] | None, table: str, verify: str) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, int]] = {}
        self._verify = verify
        self._file: Any = None
        if path is None:
            return
        try:
            held = Path(path).read_bytes() if Path(path).exists() else b""
            self._read(held, table, str(path))
            self._file = Path(path).open("ab")  # noqa: SIM115 - closed with this
            if not held:
                self._write({"format": _FORMAT, "table": table})
            elif not held.endswith(b"\n"):  # the last line of a run that was killed
                self._file.write(b"\n")
        except OSError as error:
            raise ConfigError(f"resume={str(path)!r} can't be used ({cause_line(error)})") from error

    def _read(self, held: bytes, table: str, path: str) -> None:
        lines = held.splitlines()
        if not lines:
            return
        head = _parsed(lines[0])
        if head.get("format") != _FORMAT or head.get("table") != table:
            raise ConfigError(f"resume={path!r} is not from a check of this table; give another path")
        for line in lines[1:]:
            entry = _parsed(line)
            if {"file", "bytes", "changed"} <= entry.keys() and entry.get("verify") in (self._verify, "crc"):
                self._known[str(entry["file"])] = (entry["bytes"], entry["changed"])

    def knows(self, name: str, status: Status) -> bool:
        """Whether a file was found whole and has not changed since."""
        return self._known.get(name) == (status.size_bytes, status.changed)

    def note(self, name: str, status: Status) -> None:
        """A file was found whole."""
        if self._file is not None:
            entry = {"file": name, "bytes": status.size_bytes, "changed": status.changed, "verify": self._verify}
            with self._lock:
                self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
