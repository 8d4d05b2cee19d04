"""Disk full, no permission: a clear error, nothing committed, nothing left behind, and the next writer succeeds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from tests.lake_files import folder_of
from tests.stress.child import in_child, let_files_grow_to, obey_permissions
from tests.stress.lake import SCHEMA, held, made, orphans, rows

ROOT = Path(__file__).parent.parent


def _append_with_limit(warehouse: Path, first: int, size_bytes: int) -> str | None:
    table = made(warehouse, "default.t")
    let_files_grow_to(size_bytes)
    try:
        table.append(rows(range(first, first + 6)))
    except lh.CommitError as error:
        return str(error)
    return None


def test_files_that_may_not_grow(warehouse: Path) -> None:
    """The limit meets BLOB files first, then row files, manifests, lists of manifests, and the snapshot at last."""
    table = made(warehouse, "default.t")
    table.append(rows(range(6)))
    committed, failed = 6, set()
    for size_bytes in (16, 200, 900, 1000, 1100, 1200, 1400, 1600, 1800, 2000, 2200, 2400, 2800, 3200, 4000):
        error = in_child(_append_with_limit, warehouse, committed, size_bytes)
        if error is None:
            committed += 6
        else:
            assert "default.t: " in error
            assert "nothing was committed" in error
            assert "File too large" in error
            failed.add(size_bytes)
        assert held(table) == rows(range(committed))
        assert orphans(table) == set(), (size_bytes, error)
    assert len(failed) > 3
    assert committed > 6
    table.append(rows(range(committed, committed + 3)))
    assert held(table) == rows(range(committed + 3))


def test_a_full_disk(tmp_path: Path) -> None:
    command = ["unshare", "--mount", "--propagation", "private"]
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "mount", "-t", "tmpfs", "none", str(disk)], check=False, capture_output=True).returncode
    ):
        pytest.skip("this system lets us mount no disk of our own")
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.stress.full_disk", str(disk)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    happened = json.loads(done.stdout.splitlines()[-1])
    assert happened["failed"] > 3
    assert happened["committed"] > 3


def _append_and_lose_permission(warehouse: Path, folder: str) -> str | None:
    obey_permissions()
    table = made(warehouse, "default.t")
    place = folder_of(table) / folder

    def interrupted() -> Iterator[pa.Table]:
        yield pa.Table.from_pylist(rows(range(6, 9)), schema=SCHEMA)
        place.chmod(0o555)
        yield pa.Table.from_pylist(rows(range(9, 12)), schema=SCHEMA)

    try:
        table.append(interrupted())
    except lh.CommitError as error:
        return str(error)
    finally:
        place.chmod(0o755)
    return None


@pytest.mark.parametrize("folder", ["channel=C0/bucket-0", "manifest", "snapshot"])
def test_permission_lost_in_the_middle(warehouse: Path, folder: str) -> None:
    table = made(warehouse, "default.t")
    table.append(rows(range(6)))
    error = in_child(_append_and_lose_permission, warehouse, folder)
    assert error is not None
    assert "nothing was committed" in error
    assert "Permission denied" in error
    assert held(table) == rows(range(6))
    left = orphans(table)
    assert {path.parent for path in left} <= {folder_of(table) / folder}  # where nothing may be deleted either
    assert not any(path.name.startswith("snapshot-") for path in left)
    table.append(rows(range(6, 12)))
    assert held(table) == rows(range(12))


def _in_read_only(warehouse: Path, what: str) -> str | None:
    obey_permissions()
    table = lh.connect(warehouse=str(warehouse)).table("default.t")
    changes: dict[str, Any] = {"append": lambda: table.append(rows(range(3))), "tag": lambda: table.tag("t")}
    folders = [folder_of(table), *(path for path in folder_of(table).rglob("*") if path.is_dir())]
    for place in folders:
        place.chmod(0o555)
    try:
        changes[what]()
    except lh.CommitError as error:
        return str(error)
    finally:
        for place in folders:
            place.chmod(0o755)
    return None


@pytest.mark.parametrize("what", ["append", "tag"])
def test_a_read_only_table(warehouse: Path, what: str) -> None:
    table = made(warehouse, "default.t")
    table.append(rows(range(6)))
    error = in_child(_in_read_only, warehouse, what)
    assert error is not None
    assert "Permission denied" in error
    assert held(table) == rows(range(6))
    assert table.tags() == {}
    assert orphans(table) == set()
