"""What tells where the time goes: stages in torch's profiler, and the trainer's own time in the stats."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lakehouse.dataset import Dataset
from lakehouse.dataset.stage import stage
from lakehouse.decode import Image
from lakehouse.loader import Loader
from tests.training import image_index

# torch 2.13 warns of its own metrics while a profile is read.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def loader(folder: Path, **options: Any) -> Loader:
    index = image_index(folder, 24)
    chosen = {"batch_size": 8, "decode": {"image": Image()}, "transform": lambda batch, rngs: batch, **options}
    return Loader(Dataset(index, rank=0, world=1, **chosen))


def ranges(one: Loader, **options: Any) -> Counter[str]:
    with profile(activities=[ProfilerActivity.CPU], **options) as recorded:
        assert len(list(one)) == 3
    return Counter({e.key.removeprefix("lakehouse."): e.count for e in recorded.key_averages() if "lakehouse." in e.key})


def test_every_stage_is_a_range(tmp_path: Path) -> None:
    counts = ranges(loader(tmp_path, threads=0))
    assert counts == {"fetch": 3, "decode": 3, "assemble": 3, "transform": 3, "wait": 4}  # the last wait finds the end


def test_threads_are_seen_when_all_are_profiled(tmp_path: Path) -> None:
    assert ranges(loader(tmp_path, threads=2)) == {"wait": 4}
    everything = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    counts = ranges(loader(tmp_path, threads=2), experimental_config=everything)
    assert counts == {"fetch": 3, "decode": 3, "assemble": 3, "transform": 3, "wait": 4}


def test_without_a_profiler_a_stage_costs_next_to_nothing() -> None:
    @stage("fetch")
    def ranged() -> None:
        pass

    def plain() -> None:
        pass

    def seconds(work: Any) -> float:
        began = time.perf_counter()
        for _ in range(20_000):
            work()
        return (time.perf_counter() - began) / 20_000

    assert min(seconds(ranged) - seconds(plain) for _ in range(5)) < 2e-6  # a range costs ten times that
    assert ranged.__name__ == "ranged"


def test_errors_pass_through_a_stage() -> None:
    @stage("decode")
    def fails() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        fails()
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(ValueError, match="as it is"):
        fails()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_trainers_time_is_told_from_waiting(tmp_path: Path, workers: int) -> None:
    one = Loader(Dataset(image_index(tmp_path, 24), batch_size=4, rank=0, world=1), workers=workers, start_method="fork")
    assert one.stats.seconds_consumer == 0
    began = time.perf_counter()
    for _ in one:
        time.sleep(0.02)
    passed = time.perf_counter() - began
    stats = one.stats
    assert stats.seconds_consumer >= 6 * 0.02
    assert stats.seconds_consumer + stats.seconds_waiting <= passed
    assert dict(one.stats)["seconds_consumer"] == stats.seconds_consumer


def test_time_between_loops_is_nobodys(tmp_path: Path) -> None:
    one = loader(tmp_path)
    for _ in one:
        break
    time.sleep(0.2)
    list(one)
    time.sleep(0.2)
    list(one)
    assert one.stats.seconds_consumer < 0.2
