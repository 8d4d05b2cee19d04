"""Loader: epochs, worker processes, positions, stats, and what goes wrong with processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from lakehouse.dataset import Dataset
from lakehouse.dataset.memory import Memory
from lakehouse.dataset.wire import PackedBytes, PackedTensors, pack, unpack
from lakehouse.decode import Image
from lakehouse.errors import ConfigError, DecodeError, LakehouseError
from lakehouse.fetch import BlobRefs, Fetched, Fetcher
from lakehouse.index import RowIndex
from lakehouse.loader import Loader, Stats
from lakehouse.testing import FaultyFetcher, assert_elastic
from tests.stores.place import on_stores
from tests.training import Maker, ids, image_index, jpeg, make_index, payload, raw_index, same

pytestmark = on_stores

ROOT = Path(__file__).parent.parent
METHODS = ("fork", "forkserver", "spawn")


def loader(index: RowIndex, workers: int = 0, method: str | None = None, **options: Any) -> Loader:
    return Maker(index, method, **{"batch_size": 4, **options})(workers=workers)


# ---- epochs and positions


@pytest.mark.s3
def test_epochs_follow_each_other(tmp_path: Path) -> None:
    index = raw_index(tmp_path, 42)
    one = loader(index)
    assert len(one) == 10
    assert one.epoch == 0
    got = []
    for epoch in range(one.epoch, 3):
        assert one.epoch == epoch
        for number, batch in enumerate(one):
            assert one.epoch == epoch
            got.append(batch["id"].tolist())
            assert one.state_dict()["position"] == (4 * (number + 1)) % 40
    assert one.epoch == 3
    expected = []
    ds = Dataset(index, batch_size=4, rank=0, world=1)
    for epoch in range(3):
        ds.set_epoch(epoch)
        expected += ids(ds)
    assert got == expected
    assert len(expected[0]) == 4


def test_break_restarts_the_epoch_unless_all_was_taken(tmp_path: Path) -> None:
    one = loader(raw_index(tmp_path, 12))
    first = ids(islice(one, 2))
    assert one.state_dict()["position"] == 8
    again = ids(one)
    assert again[:2] == first
    assert one.epoch == 1
    for number, _ in enumerate(one):
        if number == len(one) - 1:
            break  # at the last batch: the epoch is over all the same
    assert (one.epoch, one.state_dict()["epoch"], one.state_dict()["position"]) == (2, 2, 0)
    assert len(ids(one)) == 3
    assert one.epoch == 3


def test_two_live_iterators_raise(tmp_path: Path) -> None:
    one = loader(raw_index(tmp_path, 12))
    first = iter(one)
    with pytest.raises(LakehouseError, match="live already"):
        iter(one)
    next(first)
    with pytest.raises(LakehouseError, match="live already"):
        iter(one)
    del first
    second = iter(one)
    assert len(list(second)) == 3
    third = iter(one)  # the second is exhausted, though it still exists
    third.close()  # type: ignore[attr-defined]
    assert len(list(one)) == 3
    assert list(second) == []


def test_two_loaders_over_one_data_set_are_independent(tmp_path: Path) -> None:
    ds = Dataset(raw_index(tmp_path, 24), batch_size=4, rank=0, world=1)
    one, other = Loader(ds), Loader(ds)
    expected = ids(Loader(ds))
    first = iter(one)
    got = [next(first)["id"].tolist() for _ in range(3)]
    other.load_state_dict(one.state_dict())
    assert got + ids(other) == expected
    assert got + ids(first) == expected


def test_set_epoch_moves_a_loader_too(tmp_path: Path) -> None:
    ds = Dataset(raw_index(tmp_path, 24), batch_size=4, rank=0, world=1)
    one = Loader(ds)
    expected = [ids(one), ids(one), ids(one)]
    for epoch in (1, 2):
        ds.set_epoch(epoch)
        assert one.epoch == epoch
        assert ids(one) == expected[epoch]
    other = Loader(ds)
    assert other.epoch == 2
    middle = iter(other)
    next(middle)
    del middle
    state = other.state_dict()
    other.load_state_dict(state)
    ds.set_epoch(2)  # as trainers do before each epoch, the resumed one too
    assert ids(other) == expected[2][1:]


def test_an_index_without_steps(tmp_path: Path) -> None:
    for n in (0, 3):
        one = loader(raw_index(tmp_path / str(n), n))
        for epoch in range(3):
            assert one.epoch == epoch
            assert list(one) == []
        assert one.state_dict()["position"] == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": -1}, "workers"),
        ({"workers": 1.0}, "workers"),
        ({"prefetch": 0}, "prefetch"),
        ({"pin_memory": "yes"}, "pin_memory"),
        ({"start_method": "thread"}, "'fork'"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    ds = Dataset(raw_index(tmp_path, 4), batch_size=4, rank=0, world=1)
    with pytest.raises(ConfigError, match=text):
        Loader(ds, **options)
    with pytest.raises(ConfigError, match="takes a lakehouse.Dataset"):
        Loader([1, 2, 3])  # type: ignore[arg-type]


# ---- worker processes


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.s3
def test_workers_give_the_batches_of_one_process(tmp_path: Path, method: str) -> None:
    """Over epochs with the same processes, in a number that does not divide the steps."""
    index = image_index(tmp_path, 44)
    options: dict[str, Any] = {"decode": {"image": Image()}, "tail": "pad", "batch_size": 4}
    many = loader(index, 3, method, **options)
    single = loader(index, **options)
    for _ in range(3):
        expected = list(single)
        got = list(many)
        assert len(got) == 11
        assert all(same(a, b) for a, b in zip(got, expected, strict=True))


def test_any_topology(tmp_path: Path) -> None:
    assert_elastic(Maker(raw_index(tmp_path, 103), batch_size=24))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_topology_with_workers(tmp_path: Path, workers: int) -> None:
    assert_elastic(Maker(raw_index(tmp_path, 50), "fork", batch_size=6), worlds=(1, 2), workers=(workers,))


class SlowStart:
    """A fetcher with which some worker processes take long to start."""

    late_s = 0.0  # of forked children, which unpickle nothing

    def __init__(self, inner: Fetcher) -> None:
        self.inner = inner

    def fetch(self, refs: BlobRefs) -> Fetched:
        return self.inner.fetch(refs)

    def __getstate__(self) -> Any:
        return self.inner

    def __setstate__(self, inner: Fetcher) -> None:
        if multiprocessing.current_process().name != "MainProcess":
            time.sleep(0.3 * (os.getpid() % 3))
        self.inner = inner


os.register_at_fork(after_in_child=lambda: time.sleep(SlowStart.late_s * (os.getpid() % 3)))


@pytest.mark.parametrize("method", METHODS)
def test_workers_that_start_slowly_lose_no_step(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole epochs, a loop left at once, and a state loaded before all of them run."""
    monkeypatch.setattr(SlowStart, "late_s", 0.3 if method == "fork" else 0.0)
    index = raw_index(tmp_path, 80)
    single = loader(index)
    expected = [*ids(single), *ids(single)]
    slow = loader(index, 3, method, fetcher=SlowStart(index.fetcher()))
    iter(slow)  # nothing is taken
    assert ids(islice(slow, 1)) == expected[:1]
    slow.load_state_dict({**single.state_dict(), "epoch": 1, "position": 44})
    assert ids(slow) == expected[20 + 11 :]
    slow.dataset.set_epoch(0)
    assert [*ids(slow), *ids(slow)] == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.s3
