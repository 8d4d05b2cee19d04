"""Worker processes end with the trainer that started them, however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

TRAINER = """
import sys, time
from pathlib import Path
from torch.utils.data import DataLoader
from lakehouse.dataset import Dataset
from lakehouse.loader import Loader
from tests.training import raw_index

if __name__ == "__main__":
    ds = Dataset(raw_index(Path(sys.argv[1]), 400), batch_size=2, rank=0, world=1)
    if sys.argv[3] == "Loader":
        loader = Loader(ds, workers=2, start_method=sys.argv[2])
        batches = iter(loader)
        next(batches)
        workers = loader._torch_loader._iterator._workers
    else:
        batches = iter(DataLoader(ds, batch_size=None, num_workers=2, multiprocessing_context=sys.argv[2]))
        next(batches)
        workers = batches._workers
    print(*[worker.pid for worker in workers], flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        del batches
        print(sum(len(batch["id"]) for batch in (loader if sys.argv[3] == "Loader" else [])), flush=True)
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("method", "kind", "number"),
    [
        *((method, "Loader", signal.SIGKILL) for method in ("fork", "forkserver", "spawn")),
        ("forkserver", "Loader", signal.SIGTERM),
        ("forkserver", "DataLoader", signal.SIGKILL),  # torch's own, over a Dataset
    ],
)
def test_workers_end_with_a_trainer_that_is_killed(tmp_path: Path, method: str, kind: str, number: signal.Signals) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    trainer = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), method, kind],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert trainer.stdout is not None
    workers = [int(pid) for pid in trainer.stdout.readline().split()]
    try:
        assert len(workers) == 2
        assert all(map(running, workers))
        trainer.send_signal(number)
        trainer.wait()
        until = time.monotonic() + 30  # torch looks every 5 s where it looks
        while any(map(running, workers)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(map(running, workers))
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()
        for pid in filter(running, workers):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_loader_goes_on_after_ctrl_c_in_its_terminal(tmp_path: Path, method: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    trainer = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), method, "Loader"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        start_new_session=True,  # a group of its own, as a terminal's
    )
    assert trainer.stdout is not None
    try:
        assert len(trainer.stdout.readline().split()) == 2
        time.sleep(0.5)  # into its sleep
        os.killpg(trainer.pid, signal.SIGINT)
        assert trainer.stdout.readline() == "400\n"
        assert trainer.wait() == 0
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()
