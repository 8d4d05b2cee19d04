"""An index of a Daft frame's rows, in the frame's order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.errors import ConfigError, NotFoundError, SchemaError
from lakehouse.fetch import BlobRefs
from lakehouse.index import RowIndex, Source
from lakehouse.references import refs_of

_ROW_ID = "_ROW_ID"
# Arrow's 32-bit string offsets reach this far in one array.
_MAX_STRING_BYTES = 2**31 - 1


def frame_index(df: Any, table: Any) -> RowIndex:
    """See `RowIndex.from_daft`."""
    if not (hasattr(df, "to_arrow") and hasattr(df, "column_names")):
        raise SchemaError(f"from_daft() takes a Daft frame, got {type(df).__name__}")
    data = df.to_arrow()
    if not data.num_columns:
        raise SchemaError("from_daft(): the frame has no columns")
    scalars: dict[str, pa.Array] = {}
    blobs: dict[str, BlobRefs] = {}
    fields = []
    row_ids = np.arange(data.num_rows)
    for name in data.column_names:
        array = data.column(name)
        joined = (
            array.chunk(0)
            if array.num_chunks == 1
            else pa.concat_arrays(array.chunks)
            if array.num_chunks
            else pa.array([], array.type)
        )
        storage = joined.storage if isinstance(joined, pa.ExtensionArray) else joined
        if pa.types.is_struct(storage.type) and {"url", "position", "size"} <= {item.name for item in storage.type}:
            blobs[name] = refs_of(storage)
            fields.append(pa.field(name, pa.large_binary()))
        elif isinstance(joined, pa.ExtensionArray):
            raise SchemaError(f"from_daft(): column {name} is {joined.type}, which an index can't hold; leave it out")
        elif name == _ROW_ID:
            row_ids = joined.to_numpy(zero_copy_only=False).astype(np.int64)
        else:
            kind = (
                pa.string() if pa.types.is_large_string(storage.type) and storage.nbytes < _MAX_STRING_BYTES else storage.type
            )
            scalars[name] = storage.cast(kind)
            fields.append(pa.field(name, kind))
    source = _frame_source(table, blobs)
    return RowIndex(source, pa.schema(fields), row_ids, scalars, blobs)


def _frame_source(table: Any, blobs: Mapping[str, BlobRefs]) -> Source:
    if table is not None:
        snapshot = table.latest() if hasattr(table, "latest") else table
        version = getattr(snapshot, "version", None)
        if version is None:
            raise ConfigError(f"from_daft(): table is a Table or a Snapshot, got {type(table).__name__}")
        return Source.of(version, recipe='[{"frame": true}]')
    folders = list(dict.fromkeys(_table_folder(uri) for refs in blobs.values() for uri in refs.uris))
    first = folders[0] if folders else ""
    return replace(Source("", "", None, first), roots=tuple(folders[1:]))


def _table_folder(uri: str) -> str:
    """The Paimon table that a file belongs to: the nearest folder above it that has schemas."""
    path = Path(uri.removeprefix("file://"))
    for parent in path.parents:
        if (parent / "schema" / "schema-0").is_file():
            return str(parent)
    raise NotFoundError(f"from_daft(): {uri} lies in no Paimon table's local folder; pass table=, whose keys apply")