def test_break_with_workers(tmp_path: Path, method: str) -> None:
    index = raw_index(tmp_path, 40)
    many = loader(index, 2, method)
    expected = ids(loader(index))
    for _ in range(3):
        assert ids(islice(many, 3)) == expected[:3]
    assert ids(many) == expected
    assert many.epoch == 1


@pytest.mark.s3
def test_bytes_and_ragged_images_arrive_from_workers(tmp_path: Path) -> None:
    index = make_index(
        tmp_path,
        {"id": list(range(12)), "v": pa.array([[i] * (i % 3) for i in range(12)], pa.list_(pa.int16()))},
        {"image": [jpeg(i, 8 + i, 16) for i in range(12)], "data": [None if i == 5 else payload(i) for i in range(12)]},
    )
    options: dict[str, Any] = {"ragged": True, "decode": {"image": Image()}, "shuffle": None}
    expected = list(loader(index, **options))
    assert all(same(a, b) for a, b in zip(loader(index, 2, "fork", **options), expected, strict=True))


@pytest.mark.parametrize(
    "values",
    [
        [b"one", None, b"", b"four"],
        [None, None],
        [],
        ["text", None],
        [torch.arange(3), None, torch.zeros(2, 0, 3, dtype=torch.int64), torch.tensor(5)],
        [torch.zeros(2), torch.zeros(2, dtype=torch.int8)],
        [b"bytes", torch.zeros(1)],
        [torch.ones(2, requires_grad=True)],
    ],
)
def test_packing_lists_changes_nothing(values: list[Any]) -> None:
    packed = pack({"x": values, "y": 3}, Memory("shared"))
    assert same(unpack(packed), {"x": values, "y": 3})
    assert unpack(pack("no dict", Memory("shared"))) == "no dict"


