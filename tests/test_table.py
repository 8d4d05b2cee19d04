"""A table on disk: partitions, files, counts, interrupted and concurrent writers, stores that refuse."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.write import writer as write_module
from tests.stores import place
from tests.stores.place import connect, on_stores

pytestmark = on_stores


UTC = timezone.utc
ROOT = Path(__file__).parent.parent
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("frame", pa.large_binary()), ("thumb", pa.large_binary())])


@pytest.fixture
def table(catalog: lh.Catalog) -> lh.Table:
    return catalog.create_table("default.t", SCHEMA, partition_by=["p"])


def row(i: int, partitions: int = 5) -> dict[str, Any]:
    return {"id": i, "p": f"p{i % partitions}", "frame": b"frame %d" % i, "thumb": None if i % 3 else b""}


def ids(table: lh.Table) -> list[int]:
    return sorted(table.latest().arrow().column("id").to_pylist())


def data_files(warehouse: Path) -> set[Path]:
    return {path for path in warehouse.rglob("*") if path.suffix in (".parquet", ".blob")}


# What a script begins with. `forked` saves the start of an interpreter and all imports a process.
HEAD = """
import json, os, signal, sys, time, traceback
import pyarrow as pa
import lakehouse as lh
ARGS = json.loads(sys.argv[1])

def forked(work, *arguments):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Run Python code in a process of its own, with ``lh``, ``pa``, ``forked`` and the arguments as ``ARGS``."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            HEAD + textwrap.dedent(script),
            json.dumps([item if isinstance(item, dict) else str(item) for item in arguments]),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def run(script: str, *arguments: object) -> str:
    process = start(script, *arguments)
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return out


# --- partitions --------------------------------------------------------------------------------------------------------------

TEXTS = [
    "a/b", "a=b", "100%", "R&D", "a b", ":", "#", "?", "é", "图像", "🚗", "new\nline", "..", ".", "_x", ".x", "x" * 200, "", None,
    "__DEFAULT_PARTITION__", "'", '"', "\\", "a%2Fb", "a%20b", " ", "  lead", "trail ", "*", "~", "$x", "{y}", "[z]", "a,b", "\t",
    "a\0b", "null", "None", "true", "0", "e\u0301", "|", "<>", "p=1/q=2", "-", "bucket-0",
]  # fmt: skip

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), TEXTS),
    "int8": (pa.int8(), [-128, 127, 0, None]),
    "uint8": (pa.uint8(), [0, 255, None]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 0, None]),
    "bool": (pa.bool_(), [True, False, None]),
    "double": (pa.float64(), [0.1, -math.inf, 5e-324, 1.7976931348623157e308, 1e7, -0.001, None]),
    "float": (pa.float32(), [0.5, math.inf, 2.0**-149, None]),
    "decimal": (pa.decimal128(38, 2), [Decimal("1.25"), Decimal("-0.01"), Decimal(10**36 - 1), None]),
    "date": (pa.date32(), [date(2026, 3, 29), date(1969, 12, 31), date.min, date.max, None]),
    "timestamp": (
        pa.timestamp("ms"),
        [datetime(2026, 3, 29, 2, 30), datetime(1969, 12, 31, 23, 59, 59, 999_000), datetime.min, None],
    ),
    "timestamp_us": (pa.timestamp("us"), [datetime(2026, 10, 25, 1, 30, 0, 1), datetime.max, None]),
    "instant": (pa.timestamp("us", "UTC"), [datetime(2026, 3, 8, 7, 30, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC), None]),
    "time": (pa.time32("ms"), [datetime(1, 1, 1, 1, 2, 3, 4000).time(), None]),
    "binary": (pa.binary(), [b"", b"\xff\0", b"b''", None]),
}


