"""`Image`: encoded pictures to arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from lakehouse.decode import jpeg, pillow
from lakehouse.decode.jpeg import Buffer, Pixels
from lakehouse.errors import DecodeError, cause_line

Mode: TypeAlias = Literal["RGB", "L", "RGBA"]
Resample: TypeAlias = Literal["nearest", "bilinear", "bicubic", "lanczos", "box"]
Layout: TypeAlias = Literal["HWC", "CHW"]

# Twice Pillow's warning limit: half a gigabyte of RGB.
MAX_PIXELS = 178_956_970

_CHANNELS = {"RGB": 3, "L": 1, "RGBA": 4}
_MAX_KEPT_BYTES = 4096  # of a header; a longer one holds a thumbnail, and no two begin alike
_ALIASES = {"jpg": "jpeg", "tif": "tiff"}
_WRITE_AGAIN = "write the whole picture again, or let the Dataset pass over such rows with on_error='skip'"
_KNOWN = "JPEG, PNG, WebP, TIFF, BMP, GIF or MPO"


class Inspected(NamedTuple):
    """A picture whose header was read and accepted.

    Attributes:
        data: the whole file.
        header: what its header says.
        shape: of the array that decoding will give.
        straight: libjpeg-turbo's pixels are the result as they come, so that nothing is left to do in Python.
    """

    data: bytes | memoryview
    header: jpeg.Header | pillow.Opened
    shape: tuple[int, ...]
    straight: bool


@dataclass(frozen=True)
class Image:
    """Decodes JPEG, PNG, WebP, TIFF, BMP, GIF and MPO into uint8 arrays, and declares a BLOB column that holds them.

    JPEG goes through libjpeg-turbo, straight into the batch's memory. With a ``size`` it is decoded at a fraction of its
    size where that is enough, then resized: on road scenes the mean difference from decoding everything first is below
    half a grey level (below 1.5 with ``"box"``); ``"nearest"`` decodes everything, so that it gives pixels that were
    there. Other formats, and JPEGs that libjpeg-turbo refuses, go through Pillow. Of an animation, the first frame.

    Grey, CMYK and palettes become ``mode``. 16-bit grey is scaled to 8, not clipped. Alpha is dropped, not composited
    over a colour (Pillow's ``convert``), unless ``mode`` is ``"RGBA"``. Data that ends early is an error, never a
    picture that is grey below. What a flipped bit does to the inside of a picture can't be seen by a decoder:
    ``Dataset(verify=True)`` checks the stored checksum.

    Args:
        mode: ``"RGB"``, ``"L"`` (grey, one channel) or ``"RGBA"``.
        size: ``(height, width)``, stretched, no aspect kept; None leaves each picture as it is.
        resample: ``"bilinear"``, ``"nearest"``, ``"bicubic"``, ``"lanczos"`` or ``"box"``; used with ``size``.
        layout: ``"HWC"`` or ``"CHW"``, the axes of the array.
        apply_orientation: turn the picture as its EXIF block says.
        codec: the one format the column holds, such as ``"jpeg"``: a declaration, and a check of each value. None
            accepts every format above; a JPEG with several pictures (MPO) counts as ``"jpeg"`` too.
        max_pixels: height x width above which nothing is decoded (a small file may unfold to gigabytes).

    Raises:
        ValueError: an unknown mode, resample, layout or codec, a side or limit below 1.
        TypeError: an argument of the wrong kind.

    Example:
        >>> import numpy as np
        >>> decoder = Image(size=(224, 224))
        >>> decoder.shape_of(jpeg_bytes)
        (224, 224, 3)
        >>> batch = np.empty((64, *decoder.shape_of(jpeg_bytes)), np.uint8)
        >>> decoder.decode_into(jpeg_bytes, batch[0])
    """

    mode: Mode = "RGB"
    size: tuple[int, int] | None = None
    resample: Resample = "bilinear"
    layout: Layout = "HWC"
    apply_orientation: bool = True
    codec: str | None = None
    max_pixels: int = MAX_PIXELS

    needs_rng: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, get_args(Mode))
        _one_of("resample", self.resample, get_args(Resample))
        _one_of("layout", self.layout, get_args(Layout))
        if not isinstance(self.apply_orientation, bool):
            raise TypeError(f"apply_orientation must be True or False, got {self.apply_orientation!r}")
        if self.size is not None:
            if isinstance(self.size, str) or not isinstance(self.size, tuple | list) or len(self.size) != 2:
                raise TypeError(f"size must be (height, width), got {self.size!r}")
            object.__setattr__(self, "size", tuple(_at_least_1("size", side) for side in self.size))
        object.__setattr__(self, "max_pixels", _at_least_1("max_pixels", self.max_pixels))
        if self.codec is not None:
            if not isinstance(self.codec, str):
                raise TypeError(f"codec must be the name of a format or None, got {self.codec!r}")
            lower = self.codec.lower()
            codec = _ALIASES.get(lower, lower)
            _one_of("codec", codec, pillow.FORMATS)
            object.__setattr__(self, "codec", codec)

    def __repr__(self) -> str:
        """Only what differs from the defaults, so that it can be read in a schema."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return f"Image({', '.join(f'{field.name}={value!r}' for field, value in values if value != field.default)})"

    def shape_of(self, data: Buffer) -> tuple[int, ...]:
        """The shape that decoding will give, from the header alone; with ``size``, without looking at the data.

        Raises:
            DecodeError: no header of a known format, not ``codec``, or more than ``max_pixels``.
        """
        if self.size is not None:
            return self._axes(*self.size)
        return self.inspect(data).shape

    def decode_into(self, data: Buffer, out: Pixels) -> None:
        """Decode into memory that is there already, such as one row of a batch. Thread-safe; releases the GIL.

        Args:
            data: the picture's bytes.
            out: C-contiguous, writable uint8 array of the shape that `shape_of` gives.

        Raises:
            DecodeError: the bytes are no whole picture of a known format; ``out`` then holds nothing of use.
            TypeError: ``data`` holds no bytes, or ``out`` is no uint8 array.
            ValueError: ``out`` has another shape or is not contiguous and writable.
        """
        if not isinstance(out, np.ndarray) or out.dtype != np.uint8:
            raise TypeError(f"out must be an array of uint8, got {getattr(out, 'dtype', type(out).__name__)}")
        picture = self.inspect(data)
        if out.shape != picture.shape:
            raise ValueError(f"out has shape {out.shape}, but this picture gives {picture.shape}: allocate by shape_of(data)")
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError("out must be C-contiguous and writable: pass batch[i] of an array that is")
        self.decode_inspected(picture, out)

    def inspect(self, data: Buffer) -> Inspected:
        """The first half of decoding: read the header and check it.

        Between two pictures the decoder fills the processor's caches with pixels, after which a line of Python takes several
        times as long. So `Dataset` inspects a number of pictures first, then decodes them one after the other.

        Raises:
            DecodeError: no header of a known format, not ``codec``, or more than ``max_pixels``.
        """
        known = self._latest.get("jpeg")
        if type(data) is bytes and known is not None and data.startswith(known[0]):
            return Inspected(data, *known[1])
        view = _view(data)
        if known is not None and view[: len(known[0])] == known[0]:
            return Inspected(view, *known[1])
        header, end = self._header(view)
        straight = (
            self.size is None
            and self.layout == "HWC"
            and self._turn(header) == jpeg.UPRIGHT
            and isinstance(header, jpeg.Header)
            and jpeg.turbo_can(header)
        )
        picture = Inspected(view, header, self._shape(header), straight)
        if isinstance(header, jpeg.Header) and end <= _MAX_KEPT_BYTES:
            self._latest["jpeg"] = (bytes(view[:end]), (header, picture.shape, straight))
        return picture

    @cached_property
    def _latest(self) -> dict[str, tuple[bytes, tuple[Any, tuple[int, ...], bool]]]:
        """The latest JPEG's bytes up to the end of its frame header, and what they say.

        What one camera or program wrote begins alike, and nothing behind these bytes is looked at.
        """
        return {}

    @cached_property
    def _turbo(self) -> tuple[Callable[..., Pixels], str]:
        """The decoder and its name of the mode."""
        return jpeg.turbo(), jpeg.COLORS[self.mode]

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def decode_inspected(self, picture: Inspected, out: Pixels) -> None:
        """The second half, into an array that is known to be fit for it. Thread-safe; releases the GIL.

        Raises:
            DecodeError: the bytes are no whole picture of a known format; ``out`` then holds nothing of use.
        """
        data, _, shape, straight = picture
        if straight:
            turbo, color = self._turbo
            try:
                if turbo(data, color, buffer=out).shape == shape:
                    return
            except ValueError:
                pass  # decoded once more, to tell damage from what Pillow can do
        self._fill(picture.data, picture.header, out)

    def __call__(self, data: Buffer, rng: np.random.Generator | None = None) -> Pixels:  # noqa: ARG002
        """Decode into a new array: uint8[height, width, channels], or channels first with ``layout="CHW"``.

        Raises:
            DecodeError: the bytes are no whole picture of a known format.
            TypeError: ``data`` holds no bytes.
        """
        picture = self.inspect(data)
        out = np.empty(picture.shape, np.uint8)
        self.decode_inspected(picture, out)
        return out

    def _header(self, data: bytes | memoryview) -> tuple[jpeg.Header | pillow.Opened, int]:
        """The header, and how many bytes of a JPEG it depends on."""
        kind = "jpeg" if data[:3] == jpeg.SIGNATURE else pillow.sniff(data)
        if kind is None:
            raise DecodeError(
                f"{_described(data)} is no picture: expected {self.codec or _KNOWN}; "
                "write pictures to this column, or decode it with Raw()"
            )
        if self.codec is not None and kind != ("jpeg" if self.codec == "mpo" else self.codec):
            raise DecodeError(f"{_described(data)}, but codec={self.codec!r} is declared: correct the declaration or the data")
        header: jpeg.Header | pillow.Opened
        end = 0
        found = jpeg.find_header(data) if kind == "jpeg" else None
        if found is not None:
            header, end = found
        else:
            try:
                header = pillow.open_header(data, kind)
            except pillow.data_errors() as error:
                raise _damaged(data, cause_line(error)) from error
        pixels = header.height * header.width
        if pixels > self.max_pixels:
            raise DecodeError(
                f"{_described(data)} unfolds to {header.height} x {header.width} = {pixels} pixels, "
                f"more than max_pixels={self.max_pixels}: raise max_pixels to accept it"
            )
        if pixels == 0:
            raise _damaged(data, f"{header.height} x {header.width} pixels")
        return header, end

    def _fill(self, data: bytes | memoryview, header: jpeg.Header | pillow.Opened, out: Pixels) -> None:
        refusal: ValueError | None = None
        if isinstance(header, jpeg.Header) and jpeg.turbo_can(header):
            try:
                self._fill_by_turbo(data, header, out)
            except ValueError as error:
                if jpeg.is_damage(error):
                    raise _damaged(data, cause_line(error)) from error
                refusal = error
            else:
                return
        try:
            self._fill_by_pillow(data, header, out)
        except pillow.data_errors() as error:
            first = f"{cause_line(refusal)}; then Pillow: " if refusal else ""
            raise _damaged(data, first + cause_line(error)) from (refusal or error)

    def _fill_by_turbo(self, data: bytes | memoryview, header: jpeg.Header, out: Pixels) -> None:
        straight = self.layout == "HWC" and self._turn(header) == jpeg.UPRIGHT
        if self.size is None:
            pixels = jpeg.decode(data, header, mode=self.mode, out=out if straight else None)
        else:
            height, width = self._stored_size(header)
            eighths = jpeg.pick_scale(header, height, width) if self.resample != "nearest" else 8
            straight = straight and jpeg.scaled_size(header, eighths) == (height, width)
            pixels = jpeg.decode(data, header, mode=self.mode, eighths=eighths, out=out if straight else None)
            if pixels.shape[:2] != (height, width):
                # The last row and column of a scaled picture may stand for a part of a pixel only.
                box = (0.0, 0.0, header.width * eighths / 8, header.height * eighths / 8)
                pixels = pillow.resize_array(pixels, height, width, self.resample, box)
        if not straight:
            self._place(pixels, header, out)

    def _fill_by_pillow(self, data: bytes | memoryview, header: jpeg.Header | pillow.Opened, out: Pixels) -> None:
        opened = header
        if isinstance(opened, jpeg.Header):
            opened = pillow.open_header(data, "jpeg")._replace(orientation=header.orientation)
        height, width = self._stored_size(header)
        image = pillow.load(opened, self.mode)
        if self.size is None and image.size != (width, height):
            raise ValueError(f"got {image.size[::-1]} pixels where the header promises {(height, width)}")
        self._place(pillow.to_array(pillow.resize(image, height, width, self.resample)), header, out)

    def _place(self, pixels: Pixels, header: jpeg.Header | pillow.Opened, out: Pixels) -> None:
        # pixels, upright: [height, width, channel]
        upright = _upright(pixels, self._turn(header))
        out[...] = upright if self.layout == "HWC" else upright.transpose(2, 0, 1)

    def _turn(self, header: jpeg.Header | pillow.Opened) -> int:
        return header.orientation if self.apply_orientation else jpeg.UPRIGHT

    def _stored_size(self, header: jpeg.Header | pillow.Opened) -> tuple[int, int]:
        """Height and width wanted before the orientation is applied."""
        if self.size is None:
            return header.height, header.width
        height, width = self.size
        return (width, height) if self._turn(header) >= 5 else (height, width)

    def _shape(self, header: jpeg.Header | pillow.Opened) -> tuple[int, ...]:
        if self.size is not None:
            return self._axes(*self.size)
        if self._turn(header) >= 5:
            return self._axes(header.width, header.height)
        return self._axes(header.height, header.width)

    def _axes(self, height: int, width: int) -> tuple[int, ...]:
        channels = _CHANNELS[self.mode]
        return (height, width, channels) if self.layout == "HWC" else (channels, height, width)


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """A view of uint8[height, width, channel] turned by an EXIF orientation; 5 to 8 swap height and width."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def _view(data: Buffer) -> bytes | memoryview:
    if isinstance(data, bytes):
        return data
    try:
        return memoryview(data).cast("B")
    except TypeError as error:
        raise TypeError(f"an image decoder takes bytes, got {type(data).__name__}") from error


def _described(data: bytes | memoryview) -> str:
    size = len(data)
    if size == 0:
        return "an empty value (0 bytes)"
    kind = pillow.sniff(data)
    if kind is not None:
        return f"{kind.upper()} data of {size} bytes"
    head = bytes(data[:16])
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head):
        return f"text of {size} bytes (starting {head.decode('ascii')!r})"
    return f"data of {size} bytes (starting 0x{head[:8].hex()})"


def _damaged(data: bytes | memoryview, reason: str) -> DecodeError:
    return DecodeError(f"{_described(data)} is damaged or of a kind that can't be decoded: {reason}; {_WRITE_AGAIN}")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def _at_least_1(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must hold whole numbers, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must hold whole numbers, got {value!r}") from error
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number
