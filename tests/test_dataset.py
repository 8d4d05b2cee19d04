"""Dataset: options, what a batch is, order and shards, randomness, threads, bounds, pickling, torch's own loaders."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from lakehouse.dataset import Dataset
from lakehouse.dataset.columns import scalar_column
from lakehouse.dataset.pipeline import Pipeline, Stop
from lakehouse.decode import Image, Raw
from lakehouse.errors import ConfigError, DecodeError, LakehouseError, NotFoundError, SchemaError
from lakehouse.fetch import BlobRefs, Fetched
from lakehouse.index import RowIndex
from lakehouse.order import row_rng
from lakehouse.testing import FaultyFetcher
from tests.training import ids, image_index, jpeg, make_index, payload, raw_index, same

ROOT = Path(__file__).parent.parent


def one(index: RowIndex, **options: Any) -> Dataset:
    """A data set of one rank in stored order, unless said otherwise."""
    return Dataset(index, **{"batch_size": 4, "rank": 0, "world": 1, "shuffle": None, **options})


@pytest.fixture
def mixed(tmp_path: Path) -> RowIndex:
    return make_index(
        tmp_path,
        {"id": [0, 1, 2, 3], "name": ["a", None, "c", "d"], "speed": pa.array([1.5, None, 3.5, 4.5])},
        {"frame": [jpeg(i) for i in range(4)], "note": [b"zero", b"", None, b"three"]},
    )


# ---- options


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch_size": 0}, ConfigError, "batch_size must be a whole number of at least 1"),
        ({"batch_size": "64"}, ConfigError, "batch_size"),
        ({"batch_size": True}, ConfigError, "batch_size"),
        ({"batch_size": 2.0}, ConfigError, "batch_size"),
        ({"seed": -1}, ConfigError, "seed must be a whole number from 0"),
        ({"seed": 2**64}, ConfigError, "seed"),
        ({"shuffle": "block"}, ConfigError, "'blocks', 'rows', None"),
        ({"shuffle": True}, ConfigError, "shuffle"),
        ({"tail": "keep"}, ConfigError, "'drop', 'pad'"),
        ({"on_error": "ignore"}, ConfigError, "'raise', 'skip', 'null'"),
        ({"max_bad": 1.5}, ConfigError, "share"),
        ({"max_bad": -1}, ConfigError, "max_bad"),
        ({"max_bad": True}, ConfigError, "max_bad"),
        ({"ragged": 1}, ConfigError, "ragged must be True or False"),
        ({"verify": "yes"}, ConfigError, "verify"),
        ({"threads": -1}, ConfigError, "threads"),
        ({"prefetch_bytes": 0}, ConfigError, "prefetch_bytes"),
        ({"rank": 1}, ConfigError, "rank must be a whole number from 0 to 0"),
        ({"rank": 0, "world": None}, ConfigError, "belong together"),
        ({"columns": "id"}, ConfigError, "sequence of column names"),
        ({"columns": []}, ConfigError, "at least one"),
        ({"columns": ["id", "id"]}, ConfigError, "each once"),
        ({"columns": ["idd"]}, NotFoundError, "did you mean 'id'"),
        ({"decode": {"framee": Image()}}, NotFoundError, "did you mean 'frame'"),
        ({"decode": {"id": Image()}}, SchemaError, "frame, note"),
        ({"decode": {"frame": Image}}, ConfigError, r"did you mean Image\(\)"),
        ({"decode": {"frame": "jpeg"}}, ConfigError, "must be a decoder"),
        ({"decode": [Image()]}, ConfigError, "mapping"),
        ({"decode": {"frame": Image()}, "columns": ["id"]}, ConfigError, "leaves out"),
        ({"fill": {"name": "x"}}, SchemaError, "only null numbers"),
        ({"fill": {"id": 1.5}}, SchemaError, "no value of int64"),
        ({"fill": {"id": None}}, SchemaError, "no value of int64"),
        ({"fill": {"nope": 1}}, NotFoundError, "nope"),
        ({"fill": 0}, ConfigError, "mapping"),
        ({"transform": 3}, ConfigError, "function"),
        ({"fetcher": object()}, ConfigError, "fetch"),
        ({"cache": 3}, ConfigError, "Cache"),
    ],
)
def test_a_wrong_option_is_refused_at_construction(mixed: RowIndex, options: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        one(mixed, **options)


def test_an_option_that_does_not_exist_is_refused(mixed: RowIndex) -> None:
    with pytest.raises(TypeError):
        one(mixed, caches=None)


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["valid"], "valid"),
        (["_bad"], "_bad"),
        (["x", "x_ok"], "x_ok"),
        (["x_ok"], None),  # no column x: nothing to take it for
    ],
)
def test_reserved_column_names(tmp_path: Path, names: list[str], refused: str | None) -> None:
    index = make_index(tmp_path, {name: [1, 2, 3, 4] for name in names})
    if refused is None:
        assert list(next(iter(one(index)))) == names
        return
    with pytest.raises(SchemaError, match=f"'{refused}'"):
        one(index)


def test_rank_and_world_come_from_the_environment(mixed: RowIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"batch_size": 1, "shuffle": None}
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert (Dataset(mixed, **options).shard.rank, Dataset(mixed, **options).shard.world) == (0, 1)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConfigError, match="only one of RANK and WORLD_SIZE"):
        Dataset(mixed, **options)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ids(Dataset(mixed, columns=["id"], **options)) == [[1], [3]]
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match="whole numbers"):
        Dataset(mixed, **options)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ConfigError, match="from the environment"):
        Dataset(mixed, **options)


# ---- what a batch is

_NOON = datetime(2026, 3, 1, 12, 0, 0, 123456)
SCALARS: list[tuple[str, pa.DataType, list[Any], Any]] = [
    ("bool", pa.bool_(), [True, False, True], torch.tensor([True, False, True])),
    ("i8", pa.int8(), [-128, 0, 127], torch.tensor([-128, 0, 127], dtype=torch.int8)),
    ("i16", pa.int16(), [-32768, 0, 32767], torch.tensor([-32768, 0, 32767], dtype=torch.int16)),
    ("i32", pa.int32(), [-(2**31), 0, 2**31 - 1], torch.tensor([-(2**31), 0, 2**31 - 1], dtype=torch.int32)),
    ("i64", pa.int64(), [-(2**63), 0, 2**63 - 1], torch.tensor([-(2**63), 0, 2**63 - 1])),
    ("u8", pa.uint8(), [0, 133, 255], torch.tensor([0, 133, 255], dtype=torch.uint8)),
    ("u16", pa.uint16(), [0, 1, 65535], torch.tensor([0, 1, 65535], dtype=torch.int32)),
    ("u32", pa.uint32(), [0, 1, 2**32 - 1], torch.tensor([0, 1, 2**32 - 1])),
    ("u64", pa.uint64(), [0, 1, 2**63 - 1], torch.tensor([0, 1, 2**63 - 1])),
    ("f16", pa.float16(), [np.float16(0.5), np.float16(1), np.float16(2)], torch.tensor([0.5, 1, 2], dtype=torch.float16)),
    ("f32", pa.float32(), [0.25, -1.0, float("inf")], torch.tensor([0.25, -1.0, float("inf")])),
    ("f64", pa.float64(), [0.1, -1.0, 1e300], torch.tensor([0.1, -1.0, 1e300], dtype=torch.float64)),
    ("codes", pa.dictionary(pa.int8(), pa.int32()), [7, 8, 7], torch.tensor([7, 8, 7], dtype=torch.int32)),
    ("vector", pa.list_(pa.float32(), 2), [[1, 2], [3, 4], [5, 6]], torch.tensor([[1.0, 2], [3, 4], [5, 6]])),
    ("wide", pa.list_(pa.uint16(), 1), [[1], [65535], [3]], torch.tensor([[1], [65535], [3]], dtype=torch.int32)),
    ("bits", pa.list_(pa.bool_(), 2), [[True, False], [False, False], [True, True]],
     torch.tensor([[True, False], [False, False], [True, True]])),
    ("list", pa.list_(pa.int32()), [[1, 2], [], None],
     [torch.tensor([1, 2], dtype=torch.int32), torch.tensor([], dtype=torch.int32), None]),
    ("big_list", pa.large_list(pa.uint16()), [[1], [2, 65535], []],
     [torch.tensor([1], dtype=torch.int32), torch.tensor([2, 65535], dtype=torch.int32), torch.tensor([], dtype=torch.int32)]),
    ("text", pa.string(), ["a", None, "é图"], ["a", None, "é图"]),
    ("big_text", pa.large_string(), ["a", None, ""], ["a", None, ""]),
    ("category", pa.dictionary(pa.int8(), pa.string()), ["x", None, "x"], ["x", None, "x"]),
    ("binary", pa.binary(), [b"", None, b"\x00\xff"], [b"", None, b"\x00\xff"]),
    ("fixed_binary", pa.binary(2), [b"ab", None, b"\x00\xff"], [b"ab", None, b"\x00\xff"]),
    ("decimal", pa.decimal128(38, 18), [Decimal("1.5"), None, Decimal("-0.000000000000000001")],
     [Decimal("1.500000000000000000"), None, Decimal("-0.000000000000000001")]),
    ("date", pa.date32(), [date(1969, 12, 31), None, date(2026, 3, 1)], [date(1969, 12, 31), None, date(2026, 3, 1)]),
    ("instant", pa.timestamp("us"), [_NOON, None, _NOON], [_NOON, None, _NOON]),
    ("zoned", pa.timestamp("us", "UTC"), [_NOON.replace(tzinfo=timezone.utc), None, None],
     [_NOON.replace(tzinfo=timezone.utc), None, None]),
    ("texts", pa.list_(pa.string()), [["a"], [], None], [["a"], [], None]),
    ("nested", pa.list_(pa.list_(pa.int8())), [[[1], []], [], None], [[[1], []], [], None]),
    ("struct", pa.struct([("x", pa.int8()), ("m", pa.map_(pa.string(), pa.int8()))]),
     [{"x": 1, "m": [("k", 2)]}, None, {"x": None, "m": None}], [{"x": 1, "m": {"k": 2}}, None, {"x": None, "m": None}]),
    ("map", pa.map_(pa.string(), pa.list_(pa.int8())), [[("k", [1])], [], None], [{"k": [1]}, {}, None]),
    ("maps", pa.list_(pa.map_(pa.string(), pa.int8())), [[[("k", 1)]], [], None], [[{"k": 1}], [], None]),
    ("nothing", pa.null(), [None, None, None], [None, None, None]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "expected"), [case[1:] for case in SCALARS], ids=[case[0] for case in SCALARS])
@pytest.mark.parametrize("offset", [0, 2])
def test_every_arrow_type(tmp_path: Path, kind: pa.DataType, values: list[Any], expected: Any, offset: int) -> None:
    """Also as a slice of a longer array, whose buffers begin elsewhere."""
    index = make_index(tmp_path, {"x": pa.array(values[:offset] + values, kind).slice(offset)})
    (batch,) = one(index, batch_size=3)
    assert same(batch["x"], expected)
    backwards = next(iter(one(index.take([2, 0, 0]), batch_size=3)))["x"]
    picked = [expected[2], expected[0], expected[0]]
    assert same(backwards, torch.stack(picked) if isinstance(expected, torch.Tensor) else picked)


def test_tensors_are_the_trainers_own(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"x": [1, 2, 3], "v": pa.array([[1.0], [2.0], [3.0]], pa.list_(pa.float32(), 1))})
    ds = one(index, batch_size=3)
    for batch in (*ds, *ds):
        assert batch["x"].tolist() == [1, 2, 3]
        batch["x"].zero_()
        batch["v"].zero_()
    assert index.column("x").to_pylist() == [1, 2, 3]


NULLS: list[tuple[str, pa.DataType, list[Any], Any, Any]] = [
    ("int", pa.int32(), [1, None, 3], -1, torch.tensor([1, -1, 3], dtype=torch.int32)),
    ("unsigned", pa.uint16(), [1, None, 3], 65535, torch.tensor([1, 65535, 3], dtype=torch.int32)),
    ("float", pa.float64(), [1.0, None, 3.0], float("nan"), torch.tensor([1.0, float("nan"), 3.0], dtype=torch.float64)),
    ("bool", pa.bool_(), [True, None, True], False, torch.tensor([True, False, True])),
    ("codes", pa.dictionary(pa.int8(), pa.int32()), [1, None, 3], 0, torch.tensor([1, 0, 3], dtype=torch.int32)),
    ("vector", pa.list_(pa.int8(), 2), [[1, 2], None, [5, 6]], 9, torch.tensor([[1, 2], [9, 9], [5, 6]], dtype=torch.int8)),
    ("element", pa.list_(pa.int8(), 2), [[1, 2], [3, None], [5, 6]], 9, torch.tensor([[1, 2], [3, 9], [5, 6]], dtype=torch.int8)),
    ("item", pa.list_(pa.int8()), [[1, 2], [None], []], 9,
     [torch.tensor([1, 2], dtype=torch.int8), torch.tensor([9], dtype=torch.int8), torch.tensor([], dtype=torch.int8)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "fill", "expected"), [case[1:] for case in NULLS], ids=[case[0] for case in NULLS])
def test_a_null_number_is_an_error_or_filled(
    tmp_path: Path, kind: pa.DataType, values: list[Any], fill: Any, expected: Any
) -> None:
    index = make_index(tmp_path, {"x": pa.array(values, kind)})
    with pytest.raises(SchemaError, match=r"default.frames@3 row 1001 column x is null.*fill="):
        list(one(index, batch_size=3, on_error="skip"))  # which is about bytes, not about values
    (batch,) = one(index, batch_size=3, fill={"x": fill})
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(batch["x"], expected, rtol=0, atol=0, equal_nan=True)
    else:
        assert same(batch["x"], expected)


def test_uint64_beyond_int64_is_an_error_with_its_row(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"x": pa.array([1, 2**63, 3], pa.uint64())})
    with pytest.raises(SchemaError, match=r"row 1001 column x is 9223372036854775808"):
        list(one(index, batch_size=3))


@given(
    values=st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=30),
    rows=st.lists(st.integers(0, 29), max_size=40),
)
def test_taking_rows_equals_a_plain_list(values: list[int | None], rows: list[int]) -> None:
    at = np.array([row % len(values) for row in rows], np.int64)
    array = pa.array([None, *values], pa.int32()).slice(1)
    got = scalar_column("x", array, -7, lambda i, name: f"{i} {name}").take(at)
    assert isinstance(got, torch.Tensor)
    assert got.tolist() == [-7 if values[row] is None else values[row] for row in at]


def test_columns_select_and_order(mixed: RowIndex) -> None:
    (batch,) = one(mixed, fill={"speed": 0.0}, decode={"frame": Image()})
    assert list(batch) == ["id", "name", "speed", "frame", "note"]
    assert batch["note"] == [b"zero", b"", None, b"three"]
    assert batch["frame"].shape == (4, 24, 32, 3)
    (batch,) = one(mixed, columns=["note", "id"])
    assert list(batch) == ["note", "id"]


# ---- images and other decoders


def test_images_equal_those_decoded_alone(tmp_path: Path) -> None:
    index = image_index(tmp_path, 50)
    for decoder in (Image(), Image(size=(16, 20)), Image(layout="CHW"), Image(mode="L")):
        for threads in (0, 3):
            batches = list(one(index, batch_size=25, threads=threads, decode={"image": decoder}))
            images = torch.cat([batch["image"] for batch in batches])
            assert images.dtype == torch.uint8
            for i in range(50):
                assert np.array_equal(images[i].numpy(), decoder(jpeg(i))), (decoder, i)


def test_shapes_that_differ_are_an_error_or_ragged(tmp_path: Path) -> None:
    index = image_index(tmp_path, 40, shape=lambda i: (24, 32) if i != 33 else (32, 24))
    for threads in (0, 4):
        with pytest.raises(DecodeError, match=r"row 1000 .*\(24, 32, 3\).*row 1033 .*\(32, 24, 3\).*ragged=True"):
            list(one(index, batch_size=40, threads=threads, on_error="skip", decode={"image": Image()}))
    (batch,) = one(index, batch_size=40, ragged=True, decode={"image": Image()})
    assert [tuple(image.shape) for image in batch["image"]] == [(32, 24, 3) if i == 33 else (24, 32, 3) for i in range(40)]
    assert all(np.array_equal(image.numpy(), Image()(jpeg(i, *image.shape[:2]))) for i, image in enumerate(batch["image"]))
    (batch,) = one(index, batch_size=40, ragged=True, decode={"image": Image(size=(8, 8))})
    assert batch["image"].shape == (40, 8, 8, 3)


def test_a_broken_first_row_does_not_set_the_shape(tmp_path: Path) -> None:
    """Its header is whole and has another size than all the rest."""
    images = [jpeg(0, 200, 100)[:-900], *(jpeg(i) for i in range(1, 20))]
    index = make_index(tmp_path, {"id": list(range(20))}, {"image": images})
    for threads in (0, 2):
        ds = one(index, batch_size=20, threads=threads, on_error="skip", decode={"image": Image()})
        for _ in range(5):
            (batch,) = ds
            assert batch["id"].tolist() == list(range(1, 20))
            assert all(np.array_equal(batch["image"][i - 1].numpy(), Image()(images[i])) for i in range(1, 20))


def length_of(data: bytes, rng: np.random.Generator) -> int:
    return len(data)


def halves(data: bytes, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.array([len(data) // 2, len(data)], np.uint16)


def as_text(data: bytes, rng: np.random.Generator) -> str:
    return data.decode("latin1")


def own_draw(data: bytes, rng: np.random.Generator) -> float:
    return float(rng.random())


def reversed_view(data: bytes, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.frombuffer(data.ljust(50, b"."), np.uint8)[::-1]


def in_a_tensor(data: bytes, rng: np.random.Generator) -> torch.Tensor:
    return torch.full((2, 3), float(len(data)))


def test_custom_decoders(tmp_path: Path) -> None:
    index = raw_index(tmp_path, 8)
    lengths = [len(payload(i)) for i in range(8)]

    def column(decoder: Any, **options: Any) -> Any:
        (batch,) = one(index, batch_size=8, decode={"data": decoder}, **options)
        return batch["data"]

    assert same(column(length_of), torch.tensor(lengths))
    assert same(column(halves), torch.tensor([[n // 2, n] for n in lengths], dtype=torch.int32))
    assert column(as_text) == [payload(i).decode("latin1") for i in range(8)]
    assert column(lambda data, rng: np.float32(len(data))).dtype == torch.float32
    assert column(lambda data, rng: None) == [None] * 8
    assert column(reversed_view)[3].numpy().tobytes()[::-1].startswith(payload(3))
    assert same(column(in_a_tensor), torch.stack([torch.full((2, 3), float(n)) for n in lengths]))
    with pytest.raises(DecodeError, match="shapes differ"):
        column(lambda data, rng: np.zeros(len(data)))
    assert [len(array) for array in column(lambda data, rng: np.zeros(len(data)), ragged=True)] == lengths
    with pytest.raises(LakehouseError, match="different types: torch.float32, torch.float64"):
        column(lambda data, rng: np.zeros(1, np.float32 if len(data) % 2 else np.float64))


def test_the_real_frames_come_back_byte_by_byte(tmp_path: Path, road_frames: list[Path]) -> None:
    data = [path.read_bytes() for path in road_frames]
    index = make_index(tmp_path, {"id": list(range(6))}, {"frame": data})
    ds = one(index, batch_size=3, shuffle="rows")
    assert {i: value for batch in ds for i, value in zip(batch["id"].tolist(), batch["frame"], strict=True)} == dict(
        enumerate(data)
    )


# ---- order, shards, tails


@pytest.mark.parametrize("shuffle", ["blocks", "rows", None])
@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 24, 103])
def test_every_row_once_on_any_world(tmp_path: Path, n: int, tail: str, shuffle: Any) -> None:
    index = raw_index(tmp_path, n)
    for world in (1, 2, 4):
        for size in (1, 3, 4):
            ranks = [
                Dataset(index, batch_size=size, rank=rank, world=world, tail=tail, shuffle=shuffle, columns=["id"])  # type: ignore[arg-type]
                for rank in range(world)
            ]
            batches = [list(ds) for ds in ranks]
            assert {len(of_rank) for of_rank in batches} == {len(ranks[0])}
            steps = n // (world * size) if tail == "drop" else -(-n // (world * size))
            assert len(ranks[0]) == steps
            seen: Counter[int] = Counter()
            for batch in (batch for of_rank in batches for batch in of_rank):
                assert len(batch["id"]) == size
                valid = batch["valid"] if tail == "pad" else torch.ones(size, dtype=torch.bool)
                seen.update(batch["id"][valid].tolist())
            assert max(seen.values(), default=1) == 1
            assert n - len(seen) < world * size if tail == "drop" else len(seen) == n


def test_too_few_rows_are_logged_not_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = raw_index(tmp_path, 3)
    with caplog.at_level("WARNING", logger="lakehouse"):
        ds = one(index, batch_size=8)
    assert "3 rows are fewer than one global batch of 8" in caplog.text
    assert (len(ds), list(ds)) == (0, [])
    caplog.clear()
    assert list(one(index.take([]), batch_size=8)) == []
    assert list(one(index.take([]), batch_size=8, tail="pad")) == []
    assert caplog.text == ""


def test_epochs_differ_and_repeat(tmp_path: Path) -> None:
    ds = one(raw_index(tmp_path, 40), shuffle="blocks", columns=["id"])
    epochs = []
    for epoch in (0, 1, 2, 0, 1, 2):
        ds.set_epoch(epoch)
        assert ds.epoch == epoch
        epochs.append(ids(ds))
    assert epochs[:3] == epochs[3:]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert ids(ds) == epochs[2]  # iterating alone does not move on
    with pytest.raises(ConfigError, match="epoch"):
        ds.set_epoch(-1)


def test_single_rows(tmp_path: Path) -> None:
    index = make_index(
        tmp_path, {"id": list(range(5)), "name": list("abcde")}, {"image": [jpeg(i, 10 + i, 20) for i in range(5)]}
    )
    ds = one(index, batch_size=None, decode={"image": Image()}, tail="pad")
    assert len(ds) == 5
    rows = list(ds)
    assert [row["name"] for row in rows] == list("abcde")
    assert [tuple(row["image"].shape) for row in rows] == [(10 + i, 20, 3) for i in range(5)]
    assert rows[3]["id"].shape == ()
    assert rows[3]["valid"].item() is True
    parts = [list(one(index, batch_size=None, rank=rank, world=2, columns=["id"])) for rank in range(2)]
    assert [[int(row["id"]) for row in part] for part in parts] == [[0, 2], [1, 3]]


# ---- randomness


def noisy(batch: dict[str, Any], rngs: Any) -> dict[str, Any]:
    """Draws twice for some rows, in an order of its own, and not at all for others."""
    draws = torch.zeros(len(rngs), dtype=torch.float64)
    for i in reversed(range(0, len(rngs), 2)):
        draws[i] = rngs[i].random() + rngs[i].random()
    return {**batch, "draw": draws}


def test_a_rows_draws_depend_on_its_position_alone(tmp_path: Path) -> None:
    index = raw_index(tmp_path, 48)

    def draws(**options: Any) -> dict[int, float]:
        ds = one(index, **{"seed": 3, "shuffle": "rows", **options})
        ds.set_epoch(2)
        return {int(i): float(d) for batch in ds for i, d in zip(batch["id"], batch["own" if own else "draw"], strict=True)}

    own = False
    expected = draws(batch_size=12, transform=noisy)
    halves_ = [draws(batch_size=6, rank=rank, world=2, transform=noisy) for rank in range(2)]
    assert {**halves_[0], **halves_[1]} == expected
    ds = one(index, batch_size=12, seed=3, shuffle="rows", transform=noisy)
    ds.set_epoch(2)
    first = next(iter(ds))
    generator = row_rng(3, 2, 4)
    assert float(first["draw"][4]) == generator.random() + generator.random()
    assert float(first["draw"][5]) == 0.0


def test_decoders_draw_by_position_too(tmp_path: Path) -> None:
    ds = one(raw_index(tmp_path, 8), batch_size=4, seed=5, decode={"data": own_draw})
    got = torch.cat([batch["data"] for batch in ds]).tolist()
    assert np.allclose(got, [row_rng(5, 0, position).random() for position in range(8)])


def test_rngs_are_a_lazy_sequence(tmp_path: Path) -> None:
    seen: list[Any] = []
    list(one(raw_index(tmp_path, 4), transform=lambda batch, rngs: seen.append(rngs)))
    (rngs,) = seen
    assert len(rngs) == len(list(rngs)) == 4
    assert rngs[1] is rngs[-3] is rngs[0:2][1]
    with pytest.raises(IndexError):
        rngs[4]


def test_many_small_steps_on_many_threads_stay_in_order(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"id": list(range(3000))}, {"data": [i.to_bytes(2, "little") for i in range(3000)]})
    for size in (None, 3):
        rows = list(one(index, batch_size=size, threads=4))
        got = [row["data"] for row in rows] if size is None else [value for row in rows for value in row["data"]]
        assert [int.from_bytes(value, "little") for value in got] == list(range(3000))


def test_closing_from_another_thread_ends_the_wait(tmp_path: Path) -> None:
    batches = iter(one(raw_index(tmp_path, 8), fetcher=Slow(), threads=2))
    timer = threading.Timer(0.2, batches.close)
    timer.start()
    assert list(batches) == []
    timer.join()


def test_the_transform_is_called_in_order_and_one_at_a_time(tmp_path: Path) -> None:
    running: list[int] = []
    order: list[list[int]] = []

    def transform(batch: Any, rngs: Any) -> Any:
        assert not running
        running.append(1)
        time.sleep(0.001)
        order.append(batch["id"].tolist())
        running.pop()
        return batch["id"]

    got = [batch.tolist() for batch in one(raw_index(tmp_path, 40), transform=transform, threads=4)]
    assert got == order == [list(range(i, i + 4)) for i in range(0, 40, 4)]


# ---- errors that stop the run


def boom(data: bytes, rng: np.random.Generator) -> Any:
    if data == payload(17):
        raise ZeroDivisionError("in the user's own line")
    return 1


def boom_transform(batch: Any, rngs: Any) -> Any:
    if 17 in batch["id"].tolist():
        raise KeyError("in the user's own transform")
    return batch


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("on_error", ["raise", "skip", "null"])
def test_a_mistake_surfaces_at_its_step_with_its_traceback(tmp_path: Path, threads: int, on_error: Any) -> None:
    index = raw_index(tmp_path, 40)
    batches: Iterator[Any] = iter(one(index, threads=threads, on_error=on_error, decode={"data": boom}))
    for _ in range(4):
        next(batches)
    with pytest.raises(LakehouseError, match=r"default.frames@3 row 1017 column data.*ZeroDivisionError") as caught:
        next(batches)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.__cause__.__traceback__ is not None
    names = [frame.name for frame in __import__("traceback").extract_tb(caught.value.__cause__.__traceback__)]
    assert names[-1] == "boom"
    assert list(batches) == []
    batches = iter(one(index, threads=threads, on_error=on_error, transform=boom_transform))
    for _ in range(4):
        next(batches)
    with pytest.raises(LakehouseError, match=r"transform stopped by KeyError.*step 4 of epoch 0.*row 1016") as caught:
        next(batches)
    assert isinstance(caught.value.__cause__, KeyError)


class Broken:
    """A fetcher with a mistake."""

    def __init__(self, values: int | None) -> None:
        self.values = values

    def fetch(self, refs: BlobRefs) -> Fetched:
        if self.values is None:
            raise RuntimeError("no such client")
        return Fetched([b""] * self.values, __import__("lakehouse.fetch", fromlist=["FetchStats"]).FetchStats())


def test_a_broken_fetcher_stops_the_run(tmp_path: Path) -> None:
    index = raw_index(tmp_path, 8)
    with pytest.raises(LakehouseError, match="fetching stopped by RuntimeError: no such client, raised by Broken"):
        list(one(index, fetcher=Broken(None), on_error="skip"))
    with pytest.raises(LakehouseError, match="returned 3 values for 4 references"):
        list(one(index, fetcher=Broken(3), on_error="skip"))


# ---- threads, memory, processes


def lakehouse_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lakehouse")]


def test_fifty_broken_off_epochs_leak_nothing(tmp_path: Path) -> None:
    ds = one(image_index(tmp_path, 64), decode={"image": Image()}, shuffle="rows", threads=3)
    opened = []
    gc.collect()  # what earlier tests left open
    for epoch in range(50):
        ds.set_epoch(epoch)
        for number, _ in enumerate(ds):
            if number == 4:
                break
        opened.append(len(os.listdir("/proc/self/fd")))
        assert lakehouse_threads() == []
    assert len(set(opened[1:])) == 1


def test_threads_stop_at_close_exhaustion_and_error(tmp_path: Path) -> None:
    ds = one(raw_index(tmp_path, 40), threads=2)
    batches = iter(ds)
    next(batches)
    assert len(lakehouse_threads()) == 1  # quick reads share one thread
    batches.close()
    assert lakehouse_threads() == []
    assert list(batches) == []
    list(ds)
    assert lakehouse_threads() == []
    failing = iter(one(raw_index(tmp_path, 40), threads=2, decode={"data": boom}))
    with pytest.raises(LakehouseError):
        list(failing)
    assert lakehouse_threads() == []


def test_no_threads_for_columns_without_bytes(tmp_path: Path) -> None:
    batches = iter(one(raw_index(tmp_path, 8), columns=["id"]))
    next(batches)
    assert lakehouse_threads() == []


class Work:
    """A step of a stated size, which counts itself as alive until it is dropped."""

    alive = 0
    most = 0

    def __init__(self, size: int | None) -> None:
        self.size = size
        Work.alive += size or 0
        Work.most = max(Work.most, Work.alive)

    def __del__(self) -> None:
        Work.alive -= self.size or 0

    def cost_bytes(self) -> int | None:
        return self.size

    def start(self, spawn: Any) -> None:
        spawn("cpu", lambda: time.sleep(0.001))

    def finish(self) -> None:
        pass


def test_the_bytes_in_flight_are_bounded() -> None:
    Work.alive = Work.most = 0
    sizes = [30, 30, 30, 500, 30, 10, 90, 100, 1] * 3
    pipeline = Pipeline((Work(size) for size in sizes), stop=Stop(), threads=2, max_bytes=100)
    got = []
    for work in pipeline:
        got.append(work.size)
        time.sleep(0.002)  # a slow consumer
        del work
    assert got == sizes
    # In flight 100 at most, or one large step alone. Beside them: one step drawn to be looked at, which holds no bytes yet,
    # and two at the consumer, who drops the old batch when it gets the new one.
    assert Work.most <= 500 + 3 * 100
    assert Work.alive == 0
    Work.most = 0
    pipeline = Pipeline((Work(10) for _ in range(60)), stop=Stop(), threads=2, max_bytes=100)
    for _ in pipeline:
        time.sleep(0.001)
    assert Work.most <= 100 + 3 * 10


def test_finished_steps_count_until_they_are_taken(tmp_path: Path) -> None:
    """A slow trainer: what is ready but not taken is bounded, before and after decoding."""
    index = make_index(tmp_path, {"id": list(range(100))}, {"data": [bytes(1000)] * 100, "image": [jpeg(1)] * 100})
    image_bytes = 24 * 32 * 3 + len(jpeg(1))
    for column, decode, row_bytes in (("data", None, 1000), ("image", {"image": Image()}, image_bytes)):
        fetcher = FaultyFetcher(index.fetcher())
        ds = one(index, columns=[column], decode=decode, fetcher=fetcher, threads=2, prefetch_bytes=5 * 4 * row_bytes)
        batches = iter(ds)
        for taken in range(1, 12):
            next(batches)
            time.sleep(0.01)
            # Images: once decoded a step holds less, so that up to two more of them fit.
            assert taken < len(fetcher.calls) <= taken + 4 + 2 * (column == "image")


def test_steps_of_unknown_size_go_one_at_a_time_until_it_is_known(tmp_path: Path) -> None:
    index = image_index(tmp_path, 40)
    ds = one(index, decode={"image": Image()}, threads=2, prefetch_bytes=1)
    assert len(list(ds)) == 10


_MEMORY = """
import os, resource, sys, time
import numpy as np, pyarrow as pa, torch
from lakehouse.dataset import Dataset
from lakehouse.fetch import BlobRefs
from lakehouse.index import RowIndex, Source
folder, bound = sys.argv[1], int(sys.argv[2])
n, size = 40, 8 << 20
path = os.path.join(folder, "big.bin")
with open(path, "wb") as file:
    file.truncate(n * size)
