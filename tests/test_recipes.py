"""The recipes of docs/training.md, taken from there and run: every checkpoint of a run continues it batch for batch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import ROOT, programs

BEFORE = """
import sys
from pathlib import Path
import torch
import lakehouse as lh
from tests.training import raw_index

# A file for each rank of a run, so that none reads what another one writes.
index = raw_index(Path.cwd() / f"data-{os.environ.get('LOCAL_RANK', 0)}", 100)  # 12 steps of 8 rows an epoch
order = [ids.tolist() for epoch in range(2) for ids in torch.from_numpy(
    lh.Dataset(index, batch_size=8, seed=7, rank=0, world=1).order.rows(epoch, 0, 96)).split(8)]
"""

LIGHTNING = """
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch, number):
        self.seen.append(batch["id"].tolist())
        return self.weight(batch["id"].float().unsqueeze(1)).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)


quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
"""

EVERY_CHECKPOINT = """
whole = Model()
fit(whole, index, 2, devices=1, **quiet)
assert whole.seen == order, whole.seen
saved = sorted(Path("checkpoints").iterdir())
assert len(saved) == 24
for path in saved:
    step = int(path.stem.partition("step=")[2])
    again = Model()
    fit(again, index, 2, ckpt_path=path, devices=1, **quiet)
    assert again.seen == order[step:], (path, again.seen)
"""

# As one rank; from its fifth step on as two.
TWO_RANKS = """
if "LOCAL_RANK" not in os.environ:
    first = Model()
    fit(first, index, 1, devices=1, **quiet)
    assert first.seen == order[:12]
second = Model()
(path,) = [path.absolute() for path in Path("checkpoints").iterdir() if path.stem.endswith("step=5")]
fit(second, index, 1, ckpt_path=path, devices=2, strategy="ddp", **quiet)
rank = torch.distributed.get_rank()
assert second.seen == [step[rank * 4 : rank * 4 + 4] for step in order[5:12]], second.seen
"""

ACCELERATE = """
def run(steps, **options):
    seen = []

    def after_step(accelerator, batch):
        seen.append(batch["id"].tolist())
        if len(seen) == steps:
            accelerator.save_state("saved")
            raise KeyboardInterrupt

    try:
        train(torch.nn.Linear(1, 1), index, 2, after_step=after_step, **options)
    except KeyboardInterrupt:
        pass
    return seen

assert run(0) == order
for steps in range(1, 25):
    assert run(steps) + run(0, resume_from="saved") == order, steps
"""

# As one process; from its fifth step on as two, which torchrun starts.
ACCELERATE_TWO = """
def ids_of_rank(resume_from, batch_size):
    seen = []
    train(torch.nn.Linear(1, 1), index, 2, batch_size=batch_size, resume_from=resume_from,
          after_step=lambda accelerator, batch: seen.append(batch["id"].tolist()))
    return seen

if "LOCAL_RANK" not in os.environ:
    def stop(accelerator, batch, seen=[]):
        seen.append(batch["id"].tolist())
        if len(seen) == 5:
            assert seen == order[:5]
            accelerator.save_state("saved")
            raise KeyboardInterrupt

    try:
        train(torch.nn.Linear(1, 1), index, 2, after_step=stop)
    except KeyboardInterrupt:
        pass
    import subprocess
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    subprocess.run(command, check=True)
else:
    seen = ids_of_rank("saved", 4)
    rank = torch.distributed.get_rank()
    assert torch.distributed.get_world_size() == 2
    assert seen == [step[rank * 4 : rank * 4 + 4] for step in order[5:]], seen
    torch.distributed.destroy_process_group()
"""


def recipe(library: str) -> str:
    _, blocks = programs((ROOT / "docs" / "training.md").read_text(encoding="utf-8"))
    (block,) = [block for block in blocks if f"import {library}\n" in block]
    return block.strip("\n")


@pytest.mark.parametrize(
    ("library", "after"),
    [
        ("lightning", LIGHTNING + EVERY_CHECKPOINT),
        ("lightning", LIGHTNING + TWO_RANKS),
        ("accelerate", ACCELERATE),
        ("accelerate", ACCELERATE_TWO),
    ],
    ids=["lightning", "lightning-ddp", "accelerate", "accelerate-two"],
)
def test_recipe(library: str, after: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    script = tmp_path / "recipe.py"
    script.write_text("\n".join(["import os", BEFORE, recipe(library), after]), encoding="utf-8")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
        "PYTHONPATH": str(ROOT),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_the_recipes_are_found() -> None:
    assert "class Feed:" in recipe("lightning")
    assert "register_for_checkpointing(loader)" in recipe("accelerate")
