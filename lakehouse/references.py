"""References to BLOBs in the forms that they travel in: Arrow structs, Daft's File layout, Paimon's descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.fetch import BlobRefs

REF_TYPE = pa.struct([pa.field("uri", pa.string()), pa.field("offset", pa.int64()), pa.field("length", pa.int64())])
FILE_TYPE = pa.struct(
    [
        pa.field("url", pa.large_string()),
        pa.field("io_config", pa.large_binary()),
        pa.field("position", pa.int64()),
        pa.field("size", pa.int64()),
    ]
)


def ref_structs(uris: Sequence[str], uri_ids: Any, offsets: Any, lengths: Any) -> pa.StructArray:
    """References as ``struct<uri, offset, length>``, null for ``uri_id`` -1."""
    null = np.asarray(uri_ids) < 0
    names = pa.DictionaryArray.from_arrays(pa.array(uri_ids, pa.int32(), mask=null), pa.array(list(uris), pa.string()))
    return pa.StructArray.from_arrays(
        [names.cast(pa.string()), pa.array(offsets, pa.int64()), pa.array(lengths, pa.int64())],
        fields=list(REF_TYPE),
        mask=pa.array(null),
    )


def inline_structs(column: pa.Array) -> pa.Array:
    """Serialised descriptors, alone or in lists and maps, as references."""
    kind = column.type
    if pa.types.is_list(kind):
        values = inline_structs(column.flatten())
        return pa.ListArray.from_arrays(_offsets(column), values, mask=column.is_null())
    if pa.types.is_map(kind):
        entries = [None if row is None else [(key, value) for key, value in row] for row in column.to_pylist()]
        flat = [value for row in entries if row is not None for _, value in row]
        refs = iter(inline_structs(pa.array(flat, pa.large_binary())).to_pylist())
        linked = [None if row is None else [(key, next(refs)) for key, _ in row] for row in entries]
        return pa.array(linked, pa.map_(kind.key_type, REF_TYPE))
    refs_ = parse_descriptors(column)
    return ref_structs(refs_.uris, refs_.uri_ids, refs_.offsets, refs_.lengths)


def _offsets(column: pa.ListArray) -> pa.Array:
    """Offsets into ``column.flatten()``, which leaves out what null lists hold."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def file_structs(uris: Sequence[str], uri_ids: Any, offsets: Any, lengths: Any) -> pa.StructArray:
    """References in the layout of Daft's File; the place for credentials stays null."""
    null = uri_ids < 0
    names = pa.DictionaryArray.from_arrays(pa.array(uri_ids, pa.int32(), mask=null), pa.array(list(uris), pa.large_string()))
    return pa.StructArray.from_arrays(
        [
            names.cast(pa.large_string()),
            pa.nulls(len(uri_ids), pa.large_binary()),
            pa.array(offsets, pa.int64()),
            pa.array(lengths, pa.int64()),
        ],
        fields=list(FILE_TYPE),
        mask=pa.array(null),
    )


def refs_of(structs: pa.StructArray) -> BlobRefs:
    """``struct<uri, offset, length>`` (or Daft's File layout) as references."""
    names = {item.name for item in structs.type}
    uri, offset, length = ("uri", "offset", "length") if "uri" in names else ("url", "position", "size")
    encoded = structs.field(uri).dictionary_encode()
    valid = structs.is_valid().to_numpy(zero_copy_only=False) & structs.field(uri).is_valid().to_numpy(zero_copy_only=False)
    uri_ids = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype("int32")
    uri_ids[~valid] = -1
    return BlobRefs(
        tuple(encoded.dictionary.to_pylist()),
        uri_ids,
        structs.field(offset).fill_null(0).to_numpy(zero_copy_only=False),
        structs.field(length).fill_null(0).to_numpy(zero_copy_only=False),
    )


def parse_descriptors(column: pa.Array) -> BlobRefs:
    """Serialised descriptors (as `read` gives an inline column) to references, null for null."""
    from pypaimon.table.row.blob import BlobDescriptor

    uris: dict[str, int] = {}
    uri_ids = np.full(len(column), -1, np.int32)
    offsets = np.zeros(len(column), np.int64)
    lengths = np.zeros(len(column), np.int64)
    for i, value in enumerate(column.to_pylist()):
        if value is None:
            continue
        descriptor = BlobDescriptor.deserialize(value)
        uri_ids[i] = uris.setdefault(descriptor.uri, len(uris))
        offsets[i] = descriptor.offset
        lengths[i] = descriptor.length
    return BlobRefs(tuple(uris), uri_ids, offsets, lengths)
