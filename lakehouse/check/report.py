"""What a check found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

State = Literal["live", "deleted", "replaced"]
STATES: tuple[State, ...] = ("live", "deleted", "replaced")

_SHOWN = 10


@dataclass(frozen=True)
class DamagedRow:
    """A value that can't be read as it was written.

    Attributes:
        row_id: of the row.
        column: BLOB column; None: the row's scalar columns.
        uri: the file.
        offset: where in the file the value begins, bytes; None: not known, since the file's own index is damaged or gone.
        cause: what is wrong.
        state: ``live``: readers need it. ``deleted``: the row is deleted. ``replaced``: a newer file holds the value.
    """

    row_id: int
    column: str | None
    uri: str
    offset: int | None
    cause: str
    state: State = "live"

    def __str__(self) -> str:
        place = self.uri if self.offset is None else f"{self.uri} at {self.offset}"
        column = "" if self.column is None else f" column {self.column}"
        return f"row {self.row_id}{column} ({place}): {self.cause}"


@dataclass(frozen=True, eq=False)
class Finding:
    """One kind of damage of one file.

    Attributes:
        uri: the file.
        kind: ``blob``, ``data``, ``index``, ``manifest``, ``statistics`` or ``reference``.
        cause: what is wrong.
        column: BLOB column; None: no BLOB file.
        row_ids: int64[n], the rows whose values are damaged, ascending; empty where no row can be told.
        offsets: int64[n], where each begins, bytes; -1: not known.
        states: uint8[n], index into `STATES`.
        whole_file: the file itself is missing, short or unreadable, not only values in it.
    """

    uri: str
    kind: str
    cause: str
    column: str | None = None
    row_ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    offsets: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    states: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    whole_file: bool = False

    def rows(self, *, live: bool) -> Iterator[DamagedRow]:
        """The damaged rows one by one: those that readers need, or the others."""
        for i in np.flatnonzero((self.states == 0) == live).tolist():
            offset = int(self.offsets[i])
            state = STATES[self.states[i]]
            yield DamagedRow(int(self.row_ids[i]), self.column, self.uri, None if offset < 0 else offset, self.cause, state)

    def __str__(self) -> str:
        column = "" if self.column is None else f" column {self.column}"
        rows = f", {len(self.row_ids)} rows from {self.row_ids[0]}" if len(self.row_ids) else ""
        return f"{self.kind} file {self.uri}{column}: {self.cause}{rows}"


@dataclass(frozen=True, eq=False)
class CheckReport:
    """What `Table.check` found.

    Attributes:
        snapshot: which was checked, ``default.frames@41``.
        verify: how.
        files: how many files belong to the snapshot.
        resumed: those of them that were checked by an earlier run and are unchanged since.
        bytes: of the files.
        bytes_read: of them, by this run, of BLOB files.
        blobs: BLOB values located by this run; with ``verify="crc"`` their records were checked.
        seconds: how long it took.
        findings: all damage, by file.
        problems: what does not fit together: row ids that are used twice, or that no file holds.
    """

    snapshot: str
    verify: str
    files: int
    resumed: int
    bytes: int
    bytes_read: int
    blobs: int
    seconds: float
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every live value can be read as it was written."""
        return not self.problems and not self.damaged_files and next(self._rows(live=True), None) is None

    @property
    def damaged(self) -> list[DamagedRow]:
        """The values of live rows that are damaged, by row id."""
        return sorted(self._rows(live=True), key=lambda row: (row.row_id, row.column or "", row.uri))

    @property
    def unneeded(self) -> list[DamagedRow]:
        """Damaged values that nothing of this snapshot reads: of deleted rows, and of values that were replaced."""
        return sorted(self._rows(live=False), key=lambda row: (row.row_id, row.column or "", row.uri))

    @property
    def damaged_files(self) -> tuple[Finding, ...]:
        """The files that are missing, short or unreadable as a whole."""
        return tuple(finding for finding in self.findings if finding.whole_file)

    def _rows(self, *, live: bool) -> Iterator[DamagedRow]:
        for finding in self.findings:
            yield from finding.rows(live=live)

    def __str__(self) -> str:
        mb = self.bytes / 1e6
        done = f"{self.files} files, {self.blobs} blobs, {mb:,.1f} MB checked by {self.verify} in {self.seconds:.1f} s"
        if self.resumed:
            done += f" ({self.resumed} files by an earlier run)"
        if self.ok:
            lines = [f"{self.snapshot}: ok, {done}"]
        else:
            damaged = self.damaged
            lines = [f"{self.snapshot}: DAMAGED, {done}", *(f"  {problem}" for problem in self.problems)]
            lines += [f"  {finding}" for finding in self.damaged_files]
            lines += [f"  {row}" for row in damaged[:_SHOWN]]
            if len(damaged) > _SHOWN:
                lines.append(f"  and {len(damaged) - _SHOWN} more rows")
        unneeded = len(self.unneeded)
        if unneeded:
            lines.append(f"  {unneeded} damaged values that this snapshot does not need (deleted rows, replaced values)")
        return "\n".join(lines)
