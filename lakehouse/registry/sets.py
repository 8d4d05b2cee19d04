"""TrainingSet and Registry: an index under a name and version, with everything that is needed to have the same rows again.

A training set is one row of the table ``lakehouse.training_sets``: what people want to know of it, and in a BLOB the row ids
(a Parquet file of one column), so that rebuilding does not depend on how a predicate is read in years to come. An index of a
Daft frame, whose rows and computed columns no table holds, is stored whole instead. Its snapshot is pinned by a tag.
"""

from __future__ import annotations

import getpass
import json
import random
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.errors import CommitError, CommitUnknownError, ConfigError, NotFoundError, ResumeError, SchemaError
from lakehouse.fetch import BlobRef
from lakehouse.index import RowIndex
from lakehouse.index.ids import read_ids, write_ids
from lakehouse.names import checked, training_set_tag
from lakehouse.query import query_of_rows
from lakehouse.registry.seen import Place, seen
from lakehouse.scan import Version
from lakehouse.schema import Columns
from lakehouse.upstream import write_tag
from lakehouse.write import Describer, Moved, Writer, latest_id, publish_on, to_batches

REGISTRY_TABLE = "lakehouse.training_sets"
_ON_BRANCH = "$branch_"
_NAME_CHARACTERS = 90  # with what a tag's name adds to it, within the 128 that any store takes
_ATTEMPTS = 100
_ROW_IDS, _WHOLE = "row_ids", "index"  # what the BLOB holds
SCHEMA = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("table", pa.string()),
        pa.field("table_uuid", pa.string()),
        pa.field("branch", pa.string()),
        pa.field("snapshot", pa.int64()),
        pa.field("snapshot_uuid", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("predicate", pa.string()),
        pa.field("columns", pa.list_(pa.string())),
        pa.field("split", pa.string()),
        pa.field("recipe", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("fingerprint", pa.string()),
        pa.field("created", pa.timestamp("us", "UTC")),
        pa.field("created_by", pa.string()),
        pa.field("description", pa.string()),
        pa.field("holds", pa.string()),
        pa.field("content", pa.large_binary()),
    ]
)


@dataclass(frozen=True)
class TrainingSet:
    """A saved training set. Made by `Catalog.save_training_set` and `Catalog.training_set`.

    Attributes:
        name: its name.
        version: 1, 2, ... in the order of saving under this name.
        table: ``database.table``.
        table_uuid: identity of the table.
        branch: of the table; None: main.
        snapshot: number of the snapshot that the rows are of.
        snapshot_uuid: identity of the snapshot.
        tag: the tag that keeps the snapshot readable.
        predicate: the query's predicate as text, for people.
        columns: the selected columns, in order.
        split: the rule of the split that the rows are a part of, as JSON; None: of none.
        recipe: how the rows were chosen, step by step, as JSON.
        rows: how many.
        bytes: bytes of the BLOBs that they refer to.
        fingerprint: of the index.
        created: when it was saved, in UTC.
        created_by: name of the user who did.
        description: what was said of it.
    """

    name: str
    version: int
    table: str
    table_uuid: str
    branch: str | None
    snapshot: int
    snapshot_uuid: str
    tag: str
    predicate: str
    columns: tuple[str, ...]
    split: str | None
    recipe: str
    rows: int
    bytes: int
    fingerprint: str
    created: datetime
    created_by: str
    description: str | None
    _catalog: Any = field(repr=False, compare=False)
    _holds: str = field(repr=False, compare=False)
    _content: BlobRef = field(repr=False, compare=False)

    def index(self) -> RowIndex:
        """The same rows again, in the same order, with the same fingerprint.

        Raises:
            NotFoundError: the table, branch or snapshot is gone.
            ResumeError: what is there now is another table, snapshot, or other rows; the text says which.
            FetchError: a ``.blob`` file is missing or damaged.
        """
        version = self._version()
        data = self._content.read(self._catalog.table(REGISTRY_TABLE))
        if self._holds == _WHOLE:
            with tempfile.TemporaryDirectory(prefix="lakehouse-set-") as folder:
                path = Path(folder) / "set.idx"
                path.write_bytes(data)
                index = RowIndex.load(path, self._catalog)
        else:
            row_ids = read_ids(data)
            ascending = np.unique(row_ids)
            index = query_of_rows(version, ascending, self.columns).index()
            if len(index) != len(ascending):
                gone = np.setdiff1d(ascending, index.row_ids)
                raise ResumeError(
                    f"{self}: {len(gone)} of {len(ascending)} rows are no longer in {version}, such as row id {int(gone[0])}"
                )
            if not np.array_equal(row_ids, ascending):
                index = index.take(np.searchsorted(ascending, row_ids))
            index = index.described(replace(index.source, where=self.predicate, recipe=self.recipe))
        if index.fingerprint != self.fingerprint:
            what = "columns have other types" if len(index) == self.rows else f"{len(index)} rows instead of {self.rows}"
            raise ResumeError(
                f"{self}: rebuilt from {version} it has fingerprint {index.fingerprint} instead of {self.fingerprint}: {what}, "
                "or its BLOBs lie in other files"
            )
        return index

    def seen(self, state: Mapping[str, Any], *, global_batch: int | None = None) -> RowIndex:
        """The rows that a model had trained on when its loader's state was saved, in the order of the index, each once.

        Args:
            state: what `Loader.state_dict` gave, of a loader over this set.
            global_batch: ``world * batch_size`` of a run with ``tail="drop"``, which leaves out up to that many rows at the end
                of each epoch: then those that no epoch took are left out here too. None: a complete epoch counts as all rows.

        Raises:
            ResumeError: the state is of another index, or malformed.
        """
        place = Place.of(state)
        if place.index != self.fingerprint:
            raise ResumeError(
                f"the state was saved with index {place.index}, {self} has {self.fingerprint}; "
                "catalog.rows_seen(state) finds the set"
            )
        positions = seen(place, self.rows, global_batch)
        return self.index().take(positions)

    def _version(self) -> Version:
        table = self._catalog.table(self.table)
        held = table if self.branch is None else table.branch(self.branch)
        try:
            version: Version = held.at(tag=self.tag).version
        except NotFoundError:
            version = held.at(snapshot=self.snapshot).version
        if version.uuid != self.table_uuid:
            raise ResumeError(f"{self}: {self.table} is another table than it was saved from: it was dropped and made again")
        if version.snapshot_uuid != self.snapshot_uuid:
            raise ResumeError(
                f"{self}: tag {self.tag} of {held.name} names another snapshot than {self.snapshot}, which it was saved from"
            )
        return version

    def __str__(self) -> str:
        return f"training set {self.name} version {self.version}"


