"""Ranges of real local files."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lakehouse.errors import FetchError
from lakehouse.fetch import BlobRef, BlobRefs, Fetched, LocalFetcher

FILES = 12
FILE_BYTES = 50_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for i in range(FILES):
        (folder / f"{i}.bin").write_bytes(content(i))
    return folder


def content(i: int) -> bytes:
    return np.random.default_rng(i).bytes(FILE_BYTES)


def random_refs(folder: Path, n: int, seed: int) -> tuple[BlobRefs, list[bytes | None]]:
    """References into all files, some null, and their bytes."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(-1, FILES, n)
    offsets = generator.integers(0, FILE_BYTES, n)
    lengths = np.minimum(generator.integers(0, 3_000, n), FILE_BYTES - offsets)
    contents = [content(i) for i in range(FILES)]
    expected = [
        None if i < 0 else contents[i][offset : offset + length]
        for i, offset, length in zip(ids.tolist(), offsets.tolist(), lengths.tolist(), strict=True)
    ]
    return BlobRefs(tuple(str(folder / f"{i}.bin") for i in range(FILES)), ids, offsets, lengths), expected


def error_of(fetched: Fetched, row: int) -> str:
    value = fetched.values[row]
    assert isinstance(value, FetchError)
    return str(value)


def open_files_below(folder: Path) -> int:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the listing's own
            continue
    return sum(link.startswith(str(folder)) for link in links)


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")


@pytest.mark.parametrize("n", [0, 1, 7, 360, 2_000])
def test_every_value_comes_back_in_the_order_asked(folder: Path, n: int) -> None:
    refs, expected = random_refs(folder, n, seed=n)
    fetched = LocalFetcher().fetch(refs)
    assert fetched.values == expected
    total = sum(len(value) for value in expected if value)
    assert fetched.stats.bytes_referenced == fetched.stats.bytes_fetched == total
    assert fetched.stats.requests == sum(1 for value in expected if value)
    assert fetched.stats.retries == 0


def test_forms_of_a_range(folder: Path) -> None:
    path = str(folder / "3.bin")
    data = content(3)
    fetched = LocalFetcher().fetch(
        BlobRefs.of(
            [
                BlobRef(path),  # all of it
                BlobRef(path, FILE_BYTES - 7),  # to the end
                BlobRef(path, FILE_BYTES),  # to the end, where nothing is left
                BlobRef(path, 5, 0),
                None,
                BlobRef(f"file://{path}", 1, 2),
                BlobRef(f"file:{path}", 1, 2),
                BlobRef(f"file://localhost{path}", 1, 2),
                BlobRef(os.path.relpath(path), 1, 2),
            ]
        )
    )
    assert fetched.values == [data, data[-7:], b"", b"", None, data[1:3], data[1:3], data[1:3], data[1:3]]


def test_percent_signs_are_part_of_a_path(tmp_path: Path) -> None:
    """Paimon's partition folders hold them, and its uris do not encode them."""
    (tmp_path / "p=100%25 #?").write_bytes(b"literal")
    path = f"{tmp_path}/p=100%25 #?"
    assert LocalFetcher().fetch(BlobRefs.of([BlobRef(path), BlobRef(f"file://{path}")])).values == [b"literal"] * 2


# ---- ranges that can't be read


@pytest.mark.parametrize(
    ("offset", "length", "says"),
    [
        (FILE_BYTES - 3, 10, rf"{FILE_BYTES - 3}\+10: got 3 bytes, expected 10: the file holds {FILE_BYTES}"),
        (FILE_BYTES + 5, 10, r"got 0 bytes, expected 10"),
        (0, 2**62, rf"got {FILE_BYTES} bytes, expected {2**62}"),
        (2**63 - 2, 2**63 - 1, r"got 0 bytes"),
        (FILE_BYTES + 1, -1, r"\+end: got 0 bytes, expected at least 0"),
        (-1, 10, r"-1\+10: an offset of -1"),
        (-5, -1, r"an offset of -5"),
        (-5, 0, r"an offset of -5"),
        (0, -2, r"a length of -2"),
    ],
)
def test_a_range_that_is_not_there_is_one_failed_row(folder: Path, offset: int, length: int, says: str) -> None:
    path = str(folder / "0.bin")
    refs = BlobRefs.of([BlobRef(path, 0, 4), BlobRef(path, offset, length), BlobRef(path, 4, 4)])
    fetcher = LocalFetcher()
    fetcher.fetch(refs.take([0]))
    tracemalloc.start()
    try:
        fetched = fetcher.fetch(refs)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert fetched.values[::2] == [content(0)[:4], content(0)[4:8]]
    with pytest.raises(FetchError, match=says):
        raise fetched.values[1]  # type: ignore[misc]
    assert path in error_of(fetched, 1)
    assert fetched.stats.bytes_referenced == 8