def test_lists_travel_as_one_tensor() -> None:
    packed = pack({"x": [b"a"] * 500, "y": [torch.zeros(3)] * 500}, Memory("shared"))
    assert isinstance(packed["x"], PackedBytes)
    assert isinstance(packed["y"], PackedTensors)
    assert isinstance(packed["x"].data, torch.Tensor)
    assert packed["x"].data.is_shared()
    assert packed["x"].pin_memory() is packed["x"]


def test_a_hundred_large_lists_do_not_run_out_of_files(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"id": list(range(400))}, {"image": [jpeg(0, 8 + i % 5, 8) for i in range(400)]})
    before = len(os.listdir("/proc/self/fd"))
    batches = list(loader(index, 2, "fork", batch_size=200, ragged=True, decode={"image": Image()}))
    assert len(os.listdir("/proc/self/fd")) - before < 40
    assert len(batches) == 2


def open_files(loader_: Loader) -> list[int]:
    workers = loader_._torch_loader._iterator._workers  # type: ignore[union-attr]
    return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), *(worker.pid for worker in workers))]


def test_fifty_broken_off_epochs_leak_nothing_in_workers(tmp_path: Path) -> None:
    many = loader(image_index(tmp_path, 64), 2, "fork", decode={"image": Image()}, threads=2)
    opened = []
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))  # of other tests, which a forked worker inherits
    for _ in range(50):
        for number, batch in enumerate(many):
            if number == 4:
                break
        del batch
        opened.append(open_files(many))
    # Batches on their way are open files too, a few more or less by chance; one leaked each epoch would make it 25.
    assert max(map(max, opened[25:])) <= max(map(max, opened[:25])) + 8
    assert max(map(max, opened)) < before + 80


def failing(data: bytes, rng: np.random.Generator) -> Any:
    if data == payload(17):
        raise ZeroDivisionError("in the user's own line")
    return 1


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_mistake_in_a_worker_shows_the_users_line(tmp_path: Path, method: str) -> None:
    many = loader(raw_index(tmp_path, 40), 2, method, shuffle=None, decode={"data": failing})
    with pytest.raises(LakehouseError, match="default.frames@3 row 1017 column data") as caught:
        list(many)
    assert 'raise ZeroDivisionError("in the user\'s own line")' in str(caught.value)
    assert many.state_dict()["position"] == 16
    with pytest.raises(LakehouseError, match="row 1017"):  # the processes live on
        list(many)


def stop_there(batch: Any, rngs: Any) -> Any:
    if 17 in batch["id"].tolist():
        raise StopIteration  # the user's own line: a `next` that found nothing, which must not look like an epoch's end
    return batch


def exit_there(batch: Any, rngs: Any) -> Any:
    if 17 in batch["id"].tolist():
        sys.exit("the user's own line")
    return batch


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transform", [stop_there, exit_there])
def test_a_transform_in_a_worker_shows_the_users_line(tmp_path: Path, method: str, transform: Any) -> None:
    many = loader(raw_index(tmp_path, 40), 2, method, shuffle=None, transform=transform, on_error="skip")
    batches = iter(many)
    assert ids(islice(batches, 4)) == [list(range(i, i + 4)) for i in range(0, 16, 4)]
    with pytest.raises(LakehouseError, match="the user's own line"):
        next(batches)
    many.load_state_dict({**many.state_dict(), "position": 20})
    assert len(ids(many)) == 5  # the processes live on


def die(batch: Any, rngs: Any) -> Any:
    os._exit(7)


def test_the_death_of_a_worker_is_explained(tmp_path: Path) -> None:
    with pytest.raises(LakehouseError, match=r"exited unexpectedly.*__main__.*prefetch_bytes"):
        list(loader(raw_index(tmp_path, 40), 1, "fork", transform=die))


_KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
from lakehouse.decode import Image
from lakehouse.errors import LakehouseError
from tests.training import Maker, ids, image_index
index = image_index(Path(sys.argv[1]), 400)
expected = ids(Maker(index, batch_size=4, decode={"image": Image()})())
for trial in range(8):
    loader = Maker(index, "fork", batch_size=4, decode={"image": Image()})(workers=2)
    try:
        batches = iter(loader)
        got = [next(batches)["id"].tolist()]
        victim = loader._torch_loader._iterator._workers[trial % 2].pid
        killer = threading.Timer(0.005 * trial, os.kill, (victim, signal.SIGKILL))
        killer.start()
        for batch in batches:
            got.append(batch["id"].tolist())
            time.sleep(0.001)
    except LakehouseError as error:
        assert "killed for its memory" in str(error), error
    except RuntimeError as error:
        assert "is killed by signal" in str(error)  # torch's signal handler, in the middle of the lines above
        continue
    killer.join()
    assert loader.state_dict()["position"] == 4 * len(got) < 400, len(got)
    loader.load_state_dict(loader.state_dict())
    assert got + ids(loader) == expected  # with new processes
print("ok")
"""


def test_a_worker_that_is_killed_is_explained_and_replaced(tmp_path: Path) -> None:
    """Which of torch's parts notices first is up to the moment: all of them mean the same."""
    run = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=100, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (0, "ok\n"), run.stderr


_UNGUARDED = """
import sys
from pathlib import Path
from lakehouse.dataset import Dataset
from lakehouse.loader import Loader
from tests.training import raw_index
loader = Loader(Dataset(raw_index(Path(sys.argv[1]), 40), batch_size=4, rank=0, world=1), workers=1, start_method=sys.argv[2])
print(len(list(loader)))
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_script_without_guard_is_told_so(tmp_path: Path, method: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(_UNGUARDED)
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path), method],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert run.returncode == 1
    assert 'if __name__ == "__main__"' in run.stderr


def test_single_rows_with_workers_where_some_are_skipped(tmp_path: Path) -> None:
    index = image_index(tmp_path, 20)
    refs = index.blobs("image")
    faults = {refs[i]: "text" for i in (3, 4, 11)}
    options: dict[str, Any] = {
        "batch_size": None, "shuffle": None, "on_error": "skip", "decode": {"image": Image()},
        "fetcher": FaultyFetcher(index.fetcher(), faults),  # type: ignore[arg-type]
    }  # fmt: skip
    for workers in (0, 2):
        one = loader(index, workers, "fork", **options)
        assert [int(row["id"]) for row in one] == [i for i in range(20) if i not in (3, 4, 11)]
        assert (one.epoch, one.stats.rows_skipped) == (1, 3)


# ---- stats


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.s3
def test_stats_sum_what_was_taken(store: str, tmp_path: Path, workers: int) -> None:
    index = image_index(tmp_path, 44)
    one = loader(index, workers, "fork", decode={"image": Image()}, transform=lambda batch, rngs: batch)
    assert one.stats == Stats()
    for number, _ in enumerate(one):
        if number == 2:
            break
    assert one.stats.rows == 12
    list(one)
    stats = one.stats
    total = sum(int(index.blobs("image").lengths[i]) for batch in ids(loader(index))[:3] for i in batch)
    total += sum(int(index.blobs("image").lengths[i]) for batch in ids(loader(index)) for i in batch)
    assert stats.rows == 12 + 44
    if store == "local":
        assert (stats.requests, stats.bytes_fetched) == (stats.rows, total)
    else:  # neighbours are read together, with what lies between them
        assert 0 < stats.requests < stats.rows
        assert total < stats.bytes_fetched < total + 1024 * stats.rows
    assert stats.bytes_referenced == total
    assert min(stats.seconds_decoding, stats.seconds_fetching, stats.seconds_waiting, stats.seconds_transform) > 0
    assert dict(stats)["rows"] == 56
    assert dict(stats)["reasons"] == {}
    with pytest.raises(KeyError):
        stats["nothing"]


def test_pinned_memory_is_asked_for_only_where_there_is_a_gpu(tmp_path: Path) -> None:
    index = image_index(tmp_path, 8)
    one = Loader(Dataset(index, batch_size=4, rank=0, world=1, decode={"image": Image()}), pin_memory=True)
    for batch in one:
        assert batch["image"].is_pinned() == torch.cuda.is_available()


def test_a_bad_batch_raises_from_the_loader(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"id": list(range(8))}, {"image": [b"no image" if i == 6 else jpeg(i) for i in range(8)]})
    one = loader(index, shuffle=None, decode={"image": Image()})
    batches = iter(one)
    next(batches)
    with pytest.raises(DecodeError, match=r"row 1006 column image \(.*image.blob"):
        next(batches)
    assert one.state_dict()["position"] == 4
    assert list(batches) == []
