"""Each benchmark runs from its one command, here on next to nothing: its figures are not looked at, but it must print them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

RUNS = {
    "check_speed.py --mb 4 --runs 1": "Table.check(verify='crc')",
    "compaction.py --commits 4 --repeats 1": "one partition, index",
    "decode_speed.py --rows 130 --epochs 1 --runs 1 --only lakehouse raw?limit": "lakehouse / raw limit: ",
    "filter_bytes.py --rows 400 --runs 1 --only blocks,?merged?reads": "wanted: fetched/ref and read/ref at most 1.05",
    "first_batch.py --rows 2000 --runs 1 --only blocks,?90%?of?the?epoch": "wanted: ",
    "index_scale.py --rows 70000 140000": "ratios 140,000 / 70,000",
    "locality.py --rows 20000": "rows-1",
    "object_store.py --only small-once --share 0.03 --repeats 1 --delay-ms 1": "requests a sample",
    "raw_random.py --rows 200 --runs 1 --only lakehouse os.pread?loop?(limit)": "os.pread loop (limit)",
}


@pytest.mark.parametrize("command", RUNS)
def test_a_benchmark_runs(command: str, tmp_path: Path) -> None:
    script, *options = (part.replace("?", " ") for part in command.split())
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, f"benchmarks/{script}", *options],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    assert RUNS[command] in ran.stdout


def test_no_benchmark_is_left_out() -> None:
    scripts = {path.name for path in (ROOT / "benchmarks").glob("[!_]*.py")}
    assert scripts == {command.split()[0] for command in RUNS}
