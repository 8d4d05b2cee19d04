"""BLOBs that `Table.append` takes: bytes, references, and what looks like one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pypaimon.table.row.blob import BlobDescriptor, BlobViewStruct, VideoFrameDescriptor

import lakehouse as lh
from tests.appending import contents, files, table
from tests.stores.place import connect, on_stores

__all__ = ["table"]  # a fixture

pytestmark = on_stores


def lookalikes(path: str) -> list[bytes]:
    whole = [
        BlobDescriptor(path, 0, -1).serialize(),
        VideoFrameDescriptor(path, 0, 10, 0, -1, 0).serialize(),
        BlobViewStruct("default.t", 1, 1).serialize(),
    ]
    return [*whole, *(data[:9] for data in whole), b"\x00" + whole[0][1:], whole[0] + b"more"]


@pytest.mark.parametrize("number", range(8))
def test_bytes_that_look_like_a_descriptor_are_never_followed(
    table: lh.Table, warehouse: Path, tmp_path: Path, number: int
) -> None:
    import daft

    (tmp_path / "secret").write_bytes(b"secret")
    data = lookalikes(str(tmp_path / "secret"))[number]
    inputs = [
        [{"id": 1, "frame": data}],
        [{"id": 1, "frame": bytearray(data)}],
        [{"id": 1, "frame": memoryview(data)}],
        iter([{"id": 1, "frame": b"fine"}, {"id": 1, "frame": data}]),
        pa.table({"id": [1, 2], "frame": [b"fine", data]}),
        pa.table({"id": [1], "frame": pa.array([data], pa.large_binary())}).to_reader(),
        pa.table({"id": [1], "frame": pa.array([data], pa.binary_view())}),
        pa.table({"id": [1], "frame": pa.array([data], pa.binary(len(data)))}),
        pa.table({"id": [1], "frame": pa.array([data]).dictionary_encode()}),
        pa.table({"id": [0, 1], "frame": [b"", data]}).slice(1),
        pd.DataFrame({"id": [1], "frame": [data]}),
        daft.from_pydict({"id": [1], "frame": [data]}),
    ]
    for rows in inputs:
        with pytest.raises(lh.SchemaError, match="column frame: a value begins like a serialised blob descriptor"):
            table.append(rows)
    assert files(warehouse) == set()


def test_bytes_that_only_resemble_one_are_stored(table: lh.Table) -> None:
    near = [b"CSEDBOLB", b"\x02CSEDBOL", b"\x02CSEDBOL\0", b"\x02" * 9, bytes(9)]
    table.append([{"id": i, "frame": data} for i, data in enumerate(near)])
    table.append(pa.table({"id": range(10, 10 + len(near)), "frame": near}))
    assert [row["frame"] for row in contents(table)] == near * 2


@pytest.mark.parametrize("value", ["text", 5, 1.5, [1], {"uri": "x"}, Path("x"), np.zeros(3, np.uint8), object()])
def test_what_is_no_blob_is_refused(table: lh.Table, value: Any) -> None:
    with pytest.raises(lh.SchemaError, match="column frame: a BLOB takes bytes, or lh.BlobRef"):
        table.append([{"id": 1, "frame": value}])


@pytest.mark.parametrize("array", [pa.array(["text"]), pa.array([5]), pa.array([{"x": 1}]), pa.array([[b"a"]])], ids=str)
def test_what_is_no_blob_in_arrow_is_refused(table: lh.Table, array: pa.Array) -> None:
    with pytest.raises(lh.SchemaError, match="column frame"):
        table.append(pa.table({"id": [1], "frame": array}))


ODD_NAMES = [
    "plain.bin",
    "with space.bin",
    "50%.bin",
    "a%20b.bin",
    "hash#tag?x=1.bin",
    "é图🚗.bin",
    "new\nline.bin",
    "colon:x.bin",
    "~.bin",
    "-",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_references_are_copied_from_files_of_any_name(
    table: lh.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "in put"
    folder.mkdir()
    (folder / name).write_bytes(b"0123456789")
    monkeypatch.chdir(folder)
    path = str(folder / name)
    refs = [
        lh.BlobRef(path),
        lh.BlobRef(path, 2),
        lh.BlobRef(path, 2, 5),
        lh.BlobRef(path, 10),
        lh.BlobRef(path, 4, 0),
        lh.BlobRef(f"file://{path}", 0, 1),  # as Daft and Paimon write it
        lh.BlobRef((folder / name).as_uri(), 9, 1),  # encoded, as pathlib writes it
        lh.BlobRef(f"file://localhost{path}", 1, 1),
        lh.BlobRef(f"./{name}", 3, 1),
        lh.BlobRef(path, np.int64(5), np.int32(1)),  # type: ignore[arg-type]
    ]
    table.append([{"id": i, "frame": ref} for i, ref in enumerate(refs)])
    want = [b"0123456789", b"23456789", b"23456", b"", b"", b"0", b"9", b"1", b"3", b"5"]
    assert [row["frame"] for row in contents(table)] == want


def test_what_exists_decides_how_a_file_url_is_read(table: lh.Table, tmp_path: Path) -> None:
    (tmp_path / "a%20b").write_bytes(b"as it stands")
    (tmp_path / "a b").write_bytes(b"decoded")
    table.append(
        [{"id": 1, "frame": lh.BlobRef(f"file://{tmp_path}/a%20b")}, {"id": 2, "frame": lh.BlobRef(f"file://{tmp_path}/a b")}]
    )
    assert [row["frame"] for row in contents(table)] == [b"as it stands", b"decoded"]


@pytest.mark.local("names of files")
def test_a_file_whose_name_is_no_utf8_is_refused(table: lh.Table, tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"\xff.bin")
    with open(path, "wb") as file:
        file.write(b"x")
    with pytest.raises(lh.SchemaError, match="column frame: .* is no UTF-8"):
        table.append([{"id": 1, "frame": lh.BlobRef(os.fsdecode(path))}])


def bad_references(tmp_path: Path) -> dict[str, lh.BlobRef]:
    path = str(tmp_path / "three")
    return {
        "missing": lh.BlobRef(str(tmp_path / "nope")),
        "a folder": lh.BlobRef(str(tmp_path)),
        "a pipe": lh.BlobRef(str(tmp_path / "pipe")),
        "a device": lh.BlobRef("/dev/zero", 0, 10),
        "short": lh.BlobRef(path, 0, 10),
        "beyond": lh.BlobRef(path, 4),
        "negative offset": lh.BlobRef(path, -1),
        "negative length": lh.BlobRef(path, 0, -2),
        "another host": lh.BlobRef("file://host/x"),
        "no scheme we know": lh.BlobRef("nope://x/y"),
        "the web": lh.BlobRef("https://localhost:1/x"),
    }


@pytest.mark.parametrize("kind", list(bad_references(Path())))
@pytest.mark.parametrize("reference", [False, True])
def test_a_reference_whose_bytes_are_not_there_is_refused(
    catalog: lh.Catalog, warehouse: Path, tmp_path: Path, kind: str, reference: bool
) -> None:
    (tmp_path / "three").write_bytes(b"abc")
    os.mkfifo(tmp_path / "pipe")
    table = catalog.create_table("default.t", lh.Schema({"id": pa.int64(), "frame": lh.Blob(reference=reference)}))
    good = {"id": 1, "frame": lh.BlobRef(str(tmp_path / "three"))}
    bad = bad_references(tmp_path)[kind]
    struct = pa.table({"id": [1], "frame": pa.array([{"uri": bad.uri, "offset": bad.offset, "length": bad.length}])})
    for rows in ([good, {"id": 2, "frame": bad}], [[good], struct]):
        with pytest.raises(lh.FetchError, match="column frame: .*nothing was written"):
            table.append(rows)
    assert files(warehouse) == set()
    assert table.append([good]).snapshot_id == 1


@pytest.mark.parametrize("parts", [("",), ("a\0b",), (5,), (None,), (b"x",), ("x", "0"), ("x", 0, 1.5), ("x", None)])
def test_what_is_no_reference_is_refused(table: lh.Table, parts: tuple[Any, ...]) -> None:
    with pytest.raises(lh.SchemaError, match="column frame: BlobRef"):
        table.append([{"id": 1, "frame": lh.BlobRef(*parts)}])


@pytest.mark.s3
def test_a_column_declared_by_reference(catalog: lh.Catalog, warehouse: Path, tmp_path: Path) -> None:
    schema = lh.Schema({"id": pa.int64(), "copied": lh.Blob(), "lidar": lh.Blob(reference=True)})
    table = catalog.create_table("default.t", schema)
    source = tmp_path / "raw" / "50% #1.bin"
    source.parent.mkdir()
    source.write_bytes(b"0123456789")
    ref = lh.BlobRef(str(source), 2, 5)
    table.append([{"id": 1, "copied": ref, "lidar": ref}, {"id": 2, "lidar": lh.BlobRef(f"file://{source}", 8)}, {"id": 3}])
    structs = pa.array([{"uri": str(source), "offset": 0, "length": 1}, None])
    table.append(pa.table({"id": [4, 5], "lidar": structs}))
    stored = table.latest().query().select("id", "lidar").index()
    assert [stored[i]["lidar"] for i in np.argsort(stored.column("id").to_numpy())] == [
        ref,
        lh.BlobRef(str(source), 8, 2),  # the length is resolved when it is written
        None,
        lh.BlobRef(str(source), 0, 1),
        None,
    ]
    assert b"0123456789" not in b"".join(path.read_bytes() for path in files(warehouse))
    # Outside the table's folder: read only where the catalog says so.
    with pytest.raises(lh.FetchError, match="blob_roots"):
        table.latest().arrow(blobs="bytes")
    trusting = connect(warehouse, blob_roots=[str(source.parent)]).table("default.t")
    assert [row["lidar"] for row in contents(trusting)] == [b"23456", b"89", None, b"0", None]
    for value in (b"bytes", bytearray(b"bytes")):
        with pytest.raises(lh.SchemaError, match="column lidar is declared by reference: it takes lh.BlobRef"):
            table.append([{"id": 6, "lidar": value}])
    with pytest.raises(lh.SchemaError, match="column lidar is declared by reference"):
        table.append(pa.table({"id": [6], "lidar": [b"bytes"]}))
    with pytest.raises(lh.SchemaError, match="column lidar is declared by reference"):
        table.append(pa.table({"id": [6], "lidar": [BlobDescriptor(str(source), 0, 1).serialize()]}))
