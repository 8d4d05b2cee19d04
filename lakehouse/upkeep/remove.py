"""Which files go: where they lie, of which kind they are, and how they are deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import cause_line
from lakehouse.upkeep.files import DataFile, IndexFile, Manifests
from lakehouse.upkeep.progress import Meter
from lakehouse.upkeep.report import Left
from lakehouse.upkeep.roots import Root
from lakehouse.upkeep.store import Store

_DELETERS = 8  # concurrent deletions: what counts is the latency of an object store


@dataclass(frozen=True, order=True)
class Doomed:
    """A file to delete.

    Attributes:
        path: relative to the table's folder.
        kind: ``data``, ``blob``, ``index``, ``manifest``, ``statistics`` or ``temporary``.
        size_bytes: of the file.
    """

    path: str
    kind: str
    size_bytes: int


def kind_of(name: str) -> str:
    """The kind of a data file."""
    return "blob" if name.endswith((".blob", ".video")) else "data"


class Places:
    """Where a table's data and index files lie, as its readers find them.

    Args:
        paimon: the table.
        store: its folder.
    """

    def __init__(self, paimon: Any, store: Store) -> None:
        self._paimon = paimon
        self._root = f"{str(paimon.table_path).rstrip('/')}/"
        self._store = store
        self._folders: dict[tuple[bytes, int], str] = {}

    def data(self, file: DataFile) -> Iterator[tuple[str, str]]:
        """``(name, path)`` of a data file and of the files that go with it; a path outside the table's folder is whole."""
        folder = self.folder(file.partition, file.bucket)
        if file.external_path:
            folder = file.external_path.rpartition("/")[0]
        for name in (file.name, *file.extra):
            yield name, self._inside(f"{folder}/{name}")

    def index(self, file: IndexFile) -> str:
        """Path of an index file."""
        from pypaimon.index.index_file_meta import IndexFileMeta

        values = self._values(file.partition)
        meta = IndexFileMeta(file.type, file.name, file.size_bytes, 0, external_path=file.external_path)
        return self._inside(str(self._paimon.path_factory().bucket_index_path(values, file.bucket, meta)))

    def folder(self, partition: bytes, bucket: int) -> str:
        """Where the files of a bucket lie."""
        key = (partition, bucket)
        if key not in self._folders:
            from pypaimon.utils.file_store_path_factory import canonical_data_file_path

            path = str(canonical_data_file_path(self._paimon, self._values(partition), bucket, "x"))
            self._folders[key] = path.rpartition("/")[0]
        return self._folders[key]

    def _values(self, partition: bytes) -> tuple[Any, ...]:
        from pypaimon.table.row.generic_row import GenericRowDeserializer

        return tuple(GenericRowDeserializer.from_bytes(partition, self._paimon.partition_keys_fields).values)

    def _inside(self, path: str) -> str:
        return path.removeprefix(self._root)


def only_of(
    roots: Iterable[Root], needed: set[str], manifests: Manifests, places: Places, sizes: dict[str, int]
) -> tuple[list[Doomed], list[Left]]:
    """The files that ``roots`` reach and that are not ``needed``, and those of them that are not ours to delete.

    Args:
        roots: loaded roots that are to go.
        needed: names of files that stay.
        manifests: what they were loaded into.
        places: where files lie.
        sizes: bytes by name, of the files whose size no manifest tells.
    """
    found: dict[str, Doomed] = {}
    left: dict[str, Left] = {}

    def doom(name: str, path: str, kind: str, size: int) -> None:
        if name in needed:
            return
        if "/" in name or path.startswith("/") or "://" in path or ".." in path.split("/"):
            left[path] = Left(path, "it lies outside the table's folder")
        else:
            found[path] = Doomed(path, kind, size)

    for root in roots:
        for file in manifests.live(root):
            for name, path in places.data(file):
                size = file.size_bytes if name == file.name else sizes.get(name, 0)
                doom(name, path, kind_of(name) if name == file.name else "data", size)
        for index in manifests.index_files(root):
            doom(index.name, places.index(index), "index", index.size_bytes)
        if root.statistics:
            doom(root.statistics, f"statistics/{root.statistics}", "statistics", sizes.get(root.statistics, 0))
        names = [*root.manifest_lists, *([root.index_manifest] if root.index_manifest else [])]
        names += [name for item in manifests.listed(root) for name in (item.name, *item.extra)]
        for name in names:
            doom(name, f"manifest/{name}", "manifest", sizes.get(name, 0))
    return sorted(found.values()), sorted(left.values(), key=lambda item: item.path)


def delete(store: Store, doomed: Iterable[Doomed], meter: Meter) -> tuple[list[Doomed], list[Left]]:
    """Delete files, several at a time: those that are gone now, and those that stayed.

    A file that another process deleted first is gone, too, but not counted.
    """
    gone: list[Doomed] = []
    left: list[Left] = []
    with ThreadPoolExecutor(_DELETERS) as pool:

        def one(file: Doomed) -> tuple[Doomed, bool | Left]:
            try:
                return file, store.delete(file.path)
            except OSError as error:
                return file, Left(file.path, cause_line(error))

        try:
            for file, result in pool.map(one, doomed):
                meter.add(1)
                if isinstance(result, Left):
                    left.append(result)
                elif result:
                    gone.append(file)
        except BaseException:  # Ctrl-C: what was not begun stays
            pool.shutdown(cancel_futures=True)
            raise
    return gone, left


def by_kind(files: Iterable[Doomed]) -> dict[str, int]:
    """How many files of each kind, kinds in alphabetical order."""
    counts = Counter(file.kind for file in files)
    return dict(sorted(counts.items()))


def total_bytes(files: Iterable[Doomed]) -> int:
    """Bytes of all files."""
    return sum(file.size_bytes for file in files)
