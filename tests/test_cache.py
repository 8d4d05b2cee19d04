"""The local cache: what it keeps, how it forgets, and that nothing in it can be taken for something else."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.cache import CachingFetcher
from lakehouse.cache.store import Store
from lakehouse.fetch import BlobRefs, Fetched, TableFetcher
from tests.stores.fixtures import lake_on
from tests.stores.place import connect, on_stores
from tests.stores.server import BUCKET, S3Server, client

pytestmark = on_stores

MIB = 1 << 20
LEAST = 64 * MIB
ROWS = 300


def key(i: int) -> bytes:
    return i.to_bytes(16, "big")


def value(i: int, size: int = 5_000) -> bytes:
    return np.random.default_rng(i).bytes(size)


def folder_bytes(path: Path) -> int:
    return sum(found.stat().st_size for found in path.iterdir())


class Counting:
    """A fetcher that counts what it is asked for."""

    def __init__(self, inner: TableFetcher) -> None:
        self.inner = inner
        self.asked = 0

    @property
    def folders(self) -> tuple[str, ...]:
        return self.inner.folders

    def identity(self, uri: str) -> str | None:
        return self.inner.identity(uri)

    def fetch(self, refs: BlobRefs) -> Fetched:
        self.asked += int((refs.uri_ids >= 0).sum())
        return self.inner.fetch(refs)


def frames(warehouse: Path, rows: int = ROWS) -> lh.Table:
    schema = pa.schema([("id", pa.int64()), ("channel", pa.string()), ("blob", pa.large_binary())])
    table = connect(warehouse).create_table("default.frames", schema, partition_by=["channel"])
    table.append([{"id": i, "channel": f"c{i % 3}", "blob": None if i % 50 == 7 else value(i, 500 + i)} for i in range(rows)])
    return table


def epoch_of(ds: lh.Dataset) -> tuple[dict[int, Any], Any]:
    loader = lh.Loader(ds)
    seen: dict[int, Any] = {}
    for batch in loader:
        seen.update(zip(batch["id"].tolist(), batch["blob"], strict=True))
    return seen, loader.stats


# --- training ------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_second_epoch_reads_no_bytes_from_the_store(tmp_path: Path) -> None:
    index = frames(tmp_path / "lake").latest().query().index()
    fetcher = Counting(index.fetcher())  # type: ignore[arg-type]
    cache = lh.Cache(tmp_path / "cache", 64 * MIB)
    expected = {i: None if i % 50 == 7 else value(i, 500 + i) for i in range(ROWS)}
    for ask, verify in ((ROWS - 6, False), (0, False), (ROWS - 6, True), (0, True)):  # verify reads other ranges
        fetcher.asked = 0
        ds = lh.Dataset(index, batch_size=10, seed=3, cache=cache, fetcher=fetcher, verify=verify)
        seen, stats = epoch_of(ds)
        assert seen == expected
        assert fetcher.asked == ask
        assert (stats.requests == 0) == (ask == 0)
        assert (stats.bytes_fetched == 0) == (ask == 0)
        assert stats.bytes_referenced == sum(len(blob) for blob in expected.values() if blob)
    sample = lh.MapDataset(index, cache=cache, fetcher=fetcher)[11]
    assert sample["blob"] == expected[int(sample["id"])]
    assert fetcher.asked == 0


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.s3
def test_worker_processes_share_it(tmp_path: Path, method: Any) -> None:
    index = frames(tmp_path / "lake").latest().query().index()
    cache = lh.Cache(tmp_path / "cache", 64 * MIB)
    for first in (True, False):
        loader = lh.Loader(lh.Dataset(index, batch_size=10, cache=cache), workers=2, start_method=method)
        seen = {i: blob for batch in loader for i, blob in zip(batch["id"].tolist(), batch["blob"], strict=True)}
        assert seen == {i: None if i % 50 == 7 else value(i, 500 + i) for i in range(ROWS)}
        assert (loader.stats.bytes_fetched > 0) == first


def test_changed_objects_are_read_again(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    memory = fsspec.filesystem("memory")
    for i in range(4):
        (outside / f"{i}.bin").write_bytes(b"old %d" % i)
        memory.pipe_file(f"/cache-test/{i}", b"far %d" % i)
    uris = [f"{outside}/{i}.bin" for i in range(4)] + [f"memory://cache-test/{i}" for i in range(4)]
    refs = BlobRefs.of([lh.BlobRef(uri, 0, 5) for uri in uris])
    fetcher = CachingFetcher(
        TableFetcher(str(tmp_path / "table"), [str(outside), "memory://cache-test"]), Store(str(tmp_path / "cache"), LEAST)
    )
    before = [bytes(value) for value in fetcher.fetch(refs).values]  # type: ignore[arg-type]
    assert before == [b"old %d" % i for i in range(4)] + [b"far %d" % i for i in range(4)]
    time.sleep(0.02)
    (outside / "2.bin").write_bytes(b"new 2")
    memory.pipe_file("/cache-test/1", b"fur 1")
    fetcher.begin_epoch()
    fetched = fetcher.fetch(refs)
    after = [bytes(value) for value in fetched.values]  # type: ignore[arg-type]
    assert after == [b"old 0", b"old 1", b"new 2", b"old 3", b"far 0", b"fur 1", b"far 2", b"far 3"]
    assert fetched.stats.bytes_fetched == 10
    memory.rm("/cache-test/3")  # what is gone is an error, not an old answer
    fetcher.begin_epoch()
    assert isinstance(fetcher.fetch(refs).values[7], lh.FetchError)


def test_objects_outside_an_s3_warehouse_are_kept_until_they_change(s3_server: S3Server, tmp_path: Path) -> None:
    bucket: Any = client(s3_server)
    folder = f"raw/{tmp_path.name}"

    def put(i: int, data: bytes) -> None:
        bucket.put_object(Bucket=BUCKET, Key=f"{folder}/{i}.bin", Body=data)

    for i in range(8):
        put(i, b"old %d" % i)
    lake = lake_on(s3_server)
    schema = lh.Schema({"id": pa.int64(), "blob": lh.Blob(reference=True)})
    table = lake.connect(blob_roots=[f"s3://{BUCKET}/{folder}"]).create_table("default.refs", schema)
    table.append([{"id": i, "blob": lh.BlobRef(f"s3://{BUCKET}/{folder}/{i}.bin", 0, 5)} for i in range(8)])
    ds = lh.Dataset(table.latest().query().index(), batch_size=4, cache=lh.Cache(tmp_path / "cache", LEAST))
    expected = {i: b"old %d" % i for i in range(8)}
    for bytes_fetched in (40, 0):
        seen, stats = epoch_of(ds)
        assert (seen, stats.bytes_fetched) == (expected, bytes_fetched)
    put(5, b"new 5")
    seen, stats = epoch_of(ds)
    assert (seen, stats.bytes_fetched) == ({**expected, 5: b"new 5"}, 5)


def test_what_may_not_be_read_is_not_answered_from_the_cache_either(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"hidden")
    refs = BlobRefs.of([lh.BlobRef(str(path), 0, 6)])
    store = Store(str(tmp_path / "cache"), LEAST)
    allowed = CachingFetcher(TableFetcher(str(tmp_path / "t"), [str(tmp_path)]), store)
    assert allowed.fetch(refs).values == [b"hidden"]
    (refused,) = CachingFetcher(TableFetcher(str(tmp_path / "t")), store).fetch(refs).values
    assert isinstance(refused, lh.FetchError)
    assert "blob_roots" in str(refused)


def test_errors_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "t" / "late.bin"
    path.parent.mkdir()
    fetcher = CachingFetcher(TableFetcher(str(tmp_path / "t")), Store(str(tmp_path / "cache"), LEAST))
    refs = BlobRefs.of([lh.BlobRef(str(path), 0, 4), None])
    assert isinstance(fetcher.fetch(refs).values[0], lh.FetchError)
    path.write_bytes(b"here")
    assert fetcher.fetch(refs).values == [b"here", None]


# --- the folder ----------------------------------------------------------------------------------------------------------


@pytest.mark.local("a warehouse in a folder")
@pytest.mark.parametrize("where", ["lake/cache", "lake", "lake/default.db/frames/cache", "."])
def test_refuses_a_folder_in_the_warehouse_or_around_it(tmp_path: Path, where: str) -> None:
    index = frames(tmp_path / "lake", 3).latest().query().index()
    with pytest.raises(lh.ConfigError, match="apart from the warehouse|something else"):
        lh.Dataset(index, batch_size=1, cache=lh.Cache(tmp_path / where, LEAST))
    (tmp_path.parent / f"{tmp_path.name}-link").symlink_to(tmp_path / "lake")
    with pytest.raises(lh.ConfigError, match="apart from the warehouse"):
        lh.Dataset(index, batch_size=1, cache=lh.Cache(tmp_path.parent / f"{tmp_path.name}-link" / "cache", LEAST))
    assert not (tmp_path / "lake" / "cache").exists()


def test_refuses_folders_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("mine")
    (tmp_path / "b").mkdir()
    other = sqlite3.connect(tmp_path / "b" / "index.sqlite3")
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    (tmp_path / "b" / "segment-000000000001.bin").write_bytes(b"mine")
    with pytest.raises(lh.ConfigError, match="something else"):
        lh.Cache(tmp_path / "a", LEAST)
    with pytest.raises(lh.ConfigError, match="something else"):
        lh.Cache(tmp_path / "b", LEAST).clear()
    assert (tmp_path / "b" / "segment-000000000001.bin").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("path", "size"), [("c", 0), ("c", LEAST - 1), ("c", True), ("c", 2.0**30), ("", LEAST), ("s3://b/c", LEAST)]
)
def test_refuses_values_outside_what_is_allowed(tmp_path: Path, path: str, size: Any) -> None:
    with pytest.raises(lh.ConfigError, match="Cache"):
        lh.Cache(path and (path if "://" in path else tmp_path / path), size)


def test_a_fetcher_that_knows_no_versions_is_refused(tmp_path: Path) -> None:
    index = frames(tmp_path / "lake", 3).latest().query().index()

    class Plain:
        def fetch(self, refs: BlobRefs) -> Fetched:
            raise NotImplementedError

    with pytest.raises(lh.ConfigError, match="identity"):
        lh.Dataset(index, batch_size=1, cache=lh.Cache(tmp_path / "cache", LEAST), fetcher=Plain())
    with pytest.raises(lh.ConfigError, match="Cache"):
        lh.Dataset(index, batch_size=1, cache=str(tmp_path))  # type: ignore[arg-type]


def test_limit_holds_and_the_least_recently_used_leaves(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    store = Store(str(path), 4 * MIB)
    for i in range(0, 3_000, 10):
        store.put({key(j): value(j) for j in range(i, i + 10)})
        assert folder_bytes(path) <= 4 * MIB
    held = store.get([key(i) for i in range(3_000)])
    assert all(held[name] == value(int.from_bytes(name, "big")) for name in held)
    assert 400 < len(held) < 800
    assert min(int.from_bytes(name, "big") for name in held) > 2_000
    assert store.used_bytes() == folder_bytes(path)
    store.put({key(9_999): bytes(3 * MIB)})  # more than half of it: not kept, and nothing leaves for it
    assert key(9_999) not in store.get([key(9_999)])
    assert len(store.get(list(held))) == len(held)
    store.clear()
    assert store.get(list(held)) == {}
    assert not list(path.glob("segment-*"))


def test_recently_used_segments_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.cache.store._TOUCH_S", 0.0)
    store = Store(str(tmp_path / "cache"), 4 * MIB)
    store.put({key(0): value(0)})
    for i in range(1, 2_000, 10):
        store.put({key(j): value(j) for j in range(i, i + 10)})
        assert key(0) in store.get([key(0)])


def test_a_lower_limit_holds_from_the_first_use(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    Store(str(path), 8 * MIB).put({key(i): value(i, 50_000) for i in range(100)})
    store = Store(str(path), 2 * MIB)
    store.get([key(0)])
    assert folder_bytes(path) <= 2 * MIB


# --- damage and processes ------------------------------------------------------------------------------------------------


def test_damaged_values_are_misses(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    store = Store(str(path), 4 * MIB)
    store.put({key(i): value(i) for i in range(10)})
    (segment,) = path.glob("segment-*.bin")
    data = bytearray(segment.read_bytes())
    data[3 * 5_000 + 17] ^= 1
    segment.write_bytes(data[: 8 * 5_000 + 100])
    assert sorted(store.get([key(i) for i in range(10)])) == [key(i) for i in (0, 1, 2, 4, 5, 6, 7)]
    segment.unlink()
    assert Store(str(path), 4 * MIB).get([key(i) for i in range(10)]) == {}


@pytest.mark.parametrize("content", [b"not a database" * 100, b""])
def test_a_damaged_index_stops_the_cache_and_not_the_training(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    index = frames(tmp_path / "lake", 20).latest().query().index()
    cache = lh.Cache(tmp_path / "cache", LEAST)
    epoch_of(lh.Dataset(index, batch_size=5, cache=cache))
    copy = tmp_path / "copy"
    copy.mkdir()
    head = (tmp_path / "cache" / "index.sqlite3").read_bytes()[:100]
    (copy / "index.sqlite3").write_bytes(content and head + content)
    seen, _ = epoch_of(lh.Dataset(index, batch_size=5, cache=lh.Cache(copy, 64 * MIB)))
    assert len(seen) == 20
    assert bool(content) == ("is not used any more" in caplog.text)


def test_nowhere_to_write_stops_the_cache_and_not_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = frames(tmp_path / "lake", 20).latest().query().index()
    cache = lh.Cache(tmp_path / "later" / "cache", LEAST)
    (tmp_path / "later").write_text("a file where the folder should come")
    seen, _ = epoch_of(lh.Dataset(index, batch_size=5, cache=cache))
    assert len(seen) == 20
    assert caplog.text.count("is not used any more") == 1


WRITER = """
import sys, numpy as np
from lakehouse.cache.store import Store
store = Store(sys.argv[1], 64 << 20)
rng = np.random.default_rng(int(sys.argv[2]))
print("ready", flush=True)
while True:
    numbers = rng.integers(0, 4_000, 8).tolist()
    held = store.get([i.to_bytes(16, "big") for i in numbers])
    for name, data in held.items():
        if data != np.random.default_rng(int.from_bytes(name, "big")).bytes(50_000):
            print("wrong", flush=True)
            sys.exit(1)
    store.put({i.to_bytes(16, "big"): np.random.default_rng(i).bytes(50_000) for i in numbers})
