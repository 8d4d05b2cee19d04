"""The functions on bytes and None, and the same functions as Daft expressions over binary and File columns."""

from __future__ import annotations

import concurrent.futures
import hashlib
import inspect
import io
import json
import pickle
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import daft
import numpy as np
import pyarrow as pa
import pytest
from daft import col
from daft.functions import file
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PILImage
from PIL import ImageFilter, ImageOps

from tests.drawing import draw_road, encoded, jpeg_bomb, jpeg_bytes, oriented, png_bomb, with_segment
from udfs import Face, MediaError, image, media

SCENE = draw_road(0, 192, 108)
ROAD_JPEG = jpeg_bytes(SCENE)
TEXT = b"hello, this is no picture"
ON_IMAGES: list[tuple[Face[Any], dict[str, Any]]] = [
    (image.size_and_mode, {}),
    (image.decode, {}),
    (image.resize, {"size": (20, 30)}),
    (image.thumbnail, {}),
    (image.brightness, {}),
    (image.sharpness, {}),
    (image.perceptual_hash, {}),
    (media.exif, {}),
]
ON_ANYTHING: list[tuple[Face[Any], dict[str, Any]]] = [(media.content_type, {}), (media.checksum, {})]
ALL = [pytest.param(face, options, id=face.__name__) for face, options in ON_IMAGES + ON_ANYTHING]
IMAGES = ALL[: len(ON_IMAGES)]


def opened(data: bytes) -> PILImage.Image:
    return PILImage.open(io.BytesIO(data))


def seed_brightness(data: bytes) -> float:
    """As the flow that users know computes it."""
    with opened(data) as picture:
        return float(np.asarray(picture.convert("L").resize((64, 64)), np.float64).mean())


# ---- plain


def test_brightness_is_the_number_that_users_know(road_frames: list[Path]) -> None:
    for path in road_frames:
        assert image.brightness(path.read_bytes()) == seed_brightness(path.read_bytes())
    assert image.brightness(encoded(PILImage.new("RGB", (9, 7), (255, 255, 255)), "PNG")) == 255
    assert image.brightness(jpeg_bytes(draw_road(5, 300, 200), progressive=True)) > 0


def test_sharpness_falls_with_blur() -> None:
    levels = [image.sharpness(encoded(SCENE.filter(ImageFilter.GaussianBlur(r)), "PNG")) for r in (0, 1, 2, 4)]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] > 4 * levels[2] > 0
    assert image.sharpness(encoded(PILImage.new("L", (50, 50), 90), "PNG")) == 0
    assert image.sharpness(encoded(PILImage.new("L", (2, 50), 90), "PNG")) == 0


