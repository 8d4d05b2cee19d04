"""Pictures to arrays: the same pixels as Pillow, every odd kind that collections hold, and damage that is never hidden."""

from __future__ import annotations

import concurrent.futures
import io
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image as PILImage
from PIL import ImageOps

from lakehouse.decode import Image, Raw, jpeg
from lakehouse.errors import DecodeError
from tests.drawing import draw_road, encoded, jpeg_bomb, jpeg_bytes, oriented, png_bomb, png_chunk, with_segment

Array = npt.NDArray[Any]
DAMAGED = {"broken.png", "truncated_image.png", "truncated_jpeg.jpg"}  # of the fixture `odd_images`

SCENE = draw_road(0, 192, 108)  # not square, so that swapped axes show
ROAD_JPEG = jpeg_bytes(SCENE)


def pillow(data: bytes, mode: str = "RGB") -> Array:
    """The reference: Pillow, turned upright, [height, width, channel]."""
    with PILImage.open(io.BytesIO(data)) as image:
        upright = ImageOps.exif_transpose(image)
        upright.info.pop("transparency", None)
        array = np.asarray(upright.convert(mode))
    return array if array.ndim == 3 else array[:, :, np.newaxis]


def difference(left: Array, right: Array) -> float:
    """Mean absolute difference in grey levels."""
    assert left.shape == right.shape
    return float(np.abs(left.astype(int) - right.astype(int)).mean())


# ---- whole pictures


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(ROAD_JPEG, id="baseline"),
        pytest.param(jpeg_bytes(SCENE, progressive=True), id="progressive"),
        pytest.param(jpeg_bytes(SCENE, subsampling=0), id="444"),
        pytest.param(jpeg_bytes(SCENE, subsampling=1), id="422"),
        pytest.param(jpeg_bytes(SCENE, restart_marker_rows=1), id="restart markers"),
        pytest.param(jpeg_bytes(SCENE, keep_rgb=True), id="RGB inside"),
        pytest.param(jpeg_bytes(SCENE.convert("L")), id="grey"),
        pytest.param(jpeg_bytes(SCENE, qtables=[[300] * 64, [400] * 64]), id="16-bit tables"),
        pytest.param(jpeg_bytes(SCENE.convert("CMYK")), id="CMYK"),
        pytest.param(encoded(SCENE, "PNG"), id="png"),
        pytest.param(encoded(SCENE.convert("1"), "PNG"), id="1 bit"),
        pytest.param(encoded(SCENE.quantize(64), "PNG"), id="palette"),
        pytest.param(encoded(SCENE, "WEBP"), id="webp"),
        pytest.param(encoded(SCENE, "TIFF"), id="tiff"),
        pytest.param(encoded(SCENE, "TIFF", compression="tiff_lzw"), id="tiff lzw"),
        pytest.param(encoded(SCENE, "TIFF", big_tiff=True), id="big tiff"),
        pytest.param(encoded(SCENE, "BMP"), id="bmp"),
        pytest.param(encoded(SCENE, "GIF"), id="gif"),
        pytest.param(encoded(SCENE, "MPO", save_all=True, append_images=[draw_road(1, 192, 108)]), id="mpo"),
        pytest.param(encoded(SCENE, "GIF", save_all=True, append_images=[draw_road(1, 192, 108)]), id="animated gif"),
        pytest.param(encoded(SCENE, "WEBP", save_all=True, append_images=[draw_road(1, 192, 108)]), id="animated webp"),
        pytest.param(encoded(SCENE, "PNG", save_all=True, append_images=[draw_road(1, 192, 108)]), id="animated png"),
    ],
)
def test_decodes_as_pillow_does(data: bytes) -> None:
    same_as_pillow(data)


def test_odd_pictures(odd_images: dict[str, Path]) -> None:
    assert odd_images.keys() > DAMAGED
    for name, path in odd_images.items():
        if name in DAMAGED:
            with pytest.raises(DecodeError, match="damaged"):
                Image()(path.read_bytes())
        else:
            same_as_pillow(path.read_bytes())


