"""RowIndex: the chosen rows of one snapshot as arrays. It is the training set, and its saved file is the manifest.

For each row it holds the row id and the selected scalar values, and for each BLOB column where the bytes are: file, offset,
length. Nothing in it is a Python object per row. Saved, it is mapped from disk: worker processes and ranks of a machine
share one copy.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.errors import NotFoundError, ResumeError, SchemaError
from lakehouse.fetch import BlobRefs, Fetcher
from lakehouse.index.saved_refs import read_refs, referenced_bytes, write_refs
from lakehouse.index.source import Source, fingerprint_of, table_fetcher, version_of
from lakehouse.index.split import assign
from lakehouse.index.storage import IndexFile, IndexWriter, schema_of_text, schema_text


class RowIndex:
    """Rows of one snapshot, in ascending row id (`from_daft`: in the frame's order). Made by `Query.index`.

    Example:
        >>> index = snap.query().where("weather = 'rain'").select("frame_jpg", "weather").index()  # doctest: +SKIP
        >>> parts = index.split({"train": 0.8, "val": 0.2}, by="scene_token")  # doctest: +SKIP
    """

    def __init__(
        self,
        source: Source,
        schema: pa.Schema,
        row_ids: npt.NDArray[np.int64],
        scalars: Mapping[str, pa.Array],
        blobs: Mapping[str, BlobRefs],
        fingerprint: str | None = None,
        file: Path | None = None,
        keep: object = None,
        blob_bytes: int | None = None,
    ) -> None:
        self._keep = keep  # whatever holds the files that the arrays are mapped from
        self._source = source
        self._schema = schema
        self._row_ids = row_ids
        self._scalars = dict(scalars)
        self._blobs = dict(blobs)
        self._fingerprint = fingerprint or fingerprint_of(source, schema, row_ids, self._blobs)
        self._file = file
        self._blob_bytes = blob_bytes

    # --- what it is ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._row_ids)

    @property
    def fingerprint(self) -> str:
        """``sha256:...`` over table, snapshot, columns, row ids and uris: equal exactly for the same rows in one order."""
        return self._fingerprint

    @property
    def columns(self) -> tuple[str, ...]:
        """The selected columns, in order."""
        return tuple(self._schema.names)

    @property
    def schema(self) -> pa.Schema:
        """Types of the selected columns; BLOB columns are ``large_binary``."""
        return self._schema

    @property
    def blob_columns(self) -> tuple[str, ...]:
        """Those of `columns` that are BLOBs."""
        return tuple(name for name in self._schema.names if name in self._blobs)

    @property
    def blob_bytes(self) -> int:
        """Bytes that all rows' BLOBs have together, without those of unknown length. A saved index knows, and reads no row."""
        if self._blob_bytes is None:
            self._blob_bytes = sum(map(referenced_bytes, self._blobs.values()))
        return self._blob_bytes

    @property
    def row_ids(self) -> npt.NDArray[np.int64]:
        """The table's row id of each row, int64[n]."""
        return self._row_ids

    @property
    def table_name(self) -> str:
        """``database.table``."""
        return self._source.table

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that the rows are of."""
        return self._source.snapshot_id

    @property
    def where_text(self) -> str:
        """The query's predicate as text."""
        return self._source.where

    @property
    def source(self) -> Source:
        """The version that the rows are of."""
        return self._source

    @property
    def recipe(self) -> list[dict[str, Any]]:
        """How the rows were chosen, step by step: ``where``, ``sample``, ``limit``, ``split``, ``take``, ``frame``.

        Example:
            >>> parts["train"].recipe  # doctest: +SKIP
            [{'where': "weather = 'rain'"}, {'split': {'train': 0.8, 'val': 0.2}, 'by': 'scene', 'seed': 0, 'part': 'train'}]
        """
        return list(json.loads(self._source.recipe))

    def described(self, source: Source) -> RowIndex:
        """The same rows, with another account of where they are from."""
        return RowIndex(
            source, self._schema, self._row_ids, self._scalars, self._blobs, self._fingerprint, self._file, self._keep,
            self._blob_bytes,
        )  # fmt: skip

    def column(self, name: str) -> pa.Array:
        """A column that is not a BLOB, n values.

        Raises:
            NotFoundError: not a selected column.
            SchemaError: a BLOB column; `blobs` has those.
        """
        if name in self._blobs:
            raise SchemaError(f"column {name} is a BLOB: index.blobs({name!r}) says where its bytes are")
        if name not in self._scalars:
            raise self._no_column(name)
        return self._scalars[name]

    def blobs(self, name: str) -> BlobRefs:
        """Where the bytes of a BLOB column are: ``uris``, and ``uri_ids`` (-1: null), ``offsets``, ``lengths`` [n].

        Raises:
            NotFoundError: not a selected column.
            SchemaError: not a BLOB column.
        """
        if name in self._scalars:
            raise SchemaError(
                f"column {name} is {self._schema.field(name).type}, not a BLOB: index.column({name!r}) has its values"
            )
        if name not in self._blobs:
            raise self._no_column(name)
        return self._blobs[name]

    def _no_column(self, name: str) -> NotFoundError:
        near = get_close_matches(str(name), self.columns, 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        return NotFoundError(f"the index has no column {name!r}{hint}; its columns: {', '.join(self.columns)}")

    def row(self, i: int) -> dict[str, Any]:
        """One row as a mapping; BLOB fields are lazy `BlobRef`s, or None.

        Raises:
            IndexError: no such row.
        """
        n = len(self)
        if isinstance(i, bool) or not isinstance(i, (int, np.integer)):
            raise TypeError(f"a row is asked for by its position, got {i!r}")
        if not -n <= i < n:
            raise IndexError(f"row {i} of an index of {n} rows")
        at = int(i) % n
        return {
            name: self._blobs[name][at] if name in self._blobs else self._scalars[name][at].as_py() for name in self.columns
        }

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.row(i)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.row(i) for i in range(len(self)))

    def where(self, i: int, column: str | None = None) -> str:
        """Where row ``i`` is, for errors: ``default.frames@41 row 88123 column frame_jpg (uri 4096+18211)``."""
        text = f"{self._source.table or 'frame'}@{self._source.snapshot_id} row {int(self._row_ids[i])}"
        if column is None:
            return text
        text += f" column {column}"
        ref = self._blobs[column][i] if column in self._blobs else None
        return text if ref is None else f"{text} ({ref.uri} {ref.offset}+{ref.length})"

    def fetcher(self) -> Fetcher:
        """What reads the bytes: only from the table's own folder and the catalog's ``blob_roots``."""
        return table_fetcher(self._source)

    def __repr__(self) -> str:
        return (
            f"RowIndex({self._source.table or 'frame'}@{self._source.snapshot_id}, {len(self):,} rows, "
            f"columns={list(self.columns)}, {self.blob_bytes:,} bytes of BLOBs, {self._fingerprint[:15]})"
        )

    # --- other indexes -------------------------------------------------------------------------------------------------

    def take(self, rows: Sequence[int] | npt.NDArray[Any] | pa.Array) -> RowIndex:
        """The rows at these positions, in this order; a row may be taken more than once.

        Raises:
            IndexError: a position outside the index.
        """
        at = np.asarray(rows)
        if at.dtype == np.bool_:
            if len(at) != len(self):
                raise IndexError(f"a mask of {len(at)} for an index of {len(self)} rows")
            at = np.flatnonzero(at)
        if at.ndim != 1 or (len(at) and at.dtype.kind not in "iu"):
            raise TypeError(f"take() takes row positions, got an array of {at.dtype} with {at.ndim} axes")
        at = at.astype(np.int64)
        if len(at) and (int(at.min()) < -len(self) or int(at.max()) >= len(self)):
            raise IndexError(f"positions {int(at.min())} to {int(at.max())} of an index of {len(self)} rows")
        return self._taken(np.where(at < 0, at + len(self), at), self._source.then(take=len(at)))

    def _taken(self, at: npt.NDArray[np.int64], source: Source) -> RowIndex:
        picked = pa.array(at)
        return RowIndex(
            source,
            self._schema,
            self._row_ids[at],
            {name: array.take(picked) for name, array in self._scalars.items()},
            {name: refs.take(at) for name, refs in self._blobs.items()},
        )

    def split(self, parts: Mapping[str, float], *, by: str | None = None, seed: int = 0) -> dict[str, RowIndex]:
        """Deal rows out to named parts by a hash, so that rows added to the table later move no row of today.

        Args:
            parts: name to share, e.g. ``{"train": 0.8, "val": 0.2}``; shares add up to at most 1.
            by: a selected column; rows of equal value stay together (a scene, a drive). None: each row by its row id.
            seed: another seed deals anew.

        Raises:
            ConfigError: shares that are none.
            NotFoundError: ``by`` is not a selected column.
        """
        values = self._row_ids if by is None else self.column(by)
        dealt = assign(parts, values, seed)
        rule = {"split": dict(parts), "by": by, "seed": seed}
        return {name: self._taken(rows, self._source.then(**rule, part=name)) for name, rows in dealt.items()}

    # --- saving --------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a file, whole or not at all. No secret and no absolute path of the table is in it.

        Raises:
            OSError: the folder is missing or can't be written.
        """
        writer = IndexWriter(path)
        try:
            header = {
                "format": 1,
                "table": self._source.table,
                "uuid": self._source.uuid,
                "snapshot": self._source.snapshot_id,
                "snapshot_uuid": self._source.snapshot_uuid,
                "where": self._source.where,
                "recipe": self._source.recipe,
                "fingerprint": self._fingerprint,
                "rows": len(self),
                "blob_bytes": self.blob_bytes,
                "schema": schema_text(self._schema),
                "row_ids": writer.numbers(self._row_ids, np.int64),
                "types": schema_text(pa.schema([pa.field(name, array.type) for name, array in self._scalars.items()])),
                "scalars": {name: writer.array(array) for name, array in self._scalars.items()},
                "blobs": {name: write_refs(writer, refs, self._source.path) for name, refs in self._blobs.items()},
            }
            writer.finish(header)
        except BaseException:
            writer.abort()
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str], catalog: Any) -> RowIndex:
        """Map a saved index. Costs the same for any number of rows.

        Args:
            path: what `save` wrote.
            catalog: the catalog that holds its table.

        Raises:
            NotFoundError: no such file, table, or snapshot.
            ResumeError: a damaged file, or a table that was dropped and made again under the same name.
        """
        file = IndexFile(path)
        header = file.index_header()
        name, number = header["table"], header["snapshot"]
        if not name:
            raise ResumeError(
                f"{file.path}: made from a Daft frame that names no table; make it from the query, or pass table= to from_daft"
            )
        version = version_of(catalog, name, number, file.path)
        if version.uuid != header["uuid"]:
            raise ResumeError(f"{file.path}: made from another table of the name {name}; this one was created later")
        saved = header.get("snapshot_uuid", "")
        if saved and saved != version.snapshot_uuid:
            raise ResumeError(
                f"{file.path}: made from another snapshot {number} of {name}: that one was deleted and its number given out "
                "again (by a rollback of another engine); make the index anew"
            )
        source = replace(
            Source.of(version, header["where"], header.get("recipe", "[]")), table=name, snapshot_id=number, snapshot_uuid=saved
        )
        return cls._mapped(file, source)

    @classmethod
    def _mapped(cls, file: IndexFile, source: Source) -> RowIndex:
        with file.read_whole():
            return cls._of_header(file, file.header, source)

    @classmethod
    def _of_header(cls, file: IndexFile, header: dict[str, Any], source: Source) -> RowIndex:
        n = header["rows"]
        types = schema_of_text(header["types"])
        scalars = {name: file.array(node, types.field(name).type) for name, node in header["scalars"].items()}
        if any(len(array) != n for array in scalars.values()):
            raise ResumeError(f"{file.path}: not a whole saved index: a column has another length than the index")
        blobs = {name: read_refs(file, node, n, source.path) for name, node in header["blobs"].items()}
        row_ids = file.numbers(header["row_ids"], n)
        schema = schema_of_text(header["schema"])
        blob_bytes = header.get("blob_bytes")  # files of earlier versions have none
        if blob_bytes is not None and (type(blob_bytes) is not int or blob_bytes < 0):
            raise ValueError(f"its header has {blob_bytes!r} for 'blob_bytes'"[:200])
        return cls(source, schema, row_ids, scalars, blobs, header["fingerprint"], file.path, blob_bytes=blob_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as a path, so that every process maps the same pages."""
        if self._file is None or not self._is_in(self._file):
            self._file = self._spill()
        return _reopened, (str(self._file), self._source, self._fingerprint)

    def _is_in(self, file: Path) -> bool:
        """Whether the file still holds these rows: someone may have saved another index under its name, or deleted it."""
        try:
            fingerprint: str = IndexFile(file).index_header()["fingerprint"]
        except (NotFoundError, ResumeError):
            return False
        return fingerprint == self._fingerprint

    def _spill(self) -> Path:
        handle, name = tempfile.mkstemp(prefix="lakehouse-", suffix=".idx")
        os.close(handle)
        path = Path(name)
        owner = os.getpid()

        def remove() -> None:
            if os.getpid() == owner:  # a forked child must not delete its parent's file
                with contextlib.suppress(OSError):
                    path.unlink()

        atexit.register(remove)
        self.save(path)
        return path

    # --- from Daft -----------------------------------------------------------------------------------------------------

    @classmethod
    def from_daft(cls, df: Any, *, table: Any = None) -> RowIndex:
        """An index of a Daft frame's rows, in the frame's order. Runs the frame.

        Args:
            df: a frame whose File columns come from `Snapshot.daft`, perhaps joined, filtered or enriched by UDFs.
            table: the Table or Snapshot whose ``blob_roots`` apply. None: references are read only from folders of Paimon
                tables on local disks; a frame of a table on a store needs its table, whose catalog has the keys.

        Raises:
            SchemaError: a frame without columns, or of a type that an index can't hold.
            NotFoundError: references outside of any Paimon table, and no ``table``.
        """
        from lakehouse.index.frame import frame_index

        return frame_index(df, table)


def _reopened(path: str, source: Source, fingerprint: str) -> RowIndex:
    file = IndexFile(path)
    if file.header["fingerprint"] != fingerprint:
        raise ResumeError(f"{path}: another index was saved under this name meanwhile; save each under a name of its own")
    return RowIndex._mapped(file, source)  # noqa: SLF001 - the unpickling half of RowIndex.__reduce__


__all__ = ["RowIndex", "Source", "table_fetcher"]
