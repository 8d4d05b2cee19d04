"""Every way to ask a snapshot for rows, against a plain Python model: random tables, random queries, zero differences.

A case is one drawn query, checked on every path that it can take. CI always draws the same ones;
``LAKEHOUSE_FUZZ_SEED=n`` draws others. A difference prints the seed, how the table was made, and the query.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse import scan
from lakehouse.query import source as query_source
from lakehouse.query.stream import sampled
from tests.lake_drawing import Drawer, to_daft
from tests.lake_expressions import COMPARABLE, KnownFault
from tests.lake_frames import ChainDrawer
from tests.lake_tables import LakeTable, State, build
from tests.lake_values import Row, frozen, plain
from tests.stores import place
from tests.stores.place import connect, on_stores

pytestmark = on_stores

CHUNKS = 12
TABLES_PER_CHUNK = 4
CASES_PER_TABLE = 42
FIRST_SEED = int(os.environ.get("LAKEHOUSE_FUZZ_SEED", "0")) * CHUNKS * TABLES_PER_CHUNK

# Sizes at which work is cut into pieces, made so small that small tables meet every seam.
SEAMS = ((scan.rows, "READ_BATCH_ROWS", 5), (query_source, "_TASK_ROWS", 11), (query_source, "_TASK_GROUPS", 2))

_files: dict[str, bytes] = {}


@pytest.fixture(autouse=True)
def _close_files() -> Iterator[None]:
    yield
    _files.clear()


def bytes_at(uri: str, offset: int, length: int) -> bytes:
    """What a byte range holds, read by nothing of ours."""
    if uri not in _files:
        _files[uri] = place.content(uri)
    return _files[uri][offset : offset + length]


def values_of(array: pa.ChunkedArray) -> list[Any]:
    """A result's column as plain values; references as the bytes that they point at."""
    joined = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    storage = joined.storage if isinstance(joined, pa.ExtensionArray) else joined
    names = [item.name for item in storage.type] if pa.types.is_struct(storage.type) else []
    for uri, offset, length in (("uri", "offset", "length"), ("url", "position", "size")):
        if uri in names:
            return [None if r is None else bytes_at(r[uri], r[offset], r[length]) for r in storage.to_pylist()]
    return plain(storage)


