"""The values of one BLOB column in the form that the engine takes: bytes, or descriptors that it copies as streams."""

from __future__ import annotations

import operator
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import FetchError, SchemaError, cause_line
from lakehouse.fetch import BlobRef
from lakehouse.upstream import is_local, local_path
from lakehouse.write.values import plain, same_family

# (reference, column) -> serialised descriptor, after checking that the source holds those bytes
Describe = Callable[[BlobRef, str], bytes]

_REF_FIELDS = {"uri", "offset", "length"}
_DAFT_FILE_FIELDS = {"url", "position", "size"}
_HEAD_BYTES = 9  # version and magic of a serialised descriptor
_KEPT_SIZES = 4096


def blob_array(values: Any, name: str, *, reference: bool, describe: Describe) -> pa.Array:
    """A BLOB column as ``large_binary``.

    Args:
        values: an Arrow array of bytes or references, or a list of bytes, BlobRefs and Daft Files.
        name: the column.
        reference: it is declared by reference, so it takes no bytes.
        describe: makes a descriptor of a reference.

    Raises:
        SchemaError: a value of another kind, or bytes that the engine would take for a descriptor.
        FetchError: a reference whose bytes are not there.
    """
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        return _from_python(values, name, reference, describe)
    array = plain(values, name)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.large_binary())
    if pa.types.is_struct(array.type):
        return _from_python(_struct_refs(array, name), name, reference, describe)
    if not same_family(array.type, pa.binary()):
        raise SchemaError(f"column {name}: got {array.type}, a BLOB takes binary, large_binary, or struct<uri, offset, length>")
    if reference and array.null_count < len(array):
        raise SchemaError(f"column {name} is declared by reference: it takes lh.BlobRef, not bytes")
    array = array.cast(pa.large_binary())
    for head in pc.unique(pc.binary_slice(array, 0, _HEAD_BYTES)).to_pylist() if len(array) else ():
        _refuse_descriptor(head, name)
    return array


def _from_python(values: Sequence[Any], name: str, reference: bool, describe: Describe) -> pa.Array:
    stored: list[bytes | None] = []
    for value in values:
        if value is None:
            stored.append(None)
        elif isinstance(value, BlobRef):
            stored.append(describe(value, name))
        elif any(kind.__name__ == "File" and kind.__module__.partition(".")[0] == "daft" for kind in type(value).__mro__):
            stored.append(describe(_file_ref(value), name))
        elif reference:
            raise SchemaError(f"column {name} is declared by reference: it takes lh.BlobRef, not {type(value).__name__}")
        elif isinstance(value, (bytes, bytearray, memoryview)):
            data = bytes(value)
            _refuse_descriptor(data[:_HEAD_BYTES], name)
            stored.append(data)
        else:
            raise SchemaError(
                f"column {name}: a BLOB takes bytes, or lh.BlobRef to store what a file holds; got {type(value).__name__}"
            )
    return pa.array(stored, pa.large_binary())


def _struct_refs(array: pa.StructArray, name: str) -> list[BlobRef | None]:
    fields = {item.name for item in array.type}
    if fields == _REF_FIELDS:
        keys = ("uri", "offset", "length")
    elif fields >= _DAFT_FILE_FIELDS:  # a Daft File column
        keys = ("url", "position", "size")
    else:
        raise SchemaError(f"column {name}: got {array.type}, a BLOB takes binary or struct<uri, offset, length>")
    refs: list[BlobRef | None] = []
    for value in array.to_pylist():
        if value is None or value[keys[0]] is None:
            refs.append(None)
            continue
        offset, length = value[keys[1]], value[keys[2]]
        refs.append(BlobRef(value[keys[0]], 0 if offset is None else offset, -1 if length is None else length))
    return refs


