"""Which files snapshots and tags reach: manifest lists -> manifests -> data files, index files, statistics.

Files are told apart by name: all names hold a UUID, so that a file is kept wherever it lies, however an engine spells the
folders of partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NamedTuple, TypeVar

from lakehouse.errors import FetchError
from lakehouse.upkeep.roots import Root, read_roots, unreadable
from lakehouse.upkeep.store import Store

T = TypeVar("T")

_READERS = 8  # concurrent manifest reads: what counts is the latency of an object store
_ADD = 0
_TRIES = 6
_TAKEN_BACK_S = 0.1  # the first of the waits between them, each twice the one before


class Listed(NamedTuple):
    """A manifest as a manifest list names it."""

    name: str
    size_bytes: int
    extra: tuple[str, ...]


class DataFile(NamedTuple):
    """A data file as a manifest names it.

    Two entries that are equal speak of the same file in the same role.
    """

    name: str
    partition: bytes
    bucket: int
    level: int
    extra: tuple[str, ...]
    embedded_index: bytes | None
    external_path: str | None
    size_bytes: int


class IndexFile(NamedTuple):
    """An index file as an index manifest names it."""

    name: str
    partition: bytes
    bucket: int
    type: str
    external_path: str | None
    size_bytes: int

    @staticmethod
    def of(record: dict[str, Any]) -> IndexFile:
        """Of an entry of an index manifest."""
        return IndexFile(
            record["_FILE_NAME"],
            record["_PARTITION"],
            record["_BUCKET"],
            record["_INDEX_TYPE"],
            record.get("_EXTERNAL_PATH"),
            record["_FILE_SIZE"],
        )


@dataclass(frozen=True, eq=False)
class Manifest:
    """The entries of one manifest.

    Attributes:
        entries: ``(added, file)`` in order; ``added`` False: the file is deleted from the table's content.
        added: the files that are added.
        deleted: the files that are deleted.
    """

    entries: tuple[tuple[bool, DataFile], ...]
    added: frozenset[DataFile] = field(init=False)
    deleted: frozenset[DataFile] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "added", frozenset(file for added, file in self.entries if added))
        object.__setattr__(self, "deleted", frozenset(file for added, file in self.entries if not added))


class Manifests:
    """Reads a table's manifests, each of them once.

    Reads the Avro records themselves: upstream's readers need the schema of every file, which another branch may own, and
    take a missing index manifest for an empty one.

    Args:
        store: the table's folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lists: dict[str, tuple[Listed, ...]] = {}
        self._manifests: dict[str, Manifest] = {}
        self._indexes: dict[str, tuple[IndexFile, ...]] = {}

    def load(self, roots: Iterable[Root]) -> None:
        """Read what the roots reach and was not read yet, several files at a time.

        Raises:
            FetchError: a manifest can't be read; the text names it.
        """
        roots = list(roots)
        with ThreadPoolExecutor(_READERS) as pool:
            self._fill(pool, self._lists, (name for root in roots for name in root.manifest_lists), self._list)
            self._fill(pool, self._indexes, (root.index_manifest for root in roots if root.index_manifest), self._index)
            self._fill(pool, self._manifests, (item.name for root in roots for item in self.listed(root)), self._manifest)

    @staticmethod
    def _fill(pool: ThreadPoolExecutor, held: dict[str, T], names: Iterable[str], read: Callable[[str], T]) -> None:
        wanted = [name for name in dict.fromkeys(names) if name not in held]
        try:
            held.update(zip(wanted, pool.map(read, wanted), strict=True))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise

    def listed(self, root: Root) -> Iterator[Listed]:
        """The manifests of a root, in the order in which their entries apply."""
        for name in root.manifest_lists:
            yield from self._lists[name]

    def manifest(self, name: str) -> Manifest:
        """A manifest's entries."""
        return self._manifests[name]

    def index_files(self, root: Root) -> tuple[IndexFile, ...]:
        """The index files of a root."""
        return self._indexes[root.index_manifest] if root.index_manifest else ()

    def live(self, root: Root) -> Iterator[DataFile]:
        """The data files that a root's readers need."""
        dead = self.dead(root)
        for item in self.listed(root):
            added = self._manifests[item.name].added
            yield from added - dead if dead else added

    def dead(self, root: Root) -> frozenset[DataFile]:
        """The data files that a root's manifests mention and whose last entry deletes them."""
        manifests = [self._manifests[item.name] for item in self.listed(root)]
        touched: set[DataFile] = set().union(*(manifest.deleted for manifest in manifests))
        last: dict[DataFile, bool] = {}
        for manifest in manifests if touched else ():
            if not touched.isdisjoint(manifest.added) or manifest.deleted:
                last.update((file, added) for added, file in manifest.entries if file in touched)
        return frozenset(file for file, added in last.items() if not added)

    def _list(self, name: str) -> tuple[Listed, ...]:
        return tuple(
            Listed(record["_FILE_NAME"], record["_FILE_SIZE"], tuple(record.get("_EXTRA_FILES") or ()))
            for record in self._records(name)
        )

    def _manifest(self, name: str) -> Manifest:
        return Manifest(tuple((record["_KIND"] == _ADD, data_file(record)) for record in self._records(name)))

    def _index(self, name: str) -> tuple[IndexFile, ...]:
        return tuple(IndexFile.of(record) for record in self._records(name) if record["_KIND"] == _ADD)

    def _records(self, name: str) -> list[dict[str, Any]]:
        path = f"manifest/{name}"
        try:
            return avro_records(self._store.read(path))
        except Exception as error:  # whatever the store and the decoder raise
            raise unreadable(self._store, path, error) from error


