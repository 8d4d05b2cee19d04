"""A server for the session, a proxy for a test, and a warehouse of a test's own on either kind of storage."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lakehouse as lh
from tests.stores.proxy import Proxy, running_proxy
from tests.stores.server import BUCKET, S3Server, running_server


@dataclass(frozen=True)
class Lake:
    """A warehouse that nothing is in yet.

    Attributes:
        options: what `lakehouse.connect` takes.
    """

    options: dict[str, str]

    @property
    def warehouse(self) -> str:
        """Its path or URL."""
        return self.options["warehouse"]

    def connect(self, **options: Any) -> lh.Catalog:
        """A new catalog over it."""
        return lh.connect({**self.options, **options})


def lake_on(server: S3Server) -> Lake:
    """A new one on a server."""
    return Lake({"warehouse": f"s3://{BUCKET}/{uuid.uuid4().hex}", **server.options()})


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server."""
    with running_server() as server:
        yield server


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[Proxy]:
    """A proxy before it, without faults and delay at first."""
    with running_proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture
def s3_lake(s3_server: S3Server) -> Lake:
    """A warehouse on it."""
    return lake_on(s3_server)


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """A warehouse in a folder, and one on S3."""
    if request.param == "local":
        return Lake({"warehouse": str(tmp_path / "warehouse")})
    return lake_on(request.getfixturevalue("s3_server"))
