"""From a folder of driving frames to training batches, on an embedded lake.

    python examples/drive_frames.py                   # draws 24 road scenes, so that it needs no download
    python examples/drive_frames.py --images DIR      # your own JPEGs

It creates `default.drive_frames` partitioned by camera, appends the frames, explores them, tags the training set, appends
more, computes on pixels with UDFs, and trains a small model from the tag: stopped in the middle, resumed in a new process,
and seen to receive exactly the batches of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image, ImageDraw

import lakehouse as lh
from udfs import image

CHANNELS = ("CAM_FRONT", "CAM_FRONT_LEFT", "CAM_FRONT_RIGHT")
WEATHERS = ("clear", "cloudy", "rain")
TABLE, TAG = "default.drive_frames", "training_v1"
EPOCHS, SEED = 2, 7


def main() -> None:
    args = arguments()
    if args.resume:
        train(args.warehouse, args.resume, resume=True)
        return
    frames = read_frames(args.images) if args.images else draw_frames(24)
    say(1, f"{len(frames)} frames, {sum(len(data) for _, data in frames):,} bytes")
    with tempfile.TemporaryDirectory(prefix="lake-") as scratch:
        run(args.warehouse or scratch, frames, Path(scratch))


def run(warehouse: str, frames: list[tuple[str, bytes]], scratch: Path) -> None:
    catalog = lh.connect(warehouse=warehouse)
    schema = lh.Schema(
        {
            "sample_token": pa.field("sample_token", pa.string(), nullable=False),
            "scene_token": pa.string(),
            "channel": pa.string(),
            "timestamp": pa.timestamp("ms"),
            "ego_speed_kmh": pa.float64(),
            "weather": pa.string(),
            "width": pa.int32(),
            "height": pa.int32(),
            "frame_jpg": lh.Image(codec="jpeg"),
            "thumbnail": lh.Image(codec="jpeg"),
        }
    )
    table = catalog.create_table(TABLE, schema, partition_by=["channel"])
    say(2, f"created {table}")
    commit = table.append(rows_of(frames))
    say(3, f"appended {commit.rows} rows as snapshot {commit.snapshot_id}, {commit.bytes:,} bytes")

    import daft
    from daft import col

    snap = table.latest()
    front = snap.daft().where(col("channel") == "CAM_FRONT").sort("sample_token").select("sample_token", "weather")
    fast = snap.query().where(col("ego_speed_kmh") >= 60).select("sample_token", "ego_speed_kmh", "frame_jpg")
    sizes = sorted(((ref["frame_jpg"].length, ref["sample_token"]) for ref in snap.query().index()), reverse=True)
    say(4, f"{front.count_rows()} frames of CAM_FRONT; at 60 km/h or more: {fast.count_rows()}")
    tell(f"plan for CAM_FRONT: {snap.query().where(col('channel') == 'CAM_FRONT').explain()}")
    tell("largest: " + ", ".join(f"{token} {size:,} bytes" for size, token in sizes[:3]))

    ref = snap.query().where("channel = 'CAM_FRONT'").index()[0]["frame_jpg"]
    data = lh.fetch_blob(ref, table)
    with Image.open(io.BytesIO(data)) as picture:
        say(5, f"fetched {len(data):,} bytes of one BLOB and decoded {picture.format} {picture.size} {picture.mode}")

    tagged = table.tag(TAG)
    table.append(rows_of(frames[: len(frames) // 2], first=len(frames)))
    old, new = table.at(tag=TAG), table.latest()
    say(6, f"tag {TAG} names snapshot {tagged} with {old.count_rows()} rows; the table has moved on to {new.count_rows()}")

    @daft.func
    def speed_class(kmh: float | None) -> str:
        return "unknown" if kmh is None else "low" if kmh < 40 else "mid" if kmh < 80 else "high"

    classes = old.daft().with_column("speed", speed_class(col("ego_speed_kmh"))).groupby("speed").count("sample_token")
    counts = dict(zip(*classes.sort("speed").to_pydict().values(), strict=True))
    say(7, "speeds: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    bright = old.daft().where(col("channel") == "CAM_FRONT").with_column("light", image.brightness(old.bytes("frame_jpg")))
    light = bright.select("sample_token", "light").sort("light", desc=True).limit(3).to_pydict()
    tell("brightest of CAM_FRONT: " + ", ".join(f"{t} {v:.1f}" for t, v in zip(*light.values(), strict=True)))

    whole = train(warehouse, scratch / "whole")
    half = train(warehouse, scratch / "resumed", stop_after=len(whole["batches"]) * 3 // 4)
    command = [sys.executable, __file__, "--warehouse", warehouse, "--resume", str(scratch / "resumed")]
    subprocess.run(command, check=True)
    rest = json.loads((scratch / "resumed" / "log.json").read_text())
    same = half["batches"] + rest["batches"] == whole["batches"]
    say(8, f"trained {EPOCHS} epochs from the tag, {len(whole['batches'])} batches, last loss {whole['loss']:.4f}")
    tell(
        f"stopped after {len(half['batches'])}; a new process resumed for {len(rest['batches'])}, last loss {rest['loss']:.4f}"
    )
    tell(f"batches equal to those of the uninterrupted run: {same}")
    if not same:
        raise SystemExit(1)


def train(warehouse: str, folder: str | Path, *, stop_after: int | None = None, resume: bool = False) -> dict[str, Any]:
    """Train from the tag; leaves weights, loader state and a log in ``folder``."""
    import torch

    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    torch.manual_seed(SEED)
    catalog = lh.connect(warehouse=warehouse)
    index = catalog.table(TABLE).at(tag=TAG).query().select("frame_jpg", "ego_speed_kmh").index()
    dataset = lh.Dataset(index, batch_size=2, seed=SEED, decode={"frame_jpg": lh.Image(size=(72, 128))})
    loader = lh.Loader(dataset)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 1),
    )
    if resume:
        model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
        loader.load_state_dict(json.loads((folder / "loader.json").read_text()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    log: dict[str, Any] = {"batches": [], "loss": None}
    for batch in batches(loader):
        pixels = batch["frame_jpg"].permute(0, 3, 1, 2).float() / 255
        loss = torch.nn.functional.mse_loss(model(pixels).squeeze(1), batch["ego_speed_kmh"].float() / 100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log["batches"].append(hashlib.sha256(batch["frame_jpg"].numpy().tobytes()).hexdigest())
        log["loss"] = loss.item()
        if len(log["batches"]) == stop_after:
            break
    torch.save(model.state_dict(), folder / "model.pt")
    (folder / "loader.json").write_text(json.dumps(loader.state_dict()))
    (folder / "log.json").write_text(json.dumps(log))
    return log


def batches(loader: lh.Loader) -> Iterator[dict[str, Any]]:
    for _ in range(loader.epoch, EPOCHS):
        yield from loader


def rows_of(frames: list[tuple[str, bytes]], first: int = 0) -> Iterator[dict[str, Any]]:
    """Rows in the style of nuScenes: real pixels, synthetic metadata."""
    start = datetime(2026, 5, 22, 9, 0, 0)
    for i, (name, data) in enumerate(frames, first):
        size = image.size_and_mode(data)
        yield {
            "sample_token": f"{i:04d}-{name}",
            "scene_token": f"scene_{i // 8:03d}",
            "channel": CHANNELS[i % len(CHANNELS)],
            "timestamp": start + timedelta(milliseconds=50 * i),
            "ego_speed_kmh": float(20 + (i * 3) % 80),
            "weather": WEATHERS[(i // 6) % len(WEATHERS)],
            "width": size["width"],
            "height": size["height"],
            "frame_jpg": data,
            "thumbnail": image.thumbnail(data),
        }


def read_frames(folder: str) -> list[tuple[str, bytes]]:
    """The JPEGs of a folder, each opened once so that a broken one is named before anything is written."""
    if not Path(folder).is_dir():
        raise lh.NotFoundError(f"--images {folder}: no such folder")
    paths = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise lh.NotFoundError(f"--images {folder}: holds no .jpg or .jpeg file")
    frames = []
    for path in paths:
        data = path.read_bytes()
        try:
            image.size_and_mode(data)
            image.thumbnail(data)
        except (ValueError, OSError) as error:
            raise lh.DecodeError(f"--images {path}: not a readable image ({error}); remove or repair it") from error
        frames.append((path.stem, data))
    return frames


def draw_frames(n: int) -> list[tuple[str, bytes]]:
    """Road scenes of 1280x720 with other light, bend and traffic in each."""
    frames = []
    for i in range(n):
        light = 60 + 160 * ((i * 5) % n) // n
        scene = Image.new("RGB", (1280, 720), (light // 2, light * 2 // 3, light))
        draw = ImageDraw.Draw(scene)
        bend = 160 * ((i % 7) - 3)
        draw.rectangle((0, 360, 1280, 720), fill=(light // 3, light // 2, light // 4))
        draw.polygon([(200, 720), (1080, 720), (660 + bend, 360), (620 + bend, 360)], fill=(light // 3,) * 3)
        for k in range(8):
            y = 720 - 45 * k
            x = 640 + bend * k / 8
            draw.polygon([(x - 8, y), (x + 8, y), (x + 6, y - 22), (x - 6, y - 22)], fill=(230, 230, 200))
        for k in range(1 + i % 3):
            x, y, w = 420 + 190 * k + bend // 2, 470 + 30 * k, 90 + 12 * i % 60
            draw.rectangle((x, y, x + w, y + w * 2 // 3), fill=((i * 53 + 90 * k) % 256, 40, (i * 31) % 256))
        file = io.BytesIO()
        scene.save(file, "JPEG", quality=90)
        frames.append((f"drawn{i:02d}", file.getvalue()))
    return frames


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--images", metavar="DIR", help="a folder of JPEGs; without it, 24 scenes are drawn")
    parser.add_argument("--warehouse", metavar="DIR", help="where to keep the lake; without it, a temporary folder")
    parser.add_argument("--resume", metavar="DIR", help=argparse.SUPPRESS)  # the new process that goes on training
    return parser.parse_args()


def say(step: int, text: str) -> None:
    print(f"{step}. {text}", flush=True)


def tell(text: str) -> None:
    print(f"   {text}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except lh.LakehouseError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    sys.stdout.flush()
    os._exit(0)  # Daft 0.7.26 now and then crashes while the interpreter winds down, after all is done
