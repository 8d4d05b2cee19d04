"""The order of rows: exact, addressable anywhere, different in every epoch, random enough, and the same for ever.

Statistical tests draw fixed seeds, so that they give the same answer on every run. Their bounds are five standard deviations of
what is measured, were the order drawn from a hat.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import pickle
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakehouse import order as order_module
from lakehouse.errors import ConfigError
from lakehouse.order import Order, Shuffle, fitting_block_rows, order_of, permutations, row_rng

GOLDEN = Path(__file__).parent / "data" / "order_golden.json"
SHUFFLES: tuple[Shuffle, ...] = ("blocks", "rows", None)
SIZES = (0, 1, 2, 3, 7, 103, 120, 255, 256, 257, 360, 16_383, 16_384, 16_385, 16_640, 40_000, 65_536, 65_537, 100_000)
MOST = 2**64 - 1

Ints = npt.NDArray[np.int64]


def whole(order: Order, epoch: int = 0) -> Ints:
    return order.rows(epoch, 0, order.n)


def is_bijection(rows: Ints, n: int) -> bool:
    return len(rows) == n and bool((np.sort(rows) == np.arange(n)).all())


@st.composite
def orders(draw: st.DrawFn) -> Order:
    """Small and awkward orders, with blocks and windows so small that many of them are needed."""
    n = draw(st.one_of(st.integers(0, 400), st.integers(0, 70_000)))
    return Order(
        n,
        draw(st.one_of(st.integers(0, 3), st.integers(0, MOST))),
        draw(st.sampled_from(SHUFFLES)),
        block_rows=draw(st.one_of(st.integers(1, 12) if n <= 400 else st.integers(100, 999), st.just(256))),
        window_blocks=draw(st.one_of(st.integers(1, 9), st.just(64))),
    )


epochs = st.one_of(st.integers(0, 5), st.integers(0, 2**80))


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends orders of more than 8 items through the keyed permutation, which serves more than 65,536 otherwise."""
    monkeypatch.setattr(order_module, "TABLE_ITEMS", 8)
    monkeypatch.setattr(permutations, "TABLE_ITEMS", 8)


# ---- exact


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("n", SIZES)
def test_every_epoch_visits_each_row_once(n: int, shuffle: Shuffle) -> None:
    for seed, epoch in ((0, 0), (0, 1), (7, 3), (MOST, 2**40)):
        rows = whole(Order(n, seed, shuffle), epoch)
        assert rows.dtype == np.int64
        assert is_bijection(rows, n)


@given(orders(), epochs)
@example(Order(1, 0, block_rows=1, window_blocks=1), 0)
@example(Order(65 * 256, 0), 0)  # one block more than a window holds
@example(Order(64 * 256 + 1, 0), 0)  # the same, of one row
@example(Order(5, 0, block_rows=2**22, window_blocks=1), 0)  # much wider than the index
def test_every_order_is_a_bijection(order: Order, epoch: int) -> None:
    assert is_bijection(whole(order, epoch), order.n)


@pytest.mark.usefixtures("small_table")
@given(n=st.integers(9, 3_000), seed=st.integers(0, MOST), epoch=epochs)
@example(n=9, seed=0, epoch=0)  # 3 x 3 cells: none too many
@example(n=10, seed=0, epoch=0)  # 4 x 3
@example(n=2_500, seed=0, epoch=0)
@example(n=2_501, seed=0, epoch=0)  # 51 x 50: as many too many as it gets
def test_the_keyed_permutation_is_a_bijection(n: int, seed: int, epoch: int) -> None:
    assert is_bijection(whole(Order(n, seed, "rows"), epoch), n)
    assert is_bijection(whole(Order(n, seed, "blocks", block_rows=3, window_blocks=4), epoch), n)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("n", [65_537 * 256, 100_000_000, 2**40 - 1, 2**40, 2**40 + 1, 2**48])