def same_as_pillow(data: bytes) -> None:
    expected = pillow(data)
    decoder = Image()
    assert decoder.shape_of(data) == expected.shape
    np.testing.assert_array_equal(decoder(data), expected)
    into = np.zeros_like(expected)
    decoder.decode_into(data, into)
    np.testing.assert_array_equal(into, expected)
    np.testing.assert_array_equal(Image(layout="CHW")(data), expected.transpose(2, 0, 1))
    # libjpeg keeps luma, Pillow computes it again from RGB: off by one here and there
    assert difference(Image(mode="L")(data), pillow(data, "L")) < 0.5


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(9))
def test_orientation(kind: str, orientation: int) -> None:
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(SCENE, kind, exif=oriented(orientation), **options)
    stored = pillow(encoded(SCENE, kind, **options))
    upright = pillow(data)
    assert (upright.shape != stored.shape) == (orientation >= 5)  # else the reference shows nothing

    assert Image().shape_of(data) == upright.shape
    np.testing.assert_array_equal(Image()(data), upright)
    np.testing.assert_array_equal(Image(layout="CHW")(data), upright.transpose(2, 0, 1))
    as_stored = Image(apply_orientation=False)
    assert as_stored.shape_of(data) == stored.shape
    np.testing.assert_array_equal(as_stored(data), stored)

    size = (50, 40)
    expected = np.asarray(PILImage.fromarray(upright).resize((40, 50), PILImage.Resampling.BILINEAR))
    assert difference(Image(size=size)(data), expected) < 1
    expected = np.asarray(PILImage.fromarray(stored).resize((40, 50), PILImage.Resampling.BILINEAR))
    assert difference(Image(size=size, apply_orientation=False)(data), expected) < 1


# ---- sizes


BOUNDS = {"bilinear": 0.5, "bicubic": 0.5, "lanczos": 0.5, "box": 1.5, "nearest": 0.0}


@pytest.mark.parametrize("resample", BOUNDS)
@pytest.mark.parametrize("size", [(224, 224), (90, 160), (180, 320), (300, 90), (500, 700), (720, 1280), (800, 1300)])
def test_size_is_close_to_decoding_everything_first(size: tuple[int, int], resample: Any) -> None:
    data = jpeg_bytes(draw_road(3))
    decoder = Image(size=size, resample=resample)
    whole = PILImage.fromarray(pillow(data))
    expected = np.asarray(whole.resize(size[::-1], PILImage.Resampling[resample.upper()]))
    assert decoder.shape_of(data) == (*size, 3)
    assert difference(decoder(data), expected) <= BOUNDS[resample]