@pytest.mark.parametrize("name", KEYS)
def test_every_partition_value_comes_back_and_filters_exactly(catalog: lh.Catalog, name: str) -> None:
    from daft import col, lit

    kind, values = KEYS[name]
    table = catalog.create_table(
        "default.keys", pa.schema([("id", pa.int64()), ("p", kind), ("b", pa.large_binary())]), partition_by="p"
    )
    data = pa.table({"id": range(len(values)), "p": pa.array(values, kind), "b": [str(i).encode() for i in range(len(values))]})
    table.append(data)
    table.append(data.to_pylist())  # again, into folders that are there
    snapshot = table.latest()
    by_id = snapshot.arrow(blobs="bytes").sort_by("id")
    assert by_id.column("p").to_pylist() == [value for value in values for _ in range(2)]
    assert by_id.column("b").to_pylist() == [str(i).encode() for i in range(len(values)) for _ in range(2)]
    assert snapshot.query().explain().partitions_total == len(values)
    for i, value in enumerate(values):
        held = pa.scalar(value, kind).cast(table.schema.field("p").type).as_py()
        chosen = snapshot.query().where(col("p").is_null() if value is None else col("p") == lit(held))
        assert chosen.select("id", "p").arrow().to_pylist() == [{"id": i, "p": held}] * 2, repr(value)
        assert chosen.explain().partitions == 1, repr(value)
        assert chosen.daft().select("id").to_pydict() == {"id": [i, i]}, repr(value)


@pytest.mark.parametrize("value", [math.nan, -math.nan])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_nan_is_no_partition(catalog: lh.Catalog, warehouse: Path, kind: pa.DataType, value: float) -> None:
    table = catalog.create_table("default.keys", pa.schema([("id", pa.int64()), ("p", kind)]), partition_by="p")
    for data in ([{"id": 1, "p": value}], pa.table({"id": [1, 2], "p": pa.array([None, value], kind)})):
        with pytest.raises(lh.SchemaError, match="column p: NaN can't be the value of a partition key"):
            table.append(data)
    assert data_files(warehouse) == set()


def test_both_zeros_are_one_number(catalog: lh.Catalog) -> None:
    table = catalog.create_table(
        "default.keys", pa.schema([("id", pa.int64()), ("p", pa.float64()), ("b", pa.large_binary())]), partition_by="p"
    )
    table.append([{"id": i, "p": p, "b": b"x"} for i, p in enumerate([0.0, -0.0, 1.0, -0.0])])
    assert table.latest().query().where("p = 0").arrow().column("id").to_pylist() == [0, 1, 3]
    assert table.latest().arrow(blobs="bytes").sort_by("id").column("p").to_pylist() == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("value", ["x" * 300, "图" * 90])
@pytest.mark.local("what names of folders may be")
def test_a_partition_value_too_long_for_a_folder_is_refused(table: lh.Table, warehouse: Path, value: str) -> None:
    with pytest.raises(lh.SchemaError, match="too long for a folder's name"):
        table.append([row(1), {"id": 2, "p": value, "frame": b"x"}])
    assert data_files(warehouse) == set()
    assert table.append([row(1)]).snapshot_id == 1


def test_partitions_are_the_same_in_every_time_zone(warehouse: Path) -> None:
    """Written under one zone, read under others: the same folders, the same rows by the same filters."""
    script = """
        from datetime import date, datetime, timezone
        from decimal import Decimal

        KINDS = {
            "d": (pa.date32(), date(2026, 3, 29)),
            "ts": (pa.timestamp("us"), datetime(2026, 3, 29, 2, 30, 0, 1)),
            "ltz": (pa.timestamp("ms", "UTC"), datetime(2026, 3, 8, 23, 30, tzinfo=timezone.utc)),
            "b": (pa.bool_(), True),
            "x": (pa.float64(), 0.1),
            "i": (pa.int32(), -5),
            "m": (pa.decimal128(10, 2), Decimal("-1.50")),
        }

        def work(zone):
            os.environ["TZ"] = zone
            time.tzset()
            from daft import col, lit

            schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in KINDS.items()), ("blob", pa.large_binary())])
            table = lh.connect(ARGS[0]).create_table("default.zones", schema, partition_by=list(KINDS), exist_ok=True)
            values = {name: value for name, (_, value) in KINDS.items()}
            table.append([{"id": 1, "blob": b"x", **values}, {"id": 2}])
            rows = table.latest().query().select(*KINDS).where("id = 1").arrow().to_pylist()
            assert all(found == values for found in rows), rows
            for name, value in values.items():
                query = table.latest().query().where(col(name) == lit(value))
                assert query.count_rows() == len(rows), (name, query.count_rows())
                assert query.explain().partitions == 1, name
            print(time.tzname[0], len(rows), flush=True)

        for zone in ARGS[1:]:
            _, code = os.waitpid(forked(work, zone), 0)
            assert code == 0, zone
    """
    assert run(script, place.options(warehouse), "Asia/Shanghai", "UTC", "America/New_York").split() == [
        "CST",
        "1",
        "UTC",
        "2",
        "EST",
        "3",
    ]
    assert len([path for path in warehouse.rglob("bucket-0") if path.is_dir()]) == 2


