"""OSS: options for each client from the one YAML, and commits refused where OSS would not notice a lost one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.oss import OssSettings, refusal
from lakehouse.oss.settings import DENIED

SCHEMA = pa.schema([("id", pa.int64()), ("frame", pa.large_binary())])
KEYS = {"fs.oss.accessKeyId": "key-of-the-test", "fs.oss.accessKeySecret": "secret-of-the-test"}


def test_one_set_of_options_for_every_client() -> None:
    options = {"fs.oss.endpoint": "oss-cn-hangzhou.aliyuncs.com", "fs.oss.region": "cn-hangzhou", **KEYS}
    settings = OssSettings.of({**options, "fs.oss.securityToken": "sts", "warehouse": "oss://b/lake", "s3.region": "x"})
    assert settings.pypaimon() == {
        **options,
        "fs.oss.endpoint": "https://oss-cn-hangzhou.aliyuncs.com",
        "fs.oss.securityToken": "sts",
    }
    assert settings.fsspec() == {
        "endpoint": "https://oss-cn-hangzhou.aliyuncs.com",
        "key": "key-of-the-test",
        "secret": "secret-of-the-test",
        "token": "sts",
    }
    assert settings.daft("b")["opendal_backends"]["oss"] == {
        "bucket": "b",
        "endpoint": "https://oss-cn-hangzhou.aliyuncs.com",
        "region": "cn-hangzhou",
        "access_key_id": "key-of-the-test",
        "access_key_secret": "secret-of-the-test",
        "security_token": "sts",
    }
    assert not [secret for secret in ("key-of", "secret-of", "sts") if secret in repr(settings)]


def test_what_is_not_given_is_left_to_the_client() -> None:
    assert OssSettings.of({}).pypaimon() == OssSettings.of({}).fsspec() == {}
    assert OssSettings.of({}).daft("b") == {"opendal_backends": {"oss": {"bucket": "b"}}}
    dlf = OssSettings.of(
        {"dlf.oss-endpoint": "oss-cn-beijing.aliyuncs.com", "fs.oss.endpoint": "x", "dlf.region": "cn-beijing"}
    )
    assert (dlf.endpoint, dlf.region) == ("https://oss-cn-beijing.aliyuncs.com", "cn-beijing")
    assert OssSettings.of({"fs.oss.endpoint": "http://127.0.0.1:9"}).endpoint == "http://127.0.0.1:9"


def test_daft_takes_what_it_is_given() -> None:
    from daft.io import IOConfig

    assert "oss" in repr(IOConfig(**OssSettings.of(KEYS).daft("b")))


@pytest.mark.parametrize(
    ("versioning", "match"),
    [("Enabled", "versioning is Enabled.*REST catalog"), ("Suspended", "is Suspended"), (DENIED, "oss:GetBucketVersioning")],
)
def test_what_decides(versioning: str, match: str) -> None:
    assert refusal(None) is None
    with pytest.raises(AssertionError, match=match):
        raise AssertionError(refusal(versioning))
    assert 'pip install "lakehouse-sdk[oss]"' in str(refusal(None, has_oss2=False))


@dataclass
class Store:
    """Answers what a bucket's versioning is, and nothing else."""

    status: int = 200
    body: str = ""
    asked: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def bucket() -> Iterator[Store]:
    kept = Store()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            kept.asked.append(f"{self.command} {self.path}")
            data = kept.body.encode()
            self.send_response(kept.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            """Silent."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{http.server_address[1]}"
    kept.options = {"warehouse": "oss://my-bucket/lake", "fs.oss.endpoint": endpoint, "fs.oss.region": "cn-hangzhou", **KEYS}
    kept.options["fs.oss.impl"] = "legacy"
    yield kept
    http.shutdown()
    http.server_close()
    thread.join()


def versioning(status: str) -> str:
    return f"<?xml version='1.0'?><VersioningConfiguration>{status}</VersioningConfiguration>"


def error(code: str) -> str:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no key-of-the-test</Message></Error>"


def test_without_the_library_nothing_is_written(bucket: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "oss2", None)  # to Python it is not installed, then
    with pytest.raises(lh.CommitError, match=r"lakehouse-sdk\[oss\]"):
        lh.connect(bucket.options).create_table("drives.t", SCHEMA)
    assert bucket.asked == []


@pytest.mark.parametrize(
    ("status", "body", "match"),
    [
        (200, versioning("<Status>Enabled</Status>"), "versioning is Enabled"),
        (200, versioning("<Status>Suspended</Status>"), "versioning is Suspended"),
        (403, error("AccessDenied"), "grant oss:GetBucketVersioning"),
        (403, error("InvalidAccessKeyId"), "can't be read .*403 InvalidAccessKeyId"),
        (404, error("NoSuchBucket"), "can't be read .*404 NoSuchBucket"),
    ],
)
def test_buckets_in_which_commits_could_be_lost(bucket: Store, status: int, body: str, match: str) -> None:
    bucket.status, bucket.body = status, body
    catalog = lh.connect(bucket.options)
    for write in (lambda: catalog.create_table("drives.t", SCHEMA), lambda: catalog.create_database("drives")):
        with pytest.raises(lh.CommitError, match=match) as caught:
            write()
        assert "secret-of-the-test" not in f"{caught.value}{caught.value.__cause__!r}"
    assert set(bucket.asked) == {"GET /my-bucket/?versioning="} or set(bucket.asked) == {"GET /my-bucket/?versioning"}


def test_a_bucket_without_versions_is_written_to(bucket: Store) -> None:
    from pypaimon.common.options import Options

    from lakehouse.oss.file_io import CreatingOssFileIO

    bucket.body = versioning("")
    file_io = CreatingOssFileIO("oss://my-bucket/lake", Options(bucket.options))
    file_io.check_creates("oss://my-bucket/lake")
    assert file_io.try_to_write_atomic("oss://my-bucket/lake/snapshot-1", "{}")
    asked = [unquote(line.split("?")[0]) for line in bucket.asked]
    assert asked == ["GET /my-bucket/", "PUT /my-bucket/lake/snapshot-1"]
    bucket.status, bucket.body = 409, error("FileAlreadyExists")
    assert not file_io.try_to_write_atomic("oss://my-bucket/lake/snapshot-1", "{}")


def test_versions_elsewhere_are_no_matter(tmp_path: Path) -> None:
    assert lh.connect(warehouse=str(tmp_path / "lake")).create_table("drives.t", SCHEMA).append([{"id": 1}]).snapshot_id == 1


def test_writes_to_gcs_are_refused_without_a_server(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from lakehouse.upstream import check_commits

    environment = SimpleNamespace(catalog_loader=None, supports_version_management=False)
    table = SimpleNamespace(table_path="gs://bucket/lake/t", file_io=object(), catalog_environment=environment)
    with pytest.raises(lh.CommitError, match="gs://bucket/lake/t is not written to: .*REST catalog"):
        check_commits(table)
    environment.catalog_loader, environment.supports_version_management = object(), True  # then a server decides
    check_commits(table)