def test_files_that_can_not_be_read_leave_the_others_alone(folder: Path, tmp_path: Path) -> None:
    """Of 20 references one file is missing and one unreadable: the other 18 arrive."""
    for i in range(20):
        (tmp_path / str(i)).write_bytes(bytes([i]) * 10)
    (tmp_path / "4").unlink()
    (tmp_path / "9").chmod(0)
    refs = BlobRefs.of([BlobRef(f"{tmp_path}/{i}", 2, 5) for i in range(20)])
    fetched = LocalFetcher().fetch(refs)
    unreadable = {4} if os.access(tmp_path / "9", os.R_OK) else {4, 9}  # root reads everything
    assert {i for i, value in enumerate(fetched.values) if isinstance(value, FetchError)} == unreadable
    assert all(value == bytes([i]) * 5 for i, value in enumerate(fetched.values) if i not in unreadable)
    text = error_of(fetched, 4)
    assert text.startswith(f"can't read {tmp_path}/4 2+5: FileNotFoundError: ")
    assert text.endswith(
        "; restore the file; where its snapshot has expired, or its table was made again since, open the table again"
    )
    value = fetched.values[4]
    assert isinstance(value, FetchError)
    assert isinstance(value.__cause__, FileNotFoundError)
    assert str(pickle.loads(pickle.dumps(value))) == text


def test_permission_errors_say_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)
    fetched = LocalFetcher().fetch(BlobRefs.of([BlobRef(str(folder / "0.bin"), 0, 4)]))
    assert "PermissionError" in error_of(fetched, 0)
    assert error_of(fetched, 0).endswith("let this process's user read it")


@pytest.mark.timeout(20)
def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening one waits for a writer
    refs = BlobRefs.of([BlobRef(str(tmp_path / "pipe"), 0, 1), BlobRef(str(tmp_path), 0, 1), BlobRef("/dev/zero", 0, 10**12)])
    fetched = LocalFetcher().fetch(refs)
    assert all("not a regular file" in error_of(fetched, row) for row in range(3))


@pytest.mark.parametrize("uri", ["/no\0thing", "file://elsewhere/a", "file://", "/\udc80\ud800", ""])
def test_uris_that_name_no_path(folder: Path, uri: str) -> None:
    fetched = LocalFetcher().fetch(BlobRefs.of([BlobRef(uri, 0, 3), BlobRef(str(folder / "0.bin"), 0, 3)]))
    assert "can't read" in error_of(fetched, 0)
    assert fetched.values[1] == content(0)[:3]


def test_a_read_error_is_one_failed_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread

    def failing(fd: int, length: int, offset: int) -> bytes:
        if offset == 100:
            raise OSError(5, "Input/output error")
        return real(fd, length, offset)

    monkeypatch.setattr(os, "pread", failing)
    path = str(folder / "0.bin")
    fetched = LocalFetcher().fetch(BlobRefs.of([BlobRef(path, at, 10) for at in (0, 100, 200)]))
    assert fetched.values[::2] == [content(0)[:10], content(0)[200:210]]
    assert "100+10: OSError: [Errno 5] Input/output error" in error_of(fetched, 1)


def test_short_reads_are_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux gives at most 2 GiB a call."""
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 700), offset))
    fetched = LocalFetcher().fetch(BlobRefs.of([BlobRef(str(folder / "5.bin"), 3, 9_000), BlobRef(str(folder / "5.bin"))]))
    assert fetched.values == [content(5)[3:9_003], content(5)]


def test_a_file_that_shrinks_or_grows_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "changing"
    path.write_bytes(b"0123456789")
    fetcher = LocalFetcher()
    ref = BlobRefs.of([BlobRef(str(path), 5, 5)])
    assert fetcher.fetch(ref).values == [b"56789"]
    os.truncate(path, 7)
    assert "got 2 bytes, expected 5" in error_of(fetcher.fetch(ref), 0)
    with open(path, "ab") as file:
        file.write(b"abcdef")
    assert fetcher.fetch(BlobRefs.of([BlobRef(str(path), 5, 8), BlobRef(str(path), 5)])).values == [b"56abcdef"] * 2


@pytest.mark.parametrize("refused", [False, True])
def test_an_error_does_not_keep_the_other_values_alive(folder: Path, refused: bool) -> None:
    def path_of(uri: str) -> str:
        if refused and uri == "/nowhere":
            raise FetchError("not this one")
        return uri

    path = str(folder / "0.bin")
    refs = BlobRefs.of([*(BlobRef(path, 0, FILE_BYTES) for _ in range(100)), BlobRef("/nowhere", 0, 1)])
    fetcher = LocalFetcher(path_of=path_of)
    gc.disable()  # a cycle of error and frame would only go with a collection
    tracemalloc.start()
    try:
        error = fetcher.fetch(refs).values[-1]
        assert tracemalloc.get_traced_memory()[0] < 500_000  # of 5 MB
    finally:
        tracemalloc.stop()
        gc.enable()
    assert isinstance(error, FetchError)


# ---- open files


@needs_proc
def test_open_files_are_bounded_and_close_with_the_fetcher(folder: Path) -> None:
    gc.collect()  # errors that other tests caught hold their fetchers
    fetcher = LocalFetcher(max_files=5)
    refs, expected = random_refs(folder, 500, seed=1)
    for _ in range(3):
        assert fetcher.fetch(refs).values == expected
        assert open_files_below(folder) == 5
    del fetcher
    assert open_files_below(folder) == 0  # at once, without a garbage collection


@needs_proc
def test_the_least_recently_used_file_is_closed_first(folder: Path) -> None:
    opened: list[str] = []

    def path_of(uri: str) -> str:
        opened.append(Path(uri).name)
        return uri

    fetcher = LocalFetcher(max_files=2, path_of=path_of)
    for i in (0, 1, 0, 2, 0, 1):
        fetcher.fetch(BlobRefs.of([BlobRef(str(folder / f"{i}.bin"), 0, 1)]))
    assert opened == ["0.bin", "1.bin", "2.bin", "1.bin"]


@pytest.mark.timeout(60)
def test_many_threads_over_few_open_files(folder: Path) -> None:
    """Files are closed for others all the time: a reader whose file was closed would read another one's bytes."""
    fetcher = LocalFetcher(max_files=1)
    cases = [random_refs(folder, 120, seed) for seed in range(16)]
    wrong = []
    start = threading.Barrier(16)

    def read(case: tuple[BlobRefs, list[bytes | None]]) -> None:
        refs, expected = case
        start.wait()
        for _ in range(25):
            if fetcher.fetch(refs).values != expected:
                wrong.append(refs)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(read, cases))
    assert not wrong


