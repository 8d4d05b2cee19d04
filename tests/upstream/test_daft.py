"""Faults of pypaimon's Daft source and of Daft itself."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from daft import col
from daft.exceptions import DaftCoreException, DaftTypeError
from daft.expressions.visitor import _ColumnVisitor
from daft.functions import file_size
from pypaimon.daft import read_blob
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

from tests.upstream.plain import NAME, SCHEMA, Plain, append, hangs, plain, row

# What Daft asks a blob table for comes back in the order asked, and is named in the order of the table.
KEY_FIRST = pa.schema([SCHEMA.field(name) for name in ("p", "v", "id", "a", "img")])
SECRET = "PLANTED-7f3a9c"

_READ = """
import os
import sys
import daft
from daft import col
from pypaimon.daft import read_paimon
frame = read_paimon("default.t", {"warehouse": sys.argv[1]})
"""


def thirty(folder: Path, schema: pa.Schema = SCHEMA) -> Plain:
    return plain(folder, [row(i) for i in range(30)], schema=schema)


# ---- T1


def test_t01_a_filter_reads_another_column(tmp_path: Path) -> None:
    """Daft takes the columns of a BLOB table in table order, pypaimon hands them over in the order asked: wrong rows.
    Remedy: lakehouse/query/source.py always emits table order."""
    frame = thirty(tmp_path, KEY_FIRST).daft
    assert frame.where(col("p").startswith("P0")).select("v").count_rows() == 0  # right: 10
    either = (col("p") == "P0") | (col("v") < "v2")
    assert frame.where(either).select("v").count_rows() == 30  # right: 18


def test_t01_a_result_is_another_column(tmp_path: Path) -> None:
    """The column that was only sorted by comes back instead of the selected one.
    Remedy: lakehouse/query/source.py always emits table order."""
    assert thirty(tmp_path).daft.sort("id").select("a").to_pydict() == {"id": list(range(30))}  # right: {"a": [0, 10, ...]}


def test_t01_a_join_pairs_the_wrong_rows(tmp_path: Path) -> None:
    """Joined on the exchanged column, rows meet others' keys.
    Remedy: lakehouse/query/source.py always emits table order."""
    joined = thirty(tmp_path).daft.select("a", "id").join(daft.from_pydict({"a": [0, 10]}), on="a").sort("a")
    assert joined.to_pydict() == {"a": [0, 100], "id": [0, 10]}  # right: a 0 and 10 with id 0 and 1


def test_t01_a_filter_meets_another_type(tmp_path: Path) -> None:
    """Where the exchanged columns differ in type, a natural query fails.
    Remedy: lakehouse/query/source.py always emits table order."""
    with pytest.raises(DaftTypeError, match="Cannot perform comparison on types: String, Int64"):
        thirty(tmp_path).daft.where((col("p") == "P0") | (col("id") < 6)).select("v").collect()


def test_t01_reading_blobs_meets_another_column(tmp_path: Path) -> None:
    """read_blob() beside other columns gets one of those instead of the files.
    Remedy: lakehouse/query/source.py always emits table order; Snapshot.bytes reads them."""
    made = thirty(tmp_path)
    with pytest.raises(AttributeError, match="'str' object has no attribute 'path'"):
        made.daft.select(read_blob(col("img"), dict(made.options), NAME), "a", "p").collect()


def test_t01_a_join_hangs(tmp_path: Path) -> None:
    """A join of exchanged columns of different types never ends.
    Remedy: lakehouse/query/source.py always emits table order."""
    thirty(tmp_path)
    join = "print(1, flush=True)\nframe.select('a', 'p').join(daft.from_pydict({'a': [0, 10]}), on='a').collect()\nos._exit(0)"
    assert hangs(_READ + join, str(tmp_path))


# ---- T3


def test_t03_rows_vanish_when_only_a_new_column_is_read(tmp_path: Path) -> None:
    """Rows written before a column was added are left out when nothing but that column is read.
    Remedy: lakehouse/scan/rows.py (read) always reads the row id too."""
    made = thirty(tmp_path)
    made.alter(SchemaChange.add_column("score", AtomicType("DOUBLE")))
    assert made.daft.select("score").count_rows() == 0  # right: 30
    assert made.daft.select("score", "id").count_rows() == 0  # counting asks for the first column only
    assert len(made.daft.select("score", "id").collect()) == 30


# ---- T13


def test_t13_null_blobs_are_not_null(tmp_path: Path) -> None:
    """File columns come without their null mask: is_null() is false for every row.
    Remedy: lakehouse/references.py (file_structs) keeps the mask."""
    frame = plain(tmp_path, [row(0), row(1, img=None)]).daft
    assert frame.where(col("img").is_null()).count_rows() == 0  # right: 1
    assert frame.where(col("img").not_null()).count_rows() == 1


def test_t13_files_can_not_be_counted(tmp_path: Path) -> None:
    """Daft counts and groups no File column, whatever its source; count_rows() of File columns alone fails by it too.
    Remedy: none, it is loud; Query.count_rows does not ask Daft."""
    frame = plain(tmp_path, [row(0)]).daft
    with pytest.raises(DaftTypeError, match="invalid cast"):
        frame.count("img").collect()
    with pytest.raises(DaftTypeError, match="invalid cast"):
        frame.select("img").distinct().collect()
    no_table = daft.from_pydict({"i": [1], "f": frame.to_pydict()["img"]})
    with pytest.raises(DaftTypeError, match="invalid cast"):
        no_table.select("f").count_rows()


def test_t13_the_size_of_an_empty_file(tmp_path: Path) -> None:
    """file_size() fails for the whole column when one BLOB is empty.
    Remedy: none, it is loud; references of lakehouse carry the length."""
    frame = plain(tmp_path, [row(0), row(1, img=b"")]).daft
    with pytest.raises(DaftCoreException, match="Invalid range request"):
        frame.select(file_size(col("img"))).collect()


# ---- T16, T17


def test_t16_batches_of_1024_rows_however_large_the_blobs(tmp_path: Path) -> None:
    """Readers hold 1,024 rows with their BLOBs at once: 2 GB at 1 MB each.
    Remedy: lakehouse/scan/rows.py reads no BLOB with its rows; Snapshot.bytes holds 64."""
    made = plain(tmp_path, [row(i) for i in range(2000)], partition_by=())
    builder = made.table.new_read_builder()
    reader = builder.new_read().to_arrow_batch_reader(builder.new_scan().plan().splits())
    assert reader.read_next_batch().num_rows == 1024
    reader.close()


def test_t17_frames_and_files_do_not_pickle(tmp_path: Path) -> None:
    """Neither a Daft frame nor a daft.File gets into a worker process.
    Remedy: lakehouse/index (RowIndex) and lakehouse/fetch (BlobRef) do."""
    frame = plain(tmp_path, [row(0)]).daft
    with pytest.raises(TypeError, match=r"cannot pickle 'builtins\.LogicalPlanBuilder' object"):
        pickle.dumps(frame)
    with pytest.raises(TypeError, match=r"cannot pickle 'builtins\.PyFileReference' object"):
        pickle.dumps(frame.to_pydict()["img"][0])


def test_t17_daft_hangs_in_a_forked_child(tmp_path: Path) -> None:
    """A child forked after its parent used Daft waits for ever when it uses Daft itself.
    Remedy: reading by a RowIndex needs no Daft (lakehouse/fetch); Loader starts its workers by forkserver."""
    thirty(tmp_path)
    fork = """