def avro_records(content: bytes) -> list[dict[str, Any]]:
    """The records of a manifest or manifest list."""
    import fastavro

    records: Any = fastavro.reader(BytesIO(content))
    return list(records)


def data_file(record: dict[str, Any]) -> DataFile:
    """The data file of a manifest's record."""
    file = record["_FILE"]
    return DataFile(
        file["_FILE_NAME"],
        record["_PARTITION"],
        record["_BUCKET"],
        file["_LEVEL"],
        tuple(file["_EXTRA_FILES"] or ()),
        file["_EMBEDDED_FILE_INDEX"],
        file.get("_EXTERNAL_PATH"),
        file["_FILE_SIZE"],
    )


def needed_names(manifests: Manifests, roots: Iterable[Root]) -> set[str]:
    """Names of all files that any of the roots reaches. The roots must be loaded."""
    names: set[str] = set()
    whole: set[str] = set()  # manifests of which all added files are in already
    for root in roots:
        dead = manifests.dead(root)
        names.update(root.manifest_lists)
        names.update(name for name in (root.index_manifest, root.statistics) if name)
        names.update(file.name for file in manifests.index_files(root))
        for item in manifests.listed(root):
            names.add(item.name)
            names.update(item.extra)
            if item.name in whole:
                continue
            added = manifests.manifest(item.name).added
            if dead.isdisjoint(added):
                whole.add(item.name)
            else:
                added = added - dead
            for file in added:
                names.add(file.name)
                names.update(file.extra)
    return names


def load_roots(store: Store, manifests: Manifests, without: Collection[str] = ()) -> list[Root]:
    """Everything that keeps files alive now, with its manifests loaded.

    Args:
        store: the table's folder.
        manifests: what they are loaded into.
        without: folders of branches that are to go, and keep nothing.

    Raises:
        FetchError: a root or a manifest can't be read; the text names it.
        ConfigError: see `read_roots`.
    """
    for attempt in range(_TRIES):
        roots = read_roots(store, without)
        try:
            manifests.load(roots)
        except FetchError:
            # Another process may have removed a snapshot, and then its manifests, while they were read here. Or a tag was
            # written as its snapshot went: its writer sees that in a moment, and takes it back.
            if attempt == _TRIES - 1:
                raise
            if set(_identities(roots)) <= set(_identities(read_roots(store, without))):
                time.sleep(_TAKEN_BACK_S * 2**attempt)
        else:
            return roots
    raise AssertionError("the last try returns or raises")


def _identities(roots: Iterable[Root]) -> Iterator[tuple[str, tuple[str, ...]]]:
    return ((root.path, root.manifest_lists) for root in roots)
