"""Which rows a saved state has behind it: arithmetic on its order. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from lakehouse.errors import ConfigError, ResumeError
from lakehouse.order import Order

_FORMAT = 1
_BLOCKS = re.compile(r"blocks-1:(\d{1,7})x(\d{1,7})", re.ASCII)
_PIECE_ROWS = 1 << 20


@dataclass(frozen=True)
class Place:
    """A saved state, read.

    Attributes:
        index: fingerprint of the index that was trained on.
        seed: of the order.
        epoch: complete epochs before the present one.
        position: rows of the present epoch that all ranks together consumed.
        order: its name and version.
    """

    index: str
    seed: int
    epoch: int
    position: int
    order: str

    @classmethod
    def of(cls, state: object) -> Place:
        """Read what `Loader.state_dict` gives.

        Raises:
            ResumeError: it is something else, or of a newer format.
        """
        if not isinstance(state, Mapping):
            raise ResumeError(f"a saved state is a mapping as Loader.state_dict() gives it, got {type(state).__name__}")
        missing = [name for name in ("format", "index", "seed", "epoch", "position", "order") if name not in state]
        if missing:
            raise ResumeError(f"the state has no {missing[0]!r}; it has: {', '.join(map(str, state)) or 'nothing'}")
        if state["format"] != _FORMAT:
            raise ResumeError(f"the state has format {state['format']!r}, this version of lakehouse reads format {_FORMAT}")
        numbers = {name: _natural(name, state[name]) for name in ("seed", "epoch", "position")}
        for name in ("index", "order"):
            if not isinstance(state[name], str):
                raise ResumeError(f"the state's {name!r} must be text, got {state[name]!r}")
        return cls(index=state["index"], order=state["order"], **numbers)


def seen(place: Place, n: int, global_batch: int | None = None) -> npt.NDArray[np.int64]:
    """The rows that were consumed up to a place, ascending, each once.

    Args:
        place: the state.
        n: rows of the index.
        global_batch: ``world * batch_size`` of a run with ``tail="drop"``, which leaves out up to that many rows at the end of
            each epoch. None: complete epochs count as all rows.

    Raises:
        ResumeError: a position outside the index, or an order that is not one of a plain index.
        ConfigError: a global batch below 1.
    """
    if place.position > n and (global_batch is None or place.position > -(-n // global_batch) * global_batch):
        raise ResumeError(f"the state's position {place.position} lies outside an index of {n} rows: it is of another index")
    if global_batch is not None and (isinstance(global_batch, bool) or not isinstance(global_batch, int) or global_batch < 1):
        raise ConfigError(f"global_batch is 1 or more, got {global_batch!r}")
    if place.epoch and global_batch is None:
        return np.arange(n, dtype=np.int64)
    order = _order(place, n)
    consumed = np.zeros(n, np.bool_)
    whole = n // (global_batch or 1) * (global_batch or 1)  # rows of a complete epoch
    # Complete epochs without a step have consumed nothing, and those in stored order always the same.
    complete = range(place.epoch if order.shuffle else min(place.epoch, 1)) if whole else range(0)
    for epoch in chain(complete, (place.epoch,)):
        stop = place.position if epoch == place.epoch else whole
        for start in range(0, min(stop, n), _PIECE_ROWS):
            consumed[order.rows(epoch, start, min(start + _PIECE_ROWS, stop, n))] = True
        if consumed.all():
            break
    return np.flatnonzero(consumed)


def _order(place: Place, n: int) -> Order:
    blocks = _BLOCKS.fullmatch(place.order)
    try:
        if place.order == "stored-1":
            return Order(n, place.seed, None)
        if place.order == "rows-1":
            return Order(n, place.seed, "rows")
        if blocks is not None:
            return Order(n, place.seed, "blocks", int(blocks[1]), int(blocks[2]))
    except ConfigError as error:
        raise ResumeError(f"the state is not one of lakehouse: {error}") from error
    raise ResumeError(f"the state's order is {place.order!r}, which is not that of a plain index in this version of lakehouse")


def _natural(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ResumeError(f"the state's {name!r} must be a whole number of at least 0, got {value!r}")
    return value