class Registry:
    """The training sets of a catalog.

    Args:
        catalog: a `Catalog`.
    """

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog

    def save(self, name: str, index: RowIndex, description: str | None = None) -> TrainingSet:
        """See `Catalog.save_training_set`."""
        if not isinstance(index, RowIndex):
            raise SchemaError(
                f"save_training_set() takes a RowIndex, got {type(index).__name__}; of a mixture save each of its parts"
            )
        if len(checked(name, "training set")) > _NAME_CHARACTERS:
            raise ConfigError(f"{name!r} can't name a training set: use at most {_NAME_CHARACTERS} characters")
        if not isinstance(description, (str, type(None))):
            raise ConfigError(f"description is text, got {description!r}")
        version, held = self._source(index)
        registry = self._catalog.create_table(REGISTRY_TABLE, SCHEMA, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="lakehouse-set-") as folder:
            content = Path(folder) / "content"
            whole = any("frame" in step for step in index.recipe)
            if whole:
                index.save(content)
            else:
                write_ids(index.row_ids, content)
            row = _row(name, index, version, held.name, description, _WHOLE if whole else _ROW_IDS, content)
            for attempt in range(_ATTEMPTS):
                number = latest_id(registry.paimon)
                last = max((found.version for found in self.all() if found.name == name), default=0)
                tag = _pin(held, version, training_set_tag(name, last + 1))
                try:
                    _publish(registry.paimon, {**row, "version": last + 1, "tag": tag}, number)
                except Moved:
                    held.delete_tag(tag, force=True)
                    time.sleep(0.01 * 2 ** min(attempt, 6) * random.uniform(0.5, 1))
                    continue
                except CommitUnknownError:  # it may be saved, and then the tag is needed
                    raise
                except CommitError:
                    held.delete_tag(tag, force=True)
                    raise
                return self.get(name, last + 1)
        raise CommitError(f"training set {name}: {_ATTEMPTS} other sets were saved first; nothing was saved, try again")

    def get(self, name: str, version: int | None = None) -> TrainingSet:
        """See `Catalog.training_set`."""
        checked(name, "training set")
        known = self.all()
        found = [item for item in known if item.name == name and version in (None, item.version)]
        if found:
            return found[-1]
        if versions := [str(item.version) for item in known if item.name == name]:
            raise NotFoundError(f"training set {name} has no version {version!r}; versions: {', '.join(versions)}")
        names = ", ".join(dict.fromkeys(item.name for item in known)) or "none"
        raise NotFoundError(f"no training set {name!r}; training sets: {names}")

    def all(self) -> list[TrainingSet]:
        """See `Catalog.training_sets`."""
        try:
            registry = self._catalog.table(REGISTRY_TABLE)
        except NotFoundError:
            return []
        rows = registry.latest().arrow().to_pylist()
        found = [_training_set(row, self._catalog) for row in rows]
        return sorted(found, key=lambda item: (item.name, item.version))

    def seen(self, state: Mapping[str, Any], global_batch: int | None = None) -> RowIndex:
        """See `Catalog.rows_seen`."""
        place = Place.of(state)
        known = self.all()
        found = [item for item in known if item.fingerprint == place.index]
        if not found:
            sets = ", ".join(f"{item.name} version {item.version}" for item in known) or "none"
            raise NotFoundError(
                f"no training set has the state's index {place.index}; training sets: {sets}. (A mixture's state names no set.)"
            )
        return found[-1].seen(state, global_batch=global_batch)

    def _source(self, index: RowIndex) -> tuple[Version, Any]:
        """The version that an index was made from, and the table or branch that has it."""
        source = index.source
        if not source.table or source.snapshot_id is None:
            raise SchemaError(
                "save_training_set(): the index names no snapshot of a table, so nothing could keep its rows; make it from a "
                "query, or pass table= to from_daft"
            )
        base, _, branch = source.table.partition(_ON_BRANCH)
        table = self._catalog.table(base)
        held = table.branch(branch) if branch else table
        try:
            version: Version = held.at(snapshot=source.snapshot_id).version
        except NotFoundError:
            names = [tag for tag, number in held.tags().items() if number == source.snapshot_id]
            if not names:
                raise
            version = held.at(tag=names[0]).version
        if (version.uuid, version.snapshot_uuid) != (source.uuid, source.snapshot_uuid or version.snapshot_uuid):
            raise ResumeError(
                f"save_training_set(): the index is of another {source.table}@{source.snapshot_id} than this catalog has"
            )
        return version, held


