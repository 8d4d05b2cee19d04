"""Resume: after every step, on other topologies, again and again, across epochs, processes and start methods; and refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

from lakehouse.dataset import Dataset
from lakehouse.decode import Image
from lakehouse.errors import ConfigError, ResumeError
from lakehouse.index import RowIndex
from lakehouse.loader import Loader
from lakehouse.mixture import Mixture, Weighted
from lakehouse.testing import assert_elastic, assert_resumable
from tests.stores.place import on_stores
from tests.training import Maker, ids, image_index, make_index, raw_index, stored

pytestmark = on_stores

ROOT = Path(__file__).parent.parent
METHODS = ("fork", "forkserver", "spawn")


def loader(index: RowIndex | Mixture | Weighted, workers: int = 0, method: str | None = "fork", **options: Any) -> Loader:
    return Maker(index, method, **{"batch_size": 4, **options})(workers=workers)


@pytest.fixture(scope="module")
def index(store: str, tmp_path_factory: pytest.TempPathFactory) -> RowIndex:
    return raw_index(tmp_path_factory.mktemp("resume"), 103)


# ---- exactness


@pytest.mark.parametrize("shuffle", ["blocks", "blocks:8x3", "rows"])
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_resume_after_every_step_on_other_topologies(index: RowIndex, shuffle: str, tail: str) -> None:
    """103 rows, global batch 12; worlds of 1, 2, 3, 4, 6 and 12 ranks, simulated one after the other."""
    make = Maker(index, batch_size=12, shuffle=shuffle, tail=tail, seed=5)
    assert_resumable(make, topologies=[(1, 0), (2, 0), (3, 0), (4, 0), (6, 0), (12, 0)])


def test_a_state_of_other_blocks_says_how_to_get_them(index: RowIndex) -> None:
    """Blocks of a run's own are part of its order: named in the state, asked for by the error, and then gone on with."""
    first = loader(index, shuffle="blocks:8x3")
    batches = iter(first)
    next(batches)
    state = stored(first.state_dict())
    assert state["order"] == "blocks-1:8x3"
    with pytest.raises(ResumeError, match='pass shuffle="blocks:8x3"'):
        loader(index).load_state_dict(state)
    second = loader(index, shuffle="blocks:8x3")
    second.load_state_dict(state)
    assert ids(second) == ids(batches)
    for parts in (Mixture({"a": (index, 0.5), "b": (index.take([1, 2]), 0.5)}), Weighted(index, np.ones(len(index)))):
        with pytest.raises(ResumeError, match='pass shuffle="blocks:8x3"'):
            loader(parts).load_state_dict(stored(loader(parts, shuffle="blocks:8x3").state_dict()))
    other = loader(index, shuffle="rows")
    with pytest.raises(ResumeError, match='pass shuffle="blocks:256x64"'):
        other.load_state_dict(loader(index).state_dict())


@pytest.mark.s3
def test_resume_with_worker_processes(tmp_path: Path) -> None:
    make = Maker(image_index(tmp_path, 30), "fork", batch_size=6, decode={"image": Image()})
    assert_resumable(make, topologies=[(1, 2), (2, 1), (1, 3)], epochs=1)


