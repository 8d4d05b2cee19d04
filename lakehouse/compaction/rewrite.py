"""Writing chosen rows of file groups into new files, one group after the other."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.compaction.blobcopy import copy_column
from lakehouse.compaction.ids import Ids
from lakehouse.compaction.plan import Bin
from lakehouse.compaction.rowfile import RowFile, blob_meta
from lakehouse.compaction.state import Source
from lakehouse.errors import CommitError, LakehouseError, cause_line
from lakehouse.scan import ROW_ID, Groups, Locator, Version, read


@dataclass(frozen=True, eq=False)
class NewGroup:
    """A file group that was written and that no snapshot names yet.

    Attributes:
        partition: values of the partition columns, as the manifest's entries hold them.
        bucket, total_buckets: of the groups it comes from.
        files: metadata of each file, and where in the group its rows begin.
        rows: how many.
        first_row_id: the rows' first id where they keep theirs; None: to be given when it is published.
    """

    partition: Any
    bucket: int
    total_buckets: int
    files: tuple[tuple[Any, int], ...]
    rows: int
    first_row_id: int | None


@dataclass(eq=False)
class Written:
    """What a rewrite made.

    Attributes:
        groups: the new groups.
        reused: names of old ``.blob`` files that stay as they are.
        paths: every file that was begun.
        bytes: of the new files.
    """

    paimon: Any
    groups: list[NewGroup] = field(default_factory=list)
    reused: set[str] = field(default_factory=set)
    paths: list[str] = field(default_factory=list)
    bytes: int = 0

    def discard(self) -> None:
        """Delete what was written. Never raises: it also runs while another error is on its way."""
        for path in self.paths:
            self.paimon.file_io.delete_quietly(path)


def rewrite(
    version: Version,
    sources: Sequence[Source],
    bins: Iterable[Bin],
    entries: dict[str, Any],
    target_bytes: int,
    done: Callable[[int], None],
) -> Written:
    """Write each bin into files of its own.

    Args:
        version: whose rows, and whose schema the new files have.
        sources: the groups that bins count by position, in ascending row id.
        bins: which rows.
        entries: the version's manifest entries by file name.
        target_bytes: a ``.blob`` file is ended once it has this many.
        done: told of bytes as they are written.

    Raises:
        FetchError: an old file is missing or short.
        CommitError: a file can't be written; nothing of it is left.
    """
    written = Written(version.paimon)
    try:
        for one in bins:
            chosen = [sources[i] for i in one.items]
            _Rewriter(version, chosen, one, entries, target_bytes, done, written).run()
    except BaseException as error:
        written.discard()
        if isinstance(error, LakehouseError) or not isinstance(error, Exception):
            raise
        raise CommitError(
            f"{version}: files can't be rewritten ({cause_line(error)}); nothing was committed, trying again is safe"
        ) from error
    return written


class _Rewriter:
    def __init__(
        self,
        version: Version,
        sources: Sequence[Source],
        one: Bin,
        entries: dict[str, Any],
        target_bytes: int,
        done: Callable[[int], None],
        written: Written,
    ) -> None:
        self._version = version
        self._paimon = version.paimon
        self._groups = Groups(tuple(source.group for source in sources))
        self._sources = sources
        self._bin = one
        self._entry = entries[min(sources[0].files)]
        self._target_bytes = target_bytes
        self._done = done
        self._written = written
        columns = version.columns
        self._in_files = [name for name in columns.blobs if name not in columns.inline]
        self._schema = pa.schema([item for item in columns.arrow if item.name not in set(self._in_files)])

    def run(self) -> None:
        if self._bin.keep_ids and len(self._bin.ids.ranges) != 1:
            raise ValueError(f"rows keep their ids only as one unbroken range, got {self._bin.ids}")
        files = [(self._rows(), 0)]
        for name in self._in_files:
            files += self._blobs(name)
        self._written.bytes += sum(meta.file_size for meta, _ in files)
        first = self._bin.ids.ranges[0][0] if self._bin.keep_ids else None
        entry = self._entry
        self._written.groups.append(
            NewGroup(entry.partition, entry.bucket, entry.total_buckets, tuple(files), len(self._bin.ids), first)
        )

    def _rows(self) -> Any:
        file = RowFile(self._paimon, self._new_path("parquet"), self._schema)
        finished = False
        try:
            at = 0
            for batch in read(self._version, self._groups, self._schema.names):
                ids = batch.column(ROW_ID).to_numpy()
                wanted = self._bin.ids.holds(ids)
                kept = batch if wanted.all() else batch.filter(pa.array(wanted))
                found = ids[wanted]
                if not np.array_equal(found, self._bin.ids.take(at, at + len(found))):
                    raise CommitError(f"{self._version}: the reader gave other rows than were planned from row {at} on")
                at += len(found)
                if len(found):
                    columns = [kept.column(name).cast(self._schema.field(name).type) for name in self._schema.names]
                    file.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))
            if at != len(self._bin.ids):
                raise CommitError(f"{self._version}: the reader gave {at} of {len(self._bin.ids)} rows; nothing was committed")
            meta = file.finish()
            finished = True
        finally:
            if not finished:
                with contextlib.suppress(Exception):
                    file.abort()
        self._done(meta.file_size)
        return meta

    def _blobs(self, name: str) -> list[tuple[Any, int]]:
        kept = self._reusable(name)
        made: list[tuple[Any, int]] = []
        locator = Locator(self._version, self._groups, name)
        for part, start in self._between(kept):
            for path, _size, position, rows in copy_column(locator, part, self._target_bytes, self._new_blob, self._done):
                made.append((blob_meta(self._paimon, path, name, rows), start + position))
        self._written.reused.update(file.file_name for file in kept)
        return made

    def _reusable(self, name: str) -> list[Any]:
        """Files of a column that can stay: rows keep their ids, all of them are live, and no other file has their values."""
        if not self._bin.keep_ids:
            return []
        first, stop = self._bin.ids.ranges[0]
        files = [
            file
            for group in self._groups.groups
            for file in group.split.files
            if file.file_name.endswith(".blob") and file.write_cols == [name]
        ]
        files.sort(key=lambda file: (file.first_row_id, file.row_count))
        alone = len(self._sources) == 1
        kept = []
        for i, file in enumerate(files):
            end = file.first_row_id + file.row_count
            crossed = any(
                other is not file and other.first_row_id < end and file.first_row_id < other.first_row_id + other.row_count
                for other in files[max(0, i - 64) : i + 64]
            )
            worth = alone or file.file_size >= self._target_bytes // 2
            if worth and not crossed and first <= file.first_row_id and end <= stop and len(files) <= 64:
                kept.append(file)
        return kept

    def _between(self, kept: Iterable[Any]) -> Iterator[tuple[Ids, int]]:
        """The bin's rows that no kept file holds, and where they begin among the bin's rows."""
        ids = self._bin.ids
        if not kept:
            yield ids, 0
            return
        first, stop = ids.ranges[0]
        at = first
        for file in kept:
            if file.first_row_id > at:
                yield Ids([(at, file.first_row_id)]), at - first
            at = file.first_row_id + file.row_count
        if at < stop:
            yield Ids([(at, stop)]), at - first

    def _new_blob(self) -> tuple[str, Any]:
        path = self._new_path("blob")
        return path, self._paimon.file_io.new_output_stream(path)

    def _new_path(self, extension: str) -> str:
        from pypaimon.utils.file_store_path_factory import canonical_data_file_path

        name = f"{self._paimon.options.data_file_prefix()}{uuid.uuid4()}-0.{extension}"
        path = str(canonical_data_file_path(self._paimon, tuple(self._entry.partition.values), self._entry.bucket, name))
        self._written.paths.append(path)
        return path
