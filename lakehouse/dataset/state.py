"""What is saved, and what a saved state must agree with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lakehouse.errors import ResumeError

FORMAT = 1
LAST_EPOCH = 2**62  # worker processes read it as an int64, and it is counted on from


@dataclass(frozen=True)
class Identity:
    """What fixes the order of rows: a state continues only where all of it is the same."""

    index: str
    seed: int
    order: str

    def state(self, **rest: int) -> dict[str, Any]:
        """A state of plain JSON values."""
        head = {"format": FORMAT, "index": self.index, "seed": self.seed}
        return {**head, **rest, "order": self.order}

    def read(self, state: object, *names: str) -> tuple[int, ...]:
        """The whole numbers of these names in a saved state, once the rest of it is seen to agree.

        Raises:
            ResumeError: malformed, of a newer format, or of another data set.
        """
        if not isinstance(state, Mapping):
            raise ResumeError(f"a saved state is a mapping as state_dict() gives it, got {type(state).__name__}")
        saved_format = _natural(state, "format")
        if saved_format != FORMAT:
            raise ResumeError(
                f"the state has format {saved_format}, this version of lakehouse reads format {FORMAT}; "
                "install the version that wrote it, or a later one"
            )
        numbers = tuple(_natural(state, name) for name in names)
        epoch = numbers[names.index("epoch")]
        if epoch > LAST_EPOCH:
            raise ResumeError(f"the state's 'epoch' is at most 2**62, got {epoch}")
        seed = _natural(state, "seed")
        index, order = (_text(state, name) for name in ("index", "order"))
        if index != self.index:
            raise ResumeError(
                f"the state was saved with index {index}, this loader has {self.index}: other rows, columns or another "
                "snapshot; load the index file of that run (RowIndex.load), or run its query on the same tag again"
            )
        if seed != self.seed:
            raise ResumeError(f"the state was saved with seed {seed}, this loader has {self.seed}: pass seed={seed}")
        if order != self.order:
            sizes = set(re.findall(r"blocks-1:(\d+x\d+)", order))  # parts of a mixture may differ
            option = f'shuffle="blocks:{sizes.pop()}"' if len(sizes) == 1 else "the same shuffle="
            raise ResumeError(
                f"the state was saved with order {order!r}, this loader has {self.order!r}: pass {option}, "
                "with the version of lakehouse that wrote the state if the number differs (see CHANGELOG, Iteration order)"
            )
        return numbers


class Start:
    """(epoch, first step), read by worker processes when they begin an epoch.

    Kept in shared memory so that persistent workers see it, and written only while none of them reads: advancing it as the
    trainer consumes would let a worker that is slow to start skip steps.
    """

    def __init__(self, epoch: int = 0, first: int = 0) -> None:
        self._values = torch.tensor([epoch, first], dtype=torch.int64).share_memory_()

    def read(self) -> tuple[int, int]:
        """Epoch and first step."""
        epoch, first = self._values.tolist()
        return epoch, first

    def write(self, epoch: int, first: int) -> None:
        """Set both for the iterations that begin from now on."""
        self._values[0] = epoch
        self._values[1] = first

    def __setstate__(self, state: dict[str, Any]) -> None:
        # On the way to a worker process the tensor arrives shared; from a plain pickle it is a copy.
        self._values = state["_values"] if state["_values"].is_shared() else state["_values"].share_memory_()


def _value(state: Mapping[str, Any], name: str) -> Any:
    if name not in state:
        raise ResumeError(f"the state has no {name!r}; it has: {', '.join(map(str, state)) or 'nothing'}")
    return state[name]


def _natural(state: Mapping[str, Any], name: str) -> int:
    value = _value(state, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ResumeError(f"the state's {name!r} must be a whole number of at least 0, got {value!r}")
    return value


def _text(state: Mapping[str, Any], name: str) -> str:
    value = _value(state, name)
    if not isinstance(value, str):
        raise ResumeError(f"the state's {name!r} must be text, got {value!r}")
    return value
