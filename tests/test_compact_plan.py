"""What becomes one file group: row ids as ranges, and the plan of a partition. Pure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.blobfile import decode_lengths, encode_lengths
from lakehouse.compaction import plan
from lakehouse.compaction.ids import Ids
from lakehouse.compaction.plan import Item, merge

NUMBERS = st.sets(st.integers(0, 60))


def ids(numbers: set[int]) -> Ids:
    return Ids.of(np.array(sorted(numbers), np.int64))


@given(NUMBERS, NUMBERS)
def test_ids_are_sets(one: set[int], other: set[int]) -> None:
    held = ids(one)
    assert len(held) == len(one)
    assert held.take(0, 100).tolist() == sorted(one)
    assert [n for chunk in held.chunks(7) for n in chunk.tolist()] == sorted(one)
    assert held.without(ids(other)) == ids(one - other)
    asked = np.arange(-1, 70)
    assert held.holds(asked).tolist() == [n in one for n in asked.tolist()]
    assert all(low[1] < high[0] for low, high in zip(held.ranges, held.ranges[1:], strict=False))


def test_ids_go_up() -> None:
    with pytest.raises(ValueError, match="come before"):
        Ids([(3, 5), (4, 6)])


@st.composite
def partitions(draw: st.DrawFn) -> list[Item]:
    """Groups in ascending row id, with gaps between and within."""
    items = []
    at = 0
    for _ in range(draw(st.integers(0, 12))):
        first = at + draw(st.sampled_from([0, 0, 3]))
        rows = draw(st.integers(1, 40))
        deleted = draw(st.sets(st.integers(first, first + rows - 1), max_size=rows)) if draw(st.booleans()) else set()
        live = Ids([(first, first + rows)]).without(ids(deleted))
        clean = not deleted and draw(st.booleans())
        items.append(Item(first, draw(st.integers(1, 150)), clean, live))
        at = first + rows
    return items


@given(partitions(), st.sampled_from([1, 20, 100, 10_000]), st.booleans())
def test_every_live_row_is_in_one_place(items: list[Item], target: int, keep_ids: bool) -> None:
    merged = merge(items, target, keep_ids=keep_ids)
    touched = {i for one in merged.bins for i in one.items} | set(merged.emptied)
    moved = [n for one in merged.bins for n in one.ids.take(0, len(one.ids)).tolist()]
    expected = [n for i in sorted(touched) for n in items[i].live.take(0, 1000).tolist()]
    assert sorted(moved) == expected  # each once, and nothing of the groups that stay
    assert merged.emptied == tuple(i for i, item in enumerate(items) if not len(item.live))
    for one in merged.bins:
        assert len(one.ids)
        assert one.keep_ids or not keep_ids
        assert not one.keep_ids or len(one.ids.ranges) == 1
        assert list(one.items) == sorted(set(one.items))
    for i, item in enumerate(items):
        if item.clean and item.bytes >= target // 2:
            assert i not in touched
        if not item.clean and i not in touched:
            assert keep_ids
            assert len(item.live.ranges) > plan._MAX_RUNS
    assert merged.left == sum(i not in touched and not item.clean for i, item in enumerate(items))


@given(partitions(), st.booleans())
def test_what_was_merged_is_left_alone(items: list[Item], keep_ids: bool) -> None:
    """Planning what a plan would make finds nothing more to do, but for groups that kept their ids next to each other."""
    merged = merge(items, 100, keep_ids=keep_ids)
    stop = max((item.live.ranges[-1][1] for item in items if len(item.live)), default=0)
    touched = {i for one in merged.bins for i in one.items} | set(merged.emptied)
    after = [item for i, item in enumerate(items) if i not in touched]
    for one in merged.bins:
        live = one.ids if one.keep_ids else Ids([(stop, stop + len(one.ids))])
        stop += 0 if one.keep_ids else len(one.ids)
        after.append(Item(live.ranges[0][0], one.bytes, clean=True, live=live))
    after.sort(key=lambda item: item.first_row_id)
    again = merge(after, 100, keep_ids=keep_ids)
    assert sum(len(one.items) for one in again.bins) <= len(after)
    assert all(len(one.items) > 1 for one in again.bins)


def test_many_gaps_are_not_many_files() -> None:
    """A group of which every second row is deleted is not cut into a file for each row."""
    live = Ids([(n, n + 1) for n in range(0, 100, 2)])
    item = Item(0, 1000, clean=False, live=live)
    (one,) = merge([item], 10_000, keep_ids=False).bins
    assert (one.keep_ids, len(one.ids)) == (False, 50)
    assert merge([item], 10_000, keep_ids=True) == plan.Merge((), (), 1)


@given(st.lists(st.one_of(st.integers(-2, 300), st.integers(-2, 2**62)), max_size=50))
def test_an_index_is_read_back(records: list[int]) -> None:
    numbers = np.array(records, np.int64)
    assert decode_lengths(encode_lengths(numbers)).tolist() == records
    from pypaimon.common.delta_varint_compressor import DeltaVarintCompressor

    assert encode_lengths(numbers) == DeltaVarintCompressor.compress(records)