def _file_ref(file: Any) -> BlobRef:
    # Not `size()`, which opens the file with Daft's own credentials and cuts what was asked for to what is there.
    inner = getattr(file, "_inner", None)
    size = inner.size() if inner is not None and file.position is not None else None
    return BlobRef(str(file.path), int(file.position or 0), -1 if size is None else int(size))


def _refuse_descriptor(head: bytes | None, name: str) -> None:
    """Upstream opens the path that such bytes name and stores that file instead."""
    from pypaimon.table.row.blob import BlobDescriptor, BlobViewStruct, VideoFrameDescriptor

    if head is None or len(head) < _HEAD_BYTES:
        return
    # Whatever version stands before the magic: another release of the engine may follow another one.
    if int.from_bytes(head[1:], "little") in (BlobDescriptor.MAGIC, BlobViewStruct.MAGIC, VideoFrameDescriptor.MAGIC):
        raise SchemaError(
            f"column {name}: a value begins like a serialised blob descriptor, which the engine would follow instead of "
            "storing; to store a reference pass lh.BlobRef, to keep such bytes wrap them (a header of your own, or a zip)"
        )


class Describer:
    """Turns BlobRefs into the descriptors that the engine copies as streams, after checking that the bytes are there.

    The engine itself ends a copy at the end of a short source without an error.
    """

    def __init__(self, paimon: Any) -> None:
        self._paimon = paimon
        self._found: dict[str, tuple[str, int]] = {}  # by uri as given: where it is, and how many bytes

    def __call__(self, ref: BlobRef, column: str) -> bytes:
        """The serialised descriptor of ``ref`` with its length resolved.

        Raises:
            SchemaError: a reference whose parts are of other types.
            FetchError: the source is missing or shorter than the reference says.
        """
        from pypaimon.table.row.blob import BlobDescriptor

        try:
            given, offset, wanted = os.fspath(ref.uri), operator.index(ref.offset), operator.index(ref.length)
        except TypeError as error:
            raise SchemaError(f"column {column}: {ref!r} is no reference ({cause_line(error)})") from error
        if not isinstance(given, str) or not given or "\0" in given:
            raise SchemaError(f"column {column}: {ref!r} names no file or object")
        uri, size = self._look(given, column)
        length = size - offset if wanted == -1 else wanted
        if offset < 0 or length < 0 or offset + length > size:
            raise FetchError(
                f"column {column}: {uri} holds {size} bytes, the reference wants {offset}+{'end' if wanted == -1 else wanted}; "
                "nothing was written"
            )
        try:
            return bytes(BlobDescriptor(uri, offset, length).serialize())
        except UnicodeEncodeError as error:
            raise SchemaError(f"column {column}: {uri!r} is no UTF-8, which references are kept in; rename the file") from error

    def _look(self, given: str, column: str) -> tuple[str, int]:
        found = self._found.get(given)
        if found is None:
            try:
                found = _local_size(given) if is_local(given) else (given, self._remote_size(given))
            except Exception as error:
                raise FetchError(f"column {column}: can't read {given} ({cause_line(error)}); nothing was written") from error
            if len(self._found) >= _KEPT_SIZES:
                self._found.clear()
            self._found[given] = found
        return found

    def _remote_size(self, uri: str) -> int:
        reader = self._paimon.file_io.uri_reader_factory.create(uri)
        file_io = getattr(reader, "file_io", None)
        if file_io is None:
            raise ValueError("the engine reads it whole into memory; download it, and refer to the file")
        return int(file_io.get_file_size(uri))


def _local_size(given: str) -> tuple[str, int]:
    """The plain absolute path of a file, and its size."""
    path = local_path(given)
    # Daft and Paimon write paths into file URLs as they are, most others encode them. What exists decides.
    if given.lower().startswith("file:") and not path.exists():
        path = local_path(unquote(given))
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening shows that it may be read; a pipe would block
    try:
        status = os.fstat(handle)
    finally:
        os.close(handle)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is no regular file")
    return str(path.absolute()), status.st_size
