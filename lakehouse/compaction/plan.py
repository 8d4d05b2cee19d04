"""Which file groups of a partition become one. Pure: sizes and row ids in, bins out.

A row's id is its place in its file, so ids stay where a new file holds one unbroken range of them. Two groups whose ids
follow each other can be joined that way. Commits that wrote several partitions deal ids out in turns, so that a partition's
ids have gaps; such groups are joined too, and their rows get new ids, unless the caller wants ids kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from lakehouse.compaction.ids import Ids, Range

# A group with more gaps than this in its live rows is not cut at each of them: files of a few rows are what we want less of.
_MAX_RUNS = 16
# Rows get new ids where that leaves less than half of the groups; for less, a row's id is worth more.
_FEWER = 2


@dataclass(frozen=True)
class Item:
    """A file group, as planning sees it.

    Attributes:
        first_row_id: where its row ids begin.
        bytes: of all its files.
        clean: it has no deleted rows and no files that replace values of others.
        live: ids of the rows that are not deleted.
    """

    first_row_id: int
    bytes: int
    clean: bool
    live: Ids


@dataclass(frozen=True)
class Bin:
    """Rows that become one file group.

    Attributes:
        items: positions of the groups they come from, ascending.
        ids: which rows, at least one.
        keep_ids: the rows keep their ids, which are one unbroken range; else they get new ones.
        bytes: about how many they take now.
    """

    items: tuple[int, ...]
    ids: Ids
    keep_ids: bool
    bytes: int


@dataclass(frozen=True)
class Merge:
    """What to do with one partition.

    Attributes:
        bins: each becomes one group.
        emptied: positions of groups that have no live row left; their files are dropped.
        left: how many groups could only be joined by giving rows new ids, which the caller did not want.
    """

    bins: tuple[Bin, ...]
    emptied: tuple[int, ...]
    left: int = 0


@dataclass(frozen=True)
class _Piece:
    item: int
    span: Range
    bytes: int


def merge(items: Sequence[Item], target_bytes: int, *, keep_ids: bool) -> Merge:
    """Plan one partition.

    Args:
        items: its groups in ascending row id.
        target_bytes: about how large a new group may become.
        keep_ids: never give a row another id.

    Example:
        >>> merge([Item(0, 10, True, Ids([(0, 2)])), Item(2, 10, True, Ids([(2, 5)]))], 100, keep_ids=True).bins
        (Bin(items=(0, 1), ids=Ids([(0, 5)]), keep_ids=True, bytes=20),)
    """
    emptied = tuple(i for i, item in enumerate(items) if not len(item.live))
    pieces: list[_Piece] = []
    scattered: list[int] = []
    for i, item in enumerate(items):
        if item.clean and item.bytes >= target_bytes // 2:
            continue  # done: joining it with what comes next would copy much to gain little
        if len(item.live.ranges) > _MAX_RUNS:
            scattered.append(i)
            continue
        pieces += [_Piece(i, span, item.bytes * (span[1] - span[0]) // len(item.live)) for span in item.live.ranges]
    chains = [_bin(chain, items, keep_ids=True) for chain in _chains(pieces, target_bytes)]
    if keep_ids:
        return Merge(tuple(_worth_it(chains, items)), emptied, len(scattered))
    small = [chain for chain in chains if chain.bytes < target_bytes // 2]
    whole = [_Piece(i, (items[i].live.ranges[0][0], items[i].live.ranges[-1][1]), items[i].bytes) for i in scattered]
    loose = sorted([*(_whole(chain) for chain in small), *whole], key=lambda piece: piece.span)
    packed = [_packed(run, small, items) for run in _packs(loose, target_bytes)]
    if not scattered and len(small) <= _FEWER * len(packed):
        return Merge(tuple(_worth_it(chains, items)), emptied)
    kept = [chain for chain in chains if chain.bytes >= target_bytes // 2]
    return Merge(tuple(sorted(_worth_it([*kept, *packed], items), key=lambda made: made.ids.ranges[0])), emptied)


def _chains(pieces: Iterable[_Piece], target_bytes: int) -> list[list[_Piece]]:
    """Runs of pieces whose ids follow each other, each of at most the target's bytes."""
    chains: list[list[_Piece]] = []
    size = 0
    for piece in pieces:
        if chains and chains[-1][-1].span[1] == piece.span[0] and size + piece.bytes <= target_bytes:
            chains[-1].append(piece)
            size += piece.bytes
        else:
            chains.append([piece])
            size = piece.bytes
    return chains


def _packs(pieces: Iterable[_Piece], target_bytes: int) -> list[list[_Piece]]:
    """Pieces in order, as many together as fit the target."""
    packs: list[list[_Piece]] = []
    size = 0
    for piece in pieces:
        if packs and size + piece.bytes <= target_bytes:
            packs[-1].append(piece)
            size += piece.bytes
        else:
            packs.append([piece])
            size = piece.bytes
    return packs


def _bin(pieces: Sequence[_Piece], items: Sequence[Item], *, keep_ids: bool) -> Bin:
    ids = Ids(span for item, run in groupby(pieces, key=lambda piece: piece.item) for span in _spans(items[item], run))
    return Bin(tuple(dict.fromkeys(piece.item for piece in pieces)), ids, keep_ids, sum(piece.bytes for piece in pieces))


def _spans(item: Item, pieces: Iterable[_Piece]) -> list[Range]:
    """The live ranges of an item that its pieces cover."""
    taken = [piece.span for piece in pieces]
    return [span for span in item.live.ranges if any(first <= span[0] and span[1] <= stop for first, stop in taken)]


def _whole(chain: Bin) -> _Piece:
    """A chain as a thing to pack; ``item`` is its first one's."""
    return _Piece(chain.items[0], (chain.ids.ranges[0][0], chain.ids.ranges[-1][1]), chain.bytes)


def _packed(run: Sequence[_Piece], small: Sequence[Bin], items: Sequence[Item]) -> Bin:
    """One bin of what was packed together: chains by where they begin, scattered items whole."""
    by_start = {chain.ids.ranges[0][0]: chain for chain in small}
    members: list[int] = []
    ranges: list[Range] = []
    for piece in run:
        chain = by_start.get(piece.span[0])
        members += chain.items if chain is not None else (piece.item,)
        ranges += chain.ids.ranges if chain is not None else items[piece.item].live.ranges
    ids = Ids(ranges)
    # One chain alone in its pack gains nothing from new ids.
    alone = len(run) == 1 and run[0].span[0] in by_start
    return Bin(tuple(dict.fromkeys(members)), ids, alone, sum(piece.bytes for piece in run))


def _worth_it(bins: Iterable[Bin], items: Sequence[Item]) -> list[Bin]:
    """Without those that would only copy a group as it is."""
    return [made for made in bins if not (len(made.items) == 1 and made.keep_ids and items[made.items[0]].clean)]
