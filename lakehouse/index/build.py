"""Gathering a query's rows into an index: in memory while they are few, mapped from files when they are many.

Beyond `SPILL_ROWS` every chunk goes to temporary files, array by array, and the arrays of the index are mapped from them:
what is held in memory is one chunk, for any number of rows. Only nested columns (lists, structs, maps) are joined in
memory, one column at a time.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.fetch import BlobRefs
from lakehouse.index import RowIndex, Source
from lakehouse.index.mapped import let_go, map_file
from lakehouse.references import parse_descriptors

SPILL_ROWS = 2_000_000
_ROW_ID = "_ROW_ID"
# Arrow's 32-bit string offsets reach this far in one array.
_MAX_STRING_BYTES = 2**31 - 1
_PIECE_ROWS = 1 << 20  # a multiple of 8, so that pieces of bits end at a byte


def build_index(
    version: Any,
    chunks: Iterable[pa.Table],
    columns: Sequence[str],
    located: Mapping[str, Any],
    *,
    limit: int | None = None,
    where: str = "",
    recipe: Sequence[Mapping[str, Any]] = (),
) -> RowIndex:
    """Gather a query's rows.

    Args:
        version: what was queried.
        chunks: tables in ascending row id, with the columns that are not in ``located``, and ``_ROW_ID``.
        columns: which to keep, in order.
        located: for each BLOB column kept in ``.blob`` files, what finds its byte ranges.
        limit: at most so many rows.
        where: the predicate as text.
        recipe: how the rows were chosen, for `RowIndex.recipe`.
    """
    arrow = version.columns.arrow
    inline = {name for name in columns if name in version.columns.blobs and name not in located}
    store = _Store({name: arrow.field(name).type for name in columns if name not in located and name not in inline})
    left = limit
    for chunk in chunks:
        table = chunk if left is None else chunk.slice(0, left)
        row_ids = table.column(_ROW_ID).combine_chunks().to_numpy()
        store.add("row_ids", row_ids)
        for name in columns:
            if name in located:
                store.add_refs(name, *located[name].locate(row_ids))
            elif name in inline:
                store.add_descriptors(name, table.column(name).combine_chunks())
            else:
                store.add_column(name, table.column(name))
        store.rows += len(row_ids)
        if left is not None:
            left -= len(row_ids)
            if left <= 0:
                break
    uris = {
        name: store.uris(name) if name in inline else located[name].uris for name in columns if name in version.columns.blobs
    }
    source = Source.of(version, where, json.dumps(list(recipe)))
    schema = pa.schema([arrow.field(name) for name in columns])
    scalars = {name: store.column(name) for name in columns if name not in uris}
    blobs = {name: store.refs(name, uris[name]) for name in uris}
    return RowIndex(source, schema, store.numbers("row_ids", np.int64), scalars, blobs, keep=store)


class _Store:
    """Arrays under construction."""

    def __init__(self, kinds: Mapping[str, pa.DataType]) -> None:
        self.rows = 0
        self._kinds = kinds
        self._numbers: dict[str, list[npt.NDArray[Any]] | _File] = {}
        self._columns: dict[str, list[pa.Array] | _SpilledColumn] = {}
        self._uris: dict[str, dict[str, int]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def _spills(self) -> bool:
        if self._folder is None and self.rows > SPILL_ROWS:
            self._folder = tempfile.TemporaryDirectory(prefix="lakehouse-index-")
        return self._folder is not None

    def _path(self, name: str) -> Path:
        if self._folder is None:  # only asked for after `_spills`
            raise RuntimeError("the store has not spilled")
        # Names of columns can be anything; the position in a dict is a safe file name.
        return Path(self._folder.name) / f"{len(list(Path(self._folder.name).iterdir()))}-{abs(hash(name)):x}"

    def add(self, key: str, values: npt.NDArray[Any]) -> None:
        held = self._numbers.setdefault(key, [])
        if isinstance(held, list) and self._spills():
            file = _File(self._path(key))
            for part in held:
                file.append(part)
            held = self._numbers[key] = file
        held.append(values)

    def add_refs(self, name: str, uri_ids: Any, offsets: Any, lengths: Any) -> None:
        for part, values, dtype in (("ids", uri_ids, np.int32), ("offsets", offsets, np.int64), ("lengths", lengths, np.int64)):
            self.add(f"{part} of {name}", np.ascontiguousarray(values, dtype))

    def add_descriptors(self, name: str, column: pa.Array) -> None:
        refs = parse_descriptors(column)
        known = self._uris.setdefault(name, {})
        ids = np.array([known.setdefault(uri, len(known)) for uri in refs.uris] or [-1], np.int32)
        self.add_refs(name, np.where(refs.uri_ids < 0, -1, ids[refs.uri_ids]), refs.offsets, refs.lengths)

    def add_column(self, name: str, column: pa.ChunkedArray) -> None:
        held = self._columns.setdefault(name, [])
        if isinstance(held, list) and self._spills():
            spilled = _SpilledColumn(self._kinds[name], lambda: self._path(name))
            for part in held:
                spilled.append(part)
            held = self._columns[name] = spilled
        for part in column.chunks:
            held.append(part)

    def uris(self, name: str) -> tuple[str, ...]:
        return tuple(self._uris.get(name, {}))

    def numbers(self, key: str, dtype: Any) -> npt.NDArray[Any]:
        held = self._numbers.get(key, [])
        if isinstance(held, _File):
            return held.array(dtype)
        return np.concatenate(held) if held else np.empty(0, dtype)

    def refs(self, name: str, uris: tuple[str, ...]) -> BlobRefs:
        ids = self.numbers(f"ids of {name}", np.int32)
        return BlobRefs(uris, ids, self.numbers(f"offsets of {name}", np.int64), self.numbers(f"lengths of {name}", np.int64))

    def column(self, name: str) -> pa.Array:
        held = self._columns.get(name, [])
        return held.finish() if isinstance(held, _SpilledColumn) else joined(held, self._kinds[name])


def joined(chunks: list[pa.Array], kind: pa.DataType) -> pa.Array:
    """Chunks as one array; of strings beyond 2 GiB, as large strings."""
    if not chunks:
        return pa.array([], kind)
    if (pa.types.is_string(kind) or pa.types.is_binary(kind)) and sum(chunk.nbytes for chunk in chunks) > _MAX_STRING_BYTES:
        wide = pa.large_string() if pa.types.is_string(kind) else pa.large_binary()
        chunks = [chunk.cast(wide) for chunk in chunks]
    return pa.concat_arrays(chunks)


class _File:
    """A growing file of numbers, mapped when it is read."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._path = path

    def append(self, data: Any) -> None:
        self._file.write(data if isinstance(data, (bytes, pa.Buffer)) else memoryview(data).cast("B"))

    def buffer(self) -> pa.Buffer:
        self._file.close()
        return map_file(self._path)

    def array(self, dtype: Any) -> npt.NDArray[Any]:
        return np.frombuffer(self.buffer(), dtype)


