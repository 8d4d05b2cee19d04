"""Training from S3 against training from local files, and against pypaimon's own reading of S3.

A real S3 server (SeaweedFS) behind a proxy that delays every request by 20 ms, all on this machine: the server, the proxy and
the loader share its cores. The processor time of each is printed. Blobs of 14 KB (JPEGs of 320x240) and 150 KB (1280x720), in block order, decoded to RGB.

    python benchmarks/object_store.py                 # all cases, ingest, first batch
    python benchmarks/object_store.py --only small    # or another of CASES, ingest, first
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

import _relay

import lakehouse as lh
from tests.stores.proxy import running_proxy
from tests.stores.server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server, running_server

SCHEMA = pa.schema([("id", pa.int64()), ("frame_jpg", pa.large_binary())])


class Case(NamedTuple):
    """Pictures, and how they are read."""

    rows: int
    epochs: int
    shape: tuple[int, int]
    target_bytes: int
    batch: int
    shuffle: str
    pypaimon_rows: int
    note: str


_SMALL, _LARGE = ((240, 320), 14_000, 64), ((720, 1280), 150_000, 16)
CASES = {
    "small": Case(40_000, 1, *_SMALL, "blocks", 640, "three windows"),
    "large": Case(6_000, 1, *_LARGE, "blocks", 256, "three windows of 2,048 rows, since they are large"),
    "small-once": Case(5_000, 4, *_SMALL, "blocks", 640, "one window, which each epoch waits for"),
    "large-once": Case(500, 2, *_LARGE, "blocks", 256, "one window, which each epoch waits for"),
    "large-256x64": Case(4_000, 1, *_LARGE, "blocks:256x64", 256, "one window of more bytes than are read ahead"),
}


def jpegs(count: int, shape: tuple[int, int], target_bytes: int) -> list[bytes]:
    """Distinct JPEGs of about a size: a dozen noisy pictures, each with a comment of its own."""
    height, width = shape
    rng = np.random.default_rng(0)
    bases = []
    for _ in range(12):
        coarse = Image.fromarray(rng.integers(0, 255, (height // 24, width // 24, 3), dtype=np.uint8)).resize((width, height))
        noise = rng.normal(0, 12, (height, width, 1))
        picture = Image.fromarray(np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8))
        low, high = 5, 95
        while high - low > 1:
            middle = (low + high) // 2
            file = io.BytesIO()
            picture.save(file, "JPEG", quality=middle)
            low, high = (middle, high) if len(file.getvalue()) < target_bytes else (low, middle)
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=low)
        bases.append(file.getvalue())
    return [bases[i % 12][:2] + b"\xff\xfe\x00\x06" + i.to_bytes(4, "big") + bases[i % 12][2:] for i in range(count)]


def make(options: dict[str, str], name: str, blobs: list[bytes]) -> lh.RowIndex:
    table = lh.connect(options).create_table(f"default.{name}", SCHEMA)
    table.append(pa.table({"id": range(len(blobs)), "frame_jpg": pa.array(blobs, pa.large_binary())}, SCHEMA))
    return table.latest().query().index()


def dataset(index: lh.RowIndex, case: Case, **options: Any) -> lh.Dataset:
    return lh.Dataset(index, batch_size=case.batch, shuffle=case.shuffle, seed=1, **options)


def decoded(index: lh.RowIndex, case: Case) -> tuple[float, float, Any]:
    """Samples a second over whole epochs, start included; processor time of a sample in us; what was read."""
    loader = lh.Loader(dataset(index, case, decode={"frame_jpg": lh.Image()}))
    began, before, rows = time.perf_counter(), time.process_time(), 0
    for _ in range(case.epochs):
        for batch in loader:
            rows += len(batch["id"])
    return rows / (time.perf_counter() - began), (time.process_time() - before) / rows * 1e6, loader.stats


def by_pypaimon(index: lh.RowIndex, options: dict[str, str], case: Case) -> float:
    """The same rows in the same order by pypaimon's own merged reads of S3, a batch at a time, decoded alike."""
    from pypaimon import CatalogFactory

    file_io = CatalogFactory.create(options).file_io
    steps = dataset(index, case)
    refs, image = index.blobs("frame_jpg"), lh.Image()
    from concurrent.futures import ThreadPoolExecutor

    from pypaimon.table.row.blob import BlobDescriptor

    done, began = 0, time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for step in range(len(steps)):
            chosen = refs.take(steps.rows_of(0, step).rows)
            ranges = [BlobDescriptor(ref.uri, ref.offset, ref.length) for ref in chosen if ref is not None]
            data = file_io.read_ranges_coalesced([(d.uri, d.offset, d.length) for d in ranges], 16)
            list(pool.map(lambda one: image(one, None), data))
            done += len(ranges)
            if done >= case.pypaimon_rows:
                break
    return done / (time.perf_counter() - began)


