"""Mixtures: exact shares, each part in its own order, several tables behind each other, and what is refused."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import time
import tracemalloc
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakehouse.dataset import Dataset
from lakehouse.decode import Image
from lakehouse.errors import ConfigError, FetchError, LakehouseError, NotFoundError, ResumeError, SchemaError
from lakehouse.fetch import BlobRef, BlobRefs, fetch_blob
from lakehouse.index import RowIndex, Source
from lakehouse.loader import Loader
from lakehouse.mixture import Mixture, Weighted
from lakehouse.mixture.mixed import MixedOrder, subseed
from lakehouse.order import Order, Shuffle
from lakehouse.testing import assert_elastic, assert_resumable
from tests.stores.place import on_stores
from tests.training import Maker, ids, image_index, make_index, write_blobs

pytestmark = on_stores


def numbered(folder: Path, name: str, first: int, n: int, **more: Any) -> RowIndex:
    """A table of its own, whose ids begin at ``first`` and whose bytes say them."""
    values = list(range(first, first + n))
    scalars = {"id": pa.array(values, pa.int64()), **more}
    return make_index(folder / name, scalars, {"data": [b"%d" % i for i in values]}, table=f"default.{name}")


@pytest.fixture(scope="module")
def parts(store: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RowIndex]:
    folder = tmp_path_factory.mktemp("parts")
    return {"day": numbered(folder, "day", 0, 103), "night": numbered(folder, "night", 1000, 17)}


def seven_to_three(parts: dict[str, RowIndex], **options: Any) -> Mixture:
    return Mixture({"day": (parts["day"], 0.7), "night": (parts["night"], 0.3)}, **options)


def mixed(sizes: list[int], weights: list[int], n: int, shuffle: Shuffle = "blocks", seed: int = 5) -> MixedOrder:
    starts = [0, *itertools.accumulate(sizes)][:-1]
    orders = tuple(Order(size, subseed(seed, f"part {i}"), shuffle) for i, size in enumerate(sizes))
    return MixedOrder(n, seed, shuffle, orders, tuple(starts), tuple(weights))


# ---- the order alone


@st.composite
def orders(draw: st.DrawFn) -> MixedOrder:
    sizes = draw(st.lists(st.integers(1, 400), min_size=1, max_size=6))
    weights = draw(st.lists(st.integers(0, 300), min_size=len(sizes), max_size=len(sizes)).filter(any))
    return mixed(
        sizes, weights, draw(st.integers(1, 6_000)), draw(st.sampled_from(["blocks", "rows", None])), draw(st.integers(0, 9))
    )


@settings(max_examples=60, deadline=None)
@given(orders(), st.integers(0, 3))
@example(mixed([3, 1], [1, 1], 1), 0)
@example(mixed([5, 5, 5], [1, 300, 1], 2 * 1024 + 1), 2)
def test_each_part_has_its_share_before_every_window_and_at_the_end(order: MixedOrder, epoch: int) -> None:
    rows = order.rows(epoch, 0, order.n)
    parts = np.searchsorted(order.starts, rows, side="right") - 1
    ends = {k * order.window for k in range(order.n // order.window)} | {order.n}
    for end in sorted(ends):
        counts = np.bincount(parts[:end], minlength=len(order.weights))
        for count, weight in zip(counts.tolist(), order.weights, strict=True):
            assert abs(count * sum(order.weights) - end * weight) < sum(order.weights)
            assert weight or not count


@settings(max_examples=30, deadline=None)
@given(orders(), st.integers(0, 3), st.data())
def test_any_slice_alone_equals_the_whole(order: MixedOrder, epoch: int, data: st.DataObject) -> None:
    whole = order.rows(epoch, 0, order.n)
    start = data.draw(st.integers(0, order.n))
    stop = data.draw(st.integers(start, order.n))
    other = pickle.loads(pickle.dumps(order))
    assert np.array_equal(other.rows(epoch, start, stop), whole[start:stop])
    some = np.array(data.draw(st.lists(st.integers(0, order.n - 1), max_size=8))).reshape(1, -1)
    assert np.array_equal(other.at(epoch, some), whole[some.astype(int)])


@pytest.mark.parametrize("shuffle", ["blocks", "rows", None])
def test_a_part_goes_through_its_own_order_pass_after_pass_across_epochs(shuffle: Shuffle) -> None:
    order = mixed([700, 90], [2, 1], 1501, shuffle)
    drawn: list[list[int]] = [[], []]
    for epoch in range(5):
        for row in order.rows(epoch, 0, order.n).tolist():
            drawn[row >= 700].append(row - 700 * (row >= 700))
    for part, rows in zip(order.parts, drawn, strict=True):
        passes = -(-len(rows) // part.n)
        expected = np.concatenate([part.rows(number, 0, part.n) for number in range(passes)])
        assert rows == expected[: len(rows)].tolist()
        counts = Counter(rows)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_epochs_seeds_and_windows_are_arranged_anew() -> None:
    order = mixed([5000, 5000], [1, 1], 4096)

    def labels(one: MixedOrder, epoch: int) -> list[tuple[bool, ...]]:
        rows = one.rows(epoch, 0, one.n) >= 5000
        return [tuple(rows[k : k + 1024].tolist()) for k in range(0, one.n, 1024)]

    seen = [*labels(order, 0), *labels(order, 1), *labels(mixed([5000, 5000], [1, 1], 4096, seed=6), 0)]
    assert len(set(seen)) == len(seen) == 12
    runs = [len(list(group)) for window in seen for _, group in itertools.groupby(window)]
    assert 1.9 < np.mean(runs) < 2.1  # of a fair coin


def test_parts_of_equal_length_are_not_in_step() -> None:
    order = mixed([600, 600], [1, 1], 1200)
    rows = order.rows(0, 0, 1200)
    one, two = rows[rows < 600], rows[rows >= 600] - 600
    assert len(one) == len(two) == 600
    assert (one == two).sum() < 10


def test_without_shuffle_parts_take_turns() -> None:
    order = mixed([100, 100, 100], [2, 1, 1], 40, None)
    rows = order.rows(0, 0, 40)
    assert rows[rows < 100].tolist() == list(range(20))
    for start in range(0, 40, 4):
        assert Counter((rows[start : start + 4] // 100).tolist()) == {0: 2, 1: 1, 2: 1}


def test_a_share_below_a_window_gets_longer_windows() -> None:
    order = mixed([10, 100_000], [1, 5000], 100_000)
    assert order.window == 8192
    counts = [(order.rows(0, start, start + 8192) < 10).sum() for start in range(0, 81_920, 8192)]
    assert set(counts) == {1, 2}


def test_nothing_of_the_size_of_a_part_is_made() -> None:
    order = mixed([10**10, 3 * 10**9], [7, 3], 10**10)
    order.rows(0, 0, 64)
    tracemalloc.start()
    began = time.perf_counter()
    for start in range(9 * 10**9, 9 * 10**9 + 6400, 64):
        assert len(order.rows(3, start, start + 64)) == 64
    seconds = time.perf_counter() - began
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 << 20
    assert seconds < 5


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3), (0, 41)])
def test_positions_outside_are_refused(start: int, stop: int) -> None:
    order = mixed([10, 10], [1, 1], 40)
    with pytest.raises(IndexError, match="of an order of 40"):
        order.rows(0, start, stop)
    with pytest.raises(IndexError, match="of an order of 40"):
        order.at(0, [0, 40])
    with pytest.raises(IndexError, match="positions are integers"):
        order.at(0, [0.5])
    with pytest.raises(ConfigError, match="epoch is 0 or more"):
        order.rows(-1, 0, 1)
    assert order.at(0, []).shape == (0,)


GOLDEN: dict[Shuffle, str] = {
    "blocks": "9a6e719df3123d24",
    "rows": "47119618951f5e47",
    None: "4ed8c67efbacee70",
}


@pytest.mark.parametrize("shuffle", GOLDEN)
def test_the_order_is_pinned(shuffle: Shuffle) -> None:
    """Changing it breaks saved runs: raise the version in `MixedOrder.spec` and say so in CHANGELOG, Iteration order."""
    order = mixed([50_000, 700, 3], [70, 29, 1], 5000, shuffle, seed=7)
    assert order.spec == f"mixture-1({Order(1, 0, shuffle).spec})"
    digest = hashlib.sha256(b"".join(order.rows(epoch, 0, 5000).astype("<i8").tobytes() for epoch in (0, 1, 2**40)))
    assert digest.hexdigest()[:16] == GOLDEN[shuffle]


# ---- what a mixture is


def test_rows_and_columns_of_all_parts(parts: dict[str, RowIndex]) -> None:
    mixture = seven_to_three(parts, source_column="source")
    assert (len(mixture), mixture.length) == (120, 120)
    assert mixture.columns == ("id", "data", "source")
    assert mixture.blob_columns == ("data",)
    assert mixture.shares == {"day": 0.7, "night": 0.3}
    assert mixture.parts == parts
    assert mixture.column("id").to_pylist() == [*range(103), *range(1000, 1017)]
    assert mixture.column("source").to_pylist() == ["day"] * 103 + ["night"] * 17
    assert [mixture.row_ids[i] for i in (0, 102, 103, 119)] == [1000, 1102, 1000, 1016]
    refs = mixture.blobs("data")
    assert len(refs) == len(mixture.row_ids) == 120
    assert refs.total_bytes == sum(len(str(i)) for i in mixture.column("id").to_pylist())
    assert mixture.where(102, "data") == parts["day"].where(102, "data")
    assert mixture.where(103, "data") == parts["night"].where(0, "data")
    assert mixture.where(105) == "default.night@3 row 1002"
    assert mixture.where(105, "source") == "default.night@3 row 1002"
    assert refs[103] == parts["night"].blobs("data")[0]
    with pytest.raises(IndexError, match="row 120 of 120 rows"):
        refs[120]
    assert repr(mixture) == "Mixture(day: 0.7 of 103 rows, night: 0.3 of 17 rows; 120 draws an epoch)"


@pytest.mark.parametrize("name", ["id", "data", "other"])
def test_columns_are_asked_for_as_of_an_index(parts: dict[str, RowIndex], name: str) -> None:
    mixture = seven_to_three(parts)
    with pytest.raises(NotFoundError if name == "other" else SchemaError):
        mixture.blobs(name) if name == "id" else mixture.column(name)


def test_weights_count_as_written_and_decide_the_fingerprint(parts: dict[str, RowIndex]) -> None:
    def of(day: Any, night: Any, **options: Any) -> Mixture:
        return Mixture({"day": (parts["day"], day), "night": (parts["night"], night)}, **options)

    same = [of(0.7, 0.3), of(7, 3), of(Fraction(7, 10), Fraction(3, 10)), of(np.float64(1.4), np.int64(1) * 0.6)]
    assert len({mixture.fingerprint for mixture in same}) == 1
    assert len({mixture.order(1, "rows").weights for mixture in same}) == 1
    others = [
        of(0.7, 0.30001), of(3, 7), of(7, 3, length=119),
        Mixture({"night": (parts["night"], 3), "day": (parts["day"], 7)}),
        Mixture({"day": (parts["day"].take(range(102)), 7), "night": (parts["night"], 3)}),
        Mixture({"tag": (parts["day"], 7), "night": (parts["night"], 3)}),
    ]  # fmt: skip
    assert len({mixture.fingerprint for mixture in [same[0], *others]}) == 7


def test_a_part_of_weight_zero_is_never_drawn_nor_counted(parts: dict[str, RowIndex]) -> None:
    mixture = Mixture({"day": (parts["day"], 0.0), "night": (parts["night"], 2)})
    assert (mixture.length, len(mixture)) == (17, 120)
    loader = Loader(Dataset(mixture, batch_size=17, rank=0, world=1))
    for _ in range(3):
        assert sorted(ids(loader)[0]) == list(range(1000, 1017))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda a, b: {}, "takes parts like"),
        (lambda a, b: [a, b], "takes parts like"),
        (lambda a, b: {"a": a}, "part 'a' of the mixture is a pair"),
        (lambda a, b: {"a": (a, 1, 2)}, "a pair"),
        (lambda a, b: {"a": ([1, 2], 1)}, "a pair"),
        (lambda a, b: {3: (a, 1)}, "name is a text, got 3"),
        (lambda a, b: {"a": (a, 1), "b": (b, -0.1)}, "weight of part 'b' is a finite number of 0 or more, got -0.1"),
        (lambda a, b: {"a": (a, float("nan"))}, "weight of part 'a' .* got nan"),
        (lambda a, b: {"a": (a, float("inf"))}, "got inf"),
        (lambda a, b: {"a": (a, True)}, "got True"),
        (lambda a, b: {"a": (a, "1")}, "got '1'"),
        (lambda a, b: {"a": (a, 0), "b": (b, 0.0)}, "all 0"),
        (lambda a, b: {"a": (a, 1), "b": (b, 1e-9)}, "part 'b' is 1e-09 of all weights, less than 1 in 1,048,576"),
        (lambda a, b: {"a": (a, 1), "b": (b.take([]), 1)}, "part 'b' of the mixture has no rows"),
        (lambda a, b: {"a": (Mixture({"b": (b, 1)}, source_column="s"), 1)}, "only the outermost mixture"),
    ],
)
def test_parts_that_are_none_are_refused(parts: dict[str, RowIndex], make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Mixture(make(parts["day"], parts["night"]))


@pytest.mark.parametrize("length", [0, -1, True, 1.5, "12", 2**48 + 1])
def test_a_length_that_is_none_is_refused(parts: dict[str, RowIndex], length: Any) -> None:
    with pytest.raises(ConfigError, match="length must be a whole number from 1"):
        seven_to_three(parts, length=length)


@pytest.mark.parametrize("name", ["id", "data", 3])
def test_a_source_column_needs_a_name_of_its_own(parts: dict[str, RowIndex], name: Any) -> None:
    with pytest.raises(ConfigError, match="source_column must be a name that no column has"):
        seven_to_three(parts, source_column=name)


def test_columns_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    def one(name: str, columns: dict[str, Any], blobs: dict[str, Any]) -> RowIndex:
        return make_index(tmp_path / name, columns, blobs)

    first = one("first", {"x": pa.array([1], pa.int32())}, {"data": [b"a"]})
    cases = {
        "'second' has 'y', 'first' has not": one("more", {"x": pa.array([1], pa.int32()), "y": pa.array([1])}, {"data": [b""]}),
        "'first' has 'x', 'second' has not": one("fewer", {}, {"data": [b""]}),
        "column 'x' is int32 in 'first', int64 in 'second'": one("wider", {"x": pa.array([1])}, {"data": [b""]}),
        "column 'data' is a BLOB in 'first', large_binary in 'second'": one(
            "inline", {"x": pa.array([1], pa.int32()), "data": pa.array([b""], pa.large_binary())}, {}
        ),
    }
    for text, second in cases.items():
        with pytest.raises(SchemaError, match=text):
            Mixture({"first": (first, 1), "second": (second, 1)})
    turned = make_index(tmp_path / "turned", {"x": pa.array([1], pa.int32())}, {"data": [b"b"]}).take([0])
    turned._schema = pa.schema([turned.schema.field("data"), turned.schema.field("x")])
    both = Mixture({"first": (first, 1), "turned": (turned, 1)})
    assert both.columns == ("x", "data")  # the order is the first one's
    assert list(next(iter(Dataset(both, batch_size=2, rank=0, world=1)))) == ["x", "data"]


# ---- batches


@pytest.mark.s3
def test_batches_come_from_the_right_tables(parts: dict[str, RowIndex]) -> None:
    mixture = seven_to_three(parts, source_column="source")
    loader = Loader(
        Dataset(mixture, batch_size=24, seed=3, rank=0, world=1, verify=True, decode={"data": lambda d, rng: int(bytes(d))})
    )
    got: Counter[str] = Counter()
    for batch in loader:
        assert batch["data"].tolist() == batch["id"].tolist()
        assert batch["source"] == ["day" if i < 1000 else "night" for i in batch["id"].tolist()]
        got.update(batch["source"])
    assert got == {"day": 84, "night": 36}
    rest = Dataset(mixture, batch_size=24, columns=["id"], rank=0, world=1)
    assert list(next(iter(rest))) == ["id"]


def test_every_type_of_column_from_several_tables(tmp_path: Path) -> None:
    def table(name: str, first: int) -> RowIndex:
        rows = range(first, first + 5)
        scalars = {
            "id": pa.array(rows, pa.int64()),
            "u": pa.array(rows, pa.uint16()),
            "maybe": pa.array([None if i % 2 else i for i in rows], pa.float32()),
            "flag": pa.array([i % 2 == 0 for i in rows]),
            "text": pa.array([str(i) for i in rows]).dictionary_encode(),
            "two": pa.array([[i, i + 1] for i in rows], pa.list_(pa.int16(), 2)),
            "many": pa.array([[i] * (i % 3) for i in rows], pa.list_(pa.int32())),
            "record": pa.array([{"a": i} for i in rows]),
        }
        return make_index(tmp_path / name, scalars, {})

    mixture = Mixture({"a": (table("a", 0), 1), "b": (table("b", 100), 1), "c": (table("c", 200), 2)})
    dataset = Dataset(mixture, batch_size=20, seed=1, fill={"maybe": -1}, rank=0, world=1, tail="pad")
    (batch,) = list(dataset)
    rows = batch["id"].tolist()
    assert {i // 100 for i in rows} == {0, 1, 2}
    assert batch["u"].tolist() == rows
    assert batch["maybe"].tolist() == [-1 if i % 2 else i for i in rows]
    assert batch["flag"].tolist() == [i % 2 == 0 for i in rows]
    assert batch["text"] == [str(i) for i in rows]
    assert batch["two"].tolist() == [[i, i + 1] for i in rows]
    assert [x.tolist() for x in batch["many"]] == [[i] * (i % 3) for i in rows]
    assert batch["record"] == [{"a": i} for i in rows]
    with pytest.raises(SchemaError, match=r"default\.frames@3 row 100[13] column maybe is null"):
        list(Dataset(mixture, batch_size=20, rank=0, world=1, tail="pad"))


def test_images_with_bad_rows_name_their_own_table(tmp_path: Path) -> None:
    good = image_index(tmp_path / "good", 12)
    bad = make_index(tmp_path / "bad", {"id": pa.array([50], pa.int64())}, {"image": [b"no image"]}, table="default.broken")
    mixture = Mixture({"good": (good, 11), "bad": (bad, 1)})
    options: dict[str, Any] = {"batch_size": 12, "decode": {"image": Image()}, "rank": 0, "world": 1}
    with pytest.raises(LakehouseError, match=r"default\.broken@3 row 1000 column image"):
        list(Dataset(mixture, **options))
    (batch,) = list(Dataset(mixture, **options, on_error="skip"))
    assert batch["image"].shape == (11, 24, 32, 3)
    assert [(entry["row"], Path(entry["uri"]).parent.name) for entry in batch["_bad"]] == [(1000, "bad")]


@pytest.mark.s3
def test_each_table_is_read_with_its_own_rights(tmp_path: Path) -> None:
    """A stranger's table that points into another part's folder gets nothing from there."""
    own = numbered(tmp_path, "own", 0, 4)
    refs = own.blobs("data")
    stranger = RowIndex(
        Source("default.stranger", "u", 1, str(tmp_path / "stranger")),
        own.schema, np.arange(4), {"id": own.column("id")}, {"data": refs},
    )  # fmt: skip
    write_blobs(tmp_path / "stranger" / "x.blob", [b""])
    for order in ((own, stranger), (stranger, own)):
        mixture = Mixture({str(k): (index, 1) for k, index in enumerate(order)})
        fetched = mixture.fetcher().fetch(mixture.blobs("data").take(range(8)))
        read = [value if isinstance(value, bytes) else type(value) for value in fetched.values]
        expected: dict[int, list[Any]] = {id(own): [b"0", b"1", b"2", b"3"], id(stranger): [FetchError] * 4}
        assert read == [value for index in order for value in expected[id(index)]]
        assert fetched.stats.bytes_referenced == 4
        assert all("blob_roots" in str(value) for value in fetched.values if isinstance(value, FetchError))


def test_the_fetcher_knows_single_references_and_nulls(parts: dict[str, RowIndex], tmp_path: Path) -> None:
    mixture = seven_to_three(parts)
    ref = mixture.blobs("data")[110]
    assert ref is not None
    assert fetch_blob(ref, mixture) == b"1007"
    assert ref.read(mixture) == b"1007"
    unknown = BlobRef(str(tmp_path / "elsewhere.blob"), 0, 3)
    got = mixture.fetcher().fetch(BlobRefs.of([None, unknown, ref]))
    assert got.values[0] is None
    assert got.values[2] == b"1007"
    assert isinstance(got.values[1], FetchError)
    assert "no table of the mixture refers to it" in str(got.values[1])
    with_null = make_index(tmp_path / "null", {"id": pa.array([7], pa.int64())}, {"data": [None]})
    both = Mixture({"day": (parts["day"], 1), "null": (with_null, 1)}, length=2)
    (batch,) = list(Dataset(both, batch_size=2, rank=0, world=1))
    assert batch["data"][batch["id"].tolist().index(7)] is None


# ---- exactness


def kinds(parts: dict[str, RowIndex]) -> dict[str, Any]:
    weighted = Weighted(parts["day"], weights=np.arange(103), length=60)
    return {
        "mixture": seven_to_three(parts, source_column="source"),
        "short": seven_to_three(parts, length=50),
        "nested": Mixture({"in": (seven_to_three(parts, length=33), 1), "hard": (weighted, 2)}),
        "weighted": weighted,
    }


@pytest.mark.parametrize("kind", ["mixture", "short", "nested", "weighted"])
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_elastic_and_resumable_at_every_step(parts: dict[str, RowIndex], kind: str, tail: str) -> None:
    make = Maker(kinds(parts)[kind], batch_size=12, seed=4, tail=tail)
    assert_elastic(make, worlds=(1, 2, 3, 4, 6, 12))
    assert_resumable(make, topologies=[(1, 0), (2, 0), (3, 0), (12, 0)], epochs=3)


@pytest.mark.parametrize("kind", ["nested", "weighted"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_worker_processes(parts: dict[str, RowIndex], kind: str, method: str) -> None:
    make = Maker(kinds(parts)[kind], method, batch_size=6, seed=4)
    expected_loader, many = make(), make(workers=2)
    for _ in range(2):
        assert ids(many) == ids(expected_loader)


def test_the_state_names_parts_weights_and_order(parts: dict[str, RowIndex]) -> None:
    def loader(mixture: Any, **options: Any) -> Loader:
        return Loader(Dataset(mixture, batch_size=10, seed=7, rank=0, world=1, **options))

    one = loader(seven_to_three(parts))
    batches = iter(one)
    next(batches)
    state = one.state_dict()
    assert state == {
        "format": 1, "index": seven_to_three(parts).fingerprint, "seed": 7, "epoch": 0, "position": 10,
        "order": "mixture-1(blocks-1:256x64)",
    }  # fmt: skip
    other = loader(seven_to_three(parts))
    other.load_state_dict(state)
    assert ids(other) == ids(batches)
    with pytest.raises(ResumeError, match="the state was saved with order"):
        loader(seven_to_three(parts), shuffle="rows").load_state_dict(state)
    for changed in (seven_to_three(parts, length=110), Mixture({"day": (parts["day"], 1)}), parts["day"]):
        with pytest.raises(ResumeError, match="other rows"):
            loader(changed).load_state_dict(state)


def test_mixtures_in_mixtures_multiply_shares(tmp_path: Path) -> None:
    tables = [numbered(tmp_path, f"t{k}", 1000 * k, 1000) for k in range(4)]
    low = Mixture({"a": (tables[0], 1), "b": (tables[1], 3)}, length=1024)
    hard = Weighted(tables[3], weights=[1.0] * 10 + [0.0] * 990)
    mixture = Mixture({"low": (low, 0.5), "c": (tables[2], 0.25), "hard": (hard, 0.25)}, length=4096, source_column="of")
    assert len(mixture) == 4000
    assert [mixture.where(i) for i in (1000, 2500, 3999)] == [
        "default.t1@3 row 1000", "default.t2@3 row 1500", "default.t3@3 row 1999",
    ]  # fmt: skip
    (batch,) = list(Dataset(mixture, batch_size=4096, rank=0, world=1, seed=2))
    tables_seen = Counter(i // 1000 for i in batch["id"].tolist())
    assert tables_seen == {0: 512, 1: 1536, 2: 1024, 3: 1024}
    assert Counter(batch["of"]) == {"low": 2048, "c": 1024, "hard": 1024}
    assert batch["data"] == [b"%d" % i for i in batch["id"].tolist()]
    assert {i for i in batch["id"].tolist() if i >= 3000} == set(range(3000, 3010))
    assert Dataset(mixture, batch_size=1).order.spec == (
        "mixture-1(mixture-1(blocks-1:256x64), blocks-1:256x64, weighted-1(blocks-1:256x64))"
    )


def test_a_mixture_travels_as_paths(tmp_path: Path) -> None:
    tables = {name: numbered(tmp_path, name, 0, 30_000) for name in ("a", "b")}
    heavy = Weighted(tables["b"], weights=np.ones(30_000))
    mixture = Mixture({"a": (tables["a"], 1), "b": (heavy, 2)})
    assert len(pickle.dumps(mixture)) < 300_000  # 30,000 weights of 8 bytes are too few for a file of their own
    assert pickle.loads(pickle.dumps(mixture)).fingerprint == mixture.fingerprint


def test_a_data_set_takes_nothing_else(parts: dict[str, RowIndex]) -> None:
    with pytest.raises(ConfigError, match=r"a RowIndex, Mixture or Weighted is needed, got dict"):
        Dataset({"a": (parts["day"], 1)}, batch_size=2)  # type: ignore[arg-type]
