"""Pictures: what they are, how they look, smaller copies.

Each function takes bytes, a ``daft.File``, None, or a Daft expression over a binary or File column, and the keywords
``on_error`` and ``key`` beside its own; see `udfs.Face`. Formats: JPEG, PNG, WebP, TIFF, BMP, GIF, MPO; of an animation,
the first frame. Pictures are turned as their EXIF block says.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from udfs import _pixels
from udfs._face import Options, face

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["brightness", "decode", "perceptual_hash", "resize", "sharpness", "size_and_mode", "thumbnail"]

_RESAMPLE = ("nearest", "bilinear", "bicubic", "lanczos", "box")
_HASH_SIDE = 8


def _size_and_mode_type(types: Any, _: Options) -> Any:
    return types.struct({"height": types.int32(), "width": types.int32(), "mode": types.string(), "format": types.string()})


@face(_size_and_mode_type, threads=False, batch_rows=256)
def size_and_mode(data: bytes) -> dict[str, Any]:
    """Height and width (upright), colour mode as stored (``"RGB"``, ``"L"``, ``"CMYK"``, ...) and format.

    Reads the header alone: a picture that is cut short still has a size.

    Returns:
        ``{"height", "width", "mode", "format"}``; in Daft a struct.
    """
    with _pixels.open_header(data) as image:
        height, width = _pixels.upright_size(image, data)
        return {"height": height, "width": width, "mode": image.mode, "format": image.format}


def _check_mode(mode: str) -> None:
    if mode not in _pixels.MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, _pixels.MODES))}, got {mode!r}")


@face(lambda types, options: types.image(options["mode"]), check=_check_mode, batch_rows=16)
def decode(data: bytes, *, mode: str = "RGB") -> npt.NDArray[np.uint8]:
    """The pixels.

    Args:
        data: the picture.
        mode: ``"RGB"``, ``"L"`` or ``"RGBA"``.

    Returns:
        uint8[height, width, channels]; in Daft an Image.
    """
    return _array(_pixels.picture(data, mode))


def _check_resize(size: Any, mode: str, resample: str) -> None:
    _check_mode(mode)
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise TypeError(f"size must be (height, width), got {size!r}")
    for side in size:
        _check_whole("size", side, 1, 65_535)
    if resample not in _RESAMPLE:
        raise ValueError(f"resample must be one of {', '.join(map(repr, _RESAMPLE))}, got {resample!r}")


@face(lambda types, options: types.image(options["mode"], *options["size"]), check=_check_resize)
def resize(data: bytes, *, size: tuple[int, int], mode: str = "RGB", resample: str = "bilinear") -> npt.NDArray[np.uint8]:
    """The pixels, stretched to one size, no aspect kept.

    A JPEG that is much larger is decoded at a fraction of its size first, except for ``"nearest"``.

    Args:
        data: the picture.
        size: ``(height, width)``.
        mode: ``"RGB"``, ``"L"`` or ``"RGBA"``.
        resample: ``"bilinear"``, ``"nearest"``, ``"bicubic"``, ``"lanczos"`` or ``"box"``.

    Returns:
        uint8[height, width, channels]; in Daft an Image of fixed shape.
    """
    from PIL.Image import Resampling

    height, width = size
    image = _pixels.picture(data, mode, at_least=None if resample == "nearest" else (height, width))
    return _array(image.resize((width, height), Resampling[resample.upper()]))


def _check_thumbnail(max_side: Any, quality: Any) -> None:
    _check_whole("max_side", max_side, 1, 65_535)
    _check_whole("quality", quality, 1, 100)


@face(lambda types, _: types.binary(), check=_check_thumbnail)
def thumbnail(data: bytes, *, max_side: int = 128, quality: int = 70) -> bytes:
    """A small copy as a JPEG, aspect kept, never larger than the picture itself; metadata is left out.

    Args:
        data: the picture.
        max_side: pixels of the longer side.
        quality: of the JPEG, 1 to 100.
    """
    from PIL.Image import Resampling

    with _pixels.open_header(data) as header:
        height, width = _pixels.upright_size(header, data)
    longest = max(height, width)
    if longest > max_side:
        height, width = (max(1, round(side * max_side / longest)) for side in (height, width))
    # Twice the size, so that the filter and not the decoder's scaling decides how it looks.
    image = _pixels.picture(data, "RGB", at_least=(height * 2, width * 2))
    if image.size != (width, height):
        image = image.resize((width, height), Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


@face(lambda types, _: types.float64())
def brightness(data: bytes) -> float:
    """Mean grey level, 0 (black) to 255 (white), of the picture shrunk to 64 x 64."""
    import numpy as np

    # Grey from RGB at full size, then bicubic: the same number as ``im.convert("L").resize((64, 64))`` gives.
    return float(np.asarray(_pixels.picture(data, "RGB").convert("L").resize((64, 64))).mean())


@face(lambda types, _: types.float64())
def sharpness(data: bytes) -> float:
    """Variance of the Laplacian of the grey levels at full size: low for blurred pictures and for empty ones.

    The Laplacian is up + down + left + right - 4 x centre, over the pixels that have all four neighbours; 0.0 where none
    has. It grows with detail and shrinks with resolution: compare pictures of one camera. (Pech-Pacheco et al., "Diatom
    autofocusing in brightfield microscopy", 2000.)
    """
    import numpy as np

    grey = np.asarray(_pixels.picture(data, "L")).astype(np.int16)  # [height, width]
    if min(grey.shape) < 3:
        return 0.0
    centre = grey[1:-1, 1:-1]
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * centre  # within +-1020
    # In whole numbers, so that the result does not depend on the order of summation.
    total = int(laplacian.sum(dtype=np.int64))
    squares = int(np.square(laplacian, dtype=np.int32).sum(dtype=np.int64))
    return (squares - total * total / laplacian.size) / laplacian.size


@face(lambda types, _: types.string())
def perceptual_hash(data: bytes) -> str:
    """A 64-bit difference hash, as 16 hex digits: close for pictures that look alike, whatever their size or format.

    The picture is shrunk to 8 rows of 9 grey levels; each bit says whether a level is below its right neighbour, from
    the top left, most significant first. Pictures are most likely the same scene when few of the 64 bits differ (say, up
    to 10): ``(int(a, 16) ^ int(b, 16)).bit_count()``. A string, as tables have no unsigned 64-bit numbers.
    """
    import numpy as np
    from PIL.Image import Resampling

    # At least 8 pixels stand behind each level.
    grey = _pixels.picture(data, "L", at_least=(_HASH_SIDE * 8, (_HASH_SIDE + 1) * 8))
    levels = np.asarray(grey.resize((_HASH_SIDE + 1, _HASH_SIDE), Resampling.BOX))  # [8, 9]
    return np.packbits(levels[:, :-1] < levels[:, 1:]).tobytes().hex()


def _array(image: Any) -> npt.NDArray[np.uint8]:
    import numpy as np

    array: npt.NDArray[np.uint8] = np.array(image)
    return array[:, :, np.newaxis] if array.ndim == 2 else array


def _check_whole(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must hold whole numbers, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} to {high}, got {value}")
