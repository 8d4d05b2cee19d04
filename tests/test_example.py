"""The main job: the example as a user runs it, and every byte of real frames on every way back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as Pillow
from PIL import ImageOps

import lakehouse as lh

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "drive_frames.py"
BROKEN = {"broken.png", "truncated_image.png", "truncated_jpeg.jpg"}


def run_example(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    command = [sys.executable, str(EXAMPLE), *args]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=110, check=False)


def test_it_runs_on_drawn_scenes_and_tells_what_it_did(tmp_path: Path) -> None:
    done = run_example(cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\d)\. ", done.stdout, re.MULTILINE) == list("12345678")
    for line in (
        "24 frames",
        "appended 24 rows as snapshot 1",
        "8 frames of CAM_FRONT",
        "JPEG (1280, 720) RGB",
        "tag training_v1 names snapshot 1 with 24 rows; the table has moved on to 36",
        "speeds: high 4, low 7, mid 13",
        "batches equal to those of the uninterrupted run: True",
    ):
        assert line in done.stdout
    assert not list(tmp_path.iterdir())


def test_it_runs_on_a_folder_and_keeps_every_byte(road_frames: list[Path], tmp_path: Path) -> None:
    done = run_example("--images", str(road_frames[0].parent), "--warehouse", str(tmp_path / "lake"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "batches equal to those of the uninterrupted run: True" in done.stdout
    table = lh.connect(warehouse=str(tmp_path / "lake")).table("default.drive_frames")
    snap = table.at(tag="training_v1")
    files = {f"{i:04d}-{path.stem}": path.read_bytes() for i, path in enumerate(road_frames)}
    index = snap.query().select("sample_token", "frame_jpg").index()

    by_row = {row["sample_token"]: row["frame_jpg"].read(table) for row in index}
    assert by_row == files

    loader = lh.Loader(lh.Dataset(index, batch_size=2, decode={"frame_jpg": lh.Raw()}))
    by_batch = {t: bytes(b) for batch in loader for t, b in zip(batch["sample_token"], batch["frame_jpg"], strict=True)}
    assert by_batch == files

    frame = snap.daft().with_column("jpg", snap.bytes("frame_jpg")).select("sample_token", "jpg").to_pydict()
    assert dict(zip(frame["sample_token"], frame["jpg"], strict=True)) == files

    references = snap.daft().select("sample_token", "frame_jpg").to_pydict()
    assert {
        token: lh.fetch_blob(file, table)
        for token, file in zip(references["sample_token"], references["frame_jpg"], strict=True)
    } == files

    arrow = snap.arrow(blobs="bytes")
    assert dict(zip(arrow["sample_token"].to_pylist(), arrow["frame_jpg"].to_pylist(), strict=True)) == files


@pytest.mark.parametrize("case", ["missing", "empty", "unreadable", "truncated"])
def test_bad_folders_are_named_and_nothing_is_written(case: str, road_frames: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "images"
    if case != "missing":
        folder.mkdir()
    if case in ("unreadable", "truncated"):
        (folder / "good.jpg").write_bytes(road_frames[0].read_bytes())
        (folder / "bad.jpg").write_bytes(b"no image" if case == "unreadable" else road_frames[1].read_bytes()[:-2000])
    done = run_example("--images", str(folder), "--warehouse", str(tmp_path / "lake"), cwd=tmp_path)
    assert done.returncode == 1
    wanted = {"missing": "NotFoundError", "empty": "NotFoundError", "unreadable": "DecodeError", "truncated": "DecodeError"}
    last = done.stderr.strip().splitlines()
    assert len(last) == 1, done.stderr
    assert last[0].startswith(wanted[case])
    assert "bad.jpg" in last[0] or str(folder) in last[0]
    assert not (tmp_path / "lake").exists()


@pytest.fixture
def odd(odd_images: dict[str, Path], tmp_path: Path) -> lh.RowIndex:
    table = lh.connect(warehouse=str(tmp_path / "lake")).create_table(
        "odd", pa.schema([("name", pa.string()), ("image", pa.large_binary())])
    )
    table.append([{"name": name, "image": path.read_bytes()} for name, path in odd_images.items()])
    return table.latest().query().index()


def test_odd_images_decode_upright_as_rgb_and_broken_ones_are_skipped_or_null(
    odd: lh.RowIndex, odd_images: dict[str, Path]
) -> None:
    image = lh.Image(mode="RGB")
    for policy in ("skip", "null"):
        dataset = lh.Dataset(odd, batch_size=1, shuffle=None, decode={"image": image}, on_error=policy, ragged=True)
        seen: dict[str, np.ndarray] = {}
        bad: dict[str, str] = {}
        for batch in lh.Loader(dataset):
            bad.update({odd.column("name")[odd_row(odd, report["row"])].as_py(): report["cause"] for report in batch["_bad"]})
            if policy == "null":
                assert batch["image_ok"].tolist() == [not batch["_bad"]]
            if not batch["_bad"]:
                seen[batch["name"][0]] = np.asarray(batch["image"][0])
        assert set(bad) == BROKEN
        assert set(seen) == set(odd_images) - BROKEN
        for name, pixels in seen.items():
            with Pillow.open(odd_images[name]) as file:
                want = np.asarray(ImageOps.exif_transpose(file).convert("RGB"))
            assert pixels.shape == want.shape, name
            # Decoders of one JPEG differ by rounding, those of CMYK more: they agree on what is where.
            assert np.abs(pixels.astype(int) - want.astype(int)).mean() < 4, name


def odd_row(index: lh.RowIndex, row_id: int) -> int:
    return int(np.flatnonzero(index.row_ids == row_id)[0])


def test_with_raise_the_first_broken_image_stops_the_run_and_is_named(odd: lh.RowIndex) -> None:
    dataset = lh.Dataset(odd, batch_size=1, shuffle=None, decode={"image": lh.Image()}, ragged=True)
    with pytest.raises(lh.DecodeError, match=r"default\.odd@1 row \d+ column image \(.*\.blob \d+\+\d+\)"):
        list(lh.Loader(dataset))
