"""The last few values made."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class Recent(Generic[_Value]):
    """The last few values made, newest first.

    The tuple is replaced as a whole and never locked: threads may at worst make a value twice, and a fork never inherits a lock
    that nobody is left to release.
    """

    __slots__ = ("_entries", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: tuple[tuple[Hashable, _Value], ...] = ()

    def get(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """The value of a key, made where it is none of the last few."""
        for known, value in self._entries:
            if known == key:
                return value
        value = make()
        self._entries = ((key, value), *self._entries[: self._limit - 1])
        return value
