"""Which file groups of two versions must be compared: those that are not the same in both. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.scan import Group, Groups


@dataclass(frozen=True, eq=False)
class Pair:
    """Groups of both versions that share row ids; one side may be empty.

    Attributes:
        old: groups of the old version.
        new: groups of the new version.
    """

    old: Groups
    new: Groups


def pairs(old: Groups, new: Groups) -> tuple[list[Pair], int]:
    """The groups to compare, and how many files both versions share and need no reading.

    Groups with the same files and the same deletion marks hold the same rows.
    """
    sides = (old.groups, new.groups)
    identities = [{identity(group) for group in groups} for groups in sides]
    common = identities[0] & identities[1]
    left = [[group for group in groups if identity(group) not in common] for groups in sides]
    shared = sum(len(group.split.files) for group in old.groups if identity(group) in common)
    return [Pair(Groups(tuple(one)), Groups(tuple(other))) for one, other in _overlapping(*left)], shared


def identity(group: Group) -> Any:
    """Equal for groups of the same files, of which the same rows are deleted."""
    marks = group.split.data_deletion_files or [None] * len(group.split.files)
    return frozenset(
        (file.file_name, None if mark is None else (mark.dv_index_path, mark.offset, mark.length))
        for file, mark in zip(group.split.files, marks, strict=True)
    )


def _overlapping(old: Iterable[Group], new: Iterable[Group]) -> Iterator[tuple[list[Group], list[Group]]]:
    """Groups gathered so that those of different gatherings share no row id."""
    events = sorted(
        [(group.first_row_id, 0, group) for group in old] + [(group.first_row_id, 1, group) for group in new], key=_at
    )
    held: tuple[list[Group], list[Group]] = ([], [])
    stop = -1
    for first, side, group in events:
        if first >= stop and (held[0] or held[1]):
            yield held
            held = ([], [])
        held[side].append(group)
        stop = max(stop, group.stop_row_id)
    if held[0] or held[1]:
        yield held


def _at(event: tuple[int, int, Group]) -> tuple[int, int]:
    return event[:2]


def holders(groups: Groups, field_id: int, schemas: Mapping[int, Mapping[str, int]]) -> frozenset[str]:
    """The files that hold a column's values for these groups: the same files hold the same values.

    Args:
        groups: of one version.
        field_id: of the column.
        schemas: for each schema that files were written with, the ids of its columns by their names then.
    """
    return frozenset(
        file.file_name
        for group in groups.groups
        for file in group.split.files
        if field_id in _held(file.write_cols, schemas[file.schema_id])
    )


def _held(written: Sequence[str] | None, schema: Mapping[str, int]) -> set[int]:
    """Ids of the columns that a file holds; None: all of its schema."""
    return set(schema.values()) if written is None else {schema[name] for name in written if name in schema}