@pytest.mark.parametrize("method", METHODS)
def test_workers_that_live_on_resume_after_every_step(index: RowIndex, method: str) -> None:
    """The same processes are sent to each place of two epochs, one after the other, and go on into the next epoch."""
    expected, states = [], []
    single = loader(index, batch_size=12)
    for _ in range(4):
        for batch in single:
            states.append(stored(single.state_dict()))
            expected.append(batch["id"].tolist())
    steps = len(single)
    # Saved by one process, and gone on with by two ranks with two worker processes and three.
    ranks = [loader(index, 2 + rank, method, batch_size=6, rank=rank, world=2) for rank in (0, 1)]
    for done, state in enumerate(states[: 2 * steps], 1):
        parts = []
        for one in ranks:
            one.load_state_dict(state)
            rest = ids(one)
            parts.append(rest + ids(islice(one, 2)))  # the rest of its epoch, and a loop that is left
        got = [left + right for left, right in zip(*parts, strict=True)]
        end = (done // steps + 1) * steps
        assert got == expected[done : end + 2], done


@pytest.mark.parametrize("method", METHODS)
def test_resume_under_every_start_method(index: RowIndex, method: str) -> None:
    """Three segments make the whole, with persistent workers across the epoch's end."""
    single = loader(index, batch_size=6)
    expected = ids(single) + ids(single)
    first = loader(index, 2, method, batch_size=6)
    got = ids(islice(first, 7))
    second = loader(index, 2, method, batch_size=3, world=2)
    second.load_state_dict(stored(first.state_dict()))
    rank = ids(second) + ids(second)  # the rest of epoch 0, and all of epoch 1
    assert got == expected[:7]
    assert rank == [batch[:3] for batch in expected[7:]]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.s3
def test_three_segments_equal_one_run(tmp_path: Path, workers: int) -> None:
    """The second resume must not start over (A1)."""
    index = raw_index(tmp_path, 1000)
    expected = ids(loader(index, batch_size=10))
    state: Any = None
    got = []
    for steps in (20, 20, 60):
        one = loader(index, workers, batch_size=10)
        if state is not None:
            one.load_state_dict(state)
        got += ids(islice(one, steps))
        state = stored(one.state_dict())
    assert got == expected
    assert state["epoch"] == 1


def test_later_epochs_are_whole_after_a_resume(index: RowIndex) -> None:
    """With persistent workers, which must not keep the start (A3)."""
    single = loader(index)
    expected = [ids(single) for _ in range(4)]
    many = loader(index, 2)
    many.load_state_dict({**single.state_dict(), "epoch": 0, "position": 88})
    assert [ids(many) for _ in range(4)] == [expected[0][22:], *expected[1:]]


def test_a_state_at_the_end_of_an_epoch_is_the_next_ones_beginning(index: RowIndex) -> None:
    one = loader(index)
    expected = ids(one) + ids(one)
    ending = loader(index)
    batches = iter(ending)
    got = [next(batches)["id"].tolist() for _ in range(len(ending))]
    before = stored(ending.state_dict())  # all taken, StopIteration not yet seen
    assert next(batches, None) is None
    after = stored(ending.state_dict())
    assert before == after == {**before, "epoch": 1, "position": 0}
    resumed = loader(index)
    resumed.load_state_dict(after)
    assert resumed.epoch == 1
    assert got + ids(resumed) == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 12, 25])
@pytest.mark.parametrize("same_object", [False, True])
def test_any_part_of_an_epoch_on_an_old_or_new_loader(index: RowIndex, workers: int, taken: int, same_object: bool) -> None:
    """Nothing, a half or a whole epoch was taken (A7)."""
    expected_loader = loader(index)
    expected = ids(expected_loader) + ids(expected_loader)
    one = loader(index, workers)
    got = ids(islice(one, taken))
    state = stored(one.state_dict())
    other = one if same_object else loader(index, workers)
    other.load_state_dict(state)
    assert got + ids(other) == expected[: 25 if taken < 25 else 50]


def test_loading_is_kept_until_a_batch_is_taken(index: RowIndex) -> None:
    one = loader(index)
    expected = ids(one)
    one.load_state_dict({**one.state_dict(), "epoch": 0, "position": 40})
    for _ in range(3):
        iter(one)  # looked at, not used
    assert one.state_dict()["position"] == 40
    assert ids(islice(one, 2)) == expected[10:12]
    assert one.state_dict()["position"] == 48
    assert ids(one) == expected  # break, then iter: the epoch from its beginning


def test_loading_into_a_live_loader_is_refused(index: RowIndex) -> None:
    one = loader(index, 2)
    state = one.state_dict()
    batches = iter(one)
    with pytest.raises(ResumeError, match="while an iterator over this loader is live"):
        one.load_state_dict(state)
    next(batches)
    with pytest.raises(ResumeError, match="live"):
        one.load_state_dict(state)
    del batches
    one.load_state_dict({**state, "position": 20})
    assert one.state_dict()["position"] == 20


