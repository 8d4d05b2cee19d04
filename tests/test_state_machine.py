"""A loader under every sequence of what a trainer does, against a plain Python list of what must come."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from lakehouse.dataset import Dataset
from lakehouse.loader import Loader
from lakehouse.mixture import Mixture, Weighted
from lakehouse.order import Order
from tests.training import make_index

EPOCHS = 5  # as far as the list goes
SEED = 11
_FOLDER = tempfile.TemporaryDirectory(prefix="lakehouse-test-")  # indexes are small, and made once for thousands of runs


def ids_of(first: int, n: int) -> Any:
    return make_index(Path(_FOLDER.name) / str(first), {"id": list(range(first, first + n))}, {})


ROWS = ids_of(0, 50)
OTHERS = ids_of(100, 7)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "blocks": (ROWS, {}),
    "rows": (ROWS, {"shuffle": "rows"}),
    "pad": (ROWS, {"tail": "pad"}),
    "mixture": (Mixture({"a": (ROWS, 2), "b": (OTHERS, 1)}, length=50), {}),
    "weighted": (Weighted(ROWS, weights=np.arange(50) % 3), {"tail": "pad"}),
}
TOPOLOGIES = [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]  # (world, batch size): 12 rows a step
FINER = [(1, 6), (2, 3), (3, 2), (1, 4), (2, 2), (1, 3), (3, 1), (1, 1)]  # fit any position of those, not the other way


def expected_ids(kind: str) -> list[list[int]]:
    """What each epoch holds, row for row: the order asked position by position, nothing of data set or loader."""
    index, options = KINDS[kind]
    shuffle = options.get("shuffle", "blocks")
    order = index.order(SEED, shuffle) if hasattr(index, "order") else Order(len(index), SEED, shuffle)
    column = index.column("id").to_pylist()
    return [[column[int(order.at(epoch, [k])[0])] for k in range(order.n)] for epoch in range(EPOCHS + 1)]


EXPECTED = {kind: expected_ids(kind) for kind in KINDS}


class Training(RuleBasedStateMachine):
    """The model is three plain values: epoch, position, and whether a loaded state waits."""

    def __init__(self) -> None:
        super().__init__()
        self.ranks: list[Loader] = []
        self.live: list[Any] = []
        self.saved: list[tuple[dict[str, Any], int, int]] = []

    @initialize(kind=st.sampled_from(sorted(KINDS)), topology=st.sampled_from(TOPOLOGIES))
    def begin(self, kind: str, topology: tuple[int, int]) -> None:
        self.kind = kind
        self.epoch = self.position = 0
        self.waiting = False
        self.make(*topology)

    def make(self, world: int, size: int) -> None:
        index, options = KINDS[self.kind]
        self.live = []
        self.size = world * size
        self.ranks = [
            self.loader(Dataset(index, batch_size=size, seed=SEED, rank=rank, world=world, **options)) for rank in range(world)
        ]

    def loader(self, dataset: Dataset) -> Loader:
        return Loader(dataset)

    @property
    def rows(self) -> list[int]:
        return EXPECTED[self.kind][self.epoch]

    @property
    def end(self) -> int:
        whole, rest = divmod(len(self.rows), self.size)
        padded = KINDS[self.kind][1].get("tail") == "pad"
        return (whole + (padded and rest > 0)) * self.size

    def turn(self) -> None:
        """At an epoch's end the place is the next one's beginning, wherever it is seen from."""
        if self.position >= self.end:
            self.epoch, self.position, self.waiting = self.epoch + 1, 0, False

    # ---- what a trainer does

    @precondition(lambda self: not self.live and self.epoch < EPOCHS)
    @rule()
    def loop(self) -> None:
        """``for batch in loader:`` begins: the epoch again, but for a state that was just loaded."""
        self.live = [iter(one) for one in self.ranks]
        if not self.waiting:
            self.position = 0

    @precondition(lambda self: self.live)
    @rule(steps=st.integers(1, 3))
    def take(self, steps: int) -> None:
        for _ in range(steps):
            parts: list[Any] = [next(batches, None) for batches in self.live]
            if self.position >= self.end:  # all was taken: the loop ends
                assert parts == [None] * len(parts)
                self.live = []
                self.turn()
                return
            got = [i for part in parts for i in part["id"].tolist()]
            places = range(self.position, self.position + self.size)
            assert got == [self.rows[place % len(self.rows)] for place in places]
            if "valid" in parts[0]:
                assert [ok for part in parts for ok in part["valid"].tolist()] == [place < len(self.rows) for place in places]
            self.position += self.size
            self.waiting = False

    @precondition(lambda self: self.live)
    @rule()
    def leave(self) -> None:
        """``break``."""
        self.live = []
        self.turn()

    @rule()
    def save(self) -> None:
        states = [json.loads(json.dumps(one.state_dict())) for one in self.ranks]
        assert all(state == states[0] for state in states)
        over = self.position >= self.end
        self.saved.append((states[0], self.epoch + over, 0 if over else self.position))

    @precondition(lambda self: self.saved)
    @rule(
        which=st.integers(0, 10**6),
        topology=st.sampled_from([*TOPOLOGIES, *FINER]),
        fresh=st.booleans(),
    )
    def load(self, which: int, topology: tuple[int, int], fresh: bool) -> None:
        state, epoch, position = self.saved[which % len(self.saved)]
        world, size = topology
        self.live = []
        if position % (world * size):  # a place inside another topology's step
            world, size = 1, 1
        if fresh or world * size != self.size:
            self.make(world, size)
        for one in self.ranks:
            one.load_state_dict(state)
        self.epoch, self.position, self.waiting = epoch, position, True
        self.turn_loaded()

    def turn_loaded(self) -> None:
        """A place with fewer rows behind it than a step of this topology holds is its epoch's end."""
        if self.position >= self.end:
            self.epoch, self.position = self.epoch + 1, 0

    @precondition(lambda self: not self.live)
    @rule(epoch=st.integers(0, EPOCHS - 1))
    def set_epoch(self, epoch: int) -> None:
        for one in self.ranks:
            one.dataset.set_epoch(epoch)
        if epoch != self.epoch:
            self.epoch, self.position, self.waiting = epoch, 0, False

    # ---- what holds at any time

    @invariant()
    def the_place_is_the_models(self) -> None:
        for one in self.ranks:
            state = one.state_dict()
            over = self.position >= self.end
            assert (state["epoch"], state["position"]) == (self.epoch + over, 0 if over else self.position)
            assert len(one) == self.end // self.size
            if not self.live:
                assert one.epoch == self.epoch


