"""A value that belongs to one process: nothing that is open or locked crosses a fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Makes its value on first use, again in each forked child: the key is the process id.

    A child must not share its parent's client: two processes reading answers from one socket get each other's bytes, with
    the right length and status (seen with pyarrow, boto3 and Paimon's FileIO). Locks that another thread held at the fork
    would never open again, and the parent's threads do not exist in the child.

    Args:
        make: makes the value; threads that race may call it more than once, and one result is kept.
        keep_inherited: a child never drops its parent's value, because dropping it would close what both share.
    """

    def __init__(self, make: Callable[[], T], *, keep_inherited: bool = False) -> None:
        self._make = make
        self._keep_inherited = keep_inherited
        self._values: dict[int, T] = {}

    def get(self) -> T:
        """This process's value."""
        pid = os.getpid()
        value = self._values.get(pid)
        if value is None:
            value = self._values.setdefault(pid, self._make())  # atomic; a lock could have been held during the fork
            if not self._keep_inherited:
                for other in list(self._values):
                    if other != pid:
                        self._values.pop(other, None)
        return value