@settings(max_examples=30)
@given(
    n=st.integers(1, 60),
    size=st.sampled_from([1, 2, 3, 4, 6, 12]),
    tail=st.sampled_from(["drop", "pad"]),
    takes=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 2, 3, 4, 6])), min_size=1, max_size=6),
)
def test_a_run_of_many_resumes_equals_one_without(
    tmp_path_factory: pytest.TempPathFactory, n: int, size: int, tail: str, takes: list[tuple[int, int]]
) -> None:
    """Worlds change at every resume, the global batch stays; compared with a plain list of positions."""
    folder = tmp_path_factory.mktemp("many")
    small = make_index(folder, {"id": list(range(n))})
    whole = Dataset(small, batch_size=size, rank=0, world=1, tail=tail, seed=1)  # type: ignore[arg-type]
    expected = []
    for epoch in range(30):
        whole.set_epoch(epoch)
        expected += ids(whole)
    state = stored(Loader(whole).state_dict()) | {"epoch": 0}
    got: list[list[int]] = []
    for steps, world in takes:
        worlds = world if size % world == 0 else 1
        ranks = [Maker(small, tail=tail, seed=1)(rank=rank, world=worlds, batch_size=size // worlds) for rank in range(worlds)]
        parts = []
        for one in ranks:
            one.load_state_dict(state)
            parts.append(ids(islice(one, steps)))
            # What is taken of an epoch that ends here ends with it.
        got += [[i for part in step for i in part] for step in zip(*parts, strict=True)]
        states = [stored(one.state_dict()) for one in ranks]
        assert all(one == states[0] for one in states)
        state = states[0]
    assert got == expected[: len(got)]
    done = state["epoch"] * len(whole) + state["position"] // size
    assert not len(whole) or done == len(got)


# ---- state


def test_the_state_is_plain_json_and_as_documented(index: RowIndex) -> None:
    ranks = [loader(index, seed=7, rank=rank, world=3, batch_size=2) for rank in range(3)]
    for one in ranks:
        list(islice(one, 5))
    states = [one.state_dict() for one in ranks]
    expected = {
        "format": 1, "index": index.fingerprint, "seed": 7, "epoch": 0, "position": 30, "order": "blocks-1:256x64",
    }  # fmt: skip
    assert states == [expected] * 3
    assert list(states[0]) == list(expected)
    assert stored(states[0]) == expected


def _without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda state: None, "a mapping"),
        (lambda state: [state], "a mapping"),
        (lambda state: {}, "has no 'format'"),
        (_without("format"), "has no 'format'"),
        (_without("index"), "has no 'index'"),
        (_without("seed"), "has no 'seed'"),
        (_without("epoch"), "has no 'epoch'"),
        (_without("position"), "has no 'position'; it has: format, index, seed, epoch, order"),
        (_without("order"), "has no 'order'"),
        (lambda state: state | {"format": 2}, "format 2, this version of lakehouse reads format 1"),
        (lambda state: state | {"format": "1"}, "'format' must be a whole number"),
        (lambda state: state | {"epoch": -1}, "'epoch' must be"),
        (lambda state: state | {"epoch": True}, "'epoch' must be"),
        (lambda state: state | {"position": "40"}, "'position' must be"),
        (lambda state: state | {"position": 40.0}, "'position' must be"),
        (lambda state: state | {"index": 3}, "'index' must be text"),
        (lambda state: state | {"seed": 8}, "saved with seed 8, this loader has 7: pass seed=8"),
        (lambda state: state | {"index": "sha256:0"}, "index sha256:0, this loader has sha256:.*tag"),
        (lambda state: state | {"order": "rows-1"}, "order 'rows-1', this loader has 'blocks-1:256x64': pass the same shuffle"),
        (lambda state: state | {"position": 42}, "40 and 44"),
        (lambda state: state | {"position": 4000}, "outside"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(
    index: RowIndex, change: Callable[[Any], Any], text: str
) -> None:
    one = loader(index, seed=7)
    list(islice(one, 10))
    state = stored(one.state_dict())
    other = loader(index, seed=7)
    list(islice(other, 3))
    with pytest.raises(ResumeError, match=text):
        other.load_state_dict(change(state))
    assert other.state_dict()["position"] == 12
    other.load_state_dict(state)
    assert other.state_dict() == state


def test_a_changed_index_is_refused(tmp_path: Path, index: RowIndex) -> None:
    state = loader(index).state_dict()
    for other in (raw_index(tmp_path, 104), index.take(range(102)), index.take(range(102, -1, -1))):
        with pytest.raises(ResumeError, match="other rows, columns or another snapshot"):
            loader(other).load_state_dict(state)


def test_another_global_batch_continues_where_it_fits(index: RowIndex) -> None:
    one = loader(index, batch_size=4)
    expected = [i for batch in ids(one) for i in batch]
    state = one.state_dict() | {"epoch": 0, "position": 36}
    for size, world in ((6, 1), (3, 4), (9, 2), (36, 1), (1, 1)):
        other = loader(index, batch_size=size, rank=0, world=world)
        other.load_state_dict(state)
        first = next(iter(other))["id"].tolist()
        assert first == expected[36 : 36 + size]
    with pytest.raises(ResumeError, match="32 and 40"):
        loader(index, batch_size=8).load_state_dict(state)
    last = loader(index, batch_size=50)  # two steps: position 100 is this run's end
    last.load_state_dict(state | {"position": 100})
    assert (last.epoch, last.state_dict()["position"]) == (1, 0)


# ---- torchdata's StatefulDataLoader


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 under torch 2.13
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_data_loader_resumes_after_every_step(tmp_path: Path, workers: int) -> None:
    index = raw_index(tmp_path, 28)

    def fresh() -> tuple[Dataset, StatefulDataLoader[Any]]:
        ds = Dataset(index, batch_size=4, rank=0, world=1, seed=2)
        options: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
        return ds, StatefulDataLoader(ds, batch_size=None, num_workers=workers, **options)

    ds, whole = fresh()
    states, expected = [], []
    for epoch in range(2):
        ds.set_epoch(epoch)
        for batch in whole:
            expected.append(batch["id"].tolist())
            states.append((epoch, whole.state_dict()))
    assert len(expected) == 14
    for done, (epoch, state) in enumerate(states, 1):
        ds, again = fresh()
        again.load_state_dict(state)
        got = []
        for later in range(epoch, 2):
            ds.set_epoch(later)
            got += ids(again)
        # A state behind an epoch's last batch resumes inside that epoch, which has nothing left.
        assert got == expected[done:], done


def test_a_state_of_the_data_set_fits_the_same_split_only(index: RowIndex) -> None:
    def fresh(**options: Any) -> Dataset:
        return Dataset(index, **{"batch_size": 4, "rank": 0, "world": 1, **options})

    ds = fresh()
    batches = iter(ds)
    expected = [next(batches)["id"].tolist() for _ in range(6)]
    state = stored(ds.state_dict())
    again = fresh()
    again.load_state_dict(state)
    again.set_epoch(0)  # its own epoch: the place is kept
    assert [next(batches)["id"].tolist() for _ in range(3)] == ids(islice(again, 3))
    assert ids(islice(again, 6)) == expected  # the state was used up
    with pytest.raises(ResumeError, match=r"\(4, 0, 1\), this data set has \(2, 0, 2\)"):
        fresh(batch_size=2, world=2).load_state_dict(state)
    with pytest.raises(ResumeError, match="saved with seed 0"):
        fresh(seed=1).load_state_dict(state)
    again.load_state_dict(stored(state) | {"workers": 2})
    with pytest.raises(ResumeError, match="worker process 0 of 2, this one is 0 of 1"):
        iter(again)


# ---- real processes


_RANK = """
import json, sys, time
from pathlib import Path
import torch.distributed as dist
from lakehouse.dataset import Dataset
from lakehouse.loader import Loader
from lakehouse.mixture import Mixture, Weighted
from tests.training import raw_index
folder, rank, world, size, slow, workers = Path(sys.argv[1]), *map(int, sys.argv[2:7])
dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{sys.argv[7]}", rank=rank, world_size=world)
dataset = Dataset(raw_index(folder / f"data-{rank}", 96), batch_size=size, seed=3)
loader = Loader(dataset, workers=workers, start_method="fork")
if (folder / "state.json").exists():
    loader.load_state_dict(json.loads((folder / "state.json").read_text()))
with open(folder / f"out-{sys.argv[7]}-{rank}", "w") as out:
    for epoch in range(loader.epoch, 3):
        for batch in loader:
            dist.barrier()
            print(json.dumps([loader.state_dict(), batch["id"].tolist()]), file=out, flush=True)
            time.sleep(slow / 1000)
"""


def _run_ranks(folder: Path, world: int, size: int, slow_ms: int, workers: int, name: str) -> list[subprocess.Popen[bytes]]:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment["PYTHONPATH"] = str(ROOT)
    arguments = [str(size), str(slow_ms), str(workers), name]
    return [
        subprocess.Popen([sys.executable, "-c", _RANK, str(folder), str(rank), str(world), *arguments], env=environment)
        for rank in range(world)
    ]


def _lines(folder: Path, name: str, rank: int) -> list[Any]:
    path = folder / f"out-{name}-{rank}"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _killed(folder: Path, name: str, ranks: list[subprocess.Popen[bytes]], steps: int) -> list[list[int]]:
    """What ranks that are killed after so many steps had all taken; the state behind it is left for the next ones."""
    until = time.monotonic() + 60
    while min(len(_lines(folder, name, rank)) for rank in range(len(ranks))) < steps and time.monotonic() < until:
        time.sleep(0.02)
    for process in ranks:
        process.send_signal(signal.SIGKILL)
        process.wait()
    lines = [_lines(folder, name, rank) for rank in range(len(ranks))]
    done = min(map(len, lines))
    assert done >= steps
    states = [part[done - 1][0] for part in lines]
    assert all(state == states[0] for state in states)
    (folder / "state.json").write_text(json.dumps(states[0]))
    return [[i for _, part in step for i in part] for step in zip(*(part[:done] for part in lines), strict=True)]


@pytest.mark.local("processes that open local files")
def test_two_gloo_processes_killed_and_resumed_as_one_and_as_two(tmp_path: Path) -> None:
    """Two ranks, killed; one, killed in the next epoch; two again, with worker processes of their own, to the end."""
    expected_loader = loader(raw_index(tmp_path / "expected", 96), batch_size=8, seed=3)
    expected = [batch for _ in range(3) for batch in ids(expected_loader)]
    got = _killed(tmp_path, "first", _run_ranks(tmp_path, 2, 4, 30, 0, "first"), 5)
    assert len(got) < 12
    got += _killed(tmp_path, "second", _run_ranks(tmp_path, 1, 8, 30, 0, "second"), 13 - len(got))
    assert 13 <= len(got) < 36
    for process in _run_ranks(tmp_path, 2, 4, 0, 2, "third"):
        assert process.wait(60) == 0
    parts = [[ids_ for _, ids_ in _lines(tmp_path, "third", rank)] for rank in (0, 1)]
    got += [one + other for one, other in zip(*parts, strict=True)]
    assert got == expected


# ---- the proofs find what they are meant to find


class Forgetful(Loader):
    """Ignores a loaded state."""

    def load_state_dict(self, state: Any) -> None:
        pass


class Late(Loader):
    """Reports a place one step behind."""

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return state | {"position": max(0, state["position"] - self.dataset.shard.global_batch)}


@pytest.mark.parametrize("kind", [Forgetful, Late])
def test_assert_resumable_finds_a_loader_that_does_not(index: RowIndex, kind: type[Loader]) -> None:
    def make(**overrides: Any) -> Loader:
        overrides.pop("workers")
        return kind(Dataset(index, **overrides | {"batch_size": 12, "rank": 0, "world": 1}))

    with pytest.raises(AssertionError, match="resumed after step"):
        assert_resumable(make, topologies=[(1, 0)])


def test_assert_elastic_finds_other_orders_shuffles_and_steps(index: RowIndex) -> None:
    def by_rank(**overrides: Any) -> Loader:
        return Maker(index, batch_size=12)(**overrides, seed=overrides["rank"])

    with pytest.raises(AssertionError, match=r"world 2 x 0 workers, epoch 0: step 0 has 12 rows, 6 of 12"):
        assert_elastic(by_rank)

    def unequal(**overrides: Any) -> Loader:
        return Maker(index if overrides["rank"] == 0 else index.take(range(80)), batch_size=12)(**overrides)

    with pytest.raises(AssertionError, match="different numbers of steps"):
        assert_elastic(unequal)
    with pytest.raises(AssertionError, match="no world of"):
        assert_elastic(Maker(index, batch_size=7), worlds=(1, 2))
    with pytest.raises(AssertionError, match="nothing to test"):
        assert_resumable(Maker(index.take(range(3)), batch_size=12))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_last_epoch_is_refused_where_it_is_given(tmp_path: Path, workers: int) -> None:
    index = raw_index(tmp_path, 16)
    ds = Dataset(index, batch_size=8, rank=0, world=1)
    loader = Loader(ds, workers=workers, start_method="fork")
    loader.load_state_dict({**loader.state_dict(), "epoch": 2**62, "position": 8})
    assert len(list(loader)) == 1
    assert len(list(loader)) == 2  # counted on
    for epoch in (2**62 + 1, 2**63, 2**64):
        with pytest.raises(ResumeError, match="'epoch' is at most"):
            loader.load_state_dict({**loader.state_dict(), "epoch": epoch})
        with pytest.raises(ResumeError, match="'epoch' is at most"):
            ds.load_state_dict({**ds.state_dict(), "epoch": epoch})
        with pytest.raises(ConfigError, match="epoch must be"):
            ds.set_epoch(epoch)


def test_a_step_outside_the_epoch_is_refused_where_it_is_loaded(tmp_path: Path) -> None:
    ds = Dataset(raw_index(tmp_path, 16), batch_size=8, rank=0, world=1)
    with pytest.raises(ResumeError, match="saved at step 3, an epoch of this data set has 2"):
        ds.load_state_dict({**ds.state_dict(), "step": 3})
