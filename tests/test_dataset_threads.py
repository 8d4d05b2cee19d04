"""Dataset: errors that stop the run, threads, memory, processes, and torch's own loader."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from lakehouse.dataset import Dataset
from lakehouse.dataset.dataset import _IO_THREADS
from lakehouse.dataset.pipeline import Pipeline, Stop
from lakehouse.decode import Image, Raw
from lakehouse.errors import LakehouseError
from lakehouse.fetch import BlobRefs, Fetched, LocalFetcher
from lakehouse.testing import FaultyFetcher
from tests.stores.place import on_stores
from tests.training import ids, image_index, jpeg, make_index, noisy, one, payload, raw_index, same

pytestmark = on_stores

ROOT = Path(__file__).parent.parent


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


def pipeline_threads() -> list[threading.Thread]:
    """Those that an iteration joins. Others read from stores, and end a moment later, each with what it belongs to:
    tests/test_ahead.py, tests/test_fetch_remote.py."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("lakehouse")]
    return [thread for thread in ours if thread.name not in ("lakehouse-ahead", "lakehouse-fetch")]


def open_files() -> list[str]:
    """What this process holds open; connections of tests before this one may still be closing."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the folder itself, while it was listed
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [target for target in found if not target.startswith("socket:")]


def test_fifty_broken_off_epochs_leak_nothing(tmp_path: Path) -> None:
    ds = one(image_index(tmp_path, 64), decode={"image": Image()}, shuffle="rows", threads=3)
    opened = []
    gc.collect()  # what earlier tests left open
    for epoch in range(50):
        ds.set_epoch(epoch)
        for number, _ in enumerate(ds):
            if number == 4:
                break
        opened.append(len(open_files()))
        assert pipeline_threads() == []
    assert len(set(opened[1:])) == 1


@pytest.mark.s3
def test_threads_stop_at_close_exhaustion_and_error(tmp_path: Path, store: str) -> None:
    ds = one(raw_index(tmp_path, 40), threads=2)
    batches = iter(ds)
    next(batches)
    assert 1 <= len(pipeline_threads()) <= (1 if store == "local" else _IO_THREADS + 2)  # quick reads share one thread
    batches.close()
    assert pipeline_threads() == []
    assert list(batches) == []
    list(ds)
    assert pipeline_threads() == []
    failing = iter(one(raw_index(tmp_path, 40), threads=2, decode={"data": boom}))
    with pytest.raises(LakehouseError):
        list(failing)
    assert pipeline_threads() == []


def test_closing_while_the_first_step_is_fetched_leaves_no_threads(tmp_path: Path) -> None:
    """Its bytes arrive after the end, and what decodes them must not be started then: nobody would end it."""
    began, go_on = threading.Event(), threading.Event()

    class Slow:
        whole_steps = True

        def fetch(self, refs: BlobRefs) -> Fetched:
            began.set()
            go_on.wait(10)
            return LocalFetcher().fetch(refs)

    steps = one(raw_index(tmp_path, 64), batch_size=32, fetcher=Slow(), threads=4).steps(0, 0)
    waiting = threading.Thread(target=lambda: next(steps, None))
    waiting.start()
    assert began.wait(10)
    while not any(thread.name == "lakehouse-io-3" for thread in pipeline_threads()):
        time.sleep(0.01)
    steps.close()
    go_on.set()
    waiting.join(10)
    assert pipeline_threads() == []


def test_no_threads_for_columns_without_bytes(tmp_path: Path) -> None:
    batches = iter(one(raw_index(tmp_path, 8), columns=["id"]))
    next(batches)
    assert pipeline_threads() == []


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


@pytest.mark.s3
def test_finished_steps_count_until_they_are_taken(tmp_path: Path, store: str) -> None:
    """A slow trainer: what is ready but not taken is bounded, before and after decoding. Bytes from a store wait, too."""
    index = make_index(tmp_path, {"id": list(range(100))}, {"data": [bytes(1000)] * 100, "image": [jpeg(1)] * 100})
    image_bytes = 24 * 32 * 3 + len(jpeg(1))
    for column, decode, read_bytes, row_bytes in (
        ("data", None, 1000, 1000),
        ("image", {"image": Image()}, len(jpeg(1)), image_bytes),
    ):
        fetcher = FaultyFetcher(index.fetcher())
        ds = one(index, columns=[column], decode=decode, fetcher=fetcher, threads=2, prefetch_bytes=5 * 4 * row_bytes)
        batches = iter(ds)
        for taken in range(1, 12):
            next(batches)
            time.sleep(0.01)
            # Images: once decoded a step holds less, so that up to two more of them fit. From a store, most are not decoded.
            most = 4 + 2 * (column == "image") if store == "local" else 5 * row_bytes // read_bytes
            assert taken < sum(fetcher.calls) // 4 <= taken + most


@pytest.mark.parametrize("wrap", [lambda x: {"x": x}, lambda x: (x, "b"), lambda x: [{"x": x}]])
def test_what_a_transform_makes_counts_wherever_it_lies(tmp_path: Path, wrap: Any) -> None:
    made: list[int] = []

    def grown(batch: Any, _: Any) -> Any:
        made.append(1)
        return wrap(torch.zeros(1 << 20, dtype=torch.uint8))

    index = make_index(tmp_path, {"id": list(range(200))}, {"data": [bytes(1000)] * 200})
    batches = iter(one(index, transform=grown, threads=2, prefetch_bytes=1 << 20))
    for taken in range(1, 45):
        next(batches)
        time.sleep(0.01 * (taken % 3))  # also a trainer that waits for steps which are not made yet
        assert len(made) <= taken + 1


def test_a_sparse_batch_is_handed_over(tmp_path: Path) -> None:
    index = make_index(tmp_path, {"id": list(range(8))}, {"data": [bytes(10)] * 8})
    for batch in one(index, transform=lambda batch, _: torch.eye(len(batch["id"])).to_sparse()):
        assert batch.to_dense().trace() == 4


def test_steps_of_unknown_size_go_one_at_a_time_until_it_is_known(tmp_path: Path) -> None:
    index = image_index(tmp_path, 40)
    ds = one(index, decode={"image": Image()}, threads=2, prefetch_bytes=1)
    assert len(list(ds)) == 10


_MEMORY = """
import os, resource, sys, time, tracemalloc
import numpy as np, pyarrow as pa, torch
from lakehouse.dataset import Dataset
from lakehouse.fetch import BlobRefs, RangeFetcher
from lakehouse.index import RowIndex, Source
folder, bound, size, n = sys.argv[1], *map(int, sys.argv[2:5])
def read(uri, offset, length):
    with open(uri, "rb") as file:
        return os.pread(file.fileno(), length, offset)