TestTraining = Training.TestCase
TestTraining.settings = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class TrainingWithWorkers(Training):
    """The same through worker processes, which live on between epochs, loads and broken off loops."""

    workers = 0

    @initialize(kind=st.sampled_from(sorted(KINDS)), topology=st.sampled_from(TOPOLOGIES[:3]), workers=st.integers(1, 3))
    def begin(self, kind: str, topology: tuple[int, int], workers: int) -> None:
        self.workers = workers
        super().begin(kind, topology)

    @rule(workers=st.integers(0, 3))
    def change_workers(self, workers: int) -> None:
        """From the next loader on."""
        self.workers = workers

    def loader(self, dataset: Dataset) -> Loader:
        return Loader(dataset, workers=self.workers, prefetch=1 + self.workers % 2, start_method="fork")


TestTrainingWithWorkers = TrainingWithWorkers.TestCase
TestTrainingWithWorkers.settings = settings(TestTraining.settings, max_examples=25, stateful_step_count=40)


class Forgetful(Loader):
    """Stays in the epoch that it is in, whatever is loaded."""

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state | {"epoch": self.state_dict()["epoch"]})


class Stubborn(Loader):
    """Goes on after a ``break`` as after a load."""

    def __iter__(self) -> Any:
        self._resumed = True
        return super().__iter__()


class Deaf(Loader):
    """Does not hear of an epoch set on the data set."""

    def _place(self) -> tuple[int, int]:
        self._epoch_requests = self._dataset.epoch_requests
        return super()._place()


@pytest.mark.parametrize("kind", [Forgetful, Stubborn, Deaf])
def test_the_machine_finds_a_loader_that_is_wrong(monkeypatch: pytest.MonkeyPatch, kind: type[Loader]) -> None:
    monkeypatch.setattr(f"{__name__}.Loader", kind)
    quick = settings(max_examples=100, stateful_step_count=40, phases=[Phase.generate], database=None, deadline=None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Training, settings=quick)
