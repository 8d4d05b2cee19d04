"""Every client by one set of tests: obstore, botocore, Paimon's FileIO, fsspec. And none of them crosses a fork."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.config import load_config
from lakehouse.errors import FetchError
from lakehouse.fetch import BlobRef, BlobRefs, Fetched, RangeFetcher, ReadRange, fsspec_read_range
from lakehouse.stores import S3Settings, Store, put_new
from lakehouse.stores.readers import ArrowReader, BotocoreReader, ObstoreReader
from lakehouse.stores.s3 import Keys, S3Access, botocore_of
from tests.stores.fixtures import Lake, lake_on
from tests.stores.proxy import Proxy
from tests.stores.server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

DATA = b"".join(i.to_bytes(4, "little") for i in range(50_000))
KEYS = ["plain", "a/b=c d/é图.blob", "100%/x%2Fy", "q&+"]


@pytest.fixture(scope="module")
def prefix(s3_server: S3Server) -> str:
    """Objects of `DATA` under odd names."""
    lake = lake_on(s3_server)
    client = botocore_of(S3Access(S3Settings.of(s3_server.options())))
    folder = lake.warehouse.removeprefix(f"s3://{BUCKET}/")
    for key in KEYS:
        client.put_object(Bucket=BUCKET, Key=f"{folder}/{key}", Body=DATA)
    client.put_object(Bucket=BUCKET, Key=f"{folder}/empty", Body=b"")
    return lake.warehouse


def by_obstore(server: S3Server) -> ReadRange:
    return ObstoreReader(S3Access(S3Settings.of(server.options())))


def by_botocore(server: S3Server) -> ReadRange:
    return BotocoreReader(S3Access(S3Settings.of(server.options())))


def by_paimon(server: S3Server) -> ReadRange:
    file_io = lh.connect({"warehouse": f"s3://{BUCKET}/none", **server.options()}).paimon.file_io
    return ArrowReader(file_io.new_input_stream)


def by_s3fs(server: S3Server) -> ReadRange:
    client = {"endpoint_url": server.endpoint, "region_name": "us-east-1"}
    return fsspec_read_range({"key": ACCESS_KEY, "secret": SECRET_KEY, "client_kwargs": client})


READERS = [by_obstore, by_botocore, by_paimon, by_s3fs]


@pytest.fixture(params=READERS)
def fetcher(request: pytest.FixtureRequest, s3_server: S3Server) -> RangeFetcher:
    return RangeFetcher(request.param(s3_server), backoff_s=0.01, retries=2)


@pytest.mark.parametrize("key", KEYS)
def test_ranges(fetcher: RangeFetcher, prefix: str, key: str) -> None:
    ranges = [(0, 1), (199_990, 10), (4, 4), (100, 0), (5, -1), (70_000, 90_000), (4, 4), (199_999, -1)]
    fetched = fetcher.fetch(BlobRefs.of([BlobRef(f"{prefix}/{key}", *one) for one in ranges] + [None]))
    expected = [DATA[at:] if n == -1 else DATA[at : at + n] for at, n in ranges]
    assert fetched.values == [*expected, None]
    assert fetched.stats.bytes_referenced == sum(map(len, expected))


def test_what_is_not_there_and_what_is_too_short(fetcher: RangeFetcher, prefix: str) -> None:
    refs = [BlobRef(f"{prefix}/missing", 0, 4), BlobRef(f"{prefix}/plain", 199_998, 4), BlobRef(f"{prefix}/plain", 0, 4)]
    fetched = fetcher.fetch(BlobRefs.of(refs))
    missing, short, good = fetched.values
    assert isinstance(missing, FetchError)
    assert f"{prefix}/missing 0+4" in str(missing)
    assert str(missing).endswith("its table was made again since, open the table again")
    assert isinstance(short, FetchError)
    assert good == DATA[:4]


def test_a_wrong_secret_is_refused_by_name_and_not_shown(s3_server: S3Server, prefix: str) -> None:
    wrong = "wrong-secret-planted-77"
    store = Store({**s3_server.options(), "s3.secret-key": wrong})
    (value,) = store.fetcher().fetch(BlobRefs.of([BlobRef(f"{prefix}/plain", 0, 4)])).values
    assert isinstance(value, FetchError)
    assert "403" in str(value)
    assert "SignatureDoesNotMatch" in str(value)
    assert "give these credentials the right to read it" in str(value)
    error: BaseException | None = value
    while error is not None:
        assert wrong not in f"{error}{error!r}"
        error = error.__cause__ or error.__context__


def test_keys_that_expire_are_asked_for_again(s3_server: S3Server, prefix: str) -> None:
    """As tokens of a catalog server: refused once, then renewed."""
    given: list[str] = []

    def keys() -> Keys:
        given.append("wrong" if not given else SECRET_KEY)
        return Keys(ACCESS_KEY, given[-1])

    access = S3Access(S3Settings.of(s3_server.options()), keys)
    store = Store(s3_server.options())
    clients = store._clients.get()
    clients._access = access
    assert store.read_range(f"{prefix}/plain", 8, 4) == DATA[8:12]
    assert given == ["wrong", SECRET_KEY]
    clients._readers = {"s3": BotocoreReader(access)}
    given.clear()
    assert bytes(store.read_range(f"{prefix}/plain", 8, 4)) == DATA[8:12]


def test_without_keys_the_environments_are_taken(s3_server: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {key: value for key, value in s3_server.options().items() if not key.endswith("-key")}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert Store(settings).read_range(f"{prefix}/plain", 0, 4) == DATA[:4]


def test_keys_of_the_catalog_go_before_the_environments(
    s3_server: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of another account")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "eu-north-9")
    assert Store(s3_server.options()).read_range(f"{prefix}/plain", 0, 4) == DATA[:4]


def test_a_session_token_goes_with_every_client(s3_proxy: Proxy, prefix: str) -> None:
    access = S3Access(S3Settings.of({**s3_proxy.server.options(), "s3.session-token": "token-planted-5"}))
    s3_proxy.rule = lambda request: "403"  # this server knows no such session
    for reader in (ObstoreReader(access), BotocoreReader(access)):
        with pytest.raises(OSError, match=r"403|ACCESS_DENIED") as caught:
            reader(f"{prefix}/plain", 0, 4)
        assert "token-planted-5" not in str(caught.value)
    with pytest.raises(OSError, match="AccessDenied"):
        put_new(botocore_of(access), f"{prefix}/new", b"x")
    assert len(s3_proxy.requests) == 3
    assert all(b"x-amz-security-token: token-planted-5" in request.head.lower() for request in s3_proxy.requests)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"s3.access-key": "a", "s3.secret-key": "b"}, S3Settings(access_key="a", secret_key="b")),
        ({"fs.s3a.access.key": "a", "s3a.secret.key": "b"}, S3Settings(access_key="a", secret_key="b")),
        ({"fs.s3.accessKeyId": "a", "s3.access-key": "z"}, S3Settings(access_key="a")),
        ({"s3.endpoint": "minio:9000/"}, S3Settings(endpoint="https://minio:9000")),
        ({"fs.s3.endpoint": "http://m"}, S3Settings(endpoint="http://m")),
        ({"s3.path.style.access": "TRUE"}, S3Settings(path_style=True)),
        ({"s3.security-token": "t"}, S3Settings(session_token="t")),
        ({"fs.s3.securityToken": "t", "fs.s3.region": "r"}, S3Settings(session_token="t", region="r")),
    ],
)
def test_options_in_every_spelling(options: dict[str, str], settings: S3Settings) -> None:
    assert S3Settings.of(options) == settings
    assert "secret" not in repr(S3Settings(secret_key="secret")).replace("secret_key", "")


@pytest.mark.parametrize("reader", [ObstoreReader, BotocoreReader])
def test_versions_of_objects(reader: Any, s3_server: S3Server, prefix: str) -> None:
    access = S3Access(S3Settings.of(s3_server.options()))
    asked, client, url = reader(access), botocore_of(access), f"{prefix}/changes"
    bucket, _, key = url.removeprefix("s3://").partition("/")
    client.put_object(Bucket=bucket, Key=key, Body=b"one")
    first = asked.identity(url)
    assert asked.identity(url) == first
    client.put_object(Bucket=bucket, Key=key, Body=b"two")  # as long, and within the same second
    assert asked.identity(url) != first
    with pytest.raises(OSError, match="404|not found"):
        asked.identity(f"{prefix}/missing")
    assert Store(s3_server.options()).fetcher().identity(f"{prefix}/missing") is None  # type: ignore[attr-defined]


# ---- processes


def values_of(make: Any, refs: BlobRefs, answers: Any) -> None:
    """In a child: the same ranges, four times, by eight threads."""
    fetcher = make()
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda _: fetcher.fetch(refs), range(4)))
    answers.put(
        [[bytes(v) if v is not None and not isinstance(v, FetchError) else str(v) for v in one.values] for one in parts]
    )


class Kept:
    """Gives the parent's own fetcher."""

    def __init__(self, fetcher: Any) -> None:
        self.fetcher = fetcher

    def __call__(self) -> Any:
        return self.fetcher