def test_sharpness_is_the_variance_of_the_laplacian() -> None:
    grey = np.asarray(SCENE.convert("L")).astype(float)
    laplacian = sum(np.roll(grey, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * grey
    expected = laplacian[1:-1, 1:-1].var()
    assert image.sharpness(encoded(SCENE.convert("L"), "PNG")) == pytest.approx(expected, rel=1e-12)


def bits_apart(left: str, right: str) -> int:
    return (int(left, 16) ^ int(right, 16)).bit_count()


def test_perceptual_hash_is_close_for_what_looks_alike() -> None:
    scenes = [draw_road(seed, 640, 360) for seed in range(8)]
    hashes = [image.perceptual_hash(encoded(scene, "PNG")) for scene in scenes]
    for scene, own in zip(scenes, hashes, strict=True):
        assert len(own) == 16
        for alike in (jpeg_bytes(scene, 60), encoded(scene.resize((320, 180)), "PNG"), encoded(scene.convert("L"), "WEBP")):
            assert bits_apart(own, image.perceptual_hash(alike)) <= 10
    apart = [bits_apart(a, b) for i, a in enumerate(hashes) for b in hashes[:i]]
    assert np.median(apart) > 10


def test_perceptual_hash_bits() -> None:
    ramp = np.tile(np.arange(0, 90, 10).astype(np.uint8), (8, 1))  # rises to the right everywhere
    assert image.perceptual_hash(encoded(PILImage.fromarray(ramp), "PNG")) == "f" * 16
    assert image.perceptual_hash(encoded(PILImage.fromarray(ramp[:, ::-1].copy()), "PNG")) == "0" * 16
    ramp[0, 1:] = 0
    ramp[0, 0] = 9
    assert image.perceptual_hash(encoded(PILImage.fromarray(ramp), "PNG")) == "00" + "f" * 14


def test_size_and_mode() -> None:
    assert image.size_and_mode(ROAD_JPEG) == {"height": 108, "width": 192, "mode": "RGB", "format": "JPEG"}
    grey = encoded(SCENE.convert("L"), "PNG")
    assert image.size_and_mode(grey) == {"height": 108, "width": 192, "mode": "L", "format": "PNG"}
    assert image.size_and_mode(jpeg_bytes(SCENE.convert("CMYK")))["mode"] == "CMYK"
    multi = encoded(SCENE, "MPO", save_all=True, append_images=[SCENE])
    assert image.size_and_mode(multi)["format"] == "JPEG"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(kind: str, orientation: int) -> None:
    data = encoded(SCENE, kind, exif=oriented(orientation))
    with opened(data) as stored:
        upright = ImageOps.exif_transpose(stored)
    np.testing.assert_array_equal(image.decode(data), np.asarray(upright.convert("RGB")))
    size = image.size_and_mode(data)
    assert (size["width"], size["height"]) == upright.size
    with opened(image.thumbnail(data, max_side=64)) as small:
        assert small.size == ((64, 36) if orientation < 5 else (36, 64))
    expected = np.asarray(upright.convert("RGB").resize((30, 40), PILImage.Resampling.BILINEAR)).astype(int)
    assert np.abs(image.resize(data, size=(40, 30)) - expected).mean() < 1.5
    assert media.exif(data)["Orientation"] == orientation


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("data", [ROAD_JPEG, encoded(SCENE, "PNG")], ids=["jpeg", "png"])
def test_decode_and_resize_modes(mode: str, data: bytes) -> None:
    with opened(data) as stored:
        expected = np.asarray(stored.convert(mode)).reshape(108, 192, -1)
    got = image.decode(data, mode=mode)
    assert got.dtype == np.uint8
    assert np.abs(got.astype(int) - expected).max() <= 1  # libjpeg keeps luma, Pillow computes it from RGB
    assert image.resize(data, size=(30, 50), mode=mode, resample="nearest").shape == (30, 50, expected.shape[2])


def test_odd_pictures(odd_images: dict[str, Path]) -> None:
    for name, path in odd_images.items():
        data = path.read_bytes()
        if name in {"broken.png", "truncated_image.png", "truncated_jpeg.jpg"}:
            with pytest.raises(MediaError):
                image.decode(data)
            assert image.decode(data, on_error="null") is None
        else:
            with opened(data) as stored:
                expected = np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))
            np.testing.assert_array_equal(image.decode(data), expected)
            assert isinstance(media.exif(data), dict)


def test_16_bit_grey_is_scaled_and_32_bit_refused() -> None:
    deep = (np.arange(64 * 64, dtype=np.uint16) * 16).reshape(64, 64)
    got = image.decode(encoded(PILImage.fromarray(deep), "PNG"), mode="L")
    assert np.abs(got[:, :, 0] - deep / 257).max() <= 1
    with pytest.raises(MediaError, match="no agreed scale"):
        image.decode(encoded(PILImage.fromarray(np.ones((8, 8), np.float32)), "TIFF"))


def test_palettes_with_transparency_warn_of_nothing() -> None:
    palette = SCENE.quantize(16)
    data = encoded(palette, "PNG", transparency=bytes(range(0, 160, 10)))
    np.testing.assert_array_equal(image.decode(data), np.asarray(palette.convert("RGB")))


@pytest.mark.parametrize("shape", [(1280, 720), (720, 1280), (64, 64), (1000, 3), (3, 1000), (129, 128)])
def test_thumbnail(shape: tuple[int, int]) -> None:
    width, height = shape
    data = jpeg_bytes(draw_road(1, width, height), exif=oriented(1))
    with opened(image.thumbnail(data)) as small, opened(data) as reference:
        reference.thumbnail((128, 128))
        assert (small.format, small.mode) == ("JPEG", "RGB")
        assert max(small.size) <= 128
        assert np.abs(np.subtract(small.size, reference.size)).max() <= 1
        assert not small.getexif()
        if small.size == reference.size and min(small.size) > 8:
            difference = np.asarray(small).astype(int) - np.asarray(reference.convert("RGB"))
            assert np.abs(difference).mean() < 6  # quality 70
    assert len(image.thumbnail(data, max_side=32, quality=20)) < len(image.thumbnail(data))