def test_real_roads(road_frames: list[Path]) -> None:
    for path in road_frames:
        data = path.read_bytes()
        same_as_pillow(data)
        expected = np.asarray(PILImage.fromarray(pillow(data)).resize((224, 224), PILImage.Resampling.BILINEAR))
        assert difference(Image(size=(224, 224))(data), expected) < 0.5


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 15, 103, 541, 1023])
def test_sides_that_do_not_divide(width: int) -> None:
    # A slope shows a shift of a fraction of a pixel; on less than 100 pixels it is too steep to compare filters.
    slope = np.linspace(0, 128, width)[np.newaxis, :] + np.linspace(0, 127, 203)[:, np.newaxis]
    data = jpeg_bytes(PILImage.fromarray(slope.astype(np.uint8)).convert("RGB"), quality=100)
    np.testing.assert_array_equal(Image()(data), pillow(data))
    for size in ((30, 30), (71, width // 3 + 1), (25, width // 2 + 1)):
        expected = np.asarray(PILImage.fromarray(pillow(data)).resize(size[::-1], PILImage.Resampling.BILINEAR))
        got = Image(size=size)(data)
        assert got.shape == expected.shape
        assert width < 100 or difference(got, expected) < 0.6


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("data", [ROAD_JPEG, encoded(SCENE, "PNG")], ids=["jpeg", "png"])
def test_modes_layouts_and_sizes_agree(mode: Any, layout: Any, data: bytes) -> None:
    channels = {"RGB": 3, "L": 1, "RGBA": 4}[mode]
    shape = (40, 60, channels) if layout == "HWC" else (channels, 40, 60)
    decoder = Image(mode=mode, layout=layout, size=(40, 60))
    assert decoder.shape_of(b"not looked at") == shape
    got = decoder(data)
    assert got.shape == shape
    assert got.dtype == np.uint8
    reference = PILImage.fromarray(pillow(data)).convert(mode).resize((60, 40), PILImage.Resampling.BILINEAR)
    expected = np.asarray(reference).reshape(40, 60, channels)
    assert difference(got if layout == "HWC" else got.transpose(1, 2, 0), expected) < 1


# ---- grey depth, alpha, palettes


def test_16_bit_grey_is_scaled_not_clipped() -> None:
    deep = (np.arange(64 * 64, dtype=np.uint16) * 16).reshape(64, 64)
    expected = deep / 257
    for kind in ("PNG", "TIFF"):
        data = encoded(PILImage.fromarray(deep), kind)
        got = Image(mode="L")(data)[:, :, 0]
        assert np.abs(got - expected).max() <= 1
        assert difference(Image()(data), np.repeat(got[:, :, np.newaxis], 3, axis=2)) == 0


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_32_bit_samples_are_refused(dtype: Any) -> None:
    data = encoded(PILImage.fromarray(np.ones((8, 8), dtype)), "TIFF")
    with pytest.raises(DecodeError, match="no agreed scale"):
        Image()(data)


def test_alpha_is_dropped_or_kept() -> None:
    pixels = np.zeros((6, 5, 4), np.uint8)
    pixels[..., 0], pixels[..., 3] = 200, 10
    for image in (PILImage.fromarray(pixels), PILImage.fromarray(pixels).convert("LA")):
        data = encoded(image, "PNG")
        np.testing.assert_array_equal(Image()(data), np.asarray(image.convert("RGB")))
        np.testing.assert_array_equal(Image(mode="RGBA")(data), np.asarray(image.convert("RGBA")))


def test_palettes_with_transparency_warn_of_nothing() -> None:
    image = SCENE.quantize(16)
    expected = np.asarray(image.convert("RGB"))
    for transparency in (3, bytes(range(0, 160, 10))):
        data = encoded(image, "PNG", transparency=transparency)
        np.testing.assert_array_equal(Image()(data), expected)
        assert Image(mode="RGBA")(data)[..., 3].min() < 255
    grey = SCENE.convert("L")
    data = encoded(grey, "PNG", transparency=7)
    np.testing.assert_array_equal(Image(mode="L")(data)[..., 0], np.asarray(grey))


# ---- damage


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("tail", [b"", b"\xff\xd9"], ids=["cut", "cut and closed"])
@settings(max_examples=60, deadline=None)
@given(lost=st.integers(3, len(ROAD_JPEG) // 2))
@example(lost=45)
def test_a_jpeg_cut_anywhere_is_an_error(progressive: bool, tail: bytes, lost: int) -> None:
    data = jpeg_bytes(SCENE, progressive=progressive)
    for decoder in (Image(), Image(size=(30, 30)), Image(mode="L")):
        with pytest.raises(DecodeError):
            decoder(data[:-lost] + tail)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"])
@pytest.mark.parametrize("kept", [0.0, 0.02, 0.3, 0.6, 0.95])
def test_data_that_ends_early_is_an_error(kind: str, kept: float) -> None:
    data = encoded(SCENE, kind)
    with pytest.raises(DecodeError) as caught:
        Image()(data[: int(len(data) * kept)])
    assert f"{int(len(data) * kept)} bytes" in str(caught.value)


def test_harmless_flaws_leave_the_picture_whole() -> None:
    expected = Image()(ROAD_JPEG)
    stray = ROAD_JPEG[:-2] + b"\x12" * 40 + ROAD_JPEG[-2:]  # as many web cameras write
    with pytest.raises(ValueError, match="extraneous bytes"):  # else this shows nothing of the second try
        jpeg.decode(stray, jpeg.read_header(stray) or pytest.fail("no header"), mode="RGB")
    np.testing.assert_array_equal(Image()(stray), expected)
    profile = with_segment(ROAD_JPEG, 0xE2, b"ICC_PROFILE\0\x09\x01cut")
    np.testing.assert_array_equal(Image()(profile), expected)
    np.testing.assert_array_equal(Image()(ROAD_JPEG + b"more bytes after the end"), expected)


def test_a_damaged_middle_is_an_error() -> None:
    data = bytearray(jpeg_bytes(SCENE, restart_marker_rows=1))
    where = data.index(b"\xff\xd3")
    data[where : where + 2] = b"\xff\xd6"
    with pytest.raises(DecodeError, match="instead of RST"):
        Image()(bytes(data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["empty value", "0 bytes"]),
        (b"hello, this is no picture", ["text of 25 bytes", "'hello, this is n'", "Raw()"]),
        (b"\x00\x01\x02\x03", ["data of 4 bytes", "0x00010203"]),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", ["text of", "JPEG, PNG, WebP, TIFF, BMP, GIF or MPO"]),
        (b"\xff\xd8\xff", ["JPEG data of 3 bytes"]),
        (b"\xff\xd8\xff\xd9", ["JPEG data of 4 bytes"]),
        (b"\x89PNG\r\n\x1a\n", ["PNG data of 8 bytes"]),
        (b"BM", ["BMP data of 2 bytes", "on_error='skip'"]),
    ],
    ids=["empty", "text", "noise", "eps", "jpeg start", "empty jpeg", "png start", "bmp start"],
)
@pytest.mark.parametrize("decoder", [Image(), Image(size=(8, 8), mode="L", layout="CHW")], ids=["plain", "sized"])
def test_what_is_no_picture_is_named(decoder: Image, data: bytes, words: list[str]) -> None:
    with pytest.raises(DecodeError) as caught:
        decoder(data)
    for word in words:
        assert word in str(caught.value)
    again = type(caught.value)(str(caught.value))  # as torch rebuilds it
    assert str(again) == str(caught.value)


def test_the_cause_is_kept_and_repeated() -> None:
    with pytest.raises(DecodeError) as caught:
        Image()(ROAD_JPEG[:-100])
    assert isinstance(caught.value.__cause__, ValueError)
    assert "ValueError: Premature end of JPEG file" in str(caught.value)
    with pytest.raises(DecodeError) as caught:
        Image()(encoded(SCENE, "PNG")[:-2000])
    assert isinstance(caught.value.__cause__, OSError)
    assert "OSError: image file is truncated" in str(caught.value)


def test_pillow_global_that_accepts_damage_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(DecodeError):
        Image()(ROAD_JPEG[:-100])


@pytest.mark.parametrize("bits", [12, 16])
def test_deep_jpegs_are_refused(bits: int) -> None:
    data = bytearray(ROAD_JPEG)
    data[data.index(b"\xff\xc0") + 4] = bits
    with pytest.raises(DecodeError, match=f"{bits}-bit"):
        Image()(bytes(data))


# ---- bombs


@pytest.mark.parametrize("data", [png_bomb(60_000, 60_000), jpeg_bomb(60_000, 60_000)], ids=["png", "jpeg"])
def test_a_bomb_is_refused_before_it_unfolds(data: bytes) -> None:
    for decoder in (Image(), Image(size=(10, 10))):
        with pytest.raises(DecodeError, match=r"60000 x 60000 = 3600000000 pixels.*raise max_pixels"):
            decoder(data)
    with pytest.raises(DecodeError, match="max_pixels"):
        Image().shape_of(data)
    with pytest.raises(DecodeError, match="max_pixels"):
        Image().decode_into(data, np.zeros((4, 4, 3), np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"])
def test_max_pixels_is_the_only_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's own warning (an error under this test's filters) stays silent below our limit."""
    data = encoded(SCENE, kind)
    monkeypatch.setattr(PILImage, "MAX_IMAGE_PIXELS", 192 * 108 * 2 // 3)
    pixels = 192 * 108
    assert Image(max_pixels=pixels)(data).shape == (108, 192, 3)
    with pytest.raises(DecodeError, match=f"max_pixels={pixels - 1}"):
        Image(max_pixels=pixels - 1)(data)


# ---- the walk over JPEG segments


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["H", "I"])
def test_exif_orientation(order: str, kind: str, orientation: int) -> None:
    value = struct.pack(order + kind, orientation).ljust(4, b"\0")
    entries = (
        struct.pack(order + "HHI", 0x0110, 2, 4) + b"cam\0" + struct.pack(order + "HHI", 0x0112, 3 if kind == "H" else 4, 1)
    )
    header = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    exif = header + struct.pack(order + "H", 2) + entries + value
    assert jpeg.exif_orientation(exif) == orientation
    data = with_segment(ROAD_JPEG, 0xE1, b"Exif\0\0" + exif)
    for before in (data, with_segment(data, 0xFE, b"comment" * 90), with_segment(data, 0xE1, b"http://ns.adobe.com/xap/")):
        header_read = jpeg.read_header(before)
        assert header_read == jpeg.Header(108, 192, 8, 3, orientation)
        assert jpeg.read_header(memoryview(before)) == header_read
    filled = data[:2] + b"\xff" * 50 + data[2:]
    assert jpeg.read_header(filled) == jpeg.Header(108, 192, 8, 3, orientation)


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"II*\0",
        b"XX*\0\x08\0\0\0\0\0",
        b"II*\0\xff\xff\xff\xff\0\0",  # the directory lies far outside
        b"II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0",  # promises 65,535 entries, ends in the first
        b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x63\0\0\0",  # orientation 99
        b"II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x01\0\0\0\x06\0\0\0",  # orientation as text
    ],
)
def test_damaged_exif_means_upright(exif: bytes) -> None:
    assert jpeg.exif_orientation(exif) == 1
    data = with_segment(ROAD_JPEG, 0xE1, b"Exif\0\0" + exif)
    np.testing.assert_array_equal(Image()(data), Image()(ROAD_JPEG))


@pytest.mark.parametrize("length", [0, 1, 3, 20_000, 65_535])
def test_lying_segment_lengths_do_no_harm(length: int) -> None:
    data = with_segment(ROAD_JPEG, 0xE1, b"Exif\0\0II*\0\x08\0\0\0", length=length)
    try:
        shape = Image()(data).shape
    except DecodeError:
        return
    assert shape == (108, 192, 3)


def test_the_walk_is_bounded() -> None:
    assert jpeg.read_header(b"\xff\xd8" + b"\xff" * 50_000_000) is None
    assert jpeg.read_header(b"\xff\xd8" + b"\xff\xe0\x00\x02" * 1_000_000) is None


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200))
def test_the_walk_survives_noise(data: bytes) -> None:
    header = jpeg.read_header(b"\xff\xd8" + data)
    assert header is None or header.orientation in range(1, 9)
    assert jpeg.exif_orientation(b"II*\0" + data) in range(1, 9)


KINDS = {kind: encoded(draw_road(2, 40, 24), kind, exif=oriented(6)) for kind in ("JPEG", "PNG", "WEBP", "TIFF")}
KINDS |= {kind: encoded(draw_road(2, 40, 24).quantize(9), kind) for kind in ("GIF", "BMP")}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(where=st.lists(st.integers(0, 400), min_size=1, max_size=4), value=st.integers(0, 255))
def test_changed_bytes_give_a_picture_or_a_decode_error(kind: str, where: list[int], value: int) -> None:
    data = bytearray(KINDS[kind])
    for at in where:
        data[at % len(data)] = value
    decoder = Image(max_pixels=1_000_000)
    try:
        shape = decoder.shape_of(bytes(data))
        picture = decoder(bytes(data))
    except DecodeError:
        return
    assert picture.shape == shape


# ---- arguments


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"mode": "BGR"}, ValueError, "mode must be one of 'RGB', 'L', 'RGBA', got 'BGR'"),
        ({"mode": None}, ValueError, "mode must be one of"),
        ({"resample": "area"}, ValueError, "'lanczos'"),
        ({"layout": "NCHW"}, ValueError, "'HWC', 'CHW'"),
        ({"size": 224}, TypeError, r"size must be \(height, width\), got 224"),
        ({"size": (224,)}, TypeError, "height, width"),
        ({"size": "22"}, TypeError, "height, width"),
        ({"size": (224.0, 224)}, TypeError, "whole numbers"),
        ({"size": (True, 224)}, TypeError, "whole numbers"),
        ({"size": (0, 224)}, ValueError, "at least 1"),
        ({"codec": "eps"}, ValueError, "codec must be one of 'jpeg'"),
        ({"codec": 3}, TypeError, "codec"),
        ({"max_pixels": 0}, ValueError, "at least 1"),
        ({"max_pixels": 1e6}, TypeError, "whole numbers"),
        ({"apply_orientation": 1}, TypeError, "apply_orientation"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        Image(**options)
    assert not isinstance(caught.value, DecodeError)


@pytest.mark.parametrize("data", [None, "text", 7, [1, 2], object()])
@pytest.mark.parametrize(
    "use", [Image().shape_of, Image(), lambda data: Image().decode_into(data, np.zeros((1, 1, 3), np.uint8))]
)
def test_data_of_a_wrong_type_is_no_decode_error(use: Callable[[Any], Any], data: Any) -> None:
    with pytest.raises(TypeError, match="takes bytes"):
        use(data)


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (np.zeros((108, 192, 3), np.float32), TypeError, "uint8"),
        ([[1]], TypeError, "uint8"),
        (np.zeros((192, 108, 3), np.uint8), ValueError, r"\(192, 108, 3\).*\(108, 192, 3\)"),
        (np.zeros((3, 108, 192), np.uint8), ValueError, "shape_of"),
        (np.zeros((108, 192, 6), np.uint8)[:, :, ::2], ValueError, "C-contiguous"),
        (np.frombuffer(bytes(108 * 192 * 3), np.uint8).reshape(108, 192, 3), ValueError, "writable"),
    ],
)
def test_wrong_memory_is_no_decode_error(out: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        Image().decode_into(ROAD_JPEG, out)
    assert not isinstance(caught.value, DecodeError)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
@pytest.mark.parametrize("data", [ROAD_JPEG, encoded(SCENE, "PNG")], ids=["jpeg", "png"])
def test_any_buffer_will_do(wrap: Callable[[bytes], Any], data: bytes) -> None:
    np.testing.assert_array_equal(Image()(wrap(data)), pillow(data))
    assert Raw()(wrap(data)) == data
    assert isinstance(Raw()(wrap(data)), bytes)


def test_codec_is_checked() -> None:
    png, multi = encoded(SCENE, "PNG"), encoded(SCENE, "MPO", save_all=True, append_images=[SCENE])
    for codec in ("jpeg", "JPEG", "jpg", "mpo"):
        assert Image(codec=codec)(multi).shape == (108, 192, 3)
    assert Image(codec="jpg") == Image(codec="JPEG")
    with pytest.raises(DecodeError, match=r"PNG data of \d+ bytes, but codec='jpeg' is declared"):
        Image(codec="jpeg").shape_of(png)
    with pytest.raises(DecodeError, match="expected webp"):
        Image(codec="webp")(b"text")


def test_is_a_value() -> None:
    decoder = Image("L", size=[4, 6], resample="box", layout="CHW", apply_orientation=False, codec="PNG", max_pixels=99)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(decoder)) == decoder
    assert len({decoder, pickle.loads(pickle.dumps(decoder)), Image()}) == 2
    assert repr(Image()) == "Image()"
    assert repr(Image(size=(224, 224), codec="jpg")) == "Image(size=(224, 224), codec='jpeg')"
    assert eval(repr(decoder)) == decoder
    with pytest.raises(AttributeError):
        decoder.mode = "RGB"  # type: ignore[misc]
    assert (Image.needs_rng, Raw.needs_rng, Raw() == Raw()) == (False, False, True)
    np.testing.assert_array_equal(Image()(ROAD_JPEG, np.random.default_rng(0)), Image()(ROAD_JPEG))


def test_threads_do_not_disturb_each_other() -> None:
    pictures = [encoded(draw_road(seed, 160 + seed, 90), kind) for seed in range(6) for kind in ("JPEG", "PNG", "WEBP")]
    decoder = Image(size=(60, 80))
    expected = [decoder(data) for data in pictures]
    batch = np.zeros((len(pictures) * 8, 60, 80, 3), np.uint8)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(decoder.decode_into, pictures * 8, batch))
    np.testing.assert_array_equal(batch, np.stack(expected * 8))


def in_new_process(code: str) -> str:
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    return done.stdout.strip()


def test_importing_loads_no_decoder() -> None:
    code = "import sys, lakehouse.decode; print([name for name in ('PIL', 'simplejpeg', 'torch') if name in sys.modules])"
    assert in_new_process(code) == "[]"


def test_first_use_by_several_threads(tmp_path: Path) -> None:
    """Pillow's own lazy loading of formats fails now and then when threads come first."""
    for number, kind in enumerate(("PNG", "WEBP", "TIFF", "GIF", "BMP", "JPEG")):
        (tmp_path / str(number)).write_bytes(encoded(SCENE.convert("CMYK") if kind == "JPEG" else SCENE, kind))
    code = f"""
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from lakehouse.decode import Image
files = [path.read_bytes() for path in sorted(Path({str(tmp_path)!r}).iterdir())] * 4
print({{array.shape for array in ThreadPoolExecutor(24).map(Image(), files)}})
"""
    assert in_new_process(code) == "{(108, 192, 3)}"


def test_png_with_a_broken_checksum_is_an_error() -> None:
    data = encoded(SCENE, "PNG")
    assert png_chunk(b"IEND", b"") == data[-12:]
    with pytest.raises(DecodeError):
        Image()(data.replace(b"IDAT", b"IDAX", 1))