refs = BlobRefs((path,), np.zeros(n, np.int32), np.arange(n, dtype=np.int64) * size, np.full(n, size, np.int64))
schema = pa.schema([("data", pa.large_binary())])
index = RowIndex(Source("t", "u", 1, folder), schema, np.arange(n), {}, {"data": refs})
ds = Dataset(index, batch_size=2, rank=0, world=1, prefetch_bytes=bound)
warm = next(iter(Dataset(index.take([0, 1]), batch_size=1, rank=0, world=1)))
del warm
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for batch in ds:
    time.sleep(0.1)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024)
"""


def test_peak_memory_stays_below_the_bound(tmp_path: Path) -> None:
    """8 MB blobs and a slow consumer: index + prefetch bound + 1.5 batches."""
    bound = 64 << 20
    run = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(tmp_path), str(bound)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) <= 64 + 1.5 * 16


_EXIT = """
import sys
from tests.training import image_index
from lakehouse.dataset import Dataset
from lakehouse.decode import Image
from pathlib import Path
batches = iter(Dataset(image_index(Path(sys.argv[1]), 200), batch_size=4, rank=0, world=1, decode={"image": Image()}, threads=4))
next(batches)
print("out", flush=True)
if sys.argv[2] == "error":
    raise SystemExit(3)