def by_pypaimon_singly(index: lh.RowIndex, options: dict[str, str], rows: int) -> float:
    """The same, a blob at a time, as pypaimon reads a BLOB column's descriptors."""
    from pypaimon import CatalogFactory
    from pypaimon.common.uri_reader import UriReader
    from pypaimon.table.row.blob import Blob, BlobDescriptor

    reader = UriReader.from_file(CatalogFactory.create(options).file_io)
    steps = lh.Dataset(index, batch_size=16, seed=1)
    refs, image = index.blobs("frame_jpg"), lh.Image()
    done, began = 0, time.perf_counter()
    for step in range(rows // 16):
        for ref in refs.take(steps.rows_of(0, step).rows):
            assert ref is not None
            image(Blob.from_descriptor(reader, BlobDescriptor(ref.uri, ref.offset, ref.length)).to_data(), None)
            done += 1
    return done / (time.perf_counter() - began)


def training(name: str, case: Case, server: S3Server, folder: Path, delay_s: float, repeats: int) -> None:
    blobs = jpegs(case.rows, case.shape, case.target_bytes)
    mean = statistics.mean(map(len, blobs))
    table = name.replace("-", "_")
    local = make({"warehouse": str(folder / name)}, table, blobs)
    options = {"warehouse": f"s3://{BUCKET}/bench-{name}", **server.options()}
    make(options, table, blobs)
    del blobs
    with relay_process(server, delay_s) as (through, others):
        slow = {**options, **through.options()}
        index = lh.connect(slow).table(f"default.{table}").latest().query().index()
        near, far, spent = [], [], []
        stats: Any = None
        for _ in range(repeats):
            near.append(decoded(local, case))
            before_s = [cpu_s(pid) for pid in others]
            *speed, stats = decoded(index, case)
            far.append(speed)
            spent.append([(cpu_s(pid) - s) / case.epochs / case.rows * 1e6 for pid, s in zip(others, before_s, strict=True)])
        merged = by_pypaimon(index, slow, case)
        singly = by_pypaimon_singly(index, slow, 64)
    a, b = (statistics.median(run[0] for run in runs) for runs in (near, far))
    epochs = "1 epoch" if case.epochs == 1 else f"{case.epochs} epochs"
    print(
        f"{name}: {case.rows:,} blobs of {mean / 1000:.1f} KB, {epochs}, shuffle={case.shuffle!r}, {delay_s * 1000:.0f} ms a request"
    )
    print(f"  {case.note}; batch {case.batch}")
    print(f"  local files           {a:8.0f} samples/s   runs {', '.join(f'{run[0]:.0f}' for run in near)}")
    print(f"  S3                    {b:8.0f} samples/s   runs {', '.join(f'{run[0]:.0f}' for run in far)}")
    print(f"  pypaimon's own, S3    {merged:8.0f} samples/s   one run: a batch's reads merged, decoded in threads")
    print(f"  ... a blob at a time  {singly:8.0f} samples/s   one run")
    pairs = [fast[0] / slow[0] for fast, slow in zip(far, near, strict=True)]  # one after the other: the machine's speed drifts
    listed = ", ".join(f"{pair:.2f}" for pair in pairs)
    print(f"  S3 / local            {statistics.median(pairs):8.2f}   (wanted: 0.8)   pairs of runs {listed}")
    near_us, far_us = (statistics.median(run[1] for run in runs) for runs in (near, far))
    relay_us, server_us = (statistics.median(run) for run in zip(*spent, strict=True))
    print(
        f"  CPU us a sample       local: loader {near_us:.0f}; S3: loader {far_us:.0f}, proxy {relay_us:.0f}, server {server_us:.0f}"
    )
    print(f"  S3 / pypaimon         {b / merged:8.1f}   (wanted: 3)")
    print(f"  bytes fetched / referenced {stats.bytes_fetched / stats.bytes_referenced:.3f}   (wanted: at most 1.05)")
    print(f"  requests a sample     {stats.requests / stats.rows:8.4f}")


def first_batch(server: S3Server, folder: Path, delay_s: float, repeats: int) -> None:
    """A cold start with a saved index: a fresh process's round trips until it has its first batch."""
    blobs = jpegs(2000, (240, 320), 14_000)
    options = {"warehouse": f"s3://{BUCKET}/bench-first", **server.options()}
    make(options, "first", blobs).save(folder / "train.idx")
    proxy = running_proxy_process(server, delay_s)
    with proxy as through:
        slow = {**options, **through.options()}
        context = multiprocessing.get_context("spawn")
        taken = []
        for _ in range(max(3, repeats)):
            proxy.counts()
            answer = context.SimpleQueue()
            process = context.Process(target=cold_start, args=(slow, folder / "train.idx", answer))
            process.start()
            seconds = answer.get()
            taken.append((*seconds, *proxy.counts()))  # of what was answered by now
            process.join()
    for position, name in enumerate(("open the catalog", "load the index", "first batch after that", "all")):
        runs = [one[position] for one in taken]
        listed = ", ".join(f"{run * 1000:.0f}" for run in runs)
        print(f"  {name:24} {statistics.median(runs) * 1000:5.0f} ms   runs {listed}")
    total, in_turn, requests = (statistics.median(one[position] for one in taken) for position in (3, 4, 5))
    print(f"  by the clock {total / delay_s:.1f} times a round trip (wanted: 15)")
    print(f"  requests in turn at the proxy {in_turn:.0f}, in all {requests:.0f}")


def cold_start(options: dict[str, str], path: Path, answer: Any) -> None:
    import botocore.session
    import obstore.store

    import lakehouse.loader

    lh.connect(warehouse=str(path.parent / "any")).databases()
    lh.Image()(jpegs(1, (240, 320), 14_000)[0], None)  # imports of libraries are not what is measured
    assert all((botocore.session, obstore.store, lakehouse.loader))
    times = [time.perf_counter()]
    catalog = lh.connect(options)
    assert catalog.paimon is not None
    times.append(time.perf_counter())
    index = lh.RowIndex.load(path, catalog)
    times.append(time.perf_counter())
    loader = lh.Loader(lh.Dataset(index, batch_size=64, seed=1, decode={"frame_jpg": lh.Image()}))
    next(iter(loader))
    times.append(time.perf_counter())
    answer.put((*np.diff(times).tolist(), times[-1] - times[0]))


def ingest(server: S3Server, repeats: int) -> None:
    """Append against a plain multipart upload of the same bytes by the same client (pyarrow)."""
    from pyarrow.fs import S3FileSystem

    blobs = [os.urandom(150_000) for _ in range(1000)]
    data = b"".join(blobs)
    options = {"warehouse": f"s3://{BUCKET}/bench-ingest", **server.options()}
    table = lh.connect(options).create_table("default.ingest", SCHEMA)
    rows = pa.table({"id": range(len(blobs)), "frame_jpg": pa.array(blobs, pa.large_binary())}, SCHEMA)
    plain, ours = [], []
    client = S3FileSystem(access_key=ACCESS_KEY, secret_key=SECRET_KEY, region=REGION, endpoint_override=server.endpoint)
    for number in range(repeats):
        began = time.perf_counter()
        with client.open_output_stream(f"{BUCKET}/plain-{number}") as stream:
            for start in range(0, len(data), 1 << 20):
                stream.write(data[start : start + (1 << 20)])
        plain.append(len(data) / (time.perf_counter() - began) / 1e6)
        began = time.perf_counter()
        table.append(rows)
        ours.append(len(data) / (time.perf_counter() - began) / 1e6)
    a, b = statistics.median(plain), statistics.median(ours)
    print(
        f"ingest of {len(data) / 1e6:.0f} MB, no delay: plain multipart {a:.0f} MB/s, append {b:.0f} MB/s, {b / a:.2f} (wanted: 0.7)"
    )


@contextlib.contextmanager
def relay_process(server: S3Server, delay_s: float) -> Iterator[tuple[S3Server, tuple[int, int]]]:
    """The server as seen through a quick proxy; the process ids of the proxy and of the server."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_serve_relay, args=(server.port, delay_s, theirs), daemon=True)
    process.start()
    port = pipe.recv()
    process_id = process.pid
    assert process_id is not None
    yield replace(server, endpoint=f"http://127.0.0.1:{port}"), (process_id, server_process(server))
    pipe.send("end")
    process.join()


def _serve_relay(port: int, delay_s: float, pipe: Any) -> None:
    with _relay.relaying(port, delay_s) as own:
        pipe.send(own)
        pipe.recv()


def server_process(server: S3Server) -> int:
    """The process id of a server that was started here."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                f"-s3.port={server.port}" in (folder / "cmdline").read_text().split("\0")
                and (folder / "exe").readlink().name == "weed"
            ):
                return int(folder.name)
    raise LookupError(f"no process serves port {server.port}")