def test_long_orders_stay_inside_and_repeat_nothing(n: int, shuffle: Shuffle) -> None:
    order = Order(n, 11, shuffle)
    positions = np.unique(np.concatenate([np.arange(20_000), n // 2 + np.arange(20_000), n - 1 - np.arange(20_000)]))
    rows = order.at(4, positions)
    assert rows.min() >= 0
    assert rows.max() < n
    assert len(np.unique(rows)) == len(positions)


def test_no_shuffle_is_the_order_as_stored() -> None:
    order = Order(1_000, 5, None)
    for epoch in (0, 1, 9):
        assert (order.rows(epoch, 100, 900) == np.arange(100, 900)).all()
        assert order.at(epoch, np.array([3, 1, 999])).tolist() == [3, 1, 999]


# ---- any part alone


@given(orders(), epochs, st.data())
def test_a_slice_alone_is_the_slice_of_the_whole(order: Order, epoch: int, data: st.DataObject) -> None:
    expected = whole(order, epoch)
    for _ in range(3):
        start = data.draw(st.integers(0, order.n))
        stop = data.draw(st.one_of(st.integers(start, order.n), st.integers(start, min(order.n, start + 100))))
        alone = dataclasses.replace(order).rows(epoch, start, stop)  # a copy has no cached window
        assert (alone == expected[start:stop]).all()
        assert alone.shape == (stop - start,)


@given(orders().filter(lambda order: order.n > 0), epochs, st.data())
def test_any_positions_alone(order: Order, epoch: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, order.n - 1), max_size=60)), np.int64)
    found = dataclasses.replace(order).at(epoch, positions)
    assert found.dtype == np.int64
    assert (found == whole(order, epoch)[positions]).all()


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("n", [360, 100_000])
def test_every_step_alone(n: int, shuffle: Shuffle) -> None:
    order, batch = Order(n, 3, shuffle), 120 if n == 360 else 1_000
    steps = [dataclasses.replace(order).rows(2, s, s + batch) for s in range(0, n, batch)]
    assert (np.concatenate(steps) == whole(order, 2)).all()


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_the_parts_of_a_long_order_agree_with_each_other(shuffle: Shuffle) -> None:
    order = Order(100_000_000, 7, shuffle)
    for start in (0, 16_320, 50_000_001, 99_999_000 - 64):
        rows = order.rows(1, start, start + 1_000)
        assert (order.at(1, np.arange(start, start + 1_000)) == rows).all()
        assert (dataclasses.replace(order).rows(1, start + 37, start + 101) == rows[37:101]).all()
        far = order.at(1, np.array([[start + 5, 0], [start, 99_999_999]]))  # further apart than a window
        assert far.shape == (2, 2)
        assert (far[:, 0] == rows[[5, 0]]).all()
        assert far[1, 1] == order.rows(1, 99_999_999, 100_000_000)


def test_what_is_handed_out_is_the_callers_own() -> None:
    order = Order(100, 1)
    rows = order.rows(0, 0, 100)
    rows[:] = -1
    order.at(0, np.arange(100))[:] = -1
    assert is_bijection(order.rows(0, 0, 100), 100)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_nothing_of_size_n_is_allocated(shuffle: Shuffle) -> None:
    order = Order(2**40, 7, shuffle)
    order.rows(0, 0, 64)  # numpy's own first uses
    tracemalloc.start()
    try:
        for start in range(0, 2**40 - 64, 2**35 + 12_345):
            order.rows(1, start, start + 64)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20
    assert held < 2**20  # 4 windows of 128 KiB


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_steps_are_fast_wherever_they_are(shuffle: Shuffle) -> None:
    n = 100_000_000
    order = Order(n, 7, shuffle)
    order.rows(0, 0, 64)
    cold, warm = [], []
    for k in range(40):
        begin = time.perf_counter()
        order.rows(1, k * 2_000_000, k * 2_000_000 + 64)
        cold.append(time.perf_counter() - begin)
    for _ in range(3):
        begin = time.perf_counter()
        for k in range(2_000):
            order.rows(2, k * 64, k * 64 + 64)
        warm.append((time.perf_counter() - begin) / 2_000)
    # Measured: 0.3 ms and 0.004 to 0.010 ms. The bounds leave room for a busy machine; a permutation of n takes 8 s.
    assert np.median(cold) < 5e-3
    assert min(warm) < 0.25e-3


# ---- seeds and epochs


def test_no_two_pairs_of_seed_and_epoch_share_an_order() -> None:
    small = itertools.product(range(40), range(40))  # adding or swapping them would meet
    words = itertools.product(
        (0, 1, 2, 2**32, 2**32 + 1, 2**33, 2**63, MOST), (0, 1, 5, 2**32, 1 + 5 * 2**32, 2**64, 2**96 + 1)
    )
    pairs = set(small) | set(words) | {(2**32, 5), (0, 1 + 5 * 2**32)}
    for shuffle in ("blocks", "rows"):
        seen = {Order(103, seed, shuffle).rows(epoch, 0, 103).tobytes() for seed, epoch in pairs}
        assert len(seen) == len(pairs)


