"""References of one BLOB column in a saved index: three arrays, and the uris that they number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.fetch import BlobRefs
from lakehouse.fetch.uris import Uris, absolute, relative
from lakehouse.index.mapped import let_go
from lakehouse.index.source import longest
from lakehouse.index.storage import IndexFile, IndexWriter

_PIECE_ROWS = 1 << 20
_LISTED_URIS = 4_096  # in the header; more are an array of their own, which is mapped


def write_refs(writer: IndexWriter, refs: BlobRefs, path: str) -> dict[str, Any]:
    """Write references; what `read_refs` needs, for the header.

    Args:
        writer: of the index.
        refs: of the column.
        path: the table's folder, to which uris are relative.
    """
    # The smallest types that hold the values: at most 24 bytes a row together with the row id, for files below 4 GiB each.
    fits = longest(refs) < 2**31
    return {
        "uris": _write_uris(writer, refs.uris, path),
        "uri_ids": writer.numbers(refs.uri_ids, np.int16 if len(refs.uris) < 2**15 else np.int32),
        "offsets": writer.numbers(refs.offsets, np.int64),
        "lengths": writer.numbers(refs.lengths, np.int32 if fits else np.int64),
    }


def read_refs(file: IndexFile, node: dict[str, Any], n: int, path: str) -> BlobRefs:
    """The references of ``n`` rows, mapped."""
    return BlobRefs(
        _read_uris(file, node["uris"], path),
        file.numbers(node["uri_ids"], n),
        file.numbers(node["offsets"], n),
        file.numbers(node["lengths"], n),
    )


def referenced_bytes(refs: BlobRefs) -> int:
    """As ``refs.total_bytes``, piece by piece: the arrays may be mapped from a file larger than memory."""
    total = 0
    for first in range(0, len(refs), _PIECE_ROWS):
        piece = refs.slice(first, first + _PIECE_ROWS)
        total += piece.total_bytes
        let_go(piece.uri_ids)
        let_go(piece.lengths)
    return total


def _write_uris(writer: IndexWriter, uris: Sequence[str], path: str) -> list[str] | dict[str, Any]:
    if isinstance(uris, Uris) and uris.path == path:
        return writer.array(uris.texts)
    texts = [relative(uri, path) for uri in uris]
    return texts if len(texts) <= _LISTED_URIS else writer.array(pa.array(texts, pa.large_string()))


def _read_uris(file: IndexFile, saved: list[str] | dict[str, Any], path: str) -> Sequence[str]:
    if isinstance(saved, dict):
        return Uris(file.array(saved, pa.large_string()), path)
    return tuple(absolute(uri, path) for uri in saved)
