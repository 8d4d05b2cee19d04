"""Which positions of an epoch belong to which step, rank and worker: arithmetic, without I/O.

::

    position:   0 ................................................ n-1        see `lakehouse.order`: position -> index row
    step s:     [ s*G , (s+1)*G )                                             G = world * batch_size: the only invariant
    rank r:     [ s*G + r*B , s*G + (r+1)*B )                                 B = batch_size
    worker w:   steps first + w, first + w + W, ...                           first = step to start from, W workers

Every rank has the same number of steps, whatever n is. With G kept, the steps are the same sets of rows in the same order for
any number of ranks and workers.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lakehouse.errors import ConfigError, ResumeError

Tail = Literal["drop", "pad"]


@dataclass(frozen=True)
class Shard:
    """One rank's share of an epoch.

    Args:
        n: rows of the index, 0 or more.
        batch_size: rows in a step of this rank.
        world: ranks in all.
        rank: of this process, ``0 <= rank < world``.
        tail: what happens to the last ``n % G`` positions. "drop": they are left out, so fewer than G rows (other ones in each
            epoch of a shuffled order), and all of them when ``n < G``. "pad": one more step, filled up with rows from the
            epoch's beginning that are marked as not valid, so each row is valid exactly once.

    Raises:
        ConfigError: a value outside its range.
    """

    n: int
    batch_size: int
    world: int
    rank: int
    tail: Tail

    def __post_init__(self) -> None:
        for name, low in (("n", 0), ("batch_size", 1), ("world", 1), ("rank", 0)):
            object.__setattr__(self, name, _whole(name, getattr(self, name), low))  # numpy's integers become int
        if self.rank >= self.world:
            raise ConfigError(f"rank is below world, got rank {self.rank} of world {self.world}; ranks count from 0")
        _check_tail(self.tail)

    @property
    def global_batch(self) -> int:
        """Rows in a step of all ranks together, G."""
        return self.world * self.batch_size

    @property
    def steps(self) -> int:
        """Steps in an epoch, equal on all ranks."""
        return _steps(self.n, self.global_batch, self.tail)

    def span(self, step: int) -> tuple[int, int]:
        """Where this rank's part of a step begins and ends in the epoch, beyond ``n`` where the step is filled up.

        Args:
            step: ``0 <= step < steps``.

        Raises:
            IndexError: no such step.
        """
        step = operator.index(step)
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of an epoch of {self.steps} steps")
        first = step * self.global_batch + self.rank * self.batch_size
        return first, first + self.batch_size

    def positions(self, step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """What this rank reads in a step.

        Args:
            step: ``0 <= step < steps``.

        Returns:
            Positions in ``[0, n)``, int64 of shape ``[batch_size]``, and which of them are valid, bool of the same shape: False
            where a position only fills up the last step.

        Raises:
            IndexError: no such step.
        """
        positions = np.arange(*self.span(step), dtype=np.int64)  # [batch]
        valid = positions < self.n  # [batch]
        return positions % self.n, valid  # n > 0, else there are no steps


def worker_steps(first: int, steps: int, worker: int, workers: int) -> range:
    """The steps that one worker computes: every ``workers``-th one, counted from where the epoch goes on.

    A data loader takes results from its workers in turn, so dealing out whole steps keeps the order for any number of workers.

    Args:
        first: the step to start from, 0 at the beginning of an epoch and ``steps`` at its end.
        steps: in the epoch.
        worker: ``0 <= worker < workers``.
        workers: in all; 1 when the main process does the work.

    Raises:
        ConfigError: a value outside its range.
    """
    first, steps = _whole("first", first, 0), _whole("steps", steps, 0)
    worker, workers = _whole("worker", worker, 0), _whole("workers", workers, 1)
    if worker >= workers:
        raise ConfigError(f"worker is below workers, got worker {worker} of {workers}; workers count from 0")
    if first > steps:
        raise ConfigError(f"first is at most steps, got step {first} of an epoch of {steps}")
    return range(first + worker, steps, workers)


def step_of(position: int, global_batch: int, n: int, tail: Tail) -> int:
    """The step with which an epoch goes on after so many rows were consumed by all ranks together.

    Args:
        position: from a saved state.
        global_batch: world * batch_size of the run that resumes.
        n: rows of the index.
        tail: of the run that resumes.

    Returns:
        The number of the next step; the number of steps, when the epoch is over.

    Raises:
        ResumeError: the position lies inside a step of this global batch, or outside the epoch.
        ConfigError: another argument outside its range.
    """
    global_batch, n = _whole("global_batch", global_batch, 1), _whole("n", n, 0)
    _check_tail(tail)
    if isinstance(position, bool) or not hasattr(position, "__index__"):
        raise ResumeError(f"the saved position is {position!r}, expected an integer as Loader.state_dict() gives it")
    position = operator.index(position)
    end = _steps(n, global_batch, tail) * global_batch
    step, inside = divmod(position, global_batch)
    if position < 0 or position > max(end, n):
        raise ResumeError(
            f"the saved position is {position}, outside an epoch of {n} rows (tail {tail!r}, global batch {global_batch}): the"
            " state is of another index; load it into a loader over the index that it was saved with"
        )
    if inside:
        raise ResumeError(
            f"the saved position {position} is no multiple of the global batch {global_batch} (world * batch_size): the nearest"
            f" are {position - inside} and {position - inside + global_batch}. Resume with a world * batch_size that divides"
            f" {position}, or from a state saved at one of those"
        )
    return step


def _steps(n: int, global_batch: int, tail: Tail) -> int:
    return n // global_batch if tail == "drop" else -(-n // global_batch)


def _check_tail(tail: object) -> None:
    if tail not in ("drop", "pad"):
        raise ConfigError(f'tail is "drop" or "pad", got {tail!r}')


def _whole(name: str, value: object, low: int) -> int:
    """An integer of at least `low`, as `int`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ConfigError(f"{name} is an integer, got {value!r}")
    number = operator.index(value)
    if number < low:
        raise ConfigError(f"{name} is {low} or more, got {number}")
    return number