if sys.argv[2] == "hang":
    import time
    while True:
        next(batches)
        time.sleep(0.01)
"""


@pytest.mark.parametrize("how", ["end", "error"])
def test_the_interpreter_exits_with_an_iteration_open(tmp_path: Path, how: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _EXIT, str(tmp_path), how],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (3 if how == "error" else 0, "out\n", "")


class Slow:
    """A fetcher that hangs for a while."""

    def fetch(self, refs: BlobRefs) -> Fetched:
        time.sleep(1.0)
        raise AssertionError


def test_ctrl_c_interrupts_the_wait(tmp_path: Path) -> None:
    batches = iter(one(raw_index(tmp_path, 8), fetcher=Slow(), threads=2))
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), 2))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    timer.join()
    assert time.monotonic() - began < 5
    assert lakehouse_threads() == []


def test_an_iterator_does_not_survive_a_fork(tmp_path: Path) -> None:
    batches = iter(one(raw_index(tmp_path, 40), threads=2))
    next(batches)
    pid = os.fork()
    if pid == 0:
        try:
            next(batches)
        except LakehouseError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(list(batches)) == 9


def test_a_data_set_used_before_a_fork_works_after_it(tmp_path: Path) -> None:
    ds = one(image_index(tmp_path, 40), decode={"image": Image()}, threads=2)
    expected = ids(ds)
    live = iter(ds)
    next(live)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ids(ds) == expected else 1)
    assert os.waitpid(pid, 0)[1] == 0
    live.close()


class WholeSteps:
    """As a remote fetcher: asks for whole steps."""

    whole_steps = True

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: list[int] = []

    def fetch(self, refs: BlobRefs) -> Fetched:
        self.calls.append(len(refs))
        fetched: Fetched = self.inner.fetch(refs)
        return Fetched([memoryview(v) if isinstance(v, bytes) else v for v in fetched.values], fetched.stats)


def test_a_fetcher_of_whole_steps_is_called_once_a_step(tmp_path: Path) -> None:
    index = image_index(tmp_path, 96)
    fetcher = WholeSteps(index.fetcher())
    for decode in ({"image": Image()}, {"image": Raw()}):
        fetcher.calls.clear()
        got = list(one(index, batch_size=48, decode=decode, fetcher=fetcher, threads=2))
        assert fetcher.calls == [48, 48]
        assert all(same(a, b) for a, b in zip(got, one(index, batch_size=48, decode=decode), strict=True))


def test_pickling_keeps_every_option(tmp_path: Path) -> None:
    index = make_index(
        tmp_path,
        {"id": list(range(12)), "x": pa.array([None if i % 2 else i for i in range(12)], pa.int64())},
        {"image": [jpeg(i) for i in range(11)] + [b"broken"], "note": [payload(i) for i in range(12)]},
    )
    options: dict[str, Any] = {
        "batch_size": 2, "seed": 11, "shuffle": "rows", "decode": {"image": Image(size=(4, 6), mode="L")},
        "columns": ["x", "image", "id"], "transform": noisy, "rank": 1, "world": 2, "tail": "pad", "on_error": "null",
        "max_bad": 0.5, "ragged": True, "fill": {"x": -5}, "verify": True, "threads": 1, "prefetch_bytes": 12345,
        "fetcher": index.fetcher(),
    }  # fmt: skip
    ds = Dataset(index, **options)
    ds.set_epoch(3)
    expected = list(ds)
    twin = pickle.loads(pickle.dumps(ds))
    assert twin.epoch == 3
    got = list(twin)
    assert len(got) == len(expected) == 3
    assert all(same(a, b) for a, b in zip(got, expected, strict=True))
    left_out = {"_process", "_progress", "_start", "_index", "_selection", "_order", "_transform", "_shard"}
    assert all(getattr(ds, name) == getattr(twin, name) for name in vars(ds).keys() - left_out)
    kept = vars(ds._selection).keys() - {"index", "own_fetcher", "decoders"}
    assert all(getattr(ds._selection, name) == getattr(twin._selection, name) for name in kept)
    assert (twin.order, twin.shard) == (ds.order, ds.shard)


# ---- torch's own DataLoader


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_torch_data_loader_gives_the_same_batches(tmp_path: Path, method: str) -> None:
    """With persistent workers, which must see each epoch."""
    ds = one(image_index(tmp_path, 44), shuffle="blocks", decode={"image": Image()})
    loader: DataLoader[Any] = DataLoader(
        ds, batch_size=None, num_workers=2, persistent_workers=True, multiprocessing_context=method
    )
    assert len(loader) == 11
    orders = set()
    for epoch in range(3):
        ds.set_epoch(epoch)
        expected = list(ds)
        got = list(loader)
        assert all(same(a, b) for a, b in zip(got, expected, strict=True))
        orders.add(str(ids(got)))
    assert len(orders) == 3
    del loader
    gc.collect()
