"""Dataset: options, what a batch is, images and other decoders."""

from __future__ import annotations

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

from lakehouse.dataset import Dataset
from lakehouse.dataset.columns import scalar_column
from lakehouse.decode import Image
from lakehouse.errors import ConfigError, DecodeError, LakehouseError, NotFoundError, SchemaError
from lakehouse.index import RowIndex
from tests.stores.place import on_stores
from tests.training import ids, image_index, jpeg, make_index, one, payload, raw_index, same

pytestmark = on_stores

ROOT = Path(__file__).parent.parent


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
        ({"shuffle": "block"}, ConfigError, '"blocks", "rows" or None'),
        ({"shuffle": "blocks:0x4"}, ConfigError, "block_rows is 1 or more"),
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
@pytest.mark.s3
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


@pytest.mark.s3
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


def reversed_view(data: bytes, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.frombuffer(data.ljust(50, b"."), np.uint8)[::-1]


def in_a_tensor(data: bytes, rng: np.random.Generator) -> torch.Tensor:
    return torch.full((2, 3), float(len(data)))


@pytest.mark.s3
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


@pytest.mark.parametrize("ragged", [False, True])
def test_decoders_that_return_odd_arrays(tmp_path: Path, ragged: bool) -> None:
    index = raw_index(tmp_path, 3)

    def column(value: Any) -> Any:
        (batch,) = one(index, batch_size=3, decode={"data": lambda data, rng: value}, ragged=ragged)
        return batch["data"]

    for kind in (">u2", ">i4", ">f8", "<i8"):  # numbers in files have either byte order
        expected = torch.tensor([1, 2, 300], dtype=torch.float64)
        assert torch.equal(column(np.array([1, 2, 300], kind))[2].double(), expected)
    assert not column(torch.ones(2, requires_grad=True))[0].requires_grad
    assert column(np.array([2**63 - 1], np.uint64))[1].tolist() == [2**63 - 1]
    for value, why in (
        (np.array([2**64 - 1], np.uint64), f"row 1000 .* uint64 .*{2**64 - 1} is beyond the largest int64"),  # it was -1
        (np.zeros(2, np.longdouble), "row 1000 .* no tensor can hold"),
        (2**70, "column data: the decoder returned numbers that no tensor can hold"),
    ):
        with pytest.raises(LakehouseError, match=why):
            column(value)
    sparse = torch.eye(3).to_sparse()
    if ragged:
        assert torch.equal(column(sparse)[0].to_dense(), torch.eye(3))
    else:
        with pytest.raises(LakehouseError, match=r"column data: .*sparse_coo"):
            column(sparse)


@pytest.mark.s3
def test_the_real_frames_come_back_byte_by_byte(tmp_path: Path, road_frames: list[Path]) -> None:
    data = [path.read_bytes() for path in road_frames]
    index = make_index(tmp_path, {"id": list(range(6))}, {"frame": data})
    ds = one(index, batch_size=3, shuffle="rows")
    assert {i: value for batch in ds for i, value in zip(batch["id"].tolist(), batch["frame"], strict=True)} == dict(
        enumerate(data)
    )
