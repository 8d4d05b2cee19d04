"""Branches whose making or removal stopped half way: hidden folders beside the others, which nothing opens."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lakehouse.upkeep.remove import Doomed
from lakehouse.upkeep.store import Store

_HIDDEN = re.compile(r"\.branch-.+\.[0-9a-f]{8}")  # as `lakehouse.history.branches` names them


def is_unfinished(name: str) -> bool:
    """Whether a folder in ``branch/`` is such a one."""
    return _HIDDEN.fullmatch(name) is not None


def unfinished_branches(store: Store) -> dict[str, list[tuple[Doomed, float]]]:
    """The files of each such folder, and when it was last written to: it goes as a whole, or stays as a whole."""
    found = {}
    for entry in store.list("branch"):
        if entry.is_folder and is_unfinished(entry.name):
            folder = f"branch/{entry.name}"
            files = list(_below(store, folder))
            newest = max([entry.modified_s, *(modified_s for _, modified_s in files)])
            found[folder] = [(file, newest) for file, _ in files]
    return found


def drop_empty(store: Store, folder: str) -> None:
    """Remove what is left of such a folder once its files are gone."""
    for entry in store.list(folder):
        if entry.is_folder:
            drop_empty(store, f"{folder}/{entry.name}")
    store.drop_folder(folder)


def _below(store: Store, folder: str) -> Iterator[tuple[Doomed, float]]:
    for entry in store.list(folder):
        path = f"{folder}/{entry.name}"
        if entry.is_folder:
            yield from _below(store, path)
        else:
            yield Doomed(path, "temporary", entry.size_bytes), entry.modified_s