@pytest.mark.skipif(sys.platform != "linux", reason="start methods of Linux")
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_concurrent_children_read_their_own_bytes(method: str, s3_server: S3Server, prefix: str) -> None:
    """Children that share a parent's sockets get each other's answers, of the right length: the bytes tell."""
    config = load_config({"warehouse": prefix, **s3_server.options()})
    store = Store(config.options)
    refs = [
        BlobRefs.of([BlobRef(f"{prefix}/plain", 4 * (i * 97 + k * 13) % 199_000, 400) for i in range(40)]) for k in range(4)
    ]
    fetcher = RangeFetcher(store.read_range, gap_bytes=0)
    expected = [[DATA[r.offset : r.offset + r.length] for r in one if r is not None] for one in refs]
    assert fetcher.fetch(refs[0]).values == expected[0]  # the parent's client is warm, its connections are open
    context = multiprocessing.get_context(method)
    answers = [context.SimpleQueue() for _ in refs]
    children = [
        context.Process(target=values_of, args=(Kept(fetcher), one, answer))  # type: ignore[attr-defined]
        for one, answer in zip(refs, answers, strict=True)
    ]
    for child in children:
        child.start()
    for answer, wanted in zip(answers, expected, strict=True):
        assert answer.get() == [wanted] * 4
    for child in children:
        child.join(20)
        assert child.exitcode == 0
    assert fetcher.fetch(refs[1]).values == expected[1]  # and the parent's still work


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_worker_processes_train_with_the_catalogs_keys(method: Any, s3_lake: Lake) -> None:
    table = s3_lake.connect().create_table("default.frames", pa.schema([("id", pa.int64()), ("frame", pa.large_binary())]))
    table.append([{"id": i, "frame": bytes([i]) * 100} for i in range(32)])
    index = table.latest().query().index()
    loader = lh.Loader(lh.Dataset(index, batch_size=4, seed=2), workers=2, start_method=method)
    seen = {int(i): data for batch in loader for i, data in zip(batch["id"], batch["frame"], strict=True)}
    assert seen == {i: bytes([i]) * 100 for i in range(32)}


