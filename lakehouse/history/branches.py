"""The files that make a branch: written so that it appears whole or not at all, and taken away so that it goes at once."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lakehouse.durable import publish_file, sync_files
from lakehouse.served import ServedBranches
from lakehouse.upstream import is_local, is_served, local_path

_PREFIX = "branch-"


def write_branch(
    paimon: Any, name: str, snapshot: Any, *, latest: bool = False, more: Mapping[str, str] = MappingProxyType({})
) -> bool:
    """Make a branch that begins with a snapshot's content. False when the name is taken.

    Upstream makes an empty one where no tag is given, and can't begin at a tag whose snapshot has expired.

    Args:
        paimon: the table's handle.
        name: of the branch, checked.
        snapshot: a pypaimon snapshot; None: the branch begins empty, as the table is.
        latest: with the table's present columns, also those that no snapshot has yet; else with the snapshot's.
        more: further files, by path below the branch's folder.

    Raises:
        OSError: the store refuses.
    """
    from pypaimon.common.json_util import JSON

    root = str(paimon.table_path).rstrip("/")
    folder = f"{root}/branch"
    if is_served(paimon):
        if not ServedBranches(paimon).write(name, snapshot):
            return False
        for path, text in more.items():
            paimon.file_io.write_file(f"{folder}/{_PREFIX}{name}/{path}", text, True)
        return True
    last = paimon.schema_manager.latest().id if snapshot is None or latest else snapshot.schema_id
    schemas = [f"schema/schema-{number}" for number in range(last + 1)]
    files = {path: paimon.file_io.read_file_utf8(f"{root}/{path}") for path in schemas} | dict(more)
    if snapshot is not None:
        plain = snapshot.trim_to_snapshot() if hasattr(snapshot, "trim_to_snapshot") else snapshot
        files |= {f"snapshot/{hint}": str(snapshot.id) for hint in ("EARLIEST", "LATEST")}
        files[f"snapshot/snapshot-{snapshot.id}"] = JSON.to_json(plain, indent=2)
    if not is_local(folder):
        return name not in paimon.branch_manager().branches() and _stored(paimon, f"{folder}/{_PREFIX}{name}", files)
    target = local_path(folder) / f"{_PREFIX}{name}"
    if target.exists():
        return False
    hidden = _hidden(target)
    try:
        for path, text in files.items():
            publish_file(hidden / path, text)
        return _moved(hidden, target)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _stored(paimon: Any, folder: str, files: Mapping[str, str]) -> bool:
    """On object stores, which know no renaming: the first file claims the name, the snapshot comes last."""
    first, *others = files
    if not paimon.file_io.try_to_write_atomic(f"{folder}/{first}", files[first]):
        return False
    for path in others:
        paimon.file_io.write_file(f"{folder}/{path}", files[path], True)
    return True


def remove_branch(paimon: Any, name: str) -> None:
    """Take a branch away; the data files that only it used are left for orphan removal.

    Raises:
        OSError: the store refuses.
    """
    folder = f"{str(paimon.table_path).rstrip('/')}/branch"
    if is_served(paimon):
        ServedBranches(paimon).remove(name)
        return
    if not is_local(folder):
        paimon.branch_manager().drop_branch(name)
        return
    target = local_path(folder) / f"{_PREFIX}{name}"
    hidden = _hidden(target)
    target.rename(hidden)  # at once: no half of it can be opened
    shutil.rmtree(hidden, ignore_errors=True)  # what is left of it is an orphan


def _hidden(target: Path) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")


def _moved(source: Path, target: Path) -> bool:
    try:
        source.rename(target)
    except OSError:
        if target.exists():  # another process was first
            return False
        raise
    sync_files([target.parent])
    return True


def same_schemas(main: Any, branch: Any) -> bool:
    """Whether two handles have the same schemas, each of them, in the same order."""
    last = main.schema_manager.latest().id
    if branch.schema_manager.latest().id != last:
        return False
    return all(_content(main, number) == _content(branch, number) for number in range(last + 1))


def _content(paimon: Any, number: int) -> tuple[Any, ...]:
    schema = paimon.schema_manager.get_schema(number)
    fields = [(item.id, item.name, str(item.type)) for item in schema.fields]
    return fields, list(schema.partition_keys), dict(schema.options)