def test_a_jpeg_cut_and_closed_is_damage() -> None:
    """Pillow alone shows it grey below."""
    data = ROAD_JPEG[:-2000] + b"\xff\xd9"
    with opened(data) as picture:
        picture.load()
    for face in (image.decode, image.thumbnail, image.brightness, image.sharpness, image.perceptual_hash):
        with pytest.raises(MediaError, match="premature end"):
            face(data)


@pytest.mark.parametrize("data", [png_bomb(60_000, 60_000), jpeg_bomb(60_000, 60_000)], ids=["png", "jpeg"])
def test_a_bomb_is_refused(data: bytes) -> None:
    for face, options in ON_IMAGES[:-1]:
        with pytest.raises(MediaError, match="60000 x 60000 pixels"):
            face(data, **options)


# ---- media


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (ROAD_JPEG, "image/jpeg"),
        *((encoded(SCENE, kind), f"image/{kind.lower()}") for kind in ("PNG", "GIF", "WEBP", "TIFF", "BMP", "AVIF")),
        (b"RIFF\0\0\0\0WAVEfmt ", "audio/wav"),
        (b"\0\0\0\x18ftypmp42", "video/mp4"),
        (b"\0\0\0\x14ftypqt  ", "video/quicktime"),
        (b"\x89MCAP0\r\n", "application/x-mcap"),
        (b"#ROSBAG V2.0\n", "application/x-rosbag"),
        (b"x" * 257 + b"ustar\0", "application/x-tar"),
        (b"PAR1\x15\x04", "application/vnd.apache.parquet"),
        (b"", "application/x-empty"),
        (TEXT, "text/plain"),
        (b"BMW is a brand", "text/plain"),
        ("自動駕駛".encode() * 100, "text/plain"),
        (b"\x00\x01\x02", "application/octet-stream"),
        (b"abcdefghWEBP\0", "application/octet-stream"),
        (b"\xff\xfe\xfd" * 300, "application/octet-stream"),
    ],
)
def test_content_type(data: bytes, expected: str) -> None:
    assert media.content_type(data) == expected


def test_checksum() -> None:
    assert media.checksum(TEXT) == hashlib.sha256(TEXT).hexdigest()
    assert media.checksum(TEXT, algorithm="crc32") == f"{zlib.crc32(TEXT):08x}"
    assert media.checksum(b"") == hashlib.sha256(b"").hexdigest()
    assert len(media.checksum(b"", algorithm="crc32")) == 8


def exif_block() -> PILImage.Exif:
    exif = PILImage.Exif()
    exif[0x010F] = "Low Cameras"
    exif[0x0112] = 6
    exif[0x011A] = 72.5
    inner = exif.get_ifd(0x8769)
    inner[0x9003] = "2026:05:22 09:00:00"
    inner[0x9000] = b"0230"
    inner[0x829A] = 0.004
    inner[0x927C] = b"\x01private notes of the maker"
    gps = exif.get_ifd(0x8825)
    gps[1], gps[2] = "N", (31.0, 14.0, 7.5)
    return exif


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif(kind: str) -> None:
    found = media.exif(encoded(SCENE, kind, exif=exif_block()))
    expected = {
        "Make": "Low Cameras",
        "Orientation": 6,
        "XResolution": 72.5,
        "DateTimeOriginal": "2026:05:22 09:00:00",
        "ExifVersion": "0230",
        "ExposureTime": pytest.approx(0.004),
        "GPSInfo": {"GPSLatitudeRef": "N", "GPSLatitude": [31.0, 14.0, 7.5]},
    }
    if kind == "TIFF":  # which says more of itself in the first directory; Pillow writes no others
        assert {"ImageWidth", "ImageLength"} <= found.keys()
        names = ("Make", "Orientation", "XResolution")
        found, expected = ({name: values[name] for name in names} for values in (found, expected))
    assert found == expected
    json.dumps(found, allow_nan=False)