"""


def test_processes_that_are_killed_leave_a_cache_that_works(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    rng = np.random.default_rng(0)

    def start(seed: int) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    children = [start(seed) for seed in range(2)]
    deadline = time.monotonic() + 30
    while not Store(str(path), LEAST).get([key(i) for i in range(4_000)]):
        assert time.monotonic() < deadline, "nothing is kept"
        time.sleep(0.02)
    try:
        for seed in range(2, 8):
            time.sleep(float(rng.uniform(0.1, 0.8)))
            victim = children.pop(0)
            assert victim.poll() is None, "a reader got a wrong value, or failed"
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
            children.append(start(seed))
            held = Store(str(path), LEAST).get([key(i) for i in range(4_000)])
            assert held
            assert all(held[name] == value(int.from_bytes(name, "big"), 50_000) for name in held)
    finally:
        for child in children:
            child.kill()
            child.communicate()
    Store(str(path), LEAST).get([key(0)])  # removes what a kill left between an eviction and its unlink
    assert folder_bytes(path) <= LEAST


def test_threads_and_a_fork(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "cache"), 16 * MIB)
    wrong: list[int] = []

    def work(first: int) -> None:
        for i in range(first, first + 100):
            store.put({key(i): value(i)})
            if store.get([key(i)]) != {key(i): value(i)}:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_in_child, args=(store, first)) for first in (1_000, 2_000)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert len(store.get([key(i) for i in (*range(400), *range(1_000, 1_050), *range(2_000, 2_050))])) == 500


def _in_child(store: Store, first: int) -> None:
    for i in range(first, first + 50):
        store.put({key(i): value(i)})
    held = store.get([key(i) for i in range(400)])
    os._exit(0 if len(held) == 400 and all(held[key(i)] == value(i) for i in range(400)) else 1)


def test_nothing_readable_names_the_data(tmp_path: Path) -> None:
    index = frames(tmp_path / "lake", 20).latest().query().index()
    cache = lh.Cache(tmp_path / "cache", LEAST)
    epoch_of(lh.Dataset(index, batch_size=5, cache=cache))
    for path in (tmp_path / "cache").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0 or path.name.startswith("index")
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0
    assert pickle.loads(pickle.dumps(cache)).path == cache.path
    assert repr(cache) == f"Cache({str(tmp_path / 'cache')!r}, max_bytes={LEAST})"


def _opens_it(path: str, at: float) -> None:
    store = lh.Cache(path, 64 * MIB).store
    while time.time() < at:
        pass
    key = os.urandom(16)
    store.put({key: b"x" * 100})
    raise SystemExit(0 if store.get([key]) else 1)


def test_processes_that_open_a_new_one_at_the_same_moment_all_use_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for repetition in range(25):  # before openings took turns, two of three repetitions had a process that fell out
        at = time.time() + 0.03
        processes = [context.Process(target=_opens_it, args=(str(tmp_path / f"{repetition}"), at)) for _ in range(6)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 6
