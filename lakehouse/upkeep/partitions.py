"""Folders of partitions: where they are, and how empty ones go, whose names hold values of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lakehouse.upkeep.store import Store

_BUCKET = re.compile(r"bucket-(\d+|postpone)")


def partition_folders(paimon: Any, store: Store) -> list[list[str]]:
    """The folders of each level of the partition columns, those of data files last; of a table without any, its own."""
    levels = [[str(paimon.path_factory().data_file_path_directory or "").strip("/")]]
    for key in paimon.partition_keys:
        names = re.compile(f"{re.escape(_escaped(key))}=.*", re.DOTALL)
        levels.append([folder for above in levels[-1] for folder in _folders(store, above, names)])
    return levels


def buckets(store: Store, folder: str) -> Iterator[str]:
    """The buckets in a folder of data files."""
    return _folders(store, folder, _BUCKET)


def drop_empty_partitions(paimon: Any, store: Store) -> None:
    """Remove the folders of partitions in which nothing is left."""
    if not store.has_empty_folders:
        return
    _, *levels = partition_folders(paimon, store)
    for folder in levels[-1] if levels else ():
        for bucket in buckets(store, folder):
            store.drop_folder(bucket)
    for level in reversed(levels):
        for folder in level:
            store.drop_folder(folder)


def _folders(store: Store, above: str, names: re.Pattern[str]) -> Iterator[str]:
    for entry in store.list(above):
        if entry.is_folder and names.fullmatch(entry.name):
            yield f"{above}/{entry.name}" if above else entry.name


def _escaped(key: str) -> str:
    from pypaimon.utils.file_store_path_factory import _escape_partition_component

    return str(_escape_partition_component(key))
