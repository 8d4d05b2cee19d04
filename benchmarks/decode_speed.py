"""JPEGs decoded to uint8 RGB, shuffled, in batches of 64: this loader against the decoder alone and against other loaders.

The raw limit is a loop over bytes in memory, one process a core, into an array that is there already; "raw, from the table" is the
same loop, but each picture is read from the table's file first (one ``pread``), as any loader must. The loaders read files
that are warm, and do nothing with a batch. Each runs one epoch to warm up, in which every picture that it delivers is checked
against the decoder's own pixels, then ``--epochs`` that are timed: the start of worker processes is not in the rate.

    python benchmarks/decode_speed.py                                     5,000 of 320x240
    python benchmarks/decode_speed.py --size 1280x720 --resize 224x224    1,000, decoded at a fraction of their size
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
import _bench
import _pictures

BATCH = 64
# Not imported above: the raw limit needs no torch.
PEERS = ("folder, map-style", "WebDataset", "MosaicML Streaming", "LitData", "Lance", "Hugging Face datasets")


def decode(size: tuple[int, int] | None, data: bytes, out: Any = None) -> Any:
    """One picture to uint8[height, width, 3]; with a size at a fraction of its own, then resized: the same for everybody."""
    if size is None:
        return simplejpeg.decode_jpeg(data, "RGB", buffer=out)
    height, width = size
    small = simplejpeg.decode_jpeg(data, "RGB", min_height=height, min_width=width)
    pixels = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR))
    if out is None:
        return pixels.copy()  # torch wants memory that may be written to
    out[...] = pixels
    return out


# --- options and data ----------------------------------------------------------------------------------------------------


def sides(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    return int(width), int(height)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=sides, default=(320, 240), help="WIDTHxHEIGHT of the files")
    parser.add_argument("--resize", type=sides, help="WIDTHxHEIGHT to decode to")
    parser.add_argument("--rows", type=int, help="default: 5,000, or 1,000 above 640x480")
    parser.add_argument("--epochs", type=int, default=3, help="timed in each run, after one that is not")


def rows_of(args: argparse.Namespace) -> int:
    return args.rows or (5_000 if args.size[0] * args.size[1] <= 640 * 480 else 1_000)


def target(args: argparse.Namespace) -> tuple[int, int] | None:
    return args.resize and (args.resize[1], args.resize[0])


def data_folder(args: argparse.Namespace) -> str:
    return f"lakehouse-bench-decode-{args.size[0]}x{args.size[1]}-{rows_of(args)}"


def paths_of(args: argparse.Namespace) -> list[Path]:
    return _pictures.folder_of(args.data / "jpg", rows_of(args), *args.size)


def prepare(args: argparse.Namespace) -> str:
    paths = paths_of(args)
    catalog = connect(args)
    if "default.pictures" not in catalog.tables():
        import pyarrow as pa

        schema = pa.schema([("id", pa.int64()), ("jpg", pa.large_binary())])
        catalog.create_table("default.pictures", schema).append({"id": i, "jpg": p.read_bytes()} for i, p in enumerate(paths))
    if any(name in PEERS for name in args.chosen):
        import _peers

        for name in args.chosen:
            _peers.convert(name, paths, args.data / name.lower().replace(" ", "-"))
    if not expected_file(args).exists():
        pixels = (decode(target(args), path.read_bytes()) for path in paths)
        expected_file(args).write_text(json.dumps(fingerprints(pixels)))
    mean = np.mean([path.stat().st_size for path in paths])
    resized = f", decoded to {args.resize[0]}x{args.resize[1]}" if args.resize else ""
    return f"{len(paths):,} JPEGs of {args.size[0]}x{args.size[1]}, {mean:,.0f} bytes on average{resized}, batch {BATCH}"


def connect(args: argparse.Namespace) -> Any:
    import lakehouse as lh

    return lh.connect(warehouse=str(args.data / "lake"))


def expected_file(args: argparse.Namespace) -> Path:
    return args.data / f"fingerprints-{'x'.join(map(str, args.resize or args.size))}.json"


# --- timing --------------------------------------------------------------------------------------------------------------


def fingerprints(pictures: Iterable[Any]) -> list[int]:
    return [zlib.crc32(np.ascontiguousarray(picture[::8, ::8])) for picture in pictures]


def timed(epoch: Any, args: argparse.Namespace) -> dict[str, float]:
    """Warm up and check, then time."""
    start = time.perf_counter()
    seen = []
    first = 0.0
    for batch in epoch():
        first = first or time.perf_counter() - start
        seen += fingerprints(batch.numpy())
    expected = Counter(json.loads(expected_file(args).read_text()))
    if Counter(seen) - expected or len(seen) < rows_of(args) - BATCH:
        sys.exit(f"{len(seen)} of {rows_of(args)} pictures, of which {len(Counter(seen) - expected)} differ or came twice")
    samples = 0
    start = time.perf_counter()
    for _ in range(args.epochs):
        samples += sum(len(batch) for batch in epoch())
    return {"samples": samples, "seconds": time.perf_counter() - start, "first_batch": first}


# --- variants ------------------------------------------------------------------------------------------------------------


def raw_limit(args: argparse.Namespace) -> dict[str, float]:
    return _by_processes(args, [path.read_bytes() for path in paths_of(args)])


def raw_from_table(args: argparse.Namespace) -> dict[str, float]:
    refs = connect(args).table("default.pictures").latest().query().select("jpg").index().blobs("jpg")
    files = [os.open(uri.removeprefix("file://"), os.O_RDONLY) for uri in refs.uris]
    places = zip(refs.uri_ids.tolist(), refs.offsets.tolist(), refs.lengths.tolist(), strict=True)
    return _by_processes(args, [(files[uri_id], length, offset) for uri_id, offset, length in places])


def _by_processes(args: argparse.Namespace, pictures: Sequence[Any]) -> dict[str, float]:
    cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(cores + 1)
    work = functools.partial(_decode_all, target(args), args.epochs, barrier)
    processes = [context.Process(target=work, args=(pictures[core::cores],)) for core in range(cores)]
    for process in processes:
        process.start()
    barrier.wait()
    start = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - start
    for process in processes:
        process.join()
    return {"samples": args.epochs * len(pictures), "seconds": seconds, "first_batch": 0.0}


def _decode_all(size: tuple[int, int] | None, epochs: int, barrier: Any, pictures: Sequence[Any]) -> None:
    shape = decode(size, _bytes_of(pictures[0])).shape
    batch = np.empty((BATCH, *shape), np.uint8)
    rng = np.random.default_rng(0)
    for epoch in range(epochs + 1):
        if epoch == 1:
            barrier.wait()
        for place, i in enumerate(rng.permutation(len(pictures)).tolist()):
            picture = pictures[i]
            decode(size, picture if type(picture) is bytes else _bytes_of(picture), batch[place % BATCH])
    barrier.wait()


def _bytes_of(picture: Any) -> bytes:
    return picture if isinstance(picture, bytes) else os.pread(*picture)


def lakehouse(args: argparse.Namespace, workers: int = 0) -> dict[str, float]:
    import lakehouse as lh

    index = connect(args).table("default.pictures").latest().query().select("jpg").index()
    ds = lh.Dataset(index, batch_size=BATCH, seed=1, decode={"jpg": lh.Image(size=target(args))})
    loader = lh.Loader(ds, workers=workers)
    return timed(lambda: (batch["jpg"] for batch in loader), args)


def peer(name: str, args: argparse.Namespace) -> dict[str, float]:
    import _peers

    folder = args.data / name.lower().replace(" ", "-")
    return timed(_peers.PEERS[name](paths_of(args), folder, functools.partial(decode, target(args))), args)


def pypaimon(args: argparse.Namespace) -> dict[str, float]:
    import _peers

    return timed(_peers.pypaimon(connect(args).table("default.pictures").paimon, functools.partial(decode, target(args))), args)


def report(results: _bench.Runs) -> None:
    _bench.rates(results)
    print()
    best = max(
        (name for name in results if name in (*PEERS[1:], "pypaimon to_torch")), key=lambda n: rate(results[n]), default=None
    )
    for name, other, least in (
        ("lakehouse", "raw limit", 0.95),
        ("raw, from the table", "raw limit", None),
        ("lakehouse", "raw, from the table", None),
        ("lakehouse", "folder, map-style", 1.6),
        ("lakehouse", best, 2.0),
    ):
        if name in results and other in results:
            wanted = "" if least is None else f" (wanted: {least})"
            print(f"{name} / {other}: {rate(results[name]) / rate(results[other]):.2f}{wanted}")
    first = ", ".join(
        f"{name} {_bench.median(rows, 'first_batch'):.2f}" for name, rows in results.items() if not name.startswith("raw")
    )
    print(f"seconds to the first batch of all: {first}")


def rate(rows: Sequence[_bench.Measures]) -> float:
    return float(np.median([row["samples"] / row["seconds"] for row in rows]))


if __name__ == "__main__":
    variants: dict[str, _bench.Variant] = {
        "raw limit": raw_limit,
        "raw, from the table": raw_from_table,
        "lakehouse": lakehouse,
        "lakehouse, 2 workers": functools.partial(lakehouse, workers=2),
        **{name: functools.partial(peer, name) for name in PEERS},
        "pypaimon to_torch": pypaimon,
    }
    modules = {
        "WebDataset": "webdataset",
        "MosaicML Streaming": "streaming",
        "LitData": "litdata",
        "Lance": "lance",
        "Hugging Face datasets": "datasets",
    }
    what = "JPEGs decoded, shuffled"
    _bench.main(what, variants, prepare, data_folder, needs=modules, options=options, report=report)
