"""`lakehouse.testing` as its users meet it: what it finds, what it asks for, and what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehouse.dataset import Dataset
from lakehouse.decode import Image
from lakehouse.index import RowIndex
from lakehouse.loader import Loader
from lakehouse.mixture import Weighted
from lakehouse.testing import FaultyFetcher, assert_elastic, assert_resumable
from tests.training import Maker, image_index, make_index, raw_index

ROOT = Path(__file__).parent.parent


@pytest.fixture
def index(tmp_path: Path) -> RowIndex:
    return raw_index(tmp_path, 50)


class Repeating(Loader):
    """Plans the right rows, and hands out its first batch in place of its second, on any topology."""

    def __iter__(self) -> Iterator[Any]:
        batches = list(super().__iter__())
        yield from [batches[0], *batches[:1], *batches[2:]]


def repeating(index: RowIndex, **options: Any) -> Any:
    def make(**overrides: Any) -> Loader:
        overrides.pop("workers")
        return Repeating(Dataset(index, **{"batch_size": 12, **options, **overrides}))

    return make


def test_a_key_counts_what_arrives_not_what_was_planned(index: RowIndex) -> None:
    make = repeating(index)
    assert_elastic(make, worlds=(1, 2))
    with pytest.raises(AssertionError, match="epoch 0: 12 rows come twice, 14 of 50 are lost"):
        assert_elastic(make, worlds=(1, 2), key="id")


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("shuffle", ["blocks", "rows", None])
def test_a_key_agrees_with_a_loader_that_is_right(index: RowIndex, tail: str, shuffle: Any) -> None:
    assert_elastic(Maker(index, batch_size=12, tail=tail, shuffle=shuffle), key="id")


def test_lost_rows_are_counted_where_none_may_be(index: RowIndex) -> None:
    class Short(Loader):
        def __iter__(self) -> Iterator[Any]:
            yield from list(super().__iter__())[:-1]

    def make(**overrides: Any) -> Loader:
        overrides.pop("workers")
        return Short(Dataset(index, **{"batch_size": 10, "tail": "pad", **overrides}))

    with pytest.raises(AssertionError, match=r"0 rows come twice, 10 of 50 are lost \(0 allowed\)"):
        assert_elastic(make, worlds=(1, 2), key="id")


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_rows_that_are_skipped_as_bad_are_not_lost(tmp_path: Path, tail: str) -> None:
    index = image_index(tmp_path, 51)
    refs = index.blobs("image")
    faults = {refs[i]: "truncated" for i in (0, 7, 19, 20, 44)}
    options: dict[str, Any] = {"decode": {"image": Image()}, "fetcher": FaultyFetcher(index.fetcher(), faults)}  # type: ignore[arg-type]
    for on_error in ("skip", "null"):
        assert_elastic(Maker(index, batch_size=6, tail=tail, on_error=on_error, **options), worlds=(1, 2), key="id")


def test_a_key_that_tells_no_rows_apart_is_refused(tmp_path: Path, index: RowIndex) -> None:
    double = make_index(tmp_path / "double", {"id": [1, 2, 2, 3], "name": ["a", "b", "c", None]})
    with pytest.raises(ValueError, match="key='id': the column has a value twice"):
        assert_elastic(Maker(double, batch_size=2), key="id")
    assert_elastic(Maker(double, batch_size=2), key="name", worlds=(1, 2))
    with pytest.raises(ValueError, match="key='id' is no column of the batches, which have data"):
        assert_elastic(Maker(index, batch_size=6, columns=["data"]), key="id")
    with pytest.raises(ValueError, match="as often as they are due"):
        assert_elastic(Maker(Weighted(index, weights=[1.0] * 50), batch_size=6), key="id")


_NEWCOMER = """
import sys
import pyarrow as pa
import lakehouse as lh
from lakehouse.testing import assert_elastic, assert_resumable


def augment(batch, rngs):
    return {**batch, "shift": [float(rng.normal()) for rng in rngs]}


def make_loader(**overrides):
    workers = overrides.pop("workers", 0)
    index = lh.RowIndex.load("train.idx", lh.connect(warehouse="lake"))
    options = {"batch_size": 12, "seed": 3, "transform": augment, **overrides}
    return lh.Loader(lh.Dataset(index, **options), workers=workers)


if __name__ == "__main__":
    schema = pa.schema([("name", pa.string()), ("label", pa.int32()), ("frame", pa.large_binary())])
    table = lh.connect(warehouse="lake").create_table("default.own", schema)
    table.append({"name": f"n{i}", "label": i % 3, "frame": bytes([i]) * i} for i in range(40))
    table.latest().query().index().save("train.idx")
    assert_elastic(make_loader, key="name", workers=(0, 1), worlds=(1, 2), epochs=1)
    assert_resumable(make_loader, topologies=[(1, 0), (2, 0)])
    print("proven")
    sys.stdout.flush()
    import os
    os._exit(0)
"""


def test_on_a_table_of_ones_own(tmp_path: Path) -> None:
    """As a script, with worker processes by the default start method."""
    (tmp_path / "prove.py").write_text(_NEWCOMER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "prove.py"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=110)
    assert (run.returncode, run.stdout) == (0, "proven\n"), run.stderr


def test_resumable_asks_for_a_mapping(index: RowIndex) -> None:
    with pytest.raises(TypeError, match="leave the transform out"):
        assert_resumable(Maker(index, batch_size=6, transform=lambda batch, rngs: batch["id"]))


@pytest.mark.parametrize("kept", ["batch_size", "world"])
def test_a_maker_that_ignores_what_it_is_given_is_told_so(index: RowIndex, kept: str) -> None:
    def make(**overrides: Any) -> Loader:
        overrides.pop("workers")
        own = {"batch_size": 12} if kept == "batch_size" else {"rank": 0, "world": 1}
        return Loader(Dataset(index, **{**overrides, "batch_size": overrides.get("batch_size", 12), **own}))

    for prove in (assert_elastic, assert_resumable):
        with pytest.raises(ValueError, match=r"asked for rank=\d, world=2, batch_size=6 .*the last word"):
            prove(make)
