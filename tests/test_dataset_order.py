"""Dataset: which rows come when on which rank, and randomness by position."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from lakehouse.dataset import Dataset
from lakehouse.decode import Image
from lakehouse.errors import ConfigError, LakehouseError
from lakehouse.loader import Loader
from lakehouse.mixture import Mixture
from lakehouse.order import Order, row_rng
from tests.stores.place import on_stores
from tests.training import ids, jpeg, make_index, noisy, one, own_draw, raw_index

pytestmark = on_stores

ROOT = Path(__file__).parent.parent


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


def test_windows_of_large_rows_are_smaller(tmp_path: Path) -> None:
    """Blocks follow from the bytes of the index's rows, saved or not, on any store, whatever a data set reads of them."""
    rows = {"id": pa.array(range(90), pa.int64())}
    large = make_index(tmp_path / "large", rows, {"data": [bytes(2**20 + i) for i in range(90)]})
    small = raw_index(tmp_path / "small", 90)
    order = Dataset(large, batch_size=8, rank=0, world=1).order
    assert order == Order(90, 0, "blocks:4x64")
    assert pickle.loads(pickle.dumps(large)).blob_bytes == large.blob_bytes
    assert Dataset(large, batch_size=8, columns=["id"]).order == Dataset(pickle.loads(pickle.dumps(large)), batch_size=8).order
    assert Dataset(small, batch_size=8).order == Order(90, 0)
    loader = Loader(Dataset(large, batch_size=8, seed=3, rank=0, world=1))
    batches = iter(loader)
    first = [next(batches) for _ in range(4)]
    state = loader.state_dict()
    assert state["order"] == "blocks-1:4x64"
    other = Loader(Dataset(large, batch_size=4, seed=3, rank=0, world=1, shuffle="blocks:4x64"))
    other.load_state_dict(state)
    later = list(other)
    whole = [i for batch in [*first, *later] for i in batch["id"].tolist()]
    assert whole == Order(90, 3, "blocks:4x64").rows(0, 0, 88).tolist()
    assert [len(data) for batch in later for data in batch["data"]] == [2**20 + i for i in whole[32:]]
    mixture = Mixture({"large": (large, 0.5), "small": (small, 0.5)})
    assert Dataset(mixture, batch_size=8).order.spec == "mixture-1(blocks-1:4x64, blocks-1:256x64)"


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


@pytest.mark.s3
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
    (rngs,) = one(raw_index(tmp_path, 4), transform=lambda batch, rngs: (rngs,))
    (rngs,) = rngs
    assert len(rngs) == len(list(rngs)) == 4
    assert rngs[1] is rngs[-3] is rngs[0:2][1]
    with pytest.raises(IndexError):
        rngs[4]


@pytest.mark.s3
def test_many_small_steps_on_many_threads_stay_in_order(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"id": list(range(3000))}, {"data": [i.to_bytes(2, "little") for i in range(3000)]})
    for size in (None, 3):
        rows = list(one(index, batch_size=size, threads=4))
        got = [row["data"] for row in rows] if size is None else [value for row in rows for value in row["data"]]
        assert [int.from_bytes(value, "little") for value in got] == list(range(3000))


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


@pytest.mark.parametrize("batch_size", [4, None])
def test_a_transform_that_forgets_to_return_is_no_empty_epoch(tmp_path: Path, batch_size: int | None) -> None:
    with pytest.raises(LakehouseError, match="transform .*lambda.* returned None: it has to return the batch"):
        list(Loader(one(raw_index(tmp_path, 8), batch_size=batch_size, transform=lambda batch, rngs: None)))


def test_a_repr_says_what_and_where(tmp_path: Path) -> None:
    index = raw_index(tmp_path, 103)
    ds = one(index, batch_size=10, seed=7, shuffle="blocks:4x2", rank=1, world=2)
    said = f"Dataset({index!r}, batch_size=10, seed=7, order='blocks-1:4x2', rank=1, world=2; 5 steps an epoch)"
    assert repr(ds) == said
    loader = Loader(ds)
    assert repr(loader) == f"Loader({said}, workers=0; 0 steps of epoch 0 taken)"
    taking = iter(loader)
    next(taking)
    assert repr(loader).endswith("; 1 steps of epoch 0 taken)")
    list(taking)
    assert repr(loader).endswith("; 0 steps of epoch 1 taken)")