def test_exif_absent_or_damaged() -> None:
    assert media.exif(ROAD_JPEG) == {}
    assert media.exif(encoded(SCENE, "BMP")) == {}
    zero = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 0x011A, 5, 1, 22) + struct.pack("<II", 1, 0)
    assert media.exif(with_segment(ROAD_JPEG, 0xE1, b"Exif\0\0" + zero)) == {"XResolution": None}
    for block in (b"", b"II*\0\xff\xff\xff\xff", b"XX*\0" + bytes(20), zero[:15], zero[:22]):
        assert media.exif(with_segment(ROAD_JPEG, 0xE1, b"Exif\0\0" + block)) == {}
    with pytest.raises(MediaError, match="text of 25 bytes"):
        media.exif(TEXT)


@given(st.binary(max_size=300))
def test_exif_survives_noise(noise: bytes) -> None:
    json.dumps(media.exif(with_segment(ROAD_JPEG, 0xE1, b"Exif\0\0II*\0\x08\0\0\0" + noise)), allow_nan=False)
    json.dumps(media.exif(b"\x89PNG\r\n\x1a\n" + noise), allow_nan=False)
    json.dumps(media.exif(b"MM\0*\0\0\0\x08" + noise), allow_nan=False)


# ---- the face


@pytest.mark.parametrize(("face", "options"), ALL)
def test_null_gives_null_and_any_bytes_will_do(face: Face[Any], options: dict[str, Any]) -> None:
    assert face(None, **options) is None
    for wrapped in (bytearray(ROAD_JPEG), memoryview(ROAD_JPEG)):
        assert repr(face(wrapped, **options)) == repr(face(ROAD_JPEG, **options))
    for wrong in ("frame_jpg", 3, [ROAD_JPEG]):
        with pytest.raises(TypeError, match=f"udfs.*{face.__name__}: takes bytes, a daft.File, None or a Daft expression"):
            face(wrong, **options, on_error="null")
    assert pickle.loads(pickle.dumps(face)) is face
    assert {"on_error", "key"} <= inspect.signature(face).parameters.keys()
    assert face.__doc__
    assert face.__doc__ != Face.__doc__