def _row(
    name: str, index: RowIndex, version: Version, table: str, description: str | None, holds: str, content: Path
) -> dict[str, Any]:
    base, _, branch = table.partition(_ON_BRANCH)
    splits = [step for step in index.recipe if "split" in step]
    return {
        "name": name,
        "table": base,
        "table_uuid": version.uuid,
        "branch": branch or None,
        "snapshot": version.snapshot_id,
        "snapshot_uuid": version.snapshot_uuid,
        "predicate": index.where_text,
        "columns": list(index.columns),
        "split": json.dumps(splits[-1]) if splits else None,
        "recipe": json.dumps(index.recipe),
        "rows": len(index),
        "bytes": min(index.blob_bytes, 2**63 - 1),  # wrong references may claim more
        "fingerprint": index.fingerprint,
        "created": datetime.now(timezone.utc),
        "created_by": _user(),
        "description": description,
        "holds": holds,
        "content": BlobRef(str(content), 0, content.stat().st_size),
    }


def _training_set(row: dict[str, Any], catalog: Any) -> TrainingSet:
    content, holds = row.pop("content"), row.pop("holds")
    return TrainingSet(
        **{**row, "columns": tuple(row["columns"]), "predicate": row["predicate"] or ""},
        _catalog=catalog,
        _holds=holds,
        _content=BlobRef(content["uri"], content["offset"], content["length"]),
    )


def _pin(held: Any, version: Version, tag: str) -> str:
    """Tag the version's snapshot; the tag's name. Each saver has a tag of its own, and takes it away if another is first."""
    snapshot = version.snapshot
    for name in (tag, f"{tag}.{uuid.uuid4().hex[:8]}"):  # of one who was killed, or who is at it now
        if hasattr(snapshot, "trim_to_snapshot"):  # the snapshot itself has expired, and another tag keeps it
            made = write_tag(held.paimon, name, snapshot.trim_to_snapshot(), replace=False)
        else:
            made = name not in held.tags() and _tagged(held, name, int(snapshot.id))
        if made:
            return name
    raise CommitError(f"{version}: tag {tag!r} can't be made; try again")


def _tagged(held: Any, name: str, number: int) -> bool:
    try:
        held.tag(name, snapshot=number)
    except ConfigError:  # another saver was first
        return False
    return True


def _publish(paimon: Any, row: dict[str, Any], base: int | None) -> None:
    """Append one row, if the registry is still what the version number was worked out from."""
    columns = Columns.of(paimon)
    writer = Writer(paimon, columns)
    try:
        for batch in to_batches([row], columns, Describer(paimon)):
            writer.write(batch)
        messages = writer.finish()
    except BaseException:
        writer.abort()
        raise
    publish_on(paimon, messages, base, operation="append")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return "unknown"
