"""Stages by name in the traces of ``torch.profiler``; while no profiler runs, a look at one variable."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar

from torch.autograd import profiler
from torch.profiler import record_function

StageName = Literal["fetch", "decode", "assemble", "transform", "wait"]
P = ParamSpec("P")
R = TypeVar("R")


def stage(name: StageName) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates what does the work of a stage: a range ``lakehouse.<name>`` for each call."""
    label = f"lakehouse.{name}"

    def decorate(work: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(work)
        def ranged(*args: P.args, **kwargs: P.kwargs) -> R:
            # A range costs up to 20 us even when nobody records it, and a step has a dozen.
            if not getattr(profiler, "_is_profiler_enabled", True):
                return work(*args, **kwargs)
            with record_function(label):
                return work(*args, **kwargs)

        return ranged

    return decorate