@pytest.mark.local("limits of the operating system")
def test_more_partitions_than_files_may_be_open(warehouse: Path) -> None:
    """700 partitions of two BLOB columns, their rows interleaved, 160 files at most."""
    script = """
        import resource
        table = lh.connect(ARGS[0]).create_table(
            "default.many", pa.schema([("id", pa.int64()), ("p", pa.string()), ("a", pa.large_binary()), ("b", pa.large_binary())]),
            partition_by=["p"])
        resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
        def rows():
            for i in range(1400):
                yield {"id": i, "p": f"p{i % 700}", "a": b"a%d" % i, "b": None if i % 2 else b"b%d" % i}
        commit = table.append(rows())
        print(commit.rows)
    """
    assert int(run(script, place.options(warehouse))) == 1400
    table = connect(warehouse).table("default.many")
    assert len(table.snapshots()) == 1
    snapshot = table.latest()
    assert snapshot.query().explain().partitions == 700
    index = snapshot.query().index()
    assert sorted(index.column("id").to_pylist()) == list(range(1400))
    # In each partition one file a column: rows waited until they could be sorted.
    assert snapshot.query().explain().files == 700 * 3
    part = snapshot.query().where("p = 'p77'").arrow(blobs="bytes").to_pylist()
    assert part == [{"id": i, "p": "p77", "a": b"a%d" % i, "b": None if i % 2 else b"b%d" % i} for i in (77, 777)]