class _SpilledColumn:
    """One Arrow column in files: values, lengths of strings, validity as one byte a row until the end."""

    def __init__(self, kind: pa.DataType, path: Any) -> None:
        self._kind = kind
        self._path = path
        self._rows = 0
        self._nulls = 0
        self._valid: _File | None = None
        self._text = pa.types.is_string(kind) or pa.types.is_binary(kind)
        self._nested: list[pa.Array] | None = [] if pa.types.is_nested(kind) else None
        self._values = _File(path())
        self._lengths = _File(path()) if self._text else None

    def append(self, part: pa.Array) -> None:
        if self._nested is not None:
            self._nested.append(part)
            return
        if part.null_count and self._valid is None:
            self._valid = _File(self._path())
            for start in range(0, self._rows, _PIECE_ROWS):
                self._valid.append(np.ones(min(_PIECE_ROWS, self._rows - start), np.uint8))
        if self._valid is not None:
            self._valid.append(part.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8))
        self._append_values(part)
        self._rows += len(part)
        self._nulls += part.null_count

    def _append_values(self, part: pa.Array) -> None:
        if not len(part):
            return
        if pa.types.is_boolean(self._kind):
            self._values.append(part.fill_null(fill_value=False).to_numpy(zero_copy_only=False).astype(np.uint8))
            return
        buffers = part.buffers()
        if self._lengths is not None:
            offsets = np.frombuffer(buffers[1], np.int32)[part.offset : part.offset + len(part) + 1]
            self._lengths.append(np.diff(offsets))
            if buffers[2] is not None:
                self._values.append(buffers[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
            return
        width = self._kind.bit_width // 8
        self._values.append(buffers[1].slice(part.offset * width, len(part) * width))

    def finish(self) -> pa.Array:
        if self._nested is not None:
            return joined(self._nested, self._kind)
        valid = None if self._valid is None else self._packed(self._valid)
        if pa.types.is_boolean(self._kind):
            return pa.Array.from_buffers(self._kind, self._rows, [valid, self._packed(self._values)], self._nulls)
        values = self._values.buffer()
        if self._lengths is None:
            return pa.Array.from_buffers(self._kind, self._rows, [valid, values], self._nulls)
        wide = values.size > _MAX_STRING_BYTES
        kind = self._kind
        if wide:
            kind = pa.large_string() if pa.types.is_string(kind) else pa.large_binary()
        return pa.Array.from_buffers(kind, self._rows, [valid, self._offsets(wide=wide), values], self._nulls)

    def _offsets(self, *, wide: bool) -> pa.Buffer:
        lengths = self._lengths.array(np.int32) if self._lengths is not None else np.empty(0, np.int32)
        dtype = np.int64 if wide else np.int32
        file = _File(self._path())
        file.append(np.zeros(1, dtype))
        total = 0
        for start in range(0, len(lengths), _PIECE_ROWS):
            piece = lengths[start : start + _PIECE_ROWS]
            ends = np.cumsum(piece, dtype=np.int64) + total
            let_go(piece)
            file.append(ends.astype(dtype))
            total = int(ends[-1])
        return file.buffer()

    def _packed(self, file: _File) -> pa.Buffer:
        bytes_each = file.array(np.uint8)
        packed = _File(self._path())
        for start in range(0, len(bytes_each), _PIECE_ROWS):
            piece = bytes_each[start : start + _PIECE_ROWS]
            packed.append(np.packbits(piece, bitorder="little"))
            let_go(piece)
        return packed.buffer()
