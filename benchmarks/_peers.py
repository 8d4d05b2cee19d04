"""Other loaders on the same JPEGs: each converted to its own format, then read as its documentation recommends for speed.

All of them get two workers, shuffle, batches of 64 and the same decode function; each variant returns a function that gives
one epoch of uint8 batches. Default collation writes into shared memory in the worker, the fastest way that torch has.
"""

from __future__ import annotations

import functools
import importlib.machinery
import io
import shutil
import sys
import tarfile
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

BATCH, WORKERS = 64, 2
Decode = Callable[[bytes], Any]
Epoch = Callable[[], Iterable[torch.Tensor]]

_SHUFFLE_ROWS = 1_000  # of those that shuffle in a buffer


def convert(name: str, paths: Sequence[Path], folder: Path) -> None:
    """Write a peer's copy of the pictures where it is absent."""
    if name not in _WRITERS or folder.exists():
        return
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    _WRITERS[name](paths, part)
    part.replace(folder)


def _loader(dataset: Any, **rest: Any) -> DataLoader[Any]:
    return DataLoader(dataset, num_workers=WORKERS, persistent_workers=True, **{"batch_size": BATCH, **rest})


# --- files in a folder ---------------------------------------------------------------------------------------------------


class Files(Dataset[torch.Tensor]):
    """The map-style data set that everyone writes first."""

    def __init__(self, paths: Sequence[Path], decode: Decode) -> None:
        self._paths = [str(path) for path in paths]
        self._decode = decode

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, i: int) -> torch.Tensor:
        with open(self._paths[i], "rb") as file:
            return torch.from_numpy(self._decode(file.read()))


def files(paths: Sequence[Path], _: Path, decode: Decode) -> Epoch:
    loader = _loader(Files(paths, decode), shuffle=True)
    return lambda: loader


# --- WebDataset ----------------------------------------------------------------------------------------------------------