def test_rows_keep_their_order_inside_a_partition_however_few_may_be_open(
    catalog: lh.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    batches = [[row(rng.randrange(10_000), 9) for _ in range(rng.randrange(1, 40))] for _ in range(8)]
    given = [item for batch in batches for item in batch]
    for number, (most, waiting_bytes) in enumerate([(1, 1), (3, 500), (7, 2000), (8, 10**9), (9, 1)]):
        monkeypatch.setattr(write_module, "max_open_partitions", lambda _, most=most: most)
        monkeypatch.setattr(write_module, "_WAITING_BYTES", waiting_bytes)
        table = catalog.create_table(f"default.order{number}", SCHEMA, partition_by=["p"])
        assert table.append(pa.Table.from_pylist(batch, SCHEMA) for batch in batches).rows == len(given)
        back = table.latest().arrow(blobs="bytes").to_pylist()
        for partition in {item["p"] for item in given}:
            assert [item for item in back if item["p"] == partition] == [item for item in given if item["p"] == partition]


def test_how_many_partitions_may_be_open() -> None:
    assert write_module.max_open_partitions(1) >= write_module.max_open_partitions(3) >= 1
    assert write_module.max_open_partitions(10**6) == 1


# --- counts ------------------------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_counts_are_of_rows(table: lh.Table) -> None:
    for start_id, n in ((0, 7), (7, 1), (8, 12)):
        assert table.append([row(i) for i in range(start_id, start_id + n)]).rows == n
    snapshot = table.latest()
    assert snapshot.count_rows() == snapshot.query().count_rows() == snapshot.daft().count_rows() == 20
    assert snapshot.arrow().num_rows == len(snapshot.query().index()) == 20
    assert table.at(snapshot=1).count_rows() == 7
    assert snapshot.query().where("p = 'p1'").count_rows() == 4


@pytest.mark.s3
def test_the_bytes_of_a_commit_are_those_of_its_files(table: lh.Table, warehouse: Path) -> None:
    commit = table.append([row(i) for i in range(50)])
    assert commit.bytes == sum(path.stat().st_size for path in data_files(warehouse))


# --- streams -----------------------------------------------------------------------------------------------------------------


def test_large_files_are_copied_as_streams(warehouse: Path, tmp_path: Path) -> None:
    """Three times 100 MB, which never are in memory."""
    source = tmp_path / "large.bin"
    with source.open("wb") as file:
        file.truncate(100_000_000)
        file.seek(99_999_999)
        file.write(b"!")
    script = """
        import resource
        table = lh.connect(ARGS[0]).create_table("default.t", lh.Schema({"id": pa.int64(), "video": lh.Blob()}))
        table.append([{"id": 0, "video": b"warm"}])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        table.append([{"id": i, "video": lh.BlobRef(ARGS[1])} for i in range(1, 4)])
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    assert int(run(script, place.options(warehouse), source)) < 50_000  # KiB
    table = connect(warehouse).table("default.t")
    refs = table.latest().query().index().blobs("video")
    assert sorted(refs.lengths.tolist()) == [4, *[100_000_000] * 3]
    ref = refs[3]
    assert ref is not None
    assert lh.BlobRef(ref.uri, ref.offset + 99_999_998, 2).read(table) == b"\0!"


# --- what goes wrong in the middle -------------------------------------------------------------------------------------------


class Stop(Exception):
    """What a user's iterator raises."""


@pytest.mark.parametrize(
    "error", [Stop("no more"), KeyboardInterrupt(), SystemExit(3), MemoryError(), lh.FetchError("gone")], ids=repr
)
@pytest.mark.parametrize("after", [0, 1, 5000])
def test_an_error_of_the_iterator_leaves_nothing(
    table: lh.Table, warehouse: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, after: int
) -> None:
    monkeypatch.setattr(write_module, "max_open_partitions", lambda _: 2)  # so that some files are finished before
    monkeypatch.setattr(write_module, "_WAITING_BYTES", 1)
    table.append([row(i) for i in range(10)])
    before = data_files(warehouse)

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(after):
            yield row(i)
        if after > 1000:
            assert len(data_files(warehouse)) > len(before)
        raise error

    with pytest.raises(type(error)) as caught:
        table.append(rows())
    assert caught.value is error
    assert data_files(warehouse) == before
    assert ids(table) == list(range(10))
    assert table.append([row(10)]).snapshot_id == 2
    assert ids(table) == list(range(11))


@pytest.mark.s3
def test_bad_rows_after_good_ones_leave_nothing(table: lh.Table, warehouse: Path, tmp_path: Path) -> None:
    for bad in ({"id": "text"}, {"nope": 1}, {"frame": lh.BlobRef(str(tmp_path / "gone"))}):
        with pytest.raises((lh.SchemaError, lh.FetchError)):
            table.append([*map(row, range(5000)), bad])
        assert data_files(warehouse) == set()
    assert table.snapshots() == []


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("published", [False, True])
def test_an_error_while_publishing(
    table: lh.Table, warehouse: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, published: bool
) -> None:
    """Before the snapshot's file is there nothing happened; after it, everything did."""
    from lakehouse.write.engine import Committer

    table.append([row(0)])
    commit = Committer.commit

    def failing(self: Any, *given: Any, **options: Any) -> None:
        if published:
            commit(self, *given, **options)
        raise error

    monkeypatch.setattr(Committer, "commit", failing)
    before = data_files(warehouse)
    if published and isinstance(error, Exception):
        assert table.append([row(1)]).snapshot_id == 2
    else:
        with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else lh.CommitError):
            table.append([row(1)])
    monkeypatch.undo()
    assert ids(table) == ([0, 1] if published else [0])
    assert (data_files(warehouse) == before) == (not published)
    assert table.append([row(2)]).rows == 1


