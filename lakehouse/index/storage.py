"""The file of a saved RowIndex: aligned buffers that are mapped, not read, and a small header at the end.

Layout, little endian: ``LHINDEX1``, buffers each aligned to 64 bytes, a JSON header, then ``[header length u32][crc32 of
the header u32]`` and ``LHINDEX1`` again. The header names each buffer by offset and length. Opening costs the same for any
number of rows. Nothing in it is ever executed or unpickled.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.errors import LakehouseError, NotFoundError, ResumeError, cause_line
from lakehouse.index.mapped import let_go, map_file

MAGIC = b"LHINDEX1"
_ALIGN = 64
_PIECE_VALUES = 1 << 20
_PIECE_BYTES = 1 << 23
_TAIL = struct.Struct("<II8s")
# What a header says of the index as a whole. The rest describes buffers, and is checked as they are mapped.
_HEADER: dict[str, type | tuple[type, ...]] = {
    "table": str,
    "uuid": str,
    "snapshot": (int, NoneType),
    "where": str,
    "fingerprint": str,
    "rows": int,
}
_ODD_VALUES = (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError, pa.ArrowException)
# A header holds names and buffer positions; a billion rows need no more of it than ten.
_MAX_HEADER_BYTES = 256 * 1024 * 1024


class IndexWriter:
    """Writes buffers one after the other, then the header; the file appears whole or not at all."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._target = Path(path)
        handle, name = tempfile.mkstemp(prefix=f".{self._target.name}.", dir=self._target.parent)
        self._temporary = Path(name)
        self._file: BinaryIO = os.fdopen(handle, "wb")
        self._file.write(MAGIC)

    def buffer(self, data: Any) -> list[int] | None:
        """Write one buffer; ``[offset, bytes]`` for the header."""
        if data is None:
            return None
        self._align()
        start = self._file.tell()
        whole = pa.py_buffer(data)
        for first in range(0, whole.size, _PIECE_BYTES):
            piece = whole.slice(first, min(_PIECE_BYTES, whole.size - first))
            self._file.write(piece)
            let_go(piece)
        return [start, self._file.tell() - start]

    def numbers(self, values: npt.NDArray[Any], dtype: Any) -> dict[str, Any]:
        """Write a numpy array as ``dtype``, in pieces: it may be mapped from a file larger than memory."""
        self._align()
        start = self._file.tell()
        for first in range(0, len(values), _PIECE_VALUES):
            piece = values[first : first + _PIECE_VALUES]
            self._file.write(pa.py_buffer(np.ascontiguousarray(piece, dtype)))
            let_go(piece)
        return {"dtype": np.dtype(dtype).str, "buffer": [start, self._file.tell() - start]}

    def _align(self) -> None:
        self._file.write(b"\0" * (-self._file.tell() % _ALIGN))

    def array(self, values: pa.Array) -> dict[str, Any]:
        """Write an Arrow array; its type goes into the header's schema."""
        if values.offset or _any_offset(values):
            values = pa.concat_arrays([values, values.slice(0, 0)]) if len(values) else values
            values = _unsliced(values)
        return self._node(values)

    def _node(self, values: pa.Array) -> dict[str, Any]:
        count = _own_buffers(values.type)
        return {
            "length": len(values),
            "nulls": values.null_count,
            "buffers": [self.buffer(part) for part in values.buffers()[:count]],
            "children": [self._node(child) for child in _children(values)],
        }

    def finish(self, header: dict[str, Any]) -> None:
        """Write the header and put the file in its place."""
        packed = json.dumps(header).encode()
        self._file.write(packed)
        self._file.write(_TAIL.pack(len(packed), zlib.crc32(packed), MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self._target)

    def abort(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._temporary.unlink()


def _any_offset(values: pa.Array) -> bool:
    return any(child.offset or _any_offset(child) for child in _children(values))


def _unsliced(values: pa.Array) -> pa.Array:
    """A copy whose buffers begin at its first value, at every depth: Arrow IPC writes them so."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([pa.field("v", values.type)])) as writer:
        writer.write_batch(pa.record_batch([values], names=["v"]))
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch().column(0)


def _children(values: pa.Array) -> list[pa.Array]:
    kind = values.type
    if pa.types.is_map(kind):
        return [pa.StructArray.from_arrays([values.keys, values.items], fields=[kind.key_field, kind.item_field])]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [values.values]
    if pa.types.is_struct(kind):
        return [values.field(i) for i in range(kind.num_fields)]
    return []


def _own_buffers(kind: pa.DataType) -> int:
    """How many buffers belong to the array itself and not to its children."""
    if pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind):
        return 1
    if any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)):
        return 3
    return 2


def _child_types(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(kind):
        return [pa.struct([kind.key_field, kind.item_field])]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [kind.value_type]
    if pa.types.is_struct(kind):
        return [item.type for item in kind]
    return []


class IndexFile:
    """A saved index, mapped into memory.

    Raises:
        NotFoundError: no such file.
        ResumeError: not an index, cut short, damaged, or of a newer format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        try:
            self._whole = map_file(self.path)
        except FileNotFoundError as error:
            raise NotFoundError(f"no saved index at {self.path}") from error
        except OSError as error:
            raise ResumeError(f"{self.path}: can't be opened as a saved index ({cause_line(error)})") from error
        self.header = self._read_header()

    def _read_header(self) -> dict[str, Any]:
        size = self._whole.size
        if size < len(MAGIC) + _TAIL.size or self._whole.slice(0, len(MAGIC)).to_pybytes() != MAGIC:
            raise self._damaged("it is not one, or was cut short")
        length, checksum, magic = _TAIL.unpack(self._whole.slice(size - _TAIL.size).to_pybytes())
        if magic != MAGIC or length > min(_MAX_HEADER_BYTES, size - _TAIL.size - len(MAGIC)):
            raise self._damaged("it was cut short")
        packed = self._whole.slice(size - _TAIL.size - length, length).to_pybytes()
        if zlib.crc32(packed) != checksum:
            raise self._damaged("its header's checksum does not match")
        header: Any = None
        with self.read_whole():
            header = json.loads(packed)
            saved_format = header.get("format")
        if saved_format != 1:
            raise ResumeError(
                f"{self.path}: saved in format {saved_format}, this version reads format 1; upgrade lakehouse-sdk"
            )
        return dict(header)

    def index_header(self) -> dict[str, Any]:
        """The header, once what it says of the index as a whole is of the right kind."""
        for name, kinds in _HEADER.items():
            value = self.header.get(name)
            if name not in self.header or not isinstance(value, kinds) or isinstance(value, bool):
                raise self._damaged(f"its header has {value!r} for {name!r}"[:200])
        return self.header

    @contextlib.contextmanager
    def read_whole(self) -> Iterator[None]:
        """What goes wrong with the header's values inside is told as damage: they may be anything, checksum or not."""
        try:
            yield
        except LakehouseError:
            raise
        except _ODD_VALUES as error:
            raise self._damaged(cause_line(error)) from error

    def _damaged(self, what: str) -> ResumeError:
        return ResumeError(f"{self.path}: not a whole saved index: {what}; save it again from its query")

    def _buffer(self, place: list[int] | None) -> pa.Buffer | None:
        if place is None:
            return None
        offset, length = place
        if not (offset >= 0 and length >= 0 and offset + length <= self._whole.size):
            raise self._damaged("a buffer lies outside the file")
        return self._whole.slice(offset, length)

    def numbers(self, node: dict[str, Any], length: int) -> npt.NDArray[Any]:
        """A numpy array of ``length`` values, mapped."""
        dtype = np.dtype(node["dtype"])
        buffer = self._buffer(node["buffer"])
        if dtype.kind not in "iu" or buffer is None or buffer.size != length * dtype.itemsize:
            raise self._damaged("an array has another length than the index")
        return np.frombuffer(buffer, dtype)

    def array(self, node: dict[str, Any], kind: pa.DataType) -> pa.Array:
        """An Arrow array, mapped."""
        array = self._array(node, kind)
        try:
            array.validate()
        except pa.ArrowInvalid as error:
            raise self._damaged(cause_line(error)) from error
        return array

    def _array(self, node: dict[str, Any], kind: pa.DataType) -> pa.Array:
        buffers = [self._buffer(place) for place in node["buffers"]]
        types = _child_types(kind)
        if len(types) != len(node["children"]) or len(buffers) != _own_buffers(kind):
            raise self._damaged("a column has another type than the header says")
        children = [self._array(child, inner) for child, inner in zip(node["children"], types, strict=True)]
        return pa.Array.from_buffers(kind, node["length"], buffers, node["nulls"], 0, children)


def schema_text(schema: pa.Schema) -> str:
    """A schema as text for the header."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of_text(text: str) -> pa.Schema:
    """The schema that `schema_text` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