frame.collect()
child = os.fork()
if not child:
    frame.where(col("id") > 3).collect()
    os._exit(0)
print(1, flush=True)
os.waitpid(child, 0)
os._exit(0)
"""
    assert hangs(_READ + fork, str(tmp_path))


# ---- T21, T22


def test_t21_daft_reports_its_import() -> None:
    """Importing Daft calls two outside hosts, unless one of three variables forbids it.
    Remedy: lakehouse/query/engine.py sets all three before the import."""
    called = calls_of("import daft")
    assert [url.split("/")[2] for url in called] == ["daft.gateway.scarf.sh", "osstelemetry.io"]


def calls_of(statement: str) -> list[str]:
    """The URLs that a fresh interpreter without opt-outs would ask for; nothing is sent."""
    program = f"""
import threading, urllib.request
called = []
def refuse(url, *arguments, **options):
    called.append(url)
    raise OSError("no network")
urllib.request.urlopen = refuse
{statement}
for thread in threading.enumerate():
    if thread.daemon:
        thread.join(10)
print(*called, sep="\\n", flush=True)
import os
os._exit(0)
"""
    opt_outs = ("DO_NOT_TRACK", "DAFT_ANALYTICS_ENABLED", "SCARF_NO_ANALYTICS")
    environment = {name: value for name, value in os.environ.items() if name not in opt_outs}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


def with_credentials(folder: Path) -> Plain:
    options = {"fs.s3.accessKeyId": "someone", "fs.s3.accessKeySecret": SECRET, "fs.s3.endpoint": "http://localhost:1"}
    return plain(folder, [row(0)], catalog_options=options)


def test_t22_values_carry_the_secret_key(tmp_path: Path) -> None:
    """Each value of a File column holds the catalog's credentials, so results and files written from them do.
    Remedy: lakehouse/references.py (file_structs) leaves that field null; Snapshot.bytes brings its own."""
    frame = with_credentials(tmp_path / "warehouse").daft.select("id", "img")
    value: Any = frame.to_arrow().column("img").combine_chunks().storage[0].as_py()
    assert SECRET.encode() in value["io_config"]
    frame.write_parquet(str(tmp_path / "out"))
    (written,) = (tmp_path / "out").glob("*.parquet")
    assert SECRET.encode() in pq.read_table(written).column("img")[0].as_py()["io_config"]


def test_t22_pickled_tables_carry_the_secret_key(tmp_path: Path) -> None:
    """So does a table handle when it is pickled.
    Remedy: a RowIndex holds paths only."""
    assert SECRET.encode() in pickle.dumps(with_credentials(tmp_path).table)


# ---- found beside the list


def test_columns_of_a_membership_test() -> None:
    """Daft's own walk over an expression fails at the list inside is_in().
    Remedy: lakehouse/query/walk.py has its own walk."""
    with pytest.raises(AttributeError, match="'list' object has no attribute '_expr'"):
        _ColumnVisitor().visit((col("a") + 1).is_in([2, 3]))


def test_frames_are_not_pinned(tmp_path: Path) -> None:
    """A frame without time travel plans when it runs, so it sees commits made after it.
    Remedy: lakehouse/table/versions.py (Table.latest) resolves the version to a number first."""
    made = plain(tmp_path, [row(0)])
    frame = made.daft
    before = frame.count_rows()
    append(made.table, [row(1)])
    assert (before, frame.count_rows()) == (1, 2)  # right: (1, 1)