@pytest.mark.local("kills it before a commit on S3 is made; those are in test_s3_commits.py")
def test_a_killed_append_leaves_a_readable_table(warehouse: Path) -> None:
    """Killed at many moments: what was committed is all there, nothing else is, and the next append works."""
    script = """
        import random

        table = lh.connect(ARGS[0]).create_table("default.t", pa.schema(
            [("id", pa.int64()), ("p", pa.string()), ("frame", pa.large_binary())]), partition_by=["p"])

        def work(start):
            for first in range(start, start + 1_000_000, 40):
                table.append([{"id": i, "p": f"p{i % 3}", "frame": b"x%d" % i} for i in range(first, first + 40)])
                print(first, flush=True)

        rng = random.Random(1)
        for attempt in range(80):
            if attempt >= 10 and len(table.snapshots()) >= 3:  # on a busy machine more are killed before their first commit
                break
            pid = forked(work, 1_000_000 * attempt)
            time.sleep(rng.uniform(0.01, 0.3))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            print("state", json.dumps([sorted(table.latest().arrow().column("id").to_pylist()), len(table.snapshots())]), flush=True)
    """
    committed: list[int] = []
    killed = 0
    for line in run(script, place.options(warehouse)).splitlines():
        if not line.startswith("state "):
            committed.append(int(line))
            continue
        killed += 1
        found, snapshots = json.loads(line.removeprefix("state "))
        blocks = sorted({i - i % 40 for i in found})
        assert found == [i for first in blocks for i in range(first, first + 40)]  # whole commits only
        assert set(committed) <= set(blocks)
        assert len(blocks) <= len(committed) + 1  # the last may have been published and not reported
        assert snapshots == len(blocks)
        committed = blocks
    assert killed >= 10
    assert len(committed) >= 3
    table = connect(warehouse).table("default.t")
    table.append([{"id": -1, "p": "p0", "frame": b"last"}])
    assert ids(table) == [-1, *(i for first in committed for i in range(first, first + 40))]
    frames = table.latest().query().where("id >= 0").arrow(blobs="bytes").to_pylist()
    assert all(item["frame"] == b"x%d" % item["id"] for item in frames)


def test_ctrl_c_in_the_middle_of_an_append(warehouse: Path) -> None:
    script = """
        import itertools
        table = lh.connect(ARGS[0]).create_table("default.t", pa.schema(
            [("id", pa.int64()), ("frame", pa.large_binary())]))
        table.append([{"id": 0, "frame": b"first"}])
        def rows():
            for i in itertools.count(1):
                if i == 20_000:
                    print("ready", flush=True)
                yield {"id": i, "frame": b"x"}
        try:
            table.append(rows())
        except KeyboardInterrupt:
            print("stopped")
    """
    process = start(script, place.options(warehouse))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "stopped\n"), errors
    assert ids(connect(warehouse).table("default.t")) == [0]
    assert len(data_files(warehouse)) == 2


# --- many writers ------------------------------------------------------------------------------------------------------------


def test_no_commit_of_concurrent_writers_is_lost(warehouse: Path) -> None:
    script = """
        def work(first):
            table = lh.connect(ARGS[0]).create_table("default.t", pa.schema(
                [("id", pa.int64()), ("frame", pa.large_binary())]), exist_ok=True)
            print(json.dumps([table.append([{"id": first + i, "frame": b"%d" % i}]).snapshot_id for i in range(25)]), flush=True)

        writers = [forked(work, 25 * number) for number in range(4)]
        assert [os.waitpid(pid, 0)[1] for pid in writers] == [0] * 4
    """
    reported: list[int] = []
    for line in run(script, place.options(warehouse)).splitlines():
        numbers = json.loads(line)
        assert numbers == sorted(numbers)
        reported += numbers
    assert sorted(reported) == list(range(1, 101))
    table = connect(warehouse).table("default.t")
    assert [info.id for info in table.snapshots()] == list(range(1, 101))
    assert len({info.commit_id for info in table.snapshots()}) == 100
    assert ids(table) == list(range(100))
    assert len(set(table.latest().query().index().row_ids.tolist())) == 100


# --- stores that refuse ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["bucket-0", "manifest", "snapshot"])
@pytest.mark.local("a file in the place of a folder")
def test_a_folder_that_can_not_be_made(catalog: lh.Catalog, warehouse: Path, folder: str) -> None:
    """A file where a folder must go: what a read-only folder does, for root too."""
    table = catalog.create_table("default.plain", SCHEMA)
    obstacle = warehouse / "default.db" / "plain" / folder
    obstacle.write_text("in the way")
    began = time.monotonic()
    with pytest.raises(lh.CommitError, match=f"default.plain: (the rows can't be written|nothing was committed) .*'{obstacle}"):
        table.append([row(1)])
    assert time.monotonic() - began < 20  # the engine would try a hundred times
    assert data_files(warehouse) == set()
    assert table.snapshots() == []
    assert table.latest().count_rows() == 0
    obstacle.unlink()
    assert table.append([row(1)]).snapshot_id == 1
    assert ids(table) == [1]


