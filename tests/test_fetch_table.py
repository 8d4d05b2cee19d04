"""What a table may read, and who reads it; and the check of ``.blob`` records."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lakehouse.errors import FetchError
from lakehouse.fetch import (
    BlobRef,
    BlobRefs,
    Fetched,
    LocalFetcher,
    RangeFetcher,
    TableFetcher,
    VerifyingFetcher,
    fsspec_read_range,
)

SECRET = b"not for training"


def refs_of(*uris: str) -> BlobRefs:
    return BlobRefs.of([BlobRef(uri) for uri in uris])


def error_of(fetched: Fetched, row: int) -> str:
    value = fetched.values[row]
    assert isinstance(value, FetchError), value
    return str(value)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """lake/table, lake/table2 and lake/photos hold files of their own; lake/secret lies beside them."""
    lake = tmp_path / "lake"
    for name in ("table", "table2", "photos"):
        (lake / name / "deep").mkdir(parents=True)
        (lake / name / "deep" / "a").write_bytes(name.encode())
    (lake / "secret").write_bytes(SECRET)
    return lake


# ---- local


@pytest.mark.parametrize("prefix", ["", "file://", "file:"])
def test_the_tables_own_folder_is_read(lake: Path, prefix: str) -> None:
    for root in (f"{lake}/table", f"file://{lake}/table", f"{lake}/table/", f"{lake}/photos/../table"):
        fetched = TableFetcher(root).fetch(refs_of(f"{prefix}{lake}/table/deep/a", f"{prefix}{lake}/table/./deep/../deep/a"))
        assert fetched.values == [b"table"] * 2


@pytest.mark.parametrize(
    "uri",
    [
        "{lake}/secret",
        "file://{lake}/secret",
        "FILE://{lake}/secret",
        "{lake}/table/../secret",
        "{lake}/table/deep/../../secret",
        "file://{lake}/table/../secret",
        "{lake}/table2/deep/a",  # a name that begins alike
        "/etc/passwd",
        "{lake}",
        "memory://bucket/a",
        "s3://bucket/a",
        "local://{lake}/secret",
        "simplecache::file://{lake}/secret",
        "",
    ],
)
def test_what_lies_outside_is_refused(lake: Path, uri: str) -> None:
    uri = uri.format(lake=lake)
    fetched = TableFetcher(f"{lake}/table", [f"{lake}/photos"]).fetch(
        BlobRefs.of([BlobRef(f"{lake}/table/deep/a"), BlobRef(uri, 0, 4), BlobRef(uri, 0, 0), BlobRef(f"{lake}/photos/deep/a")])
    )
    assert fetched.values[::3] == [b"table", b"photos"]
    for row, length in ((1, 4), (2, 0)):
        text = error_of(fetched, row)
        assert text.startswith(f"can't read {uri} 0+{length}: it lies outside the table's folder {lake}/table ")
        assert text.endswith("add its folder to blob_roots in the catalog's configuration")
        assert SECRET.decode() not in text


def test_symbolic_links_do_not_lead_out(lake: Path) -> None:
    table = lake / "table"
    (table / "file").symlink_to(lake / "secret")
    (table / "folder").symlink_to(lake)
    (table / "relative").symlink_to("../secret")
    (table / "chain").symlink_to(table / "file")
    (table / "loop").symlink_to(table / "loop")
    (table / "inside").symlink_to(table / "deep" / "a")
    (table / "photos").symlink_to(lake / "photos")
    uris = [f"{table}/{name}" for name in ("file", "folder/secret", "relative", "chain", "loop", "inside", "photos/deep/a")]
    fetched = TableFetcher(str(table), [f"{lake}/photos"]).fetch(refs_of(*uris))
    for row in range(4):
        assert f"(it leads to {lake}/secret)" in error_of(fetched, row)
    assert "loop" in error_of(fetched, 4)
    assert fetched.values[5:] == [b"table", b"photos"]


def test_a_root_may_be_a_link_itself(lake: Path) -> None:
    (lake / "link").symlink_to(lake / "table")
    for root, uri in (("link", "table"), ("table", "link"), ("link", "link")):
        assert TableFetcher(f"{lake}/{root}").fetch(refs_of(f"{lake}/{uri}/deep/a")).values == [b"table"]
        assert "blob_roots" in error_of(TableFetcher(f"{lake}/{root}").fetch(refs_of(f"{lake}/{uri}/../secret")), 0)


def test_a_link_that_is_turned_later_is_not_followed(lake: Path) -> None:
    """What was checked is what is opened."""
    table = lake / "table"
    (table / "turning").symlink_to(table / "deep" / "a")
    fetcher = TableFetcher(str(table), max_files=1)
    assert fetcher.fetch(refs_of(f"{table}/turning")).values == [b"table"]
    (table / "turning").unlink()
    (table / "turning").symlink_to(lake / "secret")
    (table / "other").write_bytes(b"other")
    fetcher.fetch(refs_of(f"{table}/other"))  # closes the file, so that it is opened anew
    assert fetcher.fetch(refs_of(f"{table}/turning")).values == [b"table"]


def test_no_root_is_not_the_working_folder(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lake)
    for fetcher in (TableFetcher(""), TableFetcher("", ["", " "])):
        assert "table's folder (none)" in error_of(fetcher.fetch(refs_of("secret")), 0)
    assert TableFetcher("", [str(lake)]).fetch(refs_of("secret")).values == [SECRET]


def test_the_whole_file_system_may_be_a_root(lake: Path) -> None:
    assert TableFetcher("", ["/"]).fetch(refs_of(f"{lake}/secret")).values == [SECRET]


def test_each_uri_is_resolved_once(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved: list[str] = []
    real = os.path.realpath

    def counted(path: str) -> str:
        resolved.append(path)
        return real(path)

    monkeypatch.setattr(os.path, "realpath", counted)
    fetcher = TableFetcher(f"{lake}/table", max_files=1)
    resolved.clear()
    uris = [f"{lake}/table/deep/a", f"{lake}/secret", f"{lake}/table/none"] * 40
    for _ in range(3):
        fetcher.fetch(refs_of(*uris))
    assert sorted(resolved) == sorted(uris[:3])


# ---- remote


@pytest.fixture
def memory() -> Iterator[None]:
    import fsspec

    store = fsspec.filesystem("memory")
    store.pipe({"/bucket/table/a": b"table", "/bucket/table2/a": b"table2", "/bucket/photos/a": b"photos", "/secret": SECRET})
    yield
    store.rm("/bucket", recursive=True)
    store.rm("/secret")


def test_local_and_remote_values_come_back_in_the_order_asked(lake: Path, memory: None) -> None:
    fetcher = TableFetcher("memory://bucket/table", [f"{lake}/photos", "memory://bucket/photos/"])
    refs = BlobRefs.of(
        [
            BlobRef("memory://bucket/table/a", 1, 2),
            None,
            BlobRef(f"{lake}/photos/deep/a", 2, 3),
            BlobRef(f"{lake}/secret"),
            BlobRef("memory://secret"),
            BlobRef("memory://bucket/photos/a"),
            BlobRef("memory://bucket/table/a", 0, 5),
        ]
    )
    fetched = fetcher.fetch(refs)
    assert fetched.values[:3] == [b"ab", None, b"oto"]
    assert "blob_roots" in error_of(fetched, 3)
    assert "blob_roots" in error_of(fetched, 4)
    assert fetched.values[5:] == [b"photos", b"table"]
    assert fetched.stats.bytes_referenced == 2 + 3 + 6 + 5
    assert fetched.stats.bytes_fetched == 3 + 6 + 5  # the overlapping ranges are read once
    assert fetcher.fetch(refs.take([0, 1, 5])).values == [b"ab", None, b"photos"]
    assert fetcher.fetch(refs.take([2, 1])).values == [b"oto", None]
    assert fetcher.fetch(refs.take([])).values == []


@pytest.mark.parametrize(
    "uri",
    [
        "memory://bucket/table2/a",
        "memory://bucket/table/../../secret",
        "memory://bucket/table/%2e%2e/%2E%2E/secret",
        "memory://bucket/table/..%2f..%2fsecret",
        "memory://bucket/table/..\\..\\secret",
        "memory://bucket/table/./a",
        "memory://bucket/table/a::memory://secret",
        "memory://other/table/a",
        "memory://bucket",
        "memory://secret",
        "MEMORY://secret",
        "/secret",
    ],
)
def test_urls_outside_are_refused(memory: None, uri: str) -> None:
    asked: list[str] = []

    def read_range(uri: str, offset: int, length: int) -> bytes:
        asked.append(uri)
        return b""

    remote = RangeFetcher(read_range)
    fetched = TableFetcher("memory://bucket/table", remote=remote).fetch(refs_of(uri))
    assert "blob_roots" in error_of(fetched, 0)
    assert asked == []


def test_names_of_one_store(memory: None) -> None:
    remote = RangeFetcher(lambda uri, offset, length: uri.encode())
    fetcher = TableFetcher("s3://bucket/table", remote=remote)
    uris = ["s3://bucket/table/a", "s3a://bucket/table/a", "S3://bucket/table/a"]
    assert fetcher.fetch(refs_of(*uris)).values == [uri.encode() for uri in uris]
    assert "blob_roots" in error_of(fetcher.fetch(refs_of("oss://bucket/table/a")), 0)
    assert "blob_roots" in error_of(fetcher.fetch(refs_of("s3://BUCKET/table/a")), 0)


def test_whole_steps_are_wanted_where_ranges_may_be_merged(lake: Path) -> None:
    assert not TableFetcher(str(lake)).whole_steps
    assert TableFetcher(str(lake), ["s3://bucket"]).whole_steps
    assert TableFetcher("s3://bucket/table").whole_steps
    assert not LocalFetcher().whole_steps
    assert RangeFetcher(fsspec_read_range()).whole_steps
    assert VerifyingFetcher(TableFetcher("s3://bucket/table")).whole_steps
    assert not VerifyingFetcher(LocalFetcher()).whole_steps


# ---- other processes


def _check(fetcher: TableFetcher, folder: str) -> None:
    fetched = fetcher.fetch(refs_of(f"{folder}/table/deep/a", f"{folder}/photos/deep/a", f"{folder}/secret"))
    assert fetched.values[:2] == [b"table", b"photos"]
    assert "blob_roots" in error_of(fetched, 2)


@pytest.mark.timeout(60)
def test_it_pickles_into_a_spawned_process(lake: Path) -> None:
    fetcher = TableFetcher(f"{lake}/table", [f"{lake}/photos"], max_files=3)
    _check(fetcher, str(lake))
    _check(pickle.loads(pickle.dumps(fetcher)), str(lake))
    process = multiprocessing.get_context("spawn").Process(target=_check, args=(fetcher, str(lake)))
    process.start()
    process.join(50)
    assert process.exitcode == 0


def test_dropping_a_fetcher_closes_its_files(lake: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("counts open files in /proc")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        TableFetcher(f"{lake}/table").fetch(refs_of(f"{lake}/table/deep/a"))
        assert len(os.listdir("/proc/self/fd")) <= before


# ---- .blob records


def record(payload: bytes) -> bytes:
    """As Paimon writes it."""
    body = struct.pack("<I", 1_481_511_375) + payload + struct.pack("<Q", len(payload) + 16)
    return body + struct.pack("<I", zlib.crc32(body))


PAYLOADS = [np.random.default_rng(i).bytes(size) for i, size in enumerate((100, 0, 1, 3_000, 57))]


@pytest.fixture
def blob_file(tmp_path: Path) -> tuple[Path, BlobRefs]:
    path = tmp_path / "data.blob"
    refs: list[BlobRef | None] = []
    at = 0
    for payload in PAYLOADS:
        refs.append(BlobRef(str(path), at + 4, len(payload)))
        at += len(payload) + 16
    path.write_bytes(b"".join(map(record, PAYLOADS)) + b"\x02\x02" + struct.pack("<IB", 2, 1))
    return path, BlobRefs.of([*refs[:3], None, *refs[3:]])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_whole_records_pass(blob_file: tuple[Path, BlobRefs]) -> None:
    _, refs = blob_file
    fetched = VerifyingFetcher(LocalFetcher()).fetch(refs)
    assert fetched.values == [*PAYLOADS[:3], None, *PAYLOADS[3:]]
    assert fetched.stats.bytes_referenced == sum(map(len, PAYLOADS))
    assert fetched.stats.bytes_fetched == sum(map(len, PAYLOADS)) + 5 * 16
    merged = VerifyingFetcher(RangeFetcher(fsspec_read_range())).fetch(refs)
    assert merged.values == fetched.values
    assert merged.stats.requests == 1


def test_every_flipped_byte_of_a_record_is_noticed(blob_file: tuple[Path, BlobRefs]) -> None:
    """The first record is 116 bytes: magic number, payload, length, crc32."""
    path, refs = blob_file
    says = {
        0: "magic number",
        3: "magic number",
        4: "crc32",
        103: "crc32",
        104: "the record says it has",
        112: "crc32",
        115: "crc32",
    }
    for at in range(116):
        flip(path, at)
        fetched = VerifyingFetcher(LocalFetcher()).fetch(refs)
        text = error_of(fetched, 0)
        assert text.startswith(f"can't read {path} 4+100: ")
        assert says.get(at, "") in text
        assert fetched.values[1:] == [*PAYLOADS[1:3], None, *PAYLOADS[3:]]
        assert fetched.stats.bytes_referenced == sum(map(len, PAYLOADS[1:]))
        assert LocalFetcher().fetch(refs).values[0] is not None  # unverified, it comes back as if it were right
        flip(path, at)


@pytest.mark.parametrize(("shift", "longer"), [(1, 0), (-1, 0), (0, 1), (0, -1), (116, 0), (-4, 4)])
def test_a_reference_that_is_not_a_record_is_noticed(blob_file: tuple[Path, BlobRefs], shift: int, longer: int) -> None:
    path, _ = blob_file
    refs = BlobRefs.of([BlobRef(str(path), 4 + shift, 100 + longer)])
    unverified = LocalFetcher().fetch(refs).values[0]
    assert isinstance(unverified, bytes)
    assert len(unverified) == 100 + longer
    assert str(path) in error_of(VerifyingFetcher(LocalFetcher()).fetch(refs), 0)


def test_references_without_a_length_can_not_be_verified(blob_file: tuple[Path, BlobRefs]) -> None:
    path, _ = blob_file
    refs = BlobRefs.of([BlobRef(str(path), 4), BlobRef(str(path), 4, 2**63 - 5), BlobRef(str(path), 4, -7)])
    fetched = VerifyingFetcher(LocalFetcher()).fetch(refs)
    assert all("read without verify" in error_of(fetched, row) for row in range(3))


def test_a_record_that_can_not_be_read_says_why(blob_file: tuple[Path, BlobRefs]) -> None:
    path, refs = blob_file
    os.truncate(path, 110)
    text = error_of(VerifyingFetcher(LocalFetcher()).fetch(refs), 0)
    assert text.startswith(f"can't read {path} 4+100: ")
    assert "got 110 bytes, expected 116" in text
    assert "blob_roots" in error_of(VerifyingFetcher(TableFetcher("/elsewhere")).fetch(refs), 0)


def test_other_files_are_read_as_they_are(tmp_path: Path, blob_file: tuple[Path, BlobRefs]) -> None:
    _, records = blob_file
    (tmp_path / "a.jpg").write_bytes(b"no record")
    refs = BlobRefs.of([BlobRef(f"{tmp_path}/a.jpg"), records[0], BlobRef(f"{tmp_path}/a.jpg", 0, 2), None])
    fetched = VerifyingFetcher(LocalFetcher()).fetch(refs)
    assert fetched.values == [b"no record", PAYLOADS[0], b"no", None]
    assert fetched.stats.bytes_referenced == 9 + 100 + 2
    assert VerifyingFetcher(LocalFetcher()).fetch(BlobRefs.of([])).values == []