class Case:
    """One drawn query and what to say when a path gives something else."""

    def __init__(self, lake: LakeTable, state: State, number: int) -> None:
        self.lake, self.state, self.number = lake, state, number
        self.rng = random.Random(f"{lake.seed}/{number}")
        self.snapshot = lake.snapshot(state)
        self.text = ""

    def same(self, path: str, got: Any, expected: Any) -> None:
        if got != expected:
            if isinstance(got, Counter) and isinstance(expected, Counter):
                got, expected = dict(got - expected), dict(expected - got)
            raise AssertionError(
                f"seed {self.lake.seed} case {self.number} by {path}: {self.text}\n on snapshot {self.state.snapshot} of\n  "
                + "\n  ".join(self.lake.recipe)
                + f"\n got      {got!r:.1500}\n expected {expected!r:.1500}"
            )

    def run(self, path: str, ask: Callable[[], Any]) -> Any:
        """The answer; an error is a difference."""
        try:
            return ask()
        except BaseException as error:  # Daft's panics are no Exceptions
            self.same(path, f"{type(error).__name__}: {error}", "an answer")

    # --- chains on frames ------------------------------------------------------------------------------------------------

    def check_chain(self) -> None:
        other = self.rng.choice(self.lake.states)
        drawer = ChainDrawer(self.rng, self.state, self.snapshot, (other, self.lake.snapshot(other)))
        chain = drawer.chain()
        self.text = chain.text
        names = list(chain.families)
        # Daft can't count a frame by a column of Files.
        if self.rng.random() < 0.15 and COMPARABLE & set(chain.families.values()):
            expected = len(chain.rows) if chain.subset is None else chain.subset
            self.same("count_rows", self.run("count_rows", chain.frame.count_rows), expected)
            return
        if chain.subset is None and self.rng.random() < 0.2:
            index = self.run("from_daft()", lambda: lh.RowIndex.from_daft(chain.frame, table=self.snapshot))
            self.same("from_daft()", Counter(self.rows_of(index, names)), Counter(key(row, names) for row in chain.rows))
            return
        data = self.run("snap.daft()", chain.frame.to_arrow)
        self.same("columns of snap.daft()", data.column_names, names)
        got = tuples([values_of(data.column(name)) for name in names], data.num_rows)
        expected_rows = [key(row, names) for row in chain.rows]
        if chain.subset is not None:
            self.same("rows of limit()", len(got), chain.subset)
            self.same("rows outside", Counter(got) - Counter(expected_rows), Counter())
            return
        self.same("snap.daft()", Counter(got), Counter(expected_rows))
        for n, (name, _) in enumerate(chain.sorted_by):
            leading = [name for name, _ in chain.sorted_by[: n + 1]]
            if set(leading) <= set(names):
                at = [names.index(name) for name in leading]
                self.same(
                    "order",
                    [[zeroed(row[i]) for i in at] for row in got],
                    [[zeroed(row[i]) for i in at] for row in expected_rows],
                )

    # --- queries ---------------------------------------------------------------------------------------------------------

    def check_query(self) -> None:
        rng, state = self.rng, self.state
        drawer = Drawer(rng, state, own=True)
        query = self.snapshot.query()
        chosen = list(range(len(state.rows)))
        frame = self.snapshot.daft()
        narrowed_by_id = False
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            expr = drawer.predicate()
            chosen = [n for n in chosen if expr.of(state.rows[n]) is True]
            held = [row[name] for row in state.rows for name in expr.columns()]
            drawer.beyond_daft |= any(isinstance(v, float) and v == 0 and math.copysign(1, v) < 0 for v in held)
            predicate = to_daft(expr, rng)
            self.text += f".where({predicate!s})"
            frame = frame.where(predicate)
            query = self.run("where()", lambda query=query, predicate=predicate: query.where(predicate))  # type: ignore[misc]
        if rng.random() < 0.2:
            fraction, seed = rng.choice((0.0, 0.3, 0.7, 1.0)), rng.randrange(3)
            ids = np.array([state.row_ids[n] for n in chosen], np.int64)
            chosen = [n for n, takes in zip(chosen, sampled(ids, fraction, seed).tolist(), strict=True) if takes]
            query, narrowed_by_id = query.sample(fraction, seed), True
            self.text += f".sample({fraction}, seed={seed})"
        if rng.random() < 0.25:
            n = rng.choice((0, 1, 3, 20))
            query, chosen, narrowed_by_id = query.limit(n), chosen[:n], True
            self.text += f".limit({n})"
        names = list(state.schema.names)
        if rng.random() < 0.85:
            names = rng.sample(names, rng.randrange(1, min(6, len(names)) + 1))
            query = query.select(*names)
            self.text += f".select{tuple(names)}"
        self.text = f"snap.query(){self.text}"

        expected = [key(state.rows[n], names) for n in chosen]
        self.same("count_rows()", self.run("count_rows()", query.count_rows), len(expected))
        if not narrowed_by_id and not drawer.beyond_daft and rng.random() < 0.3:
            self.same("frame's count_rows()", self.run("frame's count_rows()", frame.count_rows), len(expected))
        self.check_plan(query, len(expected))
        self.check_index(query, names, chosen, expected)
        if rng.random() < 0.7:
            blobs: Any = rng.choice(("ref", "ref", "bytes"))
            data = self.run("arrow()", lambda: query.arrow(blobs=blobs))
            kinds = [(n, self.state.schema.field(n).type) for n in names if n not in state.blobs or blobs == "bytes"]
            self.same("types of arrow()", [(n, data.schema.field(n).type) for n, _ in kinds], kinds)
            self.same("arrow()", tuples([values_of(data.column(n)) for n in names], data.num_rows), expected)
        if rng.random() < 0.6:
            data = self.run("daft()", lambda: query.daft().to_arrow())
            self.same("columns of daft()", data.column_names, names)
            self.same("daft()", Counter(tuples([values_of(data.column(n)) for n in names], data.num_rows)), Counter(expected))

    def check_index(self, query: lh.Query, names: Sequence[str], chosen: list[int], expected: list[Any]) -> None:
        index = self.run("index()", query.index)
        self.same("row ids", index.row_ids.tolist(), [self.state.row_ids[n] for n in chosen])
        for name in set(names) - set(self.state.blobs):
            self.same(f"type of {name}", index.column(name).type, self.state.schema.field(name).type)
        self.same("index()", self.rows_of(index, names), expected)

    def rows_of(self, index: lh.RowIndex, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """An index's rows, with the bytes that its references point at."""
        columns = []
        for name in names:
            if name in index.blob_columns:
                refs = index.blobs(name)
                places = zip(refs.uri_ids.tolist(), refs.offsets.tolist(), refs.lengths.tolist(), strict=True)
                columns.append([None if i < 0 else bytes_at(refs.uris[i], offset, length) for i, offset, length in places])
            else:
                columns.append(plain(index.column(name)))
        return tuples(columns, len(index))

    def check_plan(self, query: lh.Query, rows: int) -> None:
        seen = self.run("explain()", query.explain)
        self.same(
            "explain()",
            (seen.rows >= rows, seen.files <= seen.files_total, seen.partitions <= seen.partitions_total),
            (True,) * 3,
        )


def key(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(frozen(row[name]) for name in names)


def tuples(columns: list[list[Any]], rows: int) -> list[tuple[Any, ...]]:
    return [tuple(frozen(column[n]) for column in columns) for n in range(rows)]


def zeroed(value: Any) -> Any:
    """Sorting takes -0.0 for 0.0."""
    return ("float", 0.0) if isinstance(value, tuple) and value[0] == "float" and value[1] == 0 else value


def run_cases(lake: LakeTable, count: int) -> int:
    """Draw cases until ``count`` of them ran; those that meet a known fault of Daft are drawn again."""
    done = number = 0
    while done < count:
        number += 1
        if number > 3 * count:
            raise AssertionError(f"seed {lake.seed}: {number - done} of {number} cases met known faults of Daft")
        case = Case(
            lake, random.Random(f"{lake.seed}:{number}").choice([*lake.states, lake.states[-1], lake.states[-1]]), number
        )
        try:
            case.check_query() if number % 2 else case.check_chain()
        except KnownFault:
            continue
        done += 1
    return done


def check_blobs(lake: LakeTable) -> int:
    """Our byte ranges are those that pypaimon's descriptors name, at every snapshot."""
    checked = 0
    for state in lake.states:
        version = lake.snapshot(state).version
        groups = scan.plan(version)
        assert groups.rows == lake.snapshot(state).count_rows() == len(state.rows)
        for name in set(state.blobs) - version.columns.inline:
            locator = scan.Locator(version, groups, name)
            uri_ids, offsets, lengths = locator.locate(np.array(state.row_ids, np.int64))
            uris = [None if i < 0 else locator.uris[i] for i in uri_ids.tolist()]
            ours = list(zip(uris, offsets.tolist(), lengths.tolist(), strict=True))
            theirs = [(None, 0, 0) if d is None else (d.uri, d.offset, d.length) for d in state.descriptors[name]]
            assert ours == theirs, (lake.seed, state.snapshot, name, lake.recipe)
            checked += len(ours)
    return checked


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_difference(chunk: int, warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    catalog = connect(warehouse, blob_roots=[str(outside)])
    if chunk % 2:
        for module, name, value in SEAMS:
            monkeypatch.setattr(module, name, value)
    cases = 0
    for n in range(TABLES_PER_CHUNK):
        lake = build(FIRST_SEED + chunk * TABLES_PER_CHUNK + n, catalog, outside)
        assert check_blobs(lake) == sum(len(state.rows) * len(set(state.blobs) - {"ref"}) for state in lake.states)
        cases += run_cases(lake, CASES_PER_TABLE)
    assert cases == TABLES_PER_CHUNK * CASES_PER_TABLE


def test_conditions_leave_files_unread_and_no_row_out(warehouse: Path, tmp_path: Path) -> None:
    """Rows are numbered by ``k`` in the order of appends: a condition on it needs the files of one append."""
    catalog = connect(warehouse, blob_roots=[str(tmp_path)])
    kept = total = 0
    for seed in range(FIRST_SEED, FIRST_SEED + 6):
        lake = build(seed, catalog, tmp_path)
        state = lake.states[-1]
        for row in state.rows[:: max(1, len(state.rows) // 5)]:
            for predicate in (f"k = {row['k']}", f"k between {row['k']} and {row['k']} and k is not null"):
                query = lake.snapshot(state).query().where(predicate)
                seen = query.explain()
                kept, total = kept + seen.files, total + seen.files_total
                assert query.index().column("k").to_pylist() == [row["k"]], (seed, predicate, lake.recipe)
    assert total > 100
    assert kept < total / 2


def test_a_run_has_two_thousand_cases() -> None:
    assert CHUNKS * TABLES_PER_CHUNK * CASES_PER_TABLE >= 2000