def test_plain_seed_sequences_would_let_two_pairs_meet() -> None:
    """Why seeds are spelt in words of fixed width; if NumPy changes this, the docstring of the module wants an update."""
    one, other = (np.random.SeedSequence(pair).generate_state(4).tolist() for pair in ([2**32, 5], [0, 1 + 5 * 2**32]))
    assert one == other


@pytest.mark.usefixtures("small_table")
@given(st.tuples(st.integers(0, MOST), epochs), st.tuples(st.integers(0, MOST), epochs))
@example((2**32, 5), (0, 1 + 5 * 2**32))
@example((3, 2**64), (3, 0))
def test_pairs_differ_under_the_keyed_permutation_too(one: tuple[int, int], other: tuple[int, int]) -> None:
    for shuffle in ("blocks", "rows"):
        first, second = (Order(200, seed, shuffle, 2, 10).rows(epoch, 0, 200).tolist() for seed, epoch in (one, other))
        assert (first == second) == (one == other)


def test_windows_and_uses_have_streams_of_their_own() -> None:
    within = [np.argsort(Order(64 * 256, 1).rows(0, 0, 16_384))]
    long = Order(4 * 64 * 256, 1)
    within += [np.argsort(long.rows(0, start, start + 16_384)) for start in range(0, 65_536, 16_384)]
    for one, other in itertools.combinations(within[1:], 2):
        assert (one == other).sum() < 12  # about 1 is expected
    assert (Order(500, 1, "rows").rows(0, 0, 500) == Order(500, 1, "blocks").rows(0, 0, 500)).sum() < 12


@pytest.mark.parametrize("shuffle", ["blocks", "rows"])
@pytest.mark.parametrize("n", [1_000, 16_385, 100_000])
def test_dropping_the_tail_loses_other_rows_each_epoch(n: int, shuffle: Shuffle) -> None:
    order, kept = Order(n, 5, shuffle), n // 64 * 64
    lost = [frozenset(order.rows(epoch, kept, n).tolist()) for epoch in range(30)]
    assert {len(rows) for rows in lost} == {n % 64}
    assert len(set(lost)) == 30
    different = n * (1 - (1 - (n % 64) / n) ** 30)  # expected where each row is as likely to be lost as any other
    assert len(frozenset().union(*lost)) > 0.9 * different


def test_row_generators() -> None:
    keys = [
        (7, 2, 5),
        (7, 2, 6),
        (7, 3, 5),
        (8, 2, 5),
        (2, 7, 5),
        (2**32, 5, 1),
        (0, 1 + 5 * 2**32, 1),
        (0, 2**64, 0),
        (0, 0, 0),
    ]
    draws = {key: row_rng(*key).random(4).tobytes() for key in keys}
    assert len(set(draws.values())) == len(keys)
    assert row_rng(7, 2, 5).random(4).tobytes() == draws[7, 2, 5]
    children = [row_rng(7, 2, 5).spawn(2)[i].random() for i in (0, 1)]
    assert children == [row_rng(7, 2, 5).spawn(2)[i].random() for i in (0, 1)]
    first = np.array([row_rng(0, 0, position).random() for position in range(4_000)])
    assert abs(first.mean() - 0.5) < 5 / math.sqrt(12 * 4_000)
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 5 / math.sqrt(4_000)


# ---- random


def deviation(counts: npt.NDArray[Any], freedom: int) -> float:
    """By how many standard deviations chi-square of counts that should be equal is off. Too even counts are off as well."""
    expected = counts.sum() / counts.size
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("shuffle", ["blocks", "rows"])
def test_all_orders_of_few_rows_are_equally_likely(shuffle: Shuffle) -> None:
    order = Order(4, 3, shuffle)
    counts = Counter(order.rows(epoch, 0, 4).tobytes() for epoch in range(6_000))
    assert len(counts) == 24
    assert abs(deviation(np.array([*counts.values()]), 23)) < 5


