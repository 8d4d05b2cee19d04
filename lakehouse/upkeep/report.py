"""What upkeep did, or would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Left:
    """A file that was to go and stayed.

    Attributes:
        path: relative to the table's folder, or whole where it lies outside.
        why: in a few words.
    """

    path: str
    why: str


@dataclass(frozen=True)
class ExpireReport:
    """What `Table.expire` removed, or would remove.

    Attributes:
        table: ``database.table``.
        snapshots: numbers of the snapshots removed, ascending.
        tags: tags removed because their time was over.
        files: how many files, by kind: ``data``, ``blob``, ``index``, ``manifest``, ``statistics``.
        bytes: of these files.
        left: files that no snapshot needs any more and that stayed; `Table.remove_orphans` tries again.
        dry_run: nothing was removed.
    """

    table: str
    snapshots: tuple[int, ...]
    tags: tuple[str, ...]
    files: Mapping[str, int]
    bytes: int
    left: tuple[Left, ...] = ()
    dry_run: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        verb = "would remove" if self.dry_run else "removed"
        parts = [f"{len(self.snapshots)} snapshots{_span(self.snapshots)}"]
        if self.tags:
            parts.append(f"tags {', '.join(self.tags)}")
        parts.append(counted(self.files, self.bytes))
        return f"{self.table}: {verb} {', '.join(parts)}{_stayed(self.left)}"


@dataclass(frozen=True)
class OrphanReport:
    """What `Table.remove_orphans` removed, or would remove.

    Attributes:
        table: ``database.table``.
        paths: the files, relative to the table's folder, sorted.
        files: how many, by kind: ``data``, ``blob``, ``index``, ``manifest``, ``statistics``, ``temporary``.
        bytes: of these files.
        spared: files that nothing reaches and that are younger than ``older_than``: a writer may be at work on them.
        left: files that were to go and stayed.
        dry_run: nothing was removed.
    """

    table: str
    paths: tuple[str, ...]
    files: Mapping[str, int]
    bytes: int
    spared: int = 0
    left: tuple[Left, ...] = ()
    dry_run: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        verb = "would remove" if self.dry_run else "removed"
        young = f"; {self.spared} more are too young" if self.spared else ""
        return f"{self.table}: {verb} {counted(self.files, self.bytes)}{young}{_stayed(self.left)}"


def counted(files: Mapping[str, int], size: int) -> str:
    """``12 files (8 data, 4 manifest), 3.1 MB``."""
    total = sum(files.values())
    kinds = f" ({', '.join(f'{count} {kind}' for kind, count in sorted(files.items()))})" if total else ""
    return f"{total} files{kinds}, {readable(size)}"


def readable(size: int) -> str:
    """A number of bytes for people: ``3.1 MB``."""
    value = float(size)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}" if unit != "bytes" else f"{size} bytes"
        value /= 1000
    return f"{value:,.1f} TB"


def _span(numbers: tuple[int, ...]) -> str:
    return f" ({numbers[0]} to {numbers[-1]})" if numbers else ""


def _stayed(left: tuple[Left, ...]) -> str:
    return "".join(f"\n  left: {item.path} ({item.why})" for item in left)
