"""Rows drawn by weight: each as often as its weight says, in every epoch, without patterns, and what is refused."""

from __future__ import annotations

import gc
import hashlib
import math
import multiprocessing
import pickle
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakehouse.dataset import Dataset
from lakehouse.errors import ConfigError, NotFoundError, SchemaError
from lakehouse.index import RowIndex
from lakehouse.loader import Loader
from lakehouse.mixture import Mixture, Weighted
from lakehouse.mixture.ends import Ends, WeightedOrder, rows_of
from lakehouse.mixture.weighted import _integers
from lakehouse.order import Order, Shuffle
from tests.stores.place import on_stores
from tests.training import ids, make_index

pytestmark = on_stores


def order_of(weights: Any, n: int, shuffle: Shuffle = "blocks", seed: int = 5) -> WeightedOrder:
    values = np.asarray(weights)
    return WeightedOrder(n, seed, shuffle, Ends(len(values), _integers(values, str)))


def counts_of(order: WeightedOrder, epoch: int = 0) -> npt.NDArray[np.int64]:
    return np.bincount(order.rows(epoch, 0, order.n), minlength=len(order.ends))


def table(folder: Path, **columns: Any) -> RowIndex:
    return make_index(folder, columns, {})


# ---- how often


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=700).filter(any),
    st.integers(1, 3000),
    st.sampled_from(["blocks", "rows", None]),
    st.integers(0, 4),
    st.integers(0, 9),
)
@example([1, 3], 1, "blocks", 0, 0)
@example([0, 0, 5, 0], 7, "rows", 1, 0)
@example([1] * 700, 700, "blocks", 0, 3)
def test_each_row_comes_as_often_as_due_rounded_down_or_up(
    weights: list[int], n: int, shuffle: Shuffle, epoch: int, seed: int
) -> None:
    counts = counts_of(order_of(weights, n, shuffle, seed), epoch)
    for count, weight in zip(counts.tolist(), weights, strict=True):
        due = Fraction(n * weight, sum(weights))
        assert count in (math.floor(due), math.ceil(due))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=300).filter(lambda w: sum(w) > 0), st.integers(1, 2000))
@example([5e-324, 5e-324, 0.0], 10)
@example([1e300] * 300, 300)
@example([0.1] * 300, 300)
def test_floats_too(weights: list[float], n: int) -> None:
    counts = counts_of(order_of(weights, n))
    total = sum(map(Fraction, weights))
    for count, weight in zip(counts.tolist(), weights, strict=True):
        due = n * Fraction(weight) / total
        slack = Fraction(1, 10**12)  # of the last of 62 bits
        assert math.floor(due - slack) <= count <= math.ceil(due + slack)
        assert weight or not count


@pytest.mark.parametrize("weight", [0.1, 1 / 3, 1e-200, 7])
def test_equal_weights_give_each_row_once(weight: float) -> None:
    for epoch in range(3):
        assert counts_of(order_of([weight] * 5000, 5000), epoch).tolist() == [1] * 5000


def test_what_one_epoch_rounds_the_others_even_out() -> None:
    weights = np.random.default_rng(3).random(2000)
    order = order_of(weights, 700)  # 0.35 draws a row and epoch
    due = weights / weights.sum() * 700
    total = np.zeros(2000)
    for epoch in range(60):
        total += counts_of(order, epoch)
        assert np.abs(total - due * (epoch + 1)).max() < 3
    assert total.min() < 5 < 30 < total.max()