@pytest.mark.parametrize("shuffle", ["blocks", "rows"])
@pytest.mark.parametrize("n", [2, 7, 103])
def test_each_row_is_equally_likely_at_each_position(n: int, shuffle: Shuffle) -> None:
    order, places = Order(n, 9, shuffle), np.zeros((n, n), np.int64)
    for epoch in range(4_000):
        places[np.arange(n), order.rows(epoch, 0, n)] += 1
    assert abs(deviation(places, (n - 1) ** 2)) < 5


# Windows of one, listed permutations, computed ones; one past a square and exactly a square (317**2), where no cell is spare.
RANDOM = [
    ("blocks", 103), ("blocks", 360), ("blocks", 16_384), ("rows", 103), ("rows", 360), ("rows", 16_385), ("rows", 65_536),
    ("rows", 65_537), ("rows", 100_003), ("rows", 317**2), ("rows", 2**18),
]  # fmt: skip


def ensemble(shuffle: Shuffle, n: int) -> list[Ints]:
    order, count = Order(n, 21, shuffle), 200 if n < 1_000 else 12
    return [whole(order, epoch) for epoch in range(count)]


@pytest.mark.parametrize(("shuffle", "n"), RANDOM)
def test_a_full_shuffle_looks_random(shuffle: Shuffle, n: int) -> None:
    drawn = ensemble(shuffle, n)
    m = len(drawn)
    fixed = sum(int((rows == np.arange(n)).sum()) for rows in drawn)  # Poisson(1) each
    assert abs(fixed - m) < 5 * math.sqrt(m)
    same = sum(int((one == other).sum()) for one, other in itertools.pairwise(drawn))  # in neighbouring epochs: likewise
    assert abs(same - (m - 1)) < 5 * math.sqrt(m - 1)

    # Pearson's r of two random orders has mean 0 and variance 1 / (n - 1), of an order and itself shifted a mean of -1 / (n - 1).
    spread = 5 / math.sqrt(m * (n - 1))
    with_storage = np.mean([np.corrcoef(rows, np.arange(n))[0, 1] for rows in drawn])
    with_next_epoch = np.mean([np.corrcoef(one, other)[0, 1] for one, other in itertools.pairwise(drawn)])
    assert abs(with_storage) < spread
    assert abs(with_next_epoch) < spread
    for lag in (1, 2, 7, 64):
        serial = np.mean([np.corrcoef(rows[:-lag], rows[lag:])[0, 1] for rows in drawn])
        assert abs(serial + 1 / (n - 1)) < spread * math.sqrt(n / (n - lag))

    # Positions against rows, in 16 x 16 equal cells: margins are given, so (16 - 1)**2 degrees of freedom.
    if n >= 16_000:
        cells = np.zeros((16, 16), np.int64)
        for rows in drawn:
            np.add.at(cells, (np.arange(n) * 16 // n, rows * 16 // n), 1)
        assert abs(deviation(cells, 15**2)) < 5


@pytest.mark.parametrize(
    ("shuffle", "n"), [("rows", 16_384), ("rows", 65_537), ("rows", 317**2), ("rows", 2**18), ("blocks", 16_384)]
)
def test_steps_from_one_row_to_the_next_look_random(shuffle: Shuffle, n: int) -> None:
    """Where weak keyed permutations show: neighbours, places one rectangle row apart, the lowest bits."""
    height = math.isqrt(n - 1) + 1
    jumps, columns, bits = np.zeros(256, np.int64), np.zeros(256, np.int64), np.zeros((16, 16), np.int64)
    for rows in ensemble(shuffle, n):
        jumps += np.bincount(np.diff(rows) % n * 256 // n, minlength=256)
        columns += np.bincount((rows[height:] - rows[:-height]) % n * 256 // n, minlength=256)
        np.add.at(bits, (rows[:-1] % 16, rows[1:] % 16), 1)
    # A jump of 0 can't be, which takes next to nothing from the first cell.
    assert abs(deviation(jumps, 255)) < 5
    assert abs(deviation(columns, 255)) < 5
    assert abs(deviation(bits, 15**2)) < 5  # every row has one successor: margins are given


@pytest.mark.parametrize("n", [100_000_000, 2**40])
def test_a_part_of_a_long_order_looks_random(n: int) -> None:
    """Positions that follow each other take rows from everywhere."""
    for epoch, start in ((0, 0), (1, n // 3), (2, n - 50_000)):
        rows = Order(n, 2, "rows").rows(epoch, start, start + 50_000)
        assert abs(deviation(np.bincount(rows * 100 // n, minlength=100), 99)) < 5
        assert abs(deviation(np.bincount(np.diff(rows) % n * 100 // n, minlength=100), 99)) < 5
        assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 5 / math.sqrt(50_000)


# ---- blocks


def test_a_window_mixes_64_whole_blocks_from_everywhere() -> None:
    n = 100_000_000
    order, first_rows = Order(n, 2), []
    for window in range(0, 6_000, 300):
        rows = order.rows(1, window * 16_384, (window + 1) * 16_384)
        blocks, counts = np.unique(rows // 256, return_counts=True)
        # 99,999,999 is in the 390,625th block, and that is a full one.
        assert (len(blocks), set(counts.tolist())) == (64, {256})
        assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 5 / math.sqrt(16_384)
        in_batches = [len(np.unique(batch // 256)) for batch in rows.reshape(256, 64)]
        # 64 balls into 64 boxes fill 40.6 boxes.
        assert 39 < np.mean(in_batches) < 42.5
        first_rows.extend(blocks.tolist())
    assert len(set(first_rows)) == len(first_rows)
    assert abs(deviation(np.bincount(np.array(first_rows) * 20 // 390_625, minlength=20), 19)) < 5


@given(
    blocks=st.integers(1, 300), short=st.integers(0, 6), window_blocks=st.integers(1, 40), seed=st.integers(0, 99), epoch=epochs
)
@example(blocks=65, short=0, window_blocks=64, seed=0, epoch=0)
@example(blocks=64, short=1, window_blocks=64, seed=0, epoch=0)
@example(blocks=129, short=0, window_blocks=64, seed=0, epoch=0)
def test_windows_are_whole_blocks_and_none_is_lonely(
    blocks: int, short: int, window_blocks: int, seed: int, epoch: int
) -> None:
    n = blocks * 7 + short
    order = Order(n, seed, block_rows=7, window_blocks=window_blocks)
    held, position = [], 0
    while position < n:
        first, window = order._window_at(epoch, position)
        assert first == position
        numbers, counts = np.unique(window // 7, return_counts=True)
        assert all(count == 7 or (number == blocks and count == short) for number, count in zip(numbers, counts, strict=True))
        held.append(len(numbers))
        position += len(window)
    total = blocks + (short > 0)
    assert sum(held) == total
    assert max(held) <= window_blocks
    assert set(held[:-2]) <= {window_blocks}
    if len(held) > 1:
        assert min(held) >= window_blocks // 2
        assert held[-2] - held[-1] in (0, 1)


def test_the_short_block_lands_anywhere() -> None:
    order = Order(9 * 4 + 1, 3, block_rows=4, window_blocks=1)
    places = Counter(int(np.flatnonzero(whole(order, epoch) == 36)[0]) for epoch in range(3_000))
    assert set(places) == set(range(0, 40, 4))
    assert abs(deviation(np.array([*places.values()]), 9)) < 5


@pytest.mark.parametrize(("labels", "share"), [(10, 0.99), (100, 0.85), (1_000, 0.85)])
def test_rows_written_by_label_come_out_mixed(labels: int, share: float) -> None:
    """1,000 rows of each label, written one label after the other: how mixed batches of 64 are, against any row anywhere.

    The bound that is stated to users: one window holds the 10,000 rows, so nothing is lost; in longer orders a batch draws from
    64 blocks instead of the whole table, and 85% of the entropy is left; three quarters in the last two windows of 32 or more.
    """

    def entropies(rows: Ints) -> npt.NDArray[np.float64]:
        batches = rows[: len(rows) // 64 * 64].reshape(-1, 64) // 1_000  # [batches, 64] labels
        shares = [np.unique(batch, return_counts=True)[1] / 64 for batch in batches]
        return np.array([-(share * np.log(share)).sum() for share in shares])

    n = labels * 1_000
    ours, best = entropies(whole(Order(n, 1))), entropies(np.random.default_rng(1).permutation(n))
    assert ours.mean() > share * best.mean()
    assert ours[-20:].mean() > 0.75 * best.mean()
    assert ours.min() > 0.7 * best.mean()  # no batch is clumped


# ---- blocks that fit the rows


@given(st.integers(0, 10**6), st.integers(0, 2**40))
def test_a_block_is_as_many_rows_as_five_mebibytes_hold(n: int, row_bytes: int) -> None:
    rows = fitting_block_rows(n * row_bytes, n)
    assert rows in {2**i for i in range(9)}
    assert rows == 1 or rows * row_bytes <= 5 * 2**20 or not n
    assert rows == 256 or 2 * rows * row_bytes > 5 * 2**20


@pytest.mark.parametrize("row_bytes", [0, 20_480, 20_481, 40_960, 150_000, 5 * 2**20, 2**40])
def test_only_large_rows_have_blocks_of_their_own(row_bytes: int) -> None:
    """Up to 20 KiB a row "blocks" is what it always was; above, the sizes that one may ask for by name."""

    class Index:
        blob_bytes = 30_000 * row_bytes

        def __len__(self) -> int:
            return 30_000

    order = order_of(Index(), 7, "blocks")
    assert isinstance(order, Order)
    assert (order == Order(30_000, 7)) == (row_bytes <= 20_480)
    assert order == Order(30_000, 7, f"blocks:{order.block_rows}x64")
    for shuffle in ("blocks:256x64", "blocks:3x5", "rows", None):
        assert order_of(Index(), 7, shuffle) == Order(30_000, 7, shuffle)


# ---- a value


def test_an_order_is_a_value() -> None:
    order = Order(100_000, 7)
    before = pickle.dumps(order)
    order.rows(3, 0, 50_000)
    fresh = Order(100_000, 7)
    assert order == fresh
    assert hash(order) == hash(fresh)
    assert repr(order) == "Order(n=100000, seed=7, shuffle='blocks', block_rows=256, window_blocks=64)"
    assert dataclasses.asdict(order) == dataclasses.asdict(fresh)
    assert pickle.dumps(order) == before
    assert len(before) < 500
    assert Order(10, 0, "blocks:32x8") == Order(10, 0, block_rows=32, window_blocks=8)
    assert Order(100_000, 7, "blocks:256x64") == order
    for other in (pickle.loads(before), copy.copy(order), copy.deepcopy(order), dataclasses.replace(order)):
        assert other == order
        assert (other.rows(3, 9, 99) == order.rows(3, 9, 99)).all()
    assert Order(np.int64(9), np.uint64(MOST), "rows") == Order(9, MOST, "rows")  # type: ignore[arg-type]
    assert type(Order(np.int64(9), 0).n) is int  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        order.seed = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    ("order", "spec"),
    [
        (Order(10, 0), "blocks-1:256x64"),
        (Order(10, 0, block_rows=32, window_blocks=8), "blocks-1:32x8"),
        (Order(10, 0, "blocks:32x8"), "blocks-1:32x8"),
        (Order(10, 0, "rows"), "rows-1"),
        (Order(10, 0, None), "stored-1"),
    ],
)
def test_spec(order: Order, spec: str) -> None:
    assert order.spec == spec


def test_threads_share_an_order() -> None:
    order = Order(1_000_000, 3)
    expected = [whole(order, epoch) for epoch in range(3)]
    wrong: list[tuple[int, int]] = []

    def read(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(150):
            epoch, start = int(rng.integers(3)), int(rng.integers(1_000_000 - 64))
            if not (order.rows(epoch, start, start + 64) == expected[epoch][start : start + 64]).all():
                wrong.append((epoch, start))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(order._windows._entries) <= 4
    assert len(order._blocks._entries) <= 2


def test_a_window_is_shuffled_once_for_all_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    shuffled = permutations.shuffled

    def recorded(n: int, bits: np.random.PCG64) -> Ints:
        made.append(n)
        return shuffled(n, bits)

    monkeypatch.setattr(order_module, "shuffled", recorded)
    order = Order(100_000_000, 1)
    for start in range(0, 3 * 16_384, 64):
        order.rows(0, start, start + 64)
    assert made == [16_384] * 3


# ---- refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n": -1}, "n is 0 or more"),
        ({"n": 2.0}, "n is an integer, got 2.0"),
        ({"n": 2**48 + 1}, "at most 281474976710656"),
        ({"seed": -1}, "seed is 0 or more"),
        ({"seed": 2**64}, "seed is 0 or more and at most 18446744073709551615"),
        ({"seed": True}, "seed is an integer, got True"),
        ({"shuffle": "row"}, 'shuffle is "blocks", "rows" or None, got \'row\''),
        ({"shuffle": True}, "got True"),
        ({"shuffle": "blocks:"}, "got 'blocks:'"),
        ({"shuffle": "blocks:64"}, '"blocks:64x32" is "blocks" with 64 rows'),
        ({"shuffle": "blocks:64x-1"}, "got 'blocks:64x-1'"),
        ({"shuffle": "blocks:64x32 "}, "got 'blocks:64x32 '"),
        ({"shuffle": "blocks:0x32"}, "block_rows is 1 or more"),
        ({"shuffle": "blocks:4096x4096"}, "smaller ones"),
        ({"block_rows": 0}, "block_rows is 1 or more"),
        ({"window_blocks": 0}, "window_blocks is 1 or more"),
        ({"block_rows": 2**12, "window_blocks": 2**11}, "smaller ones, or shuffle=\"rows\""),
    ],
)  # fmt: skip
def test_refused_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Order(**{"n": 10, "seed": 0, **options})
    assert says in str(caught.value)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3), (0, 11), (11, 11)])
def test_refused_slices(start: int, stop: int) -> None:
    with pytest.raises(IndexError, match=f"positions {start} to {stop} of an order of 10 rows"):
        Order(10, 0).rows(0, start, stop)


@pytest.mark.parametrize("positions", [[-1], [10], [0.5], [True], np.array([2**63], np.uint64)])
def test_refused_positions(positions: Any) -> None:
    for shuffle in SHUFFLES:
        with pytest.raises(IndexError, match="positions"):
            Order(10, 0, shuffle).at(0, positions)


def test_refused_epochs_and_row_keys() -> None:
    for epoch in (-1, 1.0, True, None):
        with pytest.raises(ConfigError, match="epoch"):
            Order(10, 0).rows(epoch, 0, 1)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="epoch"):
            Order(10, 0).at(epoch, [1])  # type: ignore[arg-type]
    for key, name in (((-1, 0, 0), "seed"), ((0, -1, 0), "epoch"), ((0, 0, -1), "position"), ((0, 0, 2**64), "position")):
        with pytest.raises(ConfigError, match=name):
            row_rng(*key)


# ---- the same for ever


def golden_cases() -> dict[str, Any]:
    """What the golden file pins: whole short orders, and slices of long ones across window and chunk edges."""
    cases: dict[str, Any] = {"orders": [], "row_rng": []}
    slices: list[tuple[int, int, int]] = [(1, 0, 1), (7, 0, 7), (103, 0, 103), (360, 0, 360)]
    slices += [(n, start, start + 40) for n in (16_385, 65_537, 100_000) for start in sorted({0, 16_345, n - 40})]
    slices += [(n, start, start + 12) for n in (100_000_000, 2**40) for start in (0, 1_018, 16_378, n // 2, n - 12)]
    for shuffle, (n, start, stop), (seed, epoch) in itertools.product(
        ("blocks", "rows"), slices, ((0, 0), (7, 2), (MOST, 2**33))
    ):
        order = Order(n, seed, shuffle)
        rows = order.rows(epoch, start, stop).tolist()
        cases["orders"].append({"spec": order.spec, "n": n, "seed": seed, "epoch": epoch, "start": start, "rows": rows})
    odd = Order(1_000, 5, block_rows=12, window_blocks=5)
    cases["orders"].append({"spec": odd.spec, "n": 1_000, "seed": 5, "epoch": 1, "start": 0, "rows": whole(odd, 1).tolist()})
    for key in ((0, 0, 0), (7, 2, 12_800), (MOST, 2**33, 2**40)):
        cases["row_rng"].append({"key": key, "raw": [hex(word) for word in row_rng(*key).bit_generator.random_raw(4).tolist()]})
    return cases


def test_the_order_is_the_one_of_the_golden_file() -> None:
    """A saved run must resume in the order that it began with, so this file never changes under a version number of `spec`.

    A change of the order on purpose: raise the number in `Order.spec`, say so in CHANGELOG under Iteration order, and write
    ``json.dumps(golden_cases())`` to the file, one case a line.
    """
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(golden_cases()))
    for kind in ("orders", "row_rng"):
        for pinned, computed in zip(golden[kind], now[kind], strict=True):
            assert computed == pinned
