"""Progress of long work: to a callback, or to a bar on the terminal."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

Progress = bool | Callable[[int, int], None]


class Meter(AbstractContextManager["Meter"]):
    """Counts work done and shows it. Thread safe; a context manager.

    Args:
        progress: True: a bar of tqdm on stderr, where that is installed and stderr is a terminal. A callable is given
            ``(done, total)``. False: nothing is shown.
        total: how much there is to do.
        what: the work, beside the bar.
        unit: what is counted: ``"B"`` for bytes.
    """

    def __init__(self, progress: Progress, total: int, what: str, unit: str = "") -> None:
        self._callback = progress if callable(progress) else None
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        self._bar = _bar(total, what, unit) if progress is True else None

    def add(self, amount: int) -> None:
        """Some more is done."""
        with self._lock:
            self._done += amount
            if self._bar is not None:
                self._bar.update(amount)
            if self._callback is not None:
                self._callback(self._done, self._total)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(total: int, what: str, unit: str):  # type: ignore[no-untyped-def]  # tqdm may be absent
    if not sys.stderr.isatty():
        return None
    try:
        tqdm = importlib.import_module("tqdm")
    except ImportError:
        return None
    return tqdm.tqdm(total=total, desc=what, unit=unit or "it", unit_scale=unit == "B")