def _write_webdataset(paths: Sequence[Path], folder: Path) -> None:
    folder.mkdir(parents=True)
    shards = 10
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for path in paths[shard::shards]:
                data = path.read_bytes()
                entry = tarfile.TarInfo(path.name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def webdataset(_: Sequence[Path], folder: Path, decode: Decode) -> Epoch:
    import webdataset as wds

    # Batches are made in the workers; the further shuffle across workers that the documentation shows costs more copies.
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    stream = (
        wds.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(_SHUFFLE_ROWS)
        .map(lambda sample: torch.from_numpy(decode(sample["jpg"])))
        .batched(BATCH, collation_fn=default_collate)
    )
    loader = wds.WebLoader(stream, batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return lambda: loader


# --- MosaicML Streaming --------------------------------------------------------------------------------------------------


def _streaming() -> Any:
    try:
        import torchvision  # noqa: F401
    except Exception:  # noqa: BLE001 - PyPI's torchvision does not load beside a CPU build of torch
        # Streaming imports it for data sets of its own that are not used here.
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
        sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
    import streaming

    return streaming


def _write_streaming(paths: Sequence[Path], folder: Path) -> None:
    with _streaming().MDSWriter(out=str(folder), columns={"jpg": "bytes"}) as out:
        for path in paths:
            out.write({"jpg": path.read_bytes()})


def streaming(_: Sequence[Path], folder: Path, decode: Decode) -> Epoch:
    library = _streaming()
    library.base.util.clean_stale_shared_memory()

    class Pictures(library.StreamingDataset):  # type: ignore[name-defined,misc]
        def __getitem__(self, at: int) -> torch.Tensor:
            return torch.from_numpy(decode(super().__getitem__(at)["jpg"]))

    loader = _loader(Pictures(local=str(folder), shuffle=True, batch_size=BATCH))
    return lambda: loader


# --- LitData -------------------------------------------------------------------------------------------------------------


def _read(path: str) -> dict[str, bytes]:
    return {"jpg": Path(path).read_bytes()}


def _write_litdata(paths: Sequence[Path], folder: Path) -> None:
    import litdata

    litdata.optimize(
        fn=_read, inputs=[str(path) for path in paths], output_dir=str(folder), chunk_bytes="16MB", num_workers=2, verbose=False
    )


def _decoded(decode: Decode, sample: dict[str, bytes]) -> torch.Tensor:
    return torch.from_numpy(decode(sample["jpg"]))


def litdata(_: Sequence[Path], folder: Path, decode: Decode) -> Epoch:
    import litdata as library

    pictures = library.StreamingDataset(str(folder), shuffle=True, transform=functools.partial(_decoded, decode))
    loader = library.StreamingDataLoader(pictures, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: loader


# --- Lance ---------------------------------------------------------------------------------------------------------------


def _write_lance(paths: Sequence[Path], folder: Path) -> None:
    import lance
    import pyarrow as pa

    schema = pa.schema([("jpg", pa.large_binary())])
    pieces = (paths[start : start + 250] for start in range(0, len(paths), 250))
    batches = (
        pa.record_batch([pa.array([path.read_bytes() for path in piece], pa.large_binary())], schema) for piece in pieces
    )
    lance.write_dataset(batches, str(folder), schema=schema)


def _collated(decode: Decode, samples: list[dict[str, bytes]]) -> torch.Tensor:
    return default_collate([_decoded(decode, sample) for sample in samples])  # type: ignore[no-any-return]


def lance(_: Sequence[Path], folder: Path, decode: Decode) -> Epoch:
    from lance.torch.data import SafeLanceDataset, get_safe_loader

    loader = get_safe_loader(
        SafeLanceDataset(str(folder)),
        batch_size=BATCH,
        num_workers=WORKERS,
        shuffle=True,
        collate_fn=functools.partial(_collated, decode),
    )
    return lambda: loader


# --- Hugging Face datasets -----------------------------------------------------------------------------------------------


def _write_hugging_face(paths: Sequence[Path], folder: Path) -> None:
    import datasets

    features = datasets.Features({"jpg": datasets.Value("binary")})
    datasets.Dataset.from_dict({"jpg": [path.read_bytes() for path in paths]}, features=features).save_to_disk(str(folder))


def _transformed(decode: Decode, samples: dict[str, list[bytes]]) -> dict[str, list[torch.Tensor]]:
    return {"jpg": [torch.from_numpy(decode(data)) for data in samples["jpg"]]}


def hugging_face(_: Sequence[Path], folder: Path, decode: Decode) -> Epoch:
    import datasets

    pictures = datasets.load_from_disk(str(folder)).with_transform(functools.partial(_transformed, decode))
    loader = _loader(pictures, shuffle=True)
    return lambda: (batch["jpg"] for batch in loader)


# --- pypaimon ------------------------------------------------------------------------------------------------------------


def _tensors(decode: Decode, rows: Any, **_: Any) -> torch.Tensor:
    return default_collate([torch.from_numpy(decode(data)) for data in rows.column("jpg").to_pylist()])  # type: ignore[no-any-return]


def pypaimon(table: Any, decode: Decode) -> Epoch:
    # Small splits, so that both workers get some of this small table.
    builder = table.copy({"source.split.target-size": "1 mb"}).new_read_builder().with_projection(["jpg"])
    rows = builder.new_read().to_torch(
        builder.new_scan().plan().splits(),
        streaming=True,
        batch_format="torch",
        batch_size=BATCH,
        to_tensor_fn=functools.partial(_tensors, decode),
        shuffle=True,
        buffer_size=_SHUFFLE_ROWS,
    )
    loader = _loader(rows, batch_size=None)
    return lambda: loader


_WRITERS: dict[str, Callable[[Sequence[Path], Path], None]] = {
    "WebDataset": _write_webdataset,
    "MosaicML Streaming": _write_streaming,
    "LitData": _write_litdata,
    "Lance": _write_lance,
    "Hugging Face datasets": _write_hugging_face,
}

PEERS: dict[str, Callable[[Sequence[Path], Path, Decode], Epoch]] = {
    "folder, map-style": files,
    "WebDataset": webdataset,
    "MosaicML Streaming": streaming,
    "LitData": litdata,
    "Lance": lance,
    "Hugging Face datasets": hugging_face,
}
