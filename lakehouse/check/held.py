"""The files of one snapshot, as its manifests name them, and what of the manifests can't be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lakehouse.check.report import Finding
from lakehouse.errors import cause_line
from lakehouse.upkeep import DataFile, IndexFile, Places, Store, avro_records, data_file, kind_of

_ADD = 0


@dataclass(frozen=True)
class Held:
    """A data file of the snapshot.

    Attributes:
        path: whole path or URL.
        name: of the file.
        kind: ``data`` or ``blob``.
        size_bytes: as the manifest says.
        first_row_id: of the rows that it holds columns of.
        rows: how many.
        sequence: the higher, the newer are its values.
        columns: which it holds; empty: all of the table's.
        bucket: partition and bucket that it belongs to.
        extra: paths of files that go with it.
    """

    path: str
    name: str
    kind: str
    size_bytes: int
    first_row_id: int
    rows: int
    sequence: int
    columns: tuple[str, ...]
    bucket: tuple[bytes, int]
    extra: tuple[str, ...]

    @property
    def stop_row_id(self) -> int:
        """One past its last row id."""
        return self.first_row_id + self.rows


@dataclass(frozen=True)
class Deletions:
    """Where an index file says which rows of a data file are deleted.

    Attributes:
        path: the index file.
        offset: of its part, bytes.
        length: of its part, bytes, without length and crc32.
        rows: how many rows are deleted; None: not told.
    """

    path: str
    offset: int
    length: int
    rows: int | None


@dataclass
class Content:
    """What a snapshot consists of.

    Attributes:
        data: its data files.
        index: paths and sizes of its index files.
        deletions: by name of data file.
        metadata: path, kind and size of the files that name the others; size None: not told.
        findings: of those that can't be read.
    """

    data: list[Held] = field(default_factory=list)
    index: list[tuple[str, int]] = field(default_factory=list)
    deletions: dict[str, Deletions] = field(default_factory=dict)
    metadata: list[tuple[str, str, int | None]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


class Reader:
    """Reads the manifests of a snapshot. What can't be read becomes a finding, and the rest is still told.

    Args:
        paimon: the table.
        store: its folder.
    """

    def __init__(self, paimon: Any, store: Store) -> None:
        self._root = str(paimon.table_path).rstrip("/")
        self._store = store
        self._places = Places(paimon, store)

    def content(self, snapshot: Any) -> Content:
        """The files of a pypaimon snapshot or tag."""
        content = Content()
        lists = [
            (snapshot.base_manifest_list, snapshot.base_manifest_list_size),
            (snapshot.delta_manifest_list, snapshot.delta_manifest_list_size),
        ]
        live: dict[DataFile, Held] = {}
        for name, size in lists:
            for listed in self._records(content, name, size):
                for record in self._records(content, listed["_FILE_NAME"], listed["_FILE_SIZE"]):
                    file = data_file(record)
                    if record["_KIND"] == _ADD:
                        live[file] = self._held(file, record["_FILE"])
                    else:
                        live.pop(file, None)
        content.data = list(live.values())
        if snapshot.index_manifest:
            for record in self._records(content, snapshot.index_manifest, None):
                if record["_KIND"] == _ADD:
                    self._index(content, record)
        if snapshot.statistics:
            content.metadata.append((f"{self._root}/statistics/{snapshot.statistics}", "statistics", None))
        return content

    def _records(self, content: Content, name: str, size: int | None) -> Iterator[dict[str, Any]]:
        path = f"{self._root}/manifest/{name}"
        content.metadata.append((path, "manifest", size))
        try:
            data = self._store.read(f"manifest/{name}")
            if size and len(data) != size:
                raise ValueError(f"{len(data)} bytes, expected {size}")
            records = avro_records(data)
        except Exception as error:  # noqa: BLE001 - whatever the store and the decoder raise: this file is damaged
            cause = f"can't be read ({cause_line(error)}), so the files that it names are not known"
            content.findings.append(Finding(path, "manifest", cause, whole_file=True))
            return
        yield from records

    def _held(self, file: DataFile, record: dict[str, Any]) -> Held:
        paths = [self._whole(path) for _, path in self._places.data(file)]
        return Held(
            path=paths[0],
            name=file.name,
            kind=kind_of(file.name),
            size_bytes=file.size_bytes,
            first_row_id=-1 if record.get("_FIRST_ROW_ID") is None else record["_FIRST_ROW_ID"],
            rows=record["_ROW_COUNT"],
            sequence=record["_MAX_SEQUENCE_NUMBER"],
            columns=tuple(record.get("_WRITE_COLS") or ()),
            bucket=(file.partition, file.bucket),
            extra=tuple(paths[1:]),
        )

    def _index(self, content: Content, record: dict[str, Any]) -> None:
        file = IndexFile.of(record)
        path = self._whole(self._places.index(file))
        content.index.append((path, file.size_bytes))
        for part in record.get("_DELETIONS_VECTORS_RANGES") or ():
            content.deletions[part["f0"]] = Deletions(path, part["f1"], part["f2"], part.get("_CARDINALITY"))

    def _whole(self, path: str) -> str:
        return path if path.startswith("/") or "://" in path else f"{self._root}/{path}"
