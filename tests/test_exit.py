"""What is still open when the interpreter ends goes quietly, however late: even after the names of its module.

Modules are emptied from the latest imported to the first. A value that an early module holds outlives lakehouse's own
modules where something keeps these alive, as extensions written in C and Rust do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

_BEGIN = """
import sys, types
early = sys.modules["early"] = types.ModuleType("early")
import os
from pathlib import Path
folder = Path(sys.argv[1])
"""
_FILES = """
from lakehouse.cache.store import _File
from lakehouse.fetch import BlobRef, BlobRefs, LocalFetcher
(folder / "x").write_bytes(b"0123456789")
fetcher = LocalFetcher()
assert fetcher.fetch(BlobRefs.of([BlobRef(str(folder / "x"), 2, 3)])).values == [b"234"]
early.held = [fetcher, _File(folder / "x", os.O_RDONLY)]
"""
_ITERATIONS = """
from lakehouse.decode import Image
from tests.training import Maker, image_index
index = image_index(folder, 40)
makes = [Maker(index, "fork", batch_size=4, decode={"image": Image()}, threads=threads) for threads in (0, 2)]
early.held = [iter(make().dataset) for make in makes] + [iter(make()) for make in makes] + [iter(makes[0](workers=2))]
for batches in early.held:
    next(batches)
"""
_END = """
sys.held = [module for module in sys.modules.values() if module is not None]
print("out", flush=True)
"""


@pytest.mark.parametrize("held", [_FILES, _ITERATIONS], ids=["files", "iterations"])
def test_what_outlives_the_modules_says_nothing(tmp_path: Path, held: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _BEGIN + held + _END, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=100, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (0, "out\n", "")