path = os.path.join(folder, "big.bin")
with open(path, "wb") as file:
    file.truncate(n * size)
refs = BlobRefs((path,), np.zeros(n, np.int32), np.arange(n, dtype=np.int64) * size, np.full(n, size, np.int64))
schema = pa.schema([("data", pa.large_binary())])
index = RowIndex(Source("t", "u", 1, folder), schema, np.arange(n), {}, {"data": refs})
fetcher = RangeFetcher(read) if sys.argv[5] == "store" else None
ds = Dataset(index, batch_size=(16 << 20) // size, rank=0, world=1, prefetch_bytes=bound, fetcher=fetcher)
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if fetcher is not None:
    tracemalloc.start()
for batch in ds:
    time.sleep(0.1)
if fetcher is not None:
    print(tracemalloc.get_traced_memory()[1] / (1 << 20))
else:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024)
"""


@pytest.mark.parametrize(("size", "count"), [(8 << 20, 40), (1 << 18, 1200), (1 << 14, 20_000)])
@pytest.mark.parametrize("kind", ["files", "store"])
@pytest.mark.local("processes that open local files")
def test_peak_memory_stays_below_the_bound(tmp_path: Path, kind: str, size: int, count: int) -> None:
    """Large blobs or many small ones, and a slow consumer: index + prefetch bound + 1.5 batches.

    Of files, all memory of the process. Of a store, what is allocated: dozens of threads read, and malloc keeps for some what
    others have freed.
    """
    bound = 64 << 20
    run = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(tmp_path), str(bound), str(size), str(count), kind],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) <= 64 + 1.5 * 16


_EXIT = """
import sys
from tests.training import noisy, own_draw, image_index
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
@pytest.mark.local("processes that open local files")
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
    assert pipeline_threads() == []


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
    left_out = {"_process", "_progress", "_stop", "_start", "_index", "_selection", "_order", "_transform", "_shard"}
    assert all(getattr(ds, name) == getattr(twin, name) for name in vars(ds).keys() - left_out)
    kept = vars(ds._selection).keys() - {"index", "own_fetcher", "decoders"}
    assert all(getattr(ds._selection, name) == getattr(twin._selection, name) for name in kept)
    assert (twin.order, twin.shard) == (ds.order, ds.shard)


def test_closing_from_another_thread_ends_the_wait(tmp_path: Path) -> None:
    batches = iter(one(raw_index(tmp_path, 8), fetcher=Slow(), threads=2))
    timer = threading.Timer(0.2, batches.close)
    timer.start()
    assert list(batches) == []
    timer.join()


# ---- torch's own DataLoader


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.s3
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