@pytest.mark.local("limits of the operating system")
def test_a_full_disk(warehouse: Path) -> None:
    """No file may grow beyond 64 KiB, as on a disk that is full: nothing stays of a failed append."""
    script = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        table = lh.connect(ARGS[0]).create_table("default.t", pa.schema(
            [("id", pa.int64()), ("text", pa.binary()), ("frame", pa.large_binary())]))
        table.append([{"id": 0, "text": b"t", "frame": b"f"}])
        resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, 65_536))
        for big in ({"frame": os.urandom(100_000)}, {"text": os.urandom(100_000)}):
            try:
                table.append([{"id": 1, "frame": b"small"}, {"id": 2, **big}])
            except lh.CommitError as error:
                print(type(error).__name__, "File too large" in str(error))
        print(table.append([{"id": 3}]).snapshot_id)
    """
    assert run(script, place.options(warehouse)).splitlines() == ["CommitError True", "CommitError True", "2"]
    assert ids(connect(warehouse).table("default.t")) == [0, 3]
    assert len(data_files(warehouse)) == 4


# --- what else a table is ----------------------------------------------------------------------------------------------------


def test_what_repr_shows(catalog: lh.Catalog, table: lh.Table) -> None:
    assert repr(table) == "Table(default.t, 4 columns, partition_by=['p'])"
    assert repr(catalog.create_table("plain", SCHEMA)) == "Table(default.plain, 4 columns)"
    assert repr(table.latest()) == "Snapshot(default.t@None, 4 columns)"
    assert repr(table.append([row(1)])).startswith("Commit(snapshot_id=1, rows=1, bytes=")
    assert repr(table.latest()) == "Snapshot(default.t@1, 4 columns)"
    assert repr(table.snapshots()[0]).startswith("SnapshotInfo(id=1, time=datetime.datetime(")
    assert repr(table.latest().query().where("id > 1").limit(3)) == "Query(default.t@1).where(col(id) > lit(1)).limit(3)"
    assert "warehouse" in repr(catalog)


def test_a_table_shows_what_it_has(table: lh.Table) -> None:
    assert (table.name, table.partition_by) == ("default.t", ("p",))
    assert table.schema.equals(SCHEMA)
    assert table.latest().schema.equals(SCHEMA)


def test_an_append_after_another_process_added_a_column(catalog: lh.Catalog, warehouse: Path, table: lh.Table) -> None:
    from pypaimon.schema.data_types import AtomicType
    from pypaimon.schema.schema_change import SchemaChange

    table.append([row(0)])
    connect(warehouse).paimon.alter_table("default.t", [SchemaChange.add_column("score", AtomicType("DOUBLE"))], False)
    assert table.append([{**row(1), "score": 0.5}]).snapshot_id == 2
    assert table.latest().arrow().sort_by("id").column("score").to_pylist() == [None, 0.5]


def test_nested_blobs_of_another_engine_are_not_written(catalog: lh.Catalog, tmp_path: Path) -> None:
    from pypaimon import Schema

    schema = pa.schema([("id", pa.int64()), ("frames", pa.list_(pa.large_binary()))])
    options = {"bucket": "-1", "row-tracking.enabled": "true", "data-evolution.enabled": "true"}
    catalog.create_database("default")
    catalog.paimon.create_table("default.nested", Schema.from_pyarrow_schema(schema, options=options), False)
    table = catalog.table("default.nested")
    for data in (
        [{"id": 1, "frames": [b"x"]}],
        pa.table({"id": [1], "frames": pa.array([[b"x"]], schema.field("frames").type)}),
    ):
        with pytest.raises(
            lh.SchemaError, match="column frames: BLOB views, lists and maps of BLOBs can be read here, not written"
        ):
            table.append(data)
    assert table.append([{"id": 1}]).rows == 1


def test_a_table_without_row_ids_is_refused(catalog: lh.Catalog) -> None:
    from pypaimon import Schema

    catalog.create_database("default")
    catalog.paimon.create_table("default.bare", Schema.from_pyarrow_schema(pa.schema([("id", pa.int64())])), False)
    with pytest.raises(lh.SchemaError, match=r"default.bare has no row ids \(row-tracking.enabled=false\)"):
        catalog.table("default.bare")


def test_times_of_snapshots_are_in_utc(table: lh.Table) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    table.append([row(1)])
    (info,) = table.snapshots()
    assert before <= info.time <= datetime.now(UTC)
    assert (info.kind, info.time.utcoffset()) == ("APPEND", timedelta(0))
    assert info.commit_id is not None
