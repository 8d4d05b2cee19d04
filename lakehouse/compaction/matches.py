"""Which rows, in which files, a condition was ever true for: in every version, deleted and updated rows included.

A row's bytes lie in the files of its group: values that an update replaced, and rows that were deleted, stay in them until
they are rewritten. So a group is asked as it was after each of its updates, and without its deletions. A row for which the
condition was true once is that row in every version that shares a file with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lakehouse.compaction.ids import Ids
from lakehouse.compaction.state import Source, schema_identity, sources, without_deletions
from lakehouse.errors import NotFoundError
from lakehouse.scan import Group, Groups, Version
from lakehouse.scan import snapshot_identity as identity


class Line(Protocol):
    """The main branch of a table, or another one: what `Table` offers for each."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def paimon(self) -> Any: ...  # noqa: D102

    def latest(self) -> Any: ...  # noqa: D102

    def snapshots(self) -> list[Any]: ...  # noqa: D102

    def tags(self) -> dict[str, int]: ...  # noqa: D102

    def at(self, *, tag: str | None = None, snapshot: int | None = None) -> Any: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class Held:
    """A version and its groups.

    Attributes:
        line: the branch it is of.
        tag: its tag; None: a snapshot.
        version: itself.
        sources: its groups.
        mentioned: names of all files that its manifests mention, also of those that left before.
    """

    line: Line
    tag: str | None
    version: Version
    sources: Sequence[Source]
    mentioned: frozenset[str]

    @property
    def label(self) -> str:
        """``snapshot 3`` or ``tag 'train'``, with the branch where it is not main."""
        what = f"snapshot {self.version.snapshot_id}" if self.tag is None else f"tag {self.tag!r}"
        branch = self.line.name.partition("$branch_")[2]
        return f"{what} of branch {branch}" if branch else what


@dataclass
class Matches:
    """What `Finder.find` found.

    Attributes:
        held: every version.
        rows: ids of matching rows, by name of each file that holds bytes of theirs.
    """

    held: list[Held] = field(default_factory=list)
    rows: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    def of(self, source: Source) -> Ids:
        """The rows of a group that have to leave."""
        found = [self.rows[name] for name in source.files if name in self.rows]
        return Ids.of(np.unique(np.concatenate(found))) if found else Ids(())

    def lives(self, held: Held) -> int:
        """How many rows of a version have to leave, those deleted in it left out."""
        return sum(len(source.item.live) - len(source.item.live.without(self.of(source))) for source in held.sources)

    def touches(self, held: Held) -> bool:
        """Whether a version's files or manifests hold anything of these rows."""
        return not self.rows.keys().isdisjoint(held.mentioned)


class Finder:
    """Finds rows, and remembers what it asked of which files.

    Args:
        where: the condition, as `Query.where` takes it.
    """

    def __init__(self, where: Any) -> None:
        self._where = where
        self._asked: dict[tuple[frozenset[str], str], npt.NDArray[np.int64]] = {}

    def find(self, lines: Iterable[Line]) -> Matches:
        """Ask every snapshot and tag of these branches.

        Raises:
            NotFoundError: the condition names a column that no version has.
            SchemaError: it does not fit the columns.
            FetchError: a file is missing.
        """
        matches = Matches()
        named = False
        error: NotFoundError | None = None
        planned: dict[str, tuple[Sequence[Source], frozenset[str]]] = {}
        for line, tag, version in chain.from_iterable(map(versions, lines)):
            key = f"{line.name} {version.snapshot_id} {identity(version.snapshot)}"
            if key not in planned:
                planned[key] = (sources(version), mentioned(version))
            held = Held(line, tag, version, *planned[key])
            matches.held.append(held)
            try:
                predicate = self._checked(version)
            except NotFoundError as missing:  # a version from before the column was there
                error = missing
                continue
            named = True
            for source in held.sources:
                for group, names in generations(source.group):
                    found = self._ask(version, group, names, predicate)
                    for file in group.split.files if len(found) else ():
                        first, stop = file.first_row_id, file.first_row_id + file.row_count
                        inside = found[(found >= first) & (found < stop)]
                        if len(inside):
                            known = matches.rows.get(file.file_name)
                            matches.rows[file.file_name] = inside if known is None else np.union1d(known, inside)
        if error is not None and not named:
            raise error
        return matches

    def _checked(self, version: Version) -> Any:
        from lakehouse.query.predicate import checked_predicate

        return checked_predicate(self._where, version.columns)

    def _ask(self, version: Version, group: Group, names: frozenset[str], predicate: Any) -> npt.NDArray[np.int64]:
        from lakehouse.query.stream import rows
        from lakehouse.scan import ROW_ID

        key = (names, schema_identity(version))
        if key not in self._asked:
            tables = rows(version, Groups((group,)), [predicate], (), [])
            ids = [table.column(ROW_ID).to_numpy() for table in tables]
            self._asked[key] = np.concatenate(ids) if ids else np.empty(0, np.int64)
        return self._asked[key]


def versions(line: Line) -> Iterator[tuple[Line, str | None, Version]]:
    """Every snapshot and tag of a branch."""
    for info in line.snapshots():
        yield line, None, line.at(snapshot=info.id).version
    for tag in line.tags():
        yield line, tag, line.at(tag=tag).version


def mentioned(version: Version) -> frozenset[str]:
    """Names of all files that a version's manifests mention."""
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    manifests, files = ManifestListManager(version.paimon).read_all(version.snapshot), ManifestFileManager(version.paimon)
    return frozenset(
        entry.file.file_name
        for manifest in {meta.file_name: meta for meta in manifests}.values()
        for entry in files.read(manifest.file_name)
    )


def generations(group: Group) -> Iterator[tuple[Group, frozenset[str]]]:
    """A group as it was after each update, without its deletions, and the names of its files then."""
    bare = without_deletions(group)
    for latest in sorted({file.max_sequence_number for file in bare.split.files}):
        files = [file for file in bare.split.files if file.max_sequence_number <= latest]
        rows = [file for file in files if not file.file_name.endswith(".blob")]
        if any(file.first_row_id == group.first_row_id and file.row_count == group.rows for file in rows):
            names = frozenset(file.file_name for file in files)
            split = bare.split.filter_file(lambda file, names=names: file.file_name in names)
            yield Group(group.first_row_id, group.rows, 0, split, group.partition), names
