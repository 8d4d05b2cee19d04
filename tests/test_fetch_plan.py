"""Which spans are read: every range comes back exactly, nothing is read twice, nothing beyond the limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakehouse.fetch import plan_spans

Range = tuple[int, int, int]  # uri id, offset, length

RANGES = st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 120), st.integers(0, 60)), max_size=30)


def arrays(ranges: list[Range]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    columns = np.array(ranges, np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def union(ranges: list[Range]) -> set[tuple[int, int]]:
    """Every byte referenced, as (uri id, position)."""
    return {(uri, at) for uri, offset, length in ranges if uri >= 0 for at in range(offset, offset + length)}


@given(RANGES, st.integers(0, 25), st.integers(1, 90))
@example([(0, 0, 50), (0, 10, 5), (0, 49, 30)], 0, 7)  # one within another, one across its end
@example([(0, 0, 5), (0, 6, 100), (0, 106, 3), (1, 0, 1)], 1, 10)
@example([(2, 7, 30)] * 3, 0, 10)
def test_every_range_is_recovered_exactly_from_spans_that_do_not_meet(
    ranges: list[Range], gap_bytes: int, span_bytes: int
) -> None:
    plan = plan_spans(*arrays(ranges), gap_bytes=gap_bytes, span_bytes=span_bytes)
    spans = list(zip(plan.uri_ids.tolist(), plan.offsets.tolist(), plan.lengths.tolist(), strict=True))

    # each byte of a store stands for its own address, so a wrong byte can't look right
    read = [[(uri, at) for at in range(offset, offset + length)] for uri, offset, length in spans]
    for row, (uri, offset, length) in enumerate(ranges):
        got = [byte for span, start, stop in plan.pieces(offset, length, row) for byte in read[span][start:stop]]
        assert got == ([(uri, at) for at in range(offset, offset + length)] if uri >= 0 else [])
        assert all(0 <= start < stop <= len(read[span]) for span, start, stop in plan.pieces(offset, length, row))

    fetched = [byte for span in read for byte in span]
    assert len(fetched) == len(set(fetched)) == plan.bytes_fetched
    assert all(1 <= length <= span_bytes for _, _, length in spans)
    assert spans == sorted(spans)
    referenced = union(ranges)
    assert set(fetched) >= referenced
    if gap_bytes == 0:
        assert set(fetched) == referenced
    for uri, offset, length in spans:  # a span begins and ends with what was asked for, and holds no hole wider than a gap
        assert (uri, offset) in referenced
        assert (uri, offset + length - 1) in referenced
        held = [at for at in range(offset, offset + length) if (uri, at) in referenced]
        assert all(later - at - 1 <= gap_bytes for at, later in zip(held, held[1:], strict=False))


@given(RANGES, st.integers(0, 25))
def test_what_is_close_enough_is_read_together(ranges: list[Range], gap_bytes: int) -> None:
    plan = plan_spans(*arrays(ranges), gap_bytes=gap_bytes, span_bytes=10_000)
    spans = list(zip(plan.uri_ids.tolist(), plan.offsets.tolist(), plan.lengths.tolist(), strict=True))
    for (uri, offset, length), (next_uri, next_offset, _) in zip(spans, spans[1:], strict=False):
        assert uri != next_uri or next_offset - (offset + length) > gap_bytes


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(50, 200))
def test_a_range_that_fits_into_a_span_is_never_split(lengths: list[int], span_bytes: int) -> None:
    offsets = np.cumsum([0, *lengths[:-1]])
    order = np.random.default_rng(len(lengths)).permutation(len(lengths))
    plan = plan_spans(np.zeros(len(lengths)), offsets[order], np.array(lengths)[order], gap_bytes=0, span_bytes=span_bytes)
    assert np.array_equal(plan.first, plan.last)
    # greedy: two neighbouring spans together exceed the limit
    assert all(a + b > span_bytes for a, b in zip(plan.lengths.tolist(), plan.lengths.tolist()[1:], strict=False))


def test_the_order_of_the_rows_does_not_change_the_spans() -> None:
    generator = np.random.default_rng(3)
    uri_ids, offsets = generator.integers(0, 3, 360), generator.integers(0, 10_000, 360)
    lengths = generator.integers(1, 300, 360)
    plan = plan_spans(uri_ids, offsets, lengths, gap_bytes=8, span_bytes=500)
    order = generator.permutation(360)
    other = plan_spans(uri_ids[order], offsets[order], lengths[order], gap_bytes=8, span_bytes=500)
    assert np.array_equal(plan.offsets, other.offsets)
    assert np.array_equal(plan.lengths, other.lengths)
    assert np.array_equal(plan.first[order], other.first)


def test_gaps() -> None:
    uri_ids, offsets, lengths = [0, 0, 0], [0, 20, 45], [10, 10, 10]
    assert plan_spans(uri_ids, offsets, lengths, gap_bytes=9, span_bytes=100).lengths.tolist() == [10, 10, 10]
    assert plan_spans(uri_ids, offsets, lengths, gap_bytes=10, span_bytes=100).lengths.tolist() == [30, 10]
    assert plan_spans(uri_ids, offsets, lengths, gap_bytes=15, span_bytes=100).lengths.tolist() == [55]
    # a span that would grow too long is cut at a border, and the hole there is not read
    assert plan_spans(uri_ids, offsets, lengths, gap_bytes=15, span_bytes=54).lengths.tolist() == [30, 10]


def test_a_long_range_is_split_and_its_rest_joins_the_next_one() -> None:
    plan = plan_spans([0, 0, 0], [0, 10, 245], [10, 235, 5], gap_bytes=0, span_bytes=100)
    assert plan.offsets.tolist() == [0, 10, 110, 210]
    assert plan.lengths.tolist() == [10, 100, 100, 40]
    assert (plan.first.tolist(), plan.last.tolist()) == ([0, 1, 3], [0, 3, 3])


def test_offsets_near_the_largest_integer() -> None:
    top = 2**63 - 1
    plan = plan_spans([0, 0, 1], [top - 10, top - 3, 0], [10, 3, 4], gap_bytes=2**62, span_bytes=2**62)
    assert plan.offsets.tolist() == [top - 10, 0]
    assert plan.lengths.tolist() == [10, 4]
    # one range within another: ends that are compared per uri
    nested = plan_spans([0, 0, 1, 1], [0, top - 100, 5, 6], [top, 10, 10, 2], gap_bytes=0, span_bytes=2**62)
    assert nested.bytes_fetched == top + 10


def test_nothing_to_read() -> None:
    for uri_ids, lengths in (([], []), ([-1, -1], [5, 0]), ([0, 0], [0, -1])):
        plan = plan_spans(uri_ids, [3] * len(uri_ids), lengths, gap_bytes=0, span_bytes=10)
        assert len(plan.offsets) == plan.bytes_fetched == 0
        assert plan.first.tolist() == [-1] * len(uri_ids)
        assert all(plan.pieces(3, 5, row) == [] for row in range(len(uri_ids)))


@pytest.mark.parametrize(("gap_bytes", "span_bytes"), [(-1, 10), (0, 0)])
def test_limits_that_can_not_be_kept_are_refused(gap_bytes: int, span_bytes: int) -> None:
    with pytest.raises(ValueError, match="gap_bytes must be 0 or more"):
        plan_spans([0], [0], [1], gap_bytes=gap_bytes, span_bytes=span_bytes)


@pytest.mark.parametrize(("offset", "length"), [(-1, 5), (2**63 - 1, 5)])
def test_ranges_that_can_not_be_are_refused(offset: int, length: int) -> None:
    with pytest.raises(ValueError, match="offsets from 0 up"):
        plan_spans([0], [offset], [length], gap_bytes=0, span_bytes=10)