@pytest.mark.parametrize("cameras", [2, 6, 256])
def test_a_pattern_of_the_table_does_not_beat_with_the_draws(cameras: int) -> None:
    """Rows of cameras take turns. Placed end to end as stored, a draw would meet one camera always, or never."""
    n = cameras * (12_288 // cameras)
    first = np.arange(n) % cameras == 0
    weights = np.where(first, 0.5, 1.5)
    for epoch in range(6):
        counts = counts_of(order_of(weights, int(weights.sum())), epoch)
        # As if each row had been rounded by a coin of its own, which spreads by half the root of their number.
        assert abs(counts[first].sum() - 0.5 * first.sum()) < 2.5 * math.sqrt(first.sum())


def test_epochs_and_seeds_are_shuffled_anew_and_slices_equal_the_whole() -> None:
    order = order_of(np.arange(3000), 3000)
    whole = [order.rows(epoch, 0, 3000) for epoch in range(2)]
    other = order_of(np.arange(3000), 3000, seed=6).rows(0, 0, 3000)
    assert (whole[0] == whole[1]).mean() < 0.01
    assert (whole[0] == other).mean() < 0.01
    assert np.array_equal(order.rows(1, 1000, 1500), whole[1][1000:1500])
    some = np.array([[2999, 0], [7, 7]])
    assert np.array_equal(pickle.loads(pickle.dumps(order)).at(1, some), whole[1][some])
    assert order.rows(0, 5, 5).tolist() == []
    for start, stop in ((-1, 3), (4, 3), (0, 3001)):
        with pytest.raises(IndexError):
            order.rows(0, start, stop)
    with pytest.raises(IndexError):
        order.at(0, [3000])


def test_neighbouring_draws_fall_on_neighbouring_rows() -> None:
    order = order_of(np.random.default_rng(0).random(1_000_000), 1_000_000)
    rows = np.sort(order.rows(0, 0, 16_384))  # a window of 64 blocks
    assert len(np.unique(rows // 1024)) < 64 * 3
    stored = order_of(np.ones(10_000), 10_000, None).rows(0, 0, 10_000)
    assert np.abs(stored - np.arange(10_000)).max() < 256


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**32), st.integers(1, 2**62), st.integers(0, 5))
@example(2**32 - 1, 2**32, 2**62, 0)
def test_points_are_exact_for_the_largest_epochs(draw: int, n: int, total: int, epoch: int) -> None:
    """Against Python's integers, which have no limit."""

    class Whole(Ends):
        def __init__(self) -> None:
            self.total = total
            self._path = None

        def rows(self, points: Any) -> Any:
            return points

    draw %= n
    order = WeightedOrder(n, 3, None, Whole())
    (point,) = order.at(epoch, [draw]).tolist()
    (first,) = order.at(epoch, [0]).tolist()  # floor(shift / n)
    assert 0 <= point < total
    assert draw * total // n + first <= point <= (draw * total - 1) // n + first + 1


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 16_384 + 300, 1 << 20])
def test_the_line_is_a_permutation_within_blocks(n: int) -> None:
    rows = rows_of(np.arange(n), n)
    assert np.array_equal(np.sort(rows), np.arange(n))
    assert np.array_equal(rows // 256, np.arange(n) // 256)


GOLDEN: dict[Shuffle, str] = {"blocks": "a90b64f80be61aa9", "rows": "657905fb608e801d", None: "d65299076ae86733"}


@pytest.mark.parametrize("shuffle", GOLDEN)
def test_the_order_is_pinned(shuffle: Shuffle) -> None:
    """Changing it breaks saved runs: raise the version in `WeightedOrder.spec` and say so in CHANGELOG, Iteration order."""
    order = order_of(np.arange(40_000) % 7, 5000, shuffle, seed=7)
    assert order.spec == f"weighted-1({Order(1, 0, shuffle).spec})"
    digest = hashlib.sha256(b"".join(order.rows(epoch, 0, 5000).astype("<i8").tobytes() for epoch in (0, 1, 2**40)))
    assert digest.hexdigest()[:16] == GOLDEN[shuffle]


# ---- what weights are


@pytest.mark.parametrize(
    "weights",
    [
        "hard",
        [0, 1, 2, 3],
        np.array([0, 1, 2, 3], np.uint8),
        np.array([0, 0.5, 1, 1.5], np.float32),
        torch.tensor([0, 1, 2, 3]),
        pa.array([0, 1, 2, 3]),
        np.array([0, 1, 2, 3], np.uint64) << np.uint64(61),  # their sum needs 64 bits
    ],
    ids=lambda weights: type(weights).__name__,
)
def test_weights_of_every_kind(tmp_path: Path, weights: Any) -> None:
    index = table(tmp_path, id=[10, 11, 12, 13], hard=pa.array([0.0, 1.0, 2.0, 3.0]))
    weighted = Weighted(index, weights=weights, length=60)
    (batch,) = ids(Loader(Dataset(weighted, batch_size=60, rank=0, world=1)))
    assert Counter(batch) == {11: 10, 12: 20, 13: 30}


def test_a_mask_draws_its_rows_equally(tmp_path: Path) -> None:
    index = table(tmp_path, id=list(range(8)))
    weighted = Weighted(index, weights=np.arange(8) % 2 == 0)
    assert (len(weighted), weighted.length) == (8, 8)
    (batch,) = ids(Loader(Dataset(weighted, batch_size=8, rank=0, world=1)))
    assert sorted(batch) == [0, 0, 2, 2, 4, 4, 6, 6]


@pytest.mark.parametrize(
    ("weights", "error", "text"),
    [
        (
            "negative",
            ConfigError,
            r"default\.frames@3 row 1002 column negative is -1\.0: a weight is a finite number of 0 or more",
        ),
        ("missing", NotFoundError, "no column 'missing'"),
        ("null", SchemaError, "column null has nulls"),
        ("text", SchemaError, "column text: weights are one number for each row"),
        ([1, 2, float("nan")], ConfigError, r"weights\[2\] is nan"),
        ([1, float("inf"), 2], ConfigError, r"weights\[1\] is inf"),
        ([1, -3, 2], ConfigError, r"weights\[1\] is -3"),
        ([0, 0, 0], ConfigError, "add up to 0: nothing could be drawn"),
        ([0.0, 0.0, 0.0], ConfigError, "add up to 0"),
        ([1e308, 1e308, 1e308], ConfigError, "add up to inf"),
        ([1, 2], ConfigError, "2 numbers for an index of 3 rows"),
        ([[1], [2], [3]], SchemaError, "2 axes"),
        (None, SchemaError, "got object with 0 axes"),
        (["a", "b", "c"], SchemaError, "got <U1"),
    ],
)
def test_weights_that_are_none_are_refused(tmp_path: Path, weights: Any, error: type[Exception], text: str) -> None:
    index = table(tmp_path, negative=[0.0, 1.0, -1.0], null=[1, None, 2], text=["a", "b", "c"])
    with pytest.raises(error, match=text):
        Weighted(index, weights=weights)


def test_what_can_not_be_drawn_from_is_refused(tmp_path: Path) -> None:
    index = table(tmp_path, x=[1, 2, 3])
    with pytest.raises(ConfigError, match="takes a RowIndex, got Mixture; a Mixture takes a Weighted"):
        Weighted(Mixture({"a": (index, 1)}), weights="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="there must be 1 to"):
        Weighted(index.take([]), weights=[])
    for length in (0, 2**32 + 1, 2.0, True):
        with pytest.raises(ConfigError, match="length must be a whole number from 1 to 4294967296"):
            Weighted(index, weights="x", length=length)  # type: ignore[arg-type]


def test_the_fingerprint_is_of_index_weights_and_length(tmp_path: Path) -> None:
    index = table(tmp_path, x=[1, 2, 3])
    assert Weighted(index, "x").fingerprint == Weighted(index, [1, 2, 3]).fingerprint
    others = [
        Weighted(index, "x"), Weighted(index, [1, 2, 4]), Weighted(index, "x", length=4),
        Weighted(index.take([0, 1, 1]), [1, 2, 3]),
    ]  # fmt: skip
    assert len({weighted.fingerprint for weighted in others} | {index.fingerprint}) == 5
    assert repr(others[2]).endswith("; 4 draws an epoch)")


# ---- classes


def test_balanced_classes_have_equal_shares(tmp_path: Path) -> None:
    weather = np.random.default_rng(1).choice(["dry", "rain", "snow", None], 6000, p=[0.9, 0.07, 0.02, 0.01])  # type: ignore[arg-type]
    index = table(tmp_path, id=list(range(6000)), weather=pa.array(weather.tolist()))
    weighted = Weighted.balanced(index, by="weather")
    assert weighted.length == 6000
    for epoch in range(3):
        rows = weighted.order(7, "blocks").rows(epoch, 0, 6000)
        counts = Counter(weather[rows].tolist())
        assert set(counts) == {"dry", "rain", "snow", None}
        assert all(abs(count - 1500) < 60 for count in counts.values())
        for name in counts:  # shared equally within a class
            each = np.bincount(rows, minlength=6000)[weather == name]
            assert each.max() - each.min() <= 1
    coded = table(tmp_path / "coded", weather=pa.array(weather.tolist()).dictionary_encode())
    assert Weighted.balanced(coded, by="weather")._ends.digest == weighted._ends.digest


def test_classes_that_take_turns_are_balanced_too(tmp_path: Path) -> None:
    names = ["FRONT", "FRONT", "LEFT", "RIGHT"] * 3000
    weighted = Weighted.balanced(table(tmp_path, channel=names), by="channel")
    for epoch in range(4):
        counts = Counter(np.array(names)[weighted.order(1, "rows").rows(epoch, 0, 12_000)].tolist())
        assert all(abs(count - 4000) < 120 for count in counts.values())


def test_what_has_no_classes_is_refused(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"many": pa.array([[1], [2]]), "record": pa.array([{"a": 1}, {"a": 2}])}, {"data": [b"", b""]})
    for name, error in (("data", SchemaError), ("other", NotFoundError), ("many", SchemaError), ("record", SchemaError)):
        with pytest.raises(error):
            Weighted.balanced(index, by=name)


# ---- processes


def _rows(weighted: Weighted) -> tuple[str, list[int]]:
    return weighted.fingerprint, weighted.order(3, "rows").rows(0, 0, 50).tolist()


def test_many_weights_are_mapped_by_other_processes_and_their_file_goes(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"x": np.arange(200_000, dtype=np.int64)}, {})
    weighted = Weighted(index, "x")
    path = weighted._ends._path
    assert path is not None
    assert path.stat().st_size == 8 * 200_000
    packed = pickle.dumps(weighted)
    assert len(packed) < 3000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_rows, (weighted,)) == _rows(weighted)
    assert path.exists()  # the other process only read it
    del weighted
    gc.collect()
    assert not path.exists()