def test_a_plain_pickle_carries_no_secret_and_a_spawned_one_works(s3_lake: Lake) -> None:
    store = Store(load_config(s3_lake.options).options)
    data = pickle.dumps(store)
    assert SECRET_KEY.encode() not in data
    assert SECRET_KEY not in repr(store)
    with pytest.raises(lh.ConfigError, match="without its secrets"):
        pickle.loads(data).read_range(f"{s3_lake.warehouse}/x", 0, 1)


# ---- references outside the warehouse


def test_references_by_url_under_the_allow_list(s3_server: S3Server, prefix: str, tmp_path: Any) -> None:
    import fsspec

    (tmp_path / "near.bin").write_bytes(DATA)
    fsspec.filesystem("memory").pipe("/bucket/far.bin", DATA)
    urls = [
        f"{prefix}/plain",
        f"s3a://{prefix.removeprefix('s3://')}/plain",
        "memory://bucket/far.bin",
        f"file://{tmp_path}/near.bin",
    ]
    roots = [prefix, "memory://bucket", str(tmp_path)]
    catalog = lh.connect(warehouse=str(tmp_path / "lake"), blob_roots=roots, **s3_server.options())
    schema = lh.Schema({"id": pa.int64(), "kept": lh.Blob(reference=True)})
    table = catalog.create_table("default.refs", schema)
    table.append([{"id": i, "kept": lh.BlobRef(url, 100, 8)} for i, url in enumerate(urls) if not url.startswith("memory")])
    index = table.latest().query().index()
    fetched: Fetched = index.fetcher().fetch(BlobRefs.of([BlobRef(url, 100, 8) for url in urls]))
    assert fetched.values == [DATA[100:108]] * 4
    batches = [data for batch in lh.Loader(lh.Dataset(index, batch_size=1)) for data in batch["kept"]]
    assert batches == [DATA[100:108]] * 3
    strict = lh.connect(warehouse=str(tmp_path / "lake"), **s3_server.options()).table("default.refs")
    values = strict.latest().fetcher().fetch(BlobRefs.of([BlobRef(url, 100, 8) for url in urls])).values
    assert all(isinstance(value, FetchError) and "blob_roots" in str(value) for value in values)


def test_footers_are_read_together(s3_proxy: Proxy) -> None:
    """An index over many files: their ends are asked for at one time, and little else of them."""
    lake = lake_on(s3_proxy.server)
    schema = pa.schema([("id", pa.int64()), ("part", pa.int64()), ("frame", pa.large_binary())])
    table = lake.connect().create_table("default.frames", schema, partition_by=["part"])
    table.append([{"id": i, "part": i % 24, "frame": os.urandom(20_000)} for i in range(48)])
    snap = table.latest()
    snap.query().index()
    s3_proxy.reset()
    s3_proxy.delay_s = 0.1
    began = _clock()
    index = snap.query().select("frame").index()
    took = _clock() - began
    blobs = [request for request in s3_proxy.requests if ".blob" in request.path]
    assert len(blobs) == 24
    assert all(request.range is not None and request.range[1] - request.range[0] < 5_000 for request in blobs)
    others = len(s3_proxy.requests) - len(blobs)
    assert took < 0.1 * (others + 8)
    assert len(index) == 48


def _clock() -> float:
    import time

    return time.monotonic()
