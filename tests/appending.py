"""What the tests of `Table.append` share."""

from __future__ import annotations

import math
from datetime import timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh

UTC = timezone.utc
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("speed", pa.float64()), ("frame", pa.large_binary())])
ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a", "speed": 1.5, "frame": b"one"},
    {"id": 2, "name": None, "speed": math.inf, "frame": b""},
    {"id": 3, "name": "é", "speed": None, "frame": None},
]


@pytest.fixture
def table(catalog: lh.Catalog) -> lh.Table:
    return catalog.create_table("default.t", SCHEMA)


def contents(table: lh.Table, *columns: str) -> list[dict[str, Any]]:
    rows = table.latest().arrow(blobs="bytes").sort_by("id")
    return list((rows.select(columns) if columns else rows).to_pylist())


def files(warehouse: Path) -> set[Path]:
    """Data and manifest files; a table's schema is there before its first row."""
    return {path for path in warehouse.rglob("*") if path.is_file() and path.parent.name != "schema"}


def of_one_column(catalog: lh.Catalog, kind: pa.DataType, *, nullable: bool = True) -> lh.Table:
    return catalog.create_table("default.one", pa.schema([("id", pa.int64()), pa.field("v", kind, nullable=nullable)]))
