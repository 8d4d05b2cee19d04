"""Steps, ranks and workers: equal counts, no row lost or read twice, the same steps on any topology."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakehouse.errors import ConfigError, ResumeError
from lakehouse.order import Order
from lakehouse.shard import Shard, Tail, step_of, worker_steps

TAILS: tuple[Tail, ...] = ("drop", "pad")
SIZES = (0, 1, 2, 3, 7, 100, 103, 120, 360)
WORLDS = (1, 2, 3, 4, 6, 8, 12)

tails = st.sampled_from(TAILS)
Step = tuple[list[int], list[bool]]


def ranks(n: int, batch_size: int, world: int, tail: Tail) -> list[Shard]:
    return [Shard(n, batch_size, world, rank, tail) for rank in range(world)]


def global_step(shards: list[Shard], step: int) -> Step:
    """What all ranks together read in a step, in the order of ranks."""
    parts = [shard.positions(step) for shard in shards]
    return np.concatenate([p for p, _ in parts]).tolist(), np.concatenate([v for _, v in parts]).tolist()


def epoch_of(shards: list[Shard]) -> list[Step]:
    return [global_step(shards, step) for step in range(shards[0].steps)]


# ---- counts


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("n", SIZES)
def test_no_row_is_lost_or_read_twice(n: int, tail: Tail) -> None:
    for batch_size, world in itertools.product((1, 3, 4, 7, 120), (1, 2, 3, 4, 5)):
        shards = ranks(n, batch_size, world, tail)
        whole_steps, rest = divmod(n, batch_size * world)
        assert {shard.steps for shard in shards} == {whole_steps + (tail == "pad" and rest > 0)}
        read = [
            position
            for positions, valid in epoch_of(shards)
            for position, is_valid in zip(positions, valid, strict=True)
            if is_valid
        ]
        assert read == list(range(n if tail == "pad" else n - rest))


@given(n=st.integers(0, 500), batch_size=st.integers(1, 40), world=st.integers(1, 12), tail=tails)
@example(n=3, batch_size=1, world=4, tail="pad")
@example(n=3, batch_size=1, world=4, tail="drop")
@example(n=0, batch_size=1, world=1, tail="pad")
def test_every_step_is_whole_on_every_rank(n: int, batch_size: int, world: int, tail: Tail) -> None:
    shards = ranks(n, batch_size, world, tail)
    for step in range(shards[0].steps):
        for shard in shards:
            positions, valid = shard.positions(step)
            assert positions.dtype == np.int64
            assert valid.dtype == np.bool_
            assert positions.shape == valid.shape == (batch_size,)
            assert 0 <= positions.min() <= positions.max() < n
            assert tail == "pad" or valid.all()
            # What fills up comes last, and from the beginning: on small tables round and round.
            begin = step * world * batch_size + shard.rank * batch_size
            assert positions.tolist() == [p % n for p in range(begin, begin + batch_size)]
            assert valid.tolist() == [p < n for p in range(begin, begin + batch_size)]


def test_fewer_rows_than_ranks() -> None:
    assert [shard.steps for shard in ranks(3, 2, 4, "drop")] == [0, 0, 0, 0]
    assert epoch_of(ranks(3, 2, 4, "pad")) == [([0, 1, 2, 0, 1, 2, 0, 1], [True] * 3 + [False] * 5)]


@pytest.mark.parametrize("tail", TAILS)
def test_no_rows_no_steps(tail: Tail) -> None:
    shard = Shard(0, 4, 2, 1, tail)
    assert shard.steps == 0
    with pytest.raises(IndexError, match="step 0 of an epoch of 0 steps"):
        shard.positions(0)


def test_long_epochs_are_arithmetic() -> None:
    shard = Shard(2**40 + 1, 64, 1_000, 999, "pad")
    positions, valid = shard.positions(shard.steps - 2)
    assert positions[0] == (shard.steps - 2) * 64_000 + 999 * 64
    assert valid.all()
    assert not shard.positions(shard.steps - 1)[1].any()


# ---- topologies


@given(n=st.integers(0, 400), per_rank=st.integers(1, 4), tail=tails, seed=st.integers(0, 9))
@example(n=360, per_rank=1, tail="drop", seed=0)
@example(n=103, per_rank=1, tail="pad", seed=0)
@example(n=7, per_rank=2, tail="pad", seed=0)
def test_any_world_reads_the_same_global_steps(n: int, per_rank: int, tail: Tail, seed: int) -> None:
    global_batch = 24 * per_rank  # a multiple of each world
    order = Order(n, seed, block_rows=8, window_blocks=3)
    epochs = []
    for world in WORLDS:
        shards = ranks(n, global_batch // world, world, tail)
        assert {shard.global_batch for shard in shards} == {global_batch}
        epochs.append([(order.at(1, np.array(positions)).tolist(), valid) for positions, valid in epoch_of(shards)])
    assert all(epoch == epochs[0] for epoch in epochs)
    assert len(epochs[0]) == (n // global_batch if tail == "drop" else -(-n // global_batch))


@given(first=st.integers(0, 60), more=st.integers(0, 60), workers=st.integers(1, 9))
@example(first=0, more=0, workers=1)
@example(first=5, more=2, workers=4)  # two of the workers have nothing to do
def test_taking_from_workers_in_turn_gives_the_steps_in_order(first: int, more: int, workers: int) -> None:
    steps = first + more
    dealt = [worker_steps(first, steps, worker, workers) for worker in range(workers)]
    in_turn = [step for round_ in itertools.zip_longest(*dealt) for step in round_ if step is not None]
    assert in_turn == list(range(first, steps))


@given(st.data(), st.integers(0, 300), tails)
def test_resuming_elsewhere_reads_exactly_what_is_left(data: st.DataObject, n: int, tail: Tail) -> None:
    """Stop after any step on one topology, go on with another one of the same global batch: 4 x 2 workers, 1 x 3, 12 x 1, ..."""
    global_batch = 24
    expected = epoch_of(ranks(n, global_batch, 1, tail))
    consumed = data.draw(st.integers(0, len(expected)))
    read: list[Step] = []
    for begin, end in ((0, consumed), (consumed, len(expected))):
        world, workers = data.draw(st.sampled_from(WORLDS)), data.draw(st.integers(1, 5))
        shards = ranks(n, global_batch // world, world, tail)
        first = step_of(begin * global_batch, global_batch, n, tail)
        dealt = [worker_steps(first, end, worker, workers) for worker in range(workers)]
        turns = [step for round_ in itertools.zip_longest(*dealt) for step in round_ if step is not None]
        read += [global_step(shards, step) for step in turns]
    assert read == expected


# ---- positions of saved states


@given(position=st.integers(0, 600), global_batch=st.integers(1, 64), n=st.integers(0, 600), tail=tails)
@example(position=0, global_batch=5, n=0, tail="drop")
@example(position=100, global_batch=10, n=100, tail="drop")
@example(position=12, global_batch=4, n=10, tail="pad")
def test_step_of_a_position(position: int, global_batch: int, n: int, tail: Tail) -> None:
    steps = Shard(n, global_batch, 1, 0, tail).steps
    if position % global_batch == 0 and position <= steps * global_batch:
        assert step_of(position, global_batch, n, tail) == position // global_batch
        return
    with pytest.raises(ResumeError) as caught:
        step_of(position, global_batch, n, tail)
    if position <= max(n, steps * global_batch):
        below = max(multiple for multiple in range(0, position + 1, global_batch))
        assert f"the nearest are {below} and {below + global_batch}." in str(caught.value)
    else:
        assert f"the saved position is {position}, outside an epoch of {n} rows" in str(caught.value)


def test_a_position_between_steps_says_what_to_do() -> None:
    with pytest.raises(ResumeError) as caught:
        step_of(12_800, 96, 1_000_000, "drop")
    assert str(caught.value) == (
        "the saved position 12800 is no multiple of the global batch 96 (world * batch_size): the nearest are 12768 and 12864."
        " Resume with a world * batch_size that divides 12800, or from a state saved at one of those"
    )


@pytest.mark.parametrize("position", [-10, 2_000, 1.5, True, None, "10"])
def test_positions_that_are_none(position: Any) -> None:
    with pytest.raises(ResumeError, match="the saved position is"):
        step_of(position, 10, 1_000, "drop")


# ---- a value, and refusals


def test_a_shard_is_a_value() -> None:
    shard = Shard(np.int64(100), 4, 3, 2, "pad")  # type: ignore[arg-type]
    assert shard == Shard(100, 4, 3, 2, "pad")
    assert hash(shard) == hash(Shard(100, 4, 3, 2, "pad"))
    assert pickle.loads(pickle.dumps(shard)) == shard
    assert type(shard.n) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        shard.rank = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n": -1}, "n is 0 or more, got -1"),
        ({"batch_size": 0}, "batch_size is 1 or more, got 0"),
        ({"batch_size": 2.0}, "batch_size is an integer, got 2.0"),
        ({"world": 0}, "world is 1 or more"),
        ({"rank": -1}, "rank is 0 or more"),
        ({"rank": 2}, "rank is below world, got rank 2 of world 2"),
        ({"rank": True}, "rank is an integer, got True"),
        ({"tail": "keep"}, 'tail is "drop" or "pad", got \'keep\''),
    ],
)
def test_refused_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Shard(**{"n": 10, "batch_size": 2, "world": 2, "rank": 0, "tail": "drop", **options})
    assert says in str(caught.value)


@pytest.mark.parametrize("step", [-1, 5, 6])
def test_refused_steps(step: int) -> None:
    with pytest.raises(IndexError, match=f"step {step} of an epoch of 5 steps"):
        Shard(10, 1, 2, 0, "drop").positions(step)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 10, 2, 2), "worker is below workers, got worker 2 of 2"),
        ((0, 10, 0, 0), "workers is 1 or more"),
        ((0, 10, -1, 2), "worker is 0 or more"),
        ((-1, 10, 0, 1), "first is 0 or more"),
        ((11, 10, 0, 1), "first is at most steps, got step 11 of an epoch of 10"),
    ],
)
def test_refused_workers(arguments: tuple[int, int, int, int], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        worker_steps(*arguments)
    assert says in str(caught.value)


def test_refused_arguments_of_step_of() -> None:
    for arguments, says in (((0, 0, 10, "drop"), "global_batch is 1 or more"), ((0, 1, -1, "pad"), "n is 0 or more")):
        with pytest.raises(ConfigError, match=says):
            step_of(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tail is"):
        step_of(0, 1, 10, "keep")  # type: ignore[arg-type]
