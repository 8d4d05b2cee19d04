"""Numbered rows: partition and bytes follow from the number, so that what is read says by itself whether it is right."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import lakehouse as lh

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("frame", pa.large_binary())])


def row(i: int) -> dict[str, Any]:
    """Row ``i``."""
    return {"id": i, "p": f"p{i % 2}", "frame": b"frame %d" % i}


def rows(*ids: int) -> list[dict[str, Any]]:
    """Rows of these numbers."""
    return [row(i) for i in ids]


def held(table: lh.Table | lh.Snapshot) -> list[int]:
    """The numbers of all rows, in order, once their bytes are right."""
    snapshot = table.latest() if isinstance(table, lh.Table) else table
    found = snapshot.arrow(blobs="bytes").sort_by("id").to_pylist()
    assert all(one["frame"] == row(one["id"])["frame"] for one in found)
    return [one["id"] for one in found]


def ids(table: lh.Table | lh.Snapshot) -> list[int]:
    """As `held`, and by all other ways of reading too."""
    snapshot = table.latest() if isinstance(table, lh.Table) else table
    found = held(snapshot)
    index = snapshot.query().index()
    assert sorted(index.column("id").to_pylist()) == sorted(snapshot.daft().to_pydict()["id"]) == found
    assert sorted(one["frame"].read(snapshot) for one in index) == sorted(row(i)["frame"] for i in found)
    assert snapshot.count_rows() == len(found)
    return found
