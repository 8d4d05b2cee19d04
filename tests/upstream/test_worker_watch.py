"""torch: a worker process under forkserver does not notice that its trainer is gone. See lakehouse/dataset/orphan.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TRAINER = """
import time
import torch
from torch.utils.data import DataLoader, IterableDataset

class Numbers(IterableDataset):
    def __iter__(self):
        yield from range(10)

if __name__ == "__main__":
    batches = iter(DataLoader(Numbers(), batch_size=None, num_workers=1, multiprocessing_context="forkserver"))
    next(batches)
    print(batches._workers[0].pid, flush=True)
    time.sleep(600)
"""


def test_a_worker_outlives_its_trainer(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    trainer = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    worker = int(trainer.stdout.readline())
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    try:
        time.sleep(12)  # torch's watch looks every 5 s
        assert Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    finally:
        os.kill(worker, signal.SIGKILL)
