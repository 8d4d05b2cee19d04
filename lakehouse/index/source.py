"""Where an index's rows are from, the fingerprint that tells them from any others, and what reads their bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.errors import NotFoundError
from lakehouse.fetch import BlobRefs, Fetcher, TableFetcher
from lakehouse.fetch.uris import relative
from lakehouse.index.mapped import let_go
from lakehouse.stores import Store

# Rows handled at once where all rows of a mapped array are read.
_PIECE_ROWS = 1 << 20


@dataclass(frozen=True)
class Source:
    """Which version an index was made from.

    Attributes:
        table: ``database.table``, with ``$branch_x`` on a branch; empty for a frame that names none.
        uuid: identity of the table.
        snapshot_id: its number.
        path: the table's folder, to which saved uris are relative.
        roots: where references outside that folder may point.
        where: the query's predicate as text, for people.
        snapshot_uuid: identity of the snapshot; empty where there is none, or an older file does not say.
        recipe: how the rows were chosen, step by step, as JSON for people; see `RowIndex.recipe`.
        store: reads what is not on a local disk; None: nothing does.
    """

    table: str
    uuid: str
    snapshot_id: int | None
    path: str
    roots: tuple[str, ...] = ()
    where: str = ""
    snapshot_uuid: str = ""
    recipe: str = "[]"
    store: Store | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, version: Any, where: str = "", recipe: str = "[]") -> Source:
        """A version's."""
        names = ("uuid", "snapshot_id", "path", "roots", "snapshot_uuid", "store")
        return cls(table=version.name, where=where, recipe=recipe, **{name: getattr(version, name) for name in names})

    def then(self, **step: Any) -> Source:
        """The same source with one more step of its recipe."""
        return replace(self, recipe=json.dumps([*json.loads(self.recipe), step]))


def fingerprint_of(source: Source, schema: pa.Schema, row_ids: npt.NDArray[np.int64], blobs: Mapping[str, BlobRefs]) -> str:
    """sha256 over format, table, snapshot, columns, row ids and the files used, in pieces: the arrays may be mapped."""
    digest = hashlib.sha256(b"lakehouse-index-1\0")
    digest.update(f"{source.uuid}\0{source.snapshot_id}\0{source.snapshot_uuid}\0".encode())
    for item in schema:
        digest.update(f"{item.name}\0{item.type}\0".encode())
    for start in range(0, len(row_ids), _PIECE_ROWS):
        piece = row_ids[start : start + _PIECE_ROWS]
        digest.update(pa.py_buffer(np.ascontiguousarray(piece, "<i8")))
        let_go(piece)
    for name in schema.names:
        if name in blobs:
            refs = blobs[name]
            used: set[int] = set()
            for start in range(0, len(refs), _PIECE_ROWS):
                ids = refs.uri_ids[start : start + _PIECE_ROWS]
                used.update(np.unique(ids).tolist())
                let_go(ids)
            for uri in sorted(relative(refs.uris[i], source.path) for i in used - {-1}):
                digest.update(f"{name}\0{uri}\0".encode())
    return f"sha256:{digest.hexdigest()}"


def longest(refs: BlobRefs) -> int:
    """The largest length, 0 where there is none."""
    most = 0
    for start in range(0, len(refs), _PIECE_ROWS):
        lengths = refs.lengths[start : start + _PIECE_ROWS]
        most = max(most, int(lengths.max()))
        let_go(lengths)
    return most


def version_of(catalog: Any, name: str, number: int | None, file: Path) -> Any:
    """The version that an index was made from; by a tag where its snapshot has expired."""
    base, _, branch = name.partition("$branch_")
    if number is not None:
        catalog.foresee(base, branch or None, number)
    held = catalog.table(base)
    if branch:
        held = held.branch(branch)
    if number is None:
        return held.latest().version
    try:
        return held.opened_at(number).version
    except NotFoundError as error:
        names = [tag for tag, target in held.tags().items() if target == number]
        if names:
            return held.at(tag=names[0]).version
        raise NotFoundError(
            f"{file}: made from snapshot {number} of {held.name}, which has expired and has no tag; {error}"
        ) from error


def table_fetcher(origin: Any) -> Fetcher:
    """What reads the BLOBs of a `Source` or a version."""
    return TableFetcher(origin.path, origin.roots, remote=None if origin.store is None else origin.store.fetcher())