@needs_proc
def test_running_out_of_descriptors_costs_the_cache_not_the_row(folder: Path) -> None:
    program = (
        "import os, resource, sys\n"
        "from lakehouse.fetch import *\n"
        "fetcher = LocalFetcher()\n"
        "paths = [os.path.join(sys.argv[1], f'{i}.bin') for i in range(12)]\n"
        "refs = BlobRefs.of([BlobRef(path, 0, 10) for path in paths])\n"
        "used = len(os.listdir('/proc/self/fd'))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (used + 4, used + 4))\n"
        "values = fetcher.fetch(refs).values\n"
        "os.write(1, b''.join(values) if all(isinstance(v, bytes) for v in values) else str(values).encode())\n"
    )
    root = str(Path(__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, "-c", program, str(folder)], env={**os.environ, "PYTHONPATH": root}, capture_output=True, timeout=60
    )
    assert run.stdout == b"".join(content(i)[:10] for i in range(FILES)), run.stderr


def test_pickling_leaves_open_files_behind(folder: Path) -> None:
    refs, expected = random_refs(folder, 50, seed=2)
    fetcher = LocalFetcher(max_files=3)
    fetcher.fetch(refs)
    copy = pickle.loads(pickle.dumps(fetcher))
    assert repr(copy) == "LocalFetcher(max_files=3)"
    assert copy.fetch(refs).values == expected


def test_max_files_is_checked() -> None:
    with pytest.raises(ValueError, match="max_files"):
        LocalFetcher(max_files=0)


# ---- forks


@contextmanager
def busy(fetcher: LocalFetcher, refs: BlobRefs) -> Iterator[None]:
    """Threads that read, so that a fork meets locks held and files being opened and closed."""
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            fetcher.fetch(refs)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def forked(check: Callable[[], bool]) -> int:
    """The pid of a child that exits with 0 when the check holds."""
    pid = os.fork()
    if pid:
        return pid
    status = 3
    try:  # a child of pytest leaves by os._exit only
        signal.alarm(20)
        status = 0 if check() else 2
    finally:
        os._exit(status)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_children_read_their_own_bytes(folder: Path) -> None:
    fetcher = LocalFetcher(max_files=2)
    parents, _ = random_refs(folder, 60, seed=3)
    cases = [random_refs(folder, 200, seed) for seed in range(12)]

    def right(case: tuple[BlobRefs, list[bytes | None]]) -> bool:
        refs, expected = case
        return all(fetcher.fetch(refs).values == expected for _ in range(10))

    with busy(fetcher, parents):
        children = [forked(partial(right, case)) for case in cases]
        assert [exit_code(pid) for pid in children] == [0] * 12


@needs_proc
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_closes_what_it_inherited(folder: Path) -> None:
    gc.collect()  # errors that other tests caught hold their fetchers
    fetcher = LocalFetcher(max_files=8)
    refs, _ = random_refs(folder, 200, seed=4)
    fetcher.fetch(refs)
    one = BlobRefs.of([BlobRef(str(folder / "0.bin"), 0, 1)])
    child = forked(lambda: fetcher.fetch(one).values == [content(0)[:1]] and open_files_below(folder) == 1)
    assert exit_code(child) == 0
    assert open_files_below(folder) == 8