def cpu_s(process_id: int) -> float:
    """Processor seconds of a process so far."""
    after_name = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


class running_proxy_process:  # noqa: N801 - used as a context manager's function
    """The proxy in a process of its own, so that it does not take the interpreter's lock from the loader."""

    def __init__(self, server: S3Server, delay_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve_proxy, args=(server, delay_s, theirs), daemon=True)

    def __enter__(self) -> S3Server:
        self._process.start()
        server: S3Server = self._pipe.recv()
        return server

    def counts(self) -> tuple[int, int]:
        """Requests answered since the last call: the longest chain of them that came one after the other, and all."""
        self._pipe.send("counts")
        in_turn, requests = self._pipe.recv()
        return in_turn, requests

    def __exit__(self, *_: object) -> None:
        self._pipe.send("end")
        self._process.join()


def _serve_proxy(server: S3Server, delay_s: float, pipe: Any) -> None:
    with running_proxy(server, delay_s) as proxy:
        pipe.send(proxy.server)
        while pipe.recv() == "counts":
            pipe.send((proxy.round_trips, len(proxy.answered)))
            proxy.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*CASES, "ingest", "first"])
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of each case's rows; figures are for all of them")
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"command: {' '.join(sys.argv)}; commit {commit}; Python {platform.python_version()}, {os.cpu_count()} cores")
    delay_s = arguments.delay_ms / 1000
    with running_server() as server, tempfile.TemporaryDirectory() as folder:
        for name, whole in CASES.items():
            case = whole._replace(rows=int(whole.rows * arguments.share))
            if arguments.only in (None, name):
                training(name, case, server, Path(folder), delay_s, arguments.repeats)
        if arguments.only in (None, "first"):
            print("first batch, cold start with a saved index of 2,000 rows:")
            first_batch(server, Path(folder), delay_s, arguments.repeats)
        if arguments.only in (None, "ingest"):
            ingest(server, arguments.repeats)


if __name__ == "__main__":
    main()
