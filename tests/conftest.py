"""What all tests share: a quiet environment, a bounded hypothesis profile, a warehouse, real or drawn images."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.drawing import draw_road, encoded, jpeg_bytes, oriented, with_segment
from tests.stores import place
from tests.stores.fixtures import lake, s3_lake, s3_proxy, s3_server
from tests.stores.place import store, stores_of

__all__ = ["lake", "s3_lake", "s3_proxy", "s3_server", "store"]  # fixtures of theirs

if TYPE_CHECKING:
    import lakehouse as lh
    from tests.rest import RestServer

# Before anything imports Daft, and for the processes that tests start. Daft reports its use otherwise.
for _name, _value in {
    "DO_NOT_TRACK": "1",
    "DAFT_ANALYTICS_ENABLED": "0",
    "SCARF_NO_ANALYTICS": "1",
    "DAFT_PROGRESS_BAR": "0",
}.items():
    os.environ.setdefault(_name, _value)
os.environ.pop("LAKEHOUSE_CONFIG", None)  # the developer's own catalog is no test's business

os.environ["AWS_EC2_METADATA_DISABLED"] = "true"  # no test asks a cloud for keys

# A shell without job control starts what it runs in the background with SIGINT ignored, and so would run what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests whose warehouse may lie on either kind of storage: see `tests.stores.place`."""
    if "store" in metafunc.fixturenames:
        metafunc.parametrize("store", stores_of(metafunc.definition, metafunc.fixturenames), indirect=True, scope="module")


_EXIT_STATUS = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_EXIT_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Daft 0.7.26 now and then crashes while the interpreter winds down, after all is done: this leaves before that."""
    if "daft" in sys.modules and _EXIT_STATUS in config.stash:
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")  # what is left to exit functions is theirs; the result of the session stands
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash[_EXIT_STATUS])


# The same examples on every run; HYPOTHESIS_PROFILE=wide looks for new ones.
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("wide", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

ROAD = ("solidWhiteCurve", "solidWhiteRight", "solidYellowCurve", "solidYellowCurve2", "solidYellowLeft", "whiteCarLaneSwitch")


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """The folder of an embedded catalog; it does not exist yet. In a test's S3 variant it is one there."""
    return place.path(tmp_path / "warehouse")


@pytest.fixture
def catalog(warehouse: Path) -> lh.Catalog:
    """The catalog of that warehouse."""
    return place.connect(warehouse)


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestServer]:
    """A catalog server on loopback that takes the bearer token ``token-of-the-test``."""
    from tests.rest import RestServer

    with RestServer.run(tmp_path / "served", bearer={"token-of-the-test"}) as server:
        yield server


@pytest.fixture(scope="session")
def road_frames(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six 960x540 JPEG frames of a car's front camera, in the order of their names."""
    folder = _test_data("road")
    if folder is None:
        folder = tmp_path_factory.mktemp("road")
        for number, name in enumerate(ROAD):
            (folder / f"{name}.jpg").write_bytes(jpeg_bytes(draw_road(number, 960, 540)))
    return sorted(folder.glob("*.jpg"))


@pytest.fixture(scope="session")
def odd_images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What real collections hold and loaders trip over, by name: `broken.png` and the two `truncated_...` can't be decoded."""
    folder = _test_data("odd")
    if folder is None:
        folder = tmp_path_factory.mktemp("odd")
        for name, draw in _ODD.items():
            (folder / name).write_bytes(draw())
    return {path.name: path for path in sorted(folder.iterdir())}


def _test_data(name: str) -> Path | None:
    """A folder of $LAKEHOUSE_TEST_DATA; None where that is not set: then equivalents are drawn."""
    root = os.environ.get("LAKEHOUSE_TEST_DATA")
    if not root:
        return None
    folder = Path(root) / name
    if not folder.is_dir():
        raise pytest.UsageError(f"LAKEHOUSE_TEST_DATA is {root}, which has no folder {name}")
    return folder


def _jpeg(size: tuple[int, int] = (128, 128), mode: str = "RGB", **options: Any) -> bytes:
    return jpeg_bytes(draw_road(0, *size).convert(mode), **options)


def _segments(jpeg: bytes) -> Iterator[tuple[int, bytes]]:
    """(marker, payload) of each segment; the last is the start of scan with all that follows."""
    at = 2
    while jpeg[at + 1] != 0xDA:
        (length,) = struct.unpack_from(">H", jpeg, at + 2)
        yield jpeg[at + 1], jpeg[at + 4 : at + 2 + length]
        at += 2 + length
    yield 0xDA, jpeg[at + 2 :]


def _rebuilt(jpeg: bytes, change: Callable[[int, bytes], list[tuple[int, bytes]]]) -> bytes:
    out = bytearray(b"\xff\xd8")
    for marker, payload in _segments(jpeg):
        if marker == 0xDA:
            return bytes(out + b"\xff\xda" + payload)
        for new_marker, new_payload in change(marker, payload):
            out += struct.pack(">BBH", 0xFF, new_marker, len(new_payload) + 2) + new_payload
    raise AssertionError("a JPEG without a scan")


def _wide_tables(marker: int, payload: bytes) -> list[tuple[int, bytes]]:
    """Quantisation tables of 16 bits, which only an extended frame (SOF1) may have."""
    if marker == 0xC0:
        return [(0xC1, payload)]
    if marker == 0xDB:
        tables = (payload[at : at + 65] for at in range(0, len(payload), 65))
        return [(marker, b"".join(bytes([0x10 | t[0]]) + struct.pack(">64H", *t[1:]) for t in tables))]
    return [(marker, payload)]


def _profile_after_frame(marker: int, payload: bytes) -> list[tuple[int, bytes]]:
    """A colour profile where few look for it."""
    late = [(0xE2, b"ICC_PROFILE\0\1\1" + bytes(128))] if marker == 0xC0 else []
    return [(marker, payload), *late]


def _zero_resolution() -> bytes:
    """EXIF with an x resolution of 1/0."""
    entry = struct.pack(">HHIHHHII", 0x2A, 0, 8, 1, 0x011A, 5, 1, 26) + bytes(4) + struct.pack(">II", 1, 0)
    return with_segment(_jpeg(), 0xE1, b"Exif\0\0MM\0*" + entry[4:])


_UPRIGHT = b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\1\0\0\0\0\0\0"  # orientation 1
_ODD: dict[str, Callable[[], bytes]] = {
    "broken.png": lambda: b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + bytes(17),
    "exif-dpi-zerodivision.jpg": _zero_resolution,
    "exif.png": lambda: encoded(draw_road(0, 512, 512), "PNG", exif=oriented(1)),
    "hopper.jpg": _jpeg,
    "hopper_16bit_qtables.jpg": lambda: _rebuilt(_jpeg(), _wide_tables),
    "hopper_gray.jpg": lambda: _jpeg(mode="L"),
    "hopper_orientation_3.jpg": lambda: _jpeg(exif=oriented(3)),
    "hopper_orientation_6.jpg": lambda: _jpeg(exif=oriented(6)),
    "icc-after-SOF.jpg": lambda: _rebuilt(_jpeg((10, 10), "L"), _profile_after_frame),
    "invalid-exif.jpg": lambda: with_segment(_jpeg(), 0xE1, b"Exif\0\0\xff\xff\xff\xff" + _UPRIGHT[10:]),
    "pil_sample_cmyk.jpg": lambda: _jpeg((100, 100), "CMYK"),
    "truncated_image.png": lambda: encoded(draw_road(0, 640, 480), "PNG")[:81_920],
    "truncated_jpeg.jpg": lambda: _jpeg((100, 100))[:-400],
}