@pytest.mark.parametrize(("face", "options"), IMAGES)
@pytest.mark.parametrize("data", [TEXT, b"", b"\x00\x01", b"%!PS-Adobe-3.0 EPSF-3.0\n"], ids=["text", "empty", "noise", "eps"])
def test_what_is_no_picture(face: Face[Any], options: dict[str, Any], data: bytes) -> None:
    assert face(data, on_error="null", **options) is None
    with pytest.raises(MediaError, match=rf"^udfs.*{face.__name__}: key 'a7': .*{len(data)} bytes") as caught:
        face(data, key="a7", **options)
    assert str(type(caught.value)(str(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda data: image.thumbnail(data, max_side=0), ValueError, "max_side must be 1 to"),
        (lambda data: image.thumbnail(data, quality=70.0), TypeError, "whole numbers"),
        (lambda data: image.resize(data, size=224), TypeError, "height, width"),
        (lambda data: image.resize(data, size=(0, 5)), ValueError, "size must be"),
        (lambda data: image.resize(data, size=(5, 5), resample="area"), ValueError, "'lanczos'"),
        (image.resize, TypeError, "missing a required argument: 'size'"),
        (lambda data: image.decode(data, mode="BGR"), ValueError, "'RGB', 'L', 'RGBA'"),
        (lambda data: image.decode(data, size=(3, 3)), TypeError, "unexpected keyword argument 'size'"),
        (lambda data: media.checksum(data, algorithm="md4"), ValueError, "'sha256', 'crc32'"),
        (lambda data: image.brightness(data, on_error="skip"), ValueError, "'raise' or 'null'"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("data", [ROAD_JPEG, None, col("frame")], ids=["bytes", "none", "expression"])
def test_wrong_options_are_no_bad_rows(call: Callable[[Any], Any], error: type[Exception], words: str, data: Any) -> None:
    with pytest.raises(error, match=words) as caught:
        call(data)
    assert not isinstance(caught.value, MediaError)


def test_batch() -> None:
    values = [ROAD_JPEG, None, TEXT, encoded(SCENE, "PNG")] * 20
    plain = [image.perceptual_hash(value, on_error="null") for value in values]
    assert image.perceptual_hash.batch(values, on_error="null") == plain
    with pytest.raises(MediaError, match=r"udfs.image.perceptual_hash: row 2 of a batch of 80 \(key 'k2'\): text of 25"):
        image.perceptual_hash.batch(values, keys=[f"k{row}" for row in range(80)])
    with pytest.raises(ValueError, match="1 keys for 80 values"):
        image.perceptual_hash.batch(values, keys=["a"])
    assert image.brightness.batch([]) == []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # as Daft runs batches
        results = pool.map(lambda _: image.perceptual_hash.batch(values, on_error="null"), range(8))
        assert all(result == plain for result in results)


# ---- Daft


@pytest.fixture
def frames(tmp_path: Path) -> daft.DataFrame:
    """Columns: key, a binary column, a File column of whole files, and one of ranges inside a larger file."""
    values = [jpeg_bytes(draw_road(seed, 160, 90)) for seed in range(5)] + [None, encoded(SCENE, "PNG")]
    blob = b"".join(value or b"" for value in values)
    (tmp_path / "all.blob").write_bytes(blob)
    paths, ranges, position = [], [], 0
    for row, value in enumerate(values):
        path = tmp_path / f"{row}.jpg"
        path.write_bytes(value or b"")
        paths.append(None if value is None else str(path))
        size = len(value or b"")
        ranges.append(None if value is None else daft.File(str(tmp_path / "all.blob"), position=position, size=size))
        position += size
    names = [f"k{row}" for row in range(len(values))]
    frame = daft.from_pydict({"key": names, "binary": values, "path": paths, "range": ranges})
    return frame.with_column("file", file(col("path")))


@pytest.mark.parametrize(("face", "options"), ALL)
@pytest.mark.parametrize("column", ["binary", "file", "range"])
def test_expression_equals_plain(frames: daft.DataFrame, face: Face[Any], options: dict[str, Any], column: str) -> None:
    expected = [face(value, **options) for value in frames.to_pydict()["binary"]]
    if face is media.exif:
        expected = [None if value is None else json.dumps(value) for value in expected]
    result = frames.with_column("got", face(col(column), **options)).select("got").to_pydict()["got"]
    assert [value is None for value in result] == [value is None for value in expected]
    for got, wanted in zip(result, expected, strict=True):
        np.testing.assert_equal(got, wanted)


def test_expression_types(frames: daft.DataFrame) -> None:
    types = daft.DataType
    chosen = {
        "size": (image.size_and_mode(col("file")), None),
        "decode": (image.decode(col("file"), mode="L"), types.image("L")),
        "resize": (image.resize(col("file"), size=(20, 30)), types.image("RGB", 20, 30)),
        "thumbnail": (image.thumbnail(col("file")), types.binary()),
        "brightness": (image.brightness(col("file")), types.float64()),
        "hash": (image.perceptual_hash(col("file")), types.string()),
        "exif": (media.exif(col("file")), types.string()),
    }
    schema = frames.select(*(expression.alias(name) for name, (expression, _) in chosen.items())).schema()
    for name, (_, dtype) in chosen.items():
        assert dtype is None or schema[name].dtype == dtype
    size = image.size_and_mode(col("file"))
    assert frames.select(size["height"].alias("h")).to_pydict()["h"] == [90] * 5 + [None, 108]
    assert image.brightness(col("file")).name() == "file"


def test_expressions_nest_in_queries(frames: daft.DataFrame) -> None:
    bright = frames.where(image.brightness(col("file")) > 100).select("key").to_pydict()["key"]
    levels = {
        key: image.brightness(value) for key, value in zip(*frames.select("key", "binary").to_pydict().values(), strict=True)
    }
    assert bright == [key for key, level in levels.items() if level is not None and level > 100]
    small = frames.select(image.brightness(image.thumbnail(col("file"))).alias("b")).to_pydict()["b"]
    assert small[0] == image.brightness(image.thumbnail(frames.to_pydict()["binary"][0]))


def test_bad_rows_in_daft() -> None:
    values = [ROAD_JPEG] * 3 + [ROAD_JPEG[:-300], TEXT, None]
    frame = daft.from_pydict({"frame": values, "token": [f"t{row}" for row in range(6)]})
    nulls = frame.select(image.sharpness(col("frame"), on_error="null")).to_pydict()["frame"]
    assert [value is None for value in nulls] == [False, False, False, True, True, True]
    with pytest.raises(MediaError, match=r"udfs.image.sharpness: row 3 of a batch of 6 \(key 't3'\): .*Premature end"):
        frame.select(image.sharpness(col("frame"), key=col("token"))).collect()
    with pytest.raises(MediaError, match=r"udfs.image.sharpness: row 3 of a batch of 6: "):
        frame.select(image.sharpness(col("frame"))).collect()
    with pytest.raises(MediaError, match=r"\(key 'train'\)"):
        frame.select(image.sharpness(col("frame"), key="train")).collect()
    with pytest.raises(TypeError, match="key is an expression, so data must be one too"):
        image.sharpness(ROAD_JPEG, key=col("token"))


def test_columns_of_only_nulls_and_no_rows() -> None:
    frame = daft.from_pydict({"frame": [None, None]})
    for face, options in ON_IMAGES + ON_ANYTHING:
        assert frame.select(face(col("frame"), **options)).to_pydict() == {"frame": [None, None]}
    none = daft.from_arrow(pa.table({"frame": pa.array([], pa.large_binary())}))
    assert none.select(image.resize(col("frame"), size=(3, 4))).to_pydict() == {"frame": []}


def test_a_null_file_may_be_a_struct_without_a_url() -> None:
    """As the pypaimon connector writes nulls: valid structs whose fields are all null."""
    structs = pa.StructArray.from_arrays(
        [pa.nulls(2, pa.large_utf8()), pa.nulls(2, pa.large_binary()), pa.nulls(2, pa.int64()), pa.nulls(2, pa.int64())],
        names=["url", "io_config", "position", "size"],
    )
    assert structs.null_count == 0
    files = daft.Series.from_arrow(structs, "frame").cast(daft.DataType.file())
    frame = daft.from_pydict({"frame": files})
    assert frame.select(image.brightness(col("frame"))).to_pydict() == {"frame": [None, None]}


def test_a_file_that_cannot_be_read_is_always_an_error(tmp_path: Path) -> None:
    frame = daft.from_pydict({"path": [str(tmp_path / "absent.jpg")]}).select(file(col("path")))
    for on_error in ("raise", "null"):
        with pytest.raises(OSError, match=r"udfs.image.brightness: row 0 of a batch of 1: can't read .*absent.jpg"):
            frame.select(image.brightness(col("path"), on_error=on_error)).collect()
    with pytest.raises(OSError, match="can't read"):
        image.brightness(daft.File(str(tmp_path / "absent.jpg")))


def test_a_column_of_another_type_is_refused() -> None:
    frame = daft.from_pydict({"name": ["a.jpg"]})
    with pytest.raises(TypeError, match=r"udfs\.media\.checksum: takes a binary or File column, got String"):
        frame.select(media.checksum(col("name"))).collect()


def test_many_batches_keep_their_order() -> None:
    values = [jpeg_bytes(draw_road(row % 7, 32, 24)) if row % 5 else None for row in range(700)]
    expected = image.perceptual_hash.batch(values)
    assert daft.from_pydict({"v": values}).select(image.perceptual_hash(col("v"))).to_pydict()["v"] == expected


def test_import_is_cheap_and_daft_is_kept_quiet(tmp_path: Path) -> None:
    code = """
import os, sys
import udfs
print([name for name in ("daft", "PIL", "numpy", "simplejpeg", "lakehouse") if name in sys.modules])
from udfs._face import _daft
_daft()
print(os.environ["DO_NOT_TRACK"], os.environ["DAFT_ANALYTICS_ENABLED"], os.environ["SCARF_NO_ANALYTICS"])
"""
    root = Path(__file__).parent.parent
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root), "DO_NOT_TRACK": "yes"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "yes 0 1"]
