"""Where the warehouse of a running test lies: in its own folder, or on a real S3 server, with the same code.

A module whose tests touch storage opens catalogs by `connect(folder)` and says ``pytestmark = on_stores``. Each of its tests
then runs on local files; and on S3 too where it is marked ``s3`` (CI's sample), or where ``LAKEHOUSE_TESTS_ON_S3=all`` asks for
the whole suite. Tests that look at files, or open the warehouse in other processes, are marked ``local``, with the reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

import pytest

import lakehouse as lh
from lakehouse.stores import Store
from lakehouse.upstream_store import FRESH_S, ONCE
from tests.stores.server import BUCKET, S3Server, client

on_stores = pytest.mark.usefixtures("store")
ALL_ON_S3 = "LAKEHOUSE_TESTS_ON_S3"

_KEYS = {"s3.access-key": "LAKEHOUSE_TEST_ACCESS_KEY", "s3.secret-key": "LAKEHOUSE_TEST_SECRET_KEY"}
_server: S3Server | None = None  # of the S3 tests that are running


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """``local`` or ``s3``: what `connect` and `location` do meanwhile. Fixtures that keep a table for a module ask for it."""
    global _server
    if request.param == "s3":
        _server = request.getfixturevalue("s3_server")
        os.environ.update({variable: _server.options()[key] for key, variable in _KEYS.items()})
    yield request.param
    _server = None


def stores_of(definition: pytest.Item, fixtures: Iterable[str]) -> list[str]:
    """Which stores a test runs on: one without a folder touches none."""
    marked = definition.get_closest_marker("s3") is not None
    wanted = marked or (os.environ.get(ALL_ON_S3) == "all" and not {"tmp_path", "tmp_path_factory"}.isdisjoint(fixtures))
    return ["local", "s3"] if wanted and definition.get_closest_marker("local") is None else ["local"]


def options(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What `lakehouse.connect` takes for it; other processes of this test may be given it too, keys come by the environment."""
    if _server is None:
        return {"warehouse": str(folder)}
    keys = {key: f"${{{variable}}}" for key, variable in _KEYS.items()}
    return {"warehouse": location(folder), **_server.options(), **keys}


def connect(folder: str | os.PathLike[str], **more: Any) -> lh.Catalog:
    """A new catalog over a folder, or over what stands for it on S3."""
    return lh.connect({**options(folder), **more})


def location(folder: str | os.PathLike[str]) -> str:
    """The folder's own path, or the URL that stands for it. Pytest makes no path twice, so nothing is there."""
    if _server is None or str(folder).startswith("s3://"):
        return str(folder)
    return f"s3://{BUCKET}{Path(folder).absolute()}"


def path(at: str | os.PathLike[str]) -> Path:
    """What lies at a `location`, to be looked at and changed as pathlib does."""
    if _server is None:
        return Path(at)
    return cast("Path", S3Path(f"/{location(at).removeprefix(f's3://{BUCKET}/')}"))


def reader() -> Store | None:
    """What reads files of `write`; None: they are local."""
    return None if _server is None else Store(_server.options())


def write(at: str | os.PathLike[str], data: bytes) -> str:
    """Make a file; its `location`."""
    made = path(at)
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_bytes(data)
    return location(at)


def content(uri: str) -> bytes:
    """What a uri names, on either kind of storage."""
    return path(uri).read_bytes() if uri.startswith("s3://") else Path(uri.removeprefix("file://")).read_bytes()


class S3Path(PurePosixPath):
    """As much of `Path` as tests need, for objects of the server that runs. Folders are what keys have in common."""

    @property
    def _key(self) -> str:
        return str(self).lstrip("/")

    def read_bytes(self) -> bytes:
        data: bytes = self._ask("get_object")["Body"].read()
        return data

    def write_bytes(self, data: bytes) -> int:
        if data:
            self._ask("put_object", Body=bytes(data))
        else:  # the server answers nothing more on a connection that an empty one came by
            assert _server is not None
            another: Any = client(_server)
            another.put_object(Bucket=BUCKET, Key=self._key, Body=b"")
        self._settle()
        return len(data)

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def write_text(self, text: str) -> int:
        return self.write_bytes(text.encode())

    def unlink(self) -> None:
        self._ask("head_object")  # which fails where there is none
        self._ask("delete_object")
        self._settle()

    def rename(self, target: S3Path) -> None:
        for file in [self] if self.is_file() else [found for found in self.rglob("*") if found.is_file()]:
            (target / file.relative_to(self)).write_bytes(file.read_bytes())
            file.unlink()

    def rmdir(self) -> None:
        """As `mkdir`."""

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: a folder is there when something is in it."""

    def stat(self) -> SimpleNamespace:
        if self.is_dir():
            return SimpleNamespace(st_size=0, st_mtime_ns=0)
        found = self._ask("head_object")
        changed_ns = int(found["LastModified"].timestamp()) * 10**9 + int(found["ETag"].strip('"')[:7], 16)  # and what it holds
        return SimpleNamespace(st_size=found["ContentLength"], st_mtime_ns=changed_ns)

    def is_file(self) -> bool:
        return self.exists() and not self.is_dir()

    def is_dir(self) -> bool:
        return next(self._keys(), None) is not None

    def exists(self) -> bool:
        if self.is_dir():
            return True
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def iterdir(self) -> Iterator[S3Path]:
        yield from sorted({self / key.removeprefix(f"{self._key}/").split("/")[0] for key in self._keys()})

    def rglob(self, pattern: str) -> Iterator[S3Path]:
        found = {self / key.removeprefix(f"{self._key}/") for key in self._keys()}
        found |= {parent for one in found for parent in one.parents if self in parent.parents}
        yield from sorted(one for one in found if one.relative_to(self).match(pattern))

    def glob(self, pattern: str) -> Iterator[S3Path]:
        yield from (one for one in self.rglob("*") if PurePosixPath(f"/{one.relative_to(self)}").match(f"/{pattern}"))

    def _settle(self) -> None:
        """Until the store is asked again for a file that is written once, and that a test has removed or changed all the same."""
        if ONCE.search(str(self)):
            time.sleep(FRESH_S + 0.05)

    def _keys(self) -> Iterator[str]:
        """Of all files below this folder."""
        pages = _client(_server).get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{self._key}/")
        yield from (item["Key"] for page in pages for item in page.get("Contents", ()) if not item["Key"].endswith("/"))

    def _ask(self, call: str, **more: Any) -> Any:
        from botocore.exceptions import ClientError

        try:
            return getattr(_client(_server), call)(Bucket=BUCKET, Key=self._key, **more)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                raise FileNotFoundError(str(self)) from error
            raise


@cache
def _client(server: S3Server | None) -> Any:
    assert server is not None
    return client(server)
