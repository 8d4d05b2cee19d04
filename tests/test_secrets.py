"""No secret gets out: planted ones are looked for in all that this package shows, logs, saves, pickles or writes."""

from __future__ import annotations

import io
import json
import logging
import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import lakehouse as lh
from tests.rest import Fault, Lake, RestServer
from tests.stores import server as s3
from tests.stores.server import S3Server

SCHEMA = pa.schema([("id", pa.int64()), ("channel", pa.string()), ("frame", pa.large_binary())])
ROWS = [{"id": number, "channel": f"c{number % 2}", "frame": b"frame-%d" % number} for number in range(12)]
KINDS = ("bearer", "dlf", "table token", "table token for s3", "s3", "jdbc")
BEARER, KEY_ID, KEY_SECRET, STS = "planted-bearer-1", "planted-key-id-2", "planted-key-secret-3", "planted-sts-4"
DATA_KEY, DATA_SECRET, DATA_STS, PASSWORD = (
    "planted-data-key-5",
    "planted-data-secret-6",
    "planted-data-sts-7",
    "planted-password-8",
)


@dataclass
class Place:
    """A catalog and the secrets that it works with.

    Attributes:
        options: what `lakehouse.connect` takes.
        planted: what must be seen nowhere.
        wrong: options to override, of secrets that are refused; these are planted too.
        fail: makes the next look at a table fail, where that can be made.
        files: all files of the warehouse, read anew.
    """

    options: dict[str, str]
    planted: tuple[str, ...]
    wrong: dict[str, str]
    files: Callable[[], list[bytes]]
    fail: Callable[[], None] = lambda: None


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "lake"
    planted: tuple[str, ...]

    def files() -> list[bytes]:
        return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]

    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        options = {"warehouse": f"s3://{s3.BUCKET}/secrets-{time.time_ns()}", **server.options()}
        planted = (s3.SECRET_KEY,)
        wrong = {"s3.secret-key": "planted-wrong-9"}
        yield Place(options, (*planted, *wrong.values()), wrong, lambda: _objects(server, options["warehouse"]))
        return
    if request.param == "jdbc":
        uri = f"jdbc:sqlite:file:{tmp_path}/catalog.db?mode=rwc&password={PASSWORD}"
        options = {"metastore": "jdbc", "uri": uri, "warehouse": str(folder), "jdbc.password": PASSWORD}
        wrong = {"uri": "jdbc:oracle://me:planted-wrong-9@nowhere/db"}
        yield Place(options, (PASSWORD, "planted-wrong-9"), wrong, files)
        return
    lake: Lake | Path = folder
    if request.param == "table token for s3":
        server = request.getfixturevalue("s3_server")
        warehouse = f"s3://{s3.BUCKET}/secrets-{time.time_ns()}"
        lake = Lake(warehouse, server.options())
    with RestServer.run(lake, bearer={BEARER}, keys={KEY_ID: (KEY_SECRET, STS)}) as rest:
        options = rest.options()
        wrong = {"token": "planted-wrong-9"}
        planted = (BEARER,)
        if request.param == "dlf":
            keys = {"dlf.access-key-id": KEY_ID, "dlf.access-key-secret": KEY_SECRET, "dlf.security-token": STS}
            options = {**rest.options(), "token.provider": "dlf", "dlf.region": "cn-hangzhou", **keys}
            del options["token"]
            wrong = {"dlf.security-token": "planted-wrong-9", "dlf.access-key-secret": "planted-wrong-10"}
            planted = (KEY_ID, KEY_SECRET, STS)
        if request.param == "table token":
            token = {"fs.s3.accessKeyId": DATA_KEY, "fs.s3.accessKeySecret": DATA_SECRET, "fs.s3.securityToken": DATA_STS}
            rest.config["data-token.enabled"] = "true"
            rest.table_token = lambda: (token, int((time.time() + 7200) * 1000))
            planted = (BEARER, DATA_KEY, DATA_SECRET, DATA_STS)
        if isinstance(lake, Lake):  # whose keys the server alone gives
            token = {"fs.s3.accessKeyId": s3.ACCESS_KEY, "fs.s3.accessKeySecret": s3.SECRET_KEY}
            rest.config["data-token.enabled"] = "true"
            rest.table_token = lambda: (token, int((time.time() + 7200) * 1000))
            options |= {key: value for key, value in server.options().items() if not key.endswith("-key")}
            planted = (BEARER, s3.SECRET_KEY)

        def fail() -> None:
            rest.faults.append(Fault("GET t", status=403))

        held = partial(_objects, server, warehouse) if isinstance(lake, Lake) else files
        yield Place(options, (*planted, *wrong.values()), wrong, held, fail)


def _objects(server: S3Server, warehouse: str) -> list[bytes]:
    store = fs.S3FileSystem(
        access_key=s3.ACCESS_KEY, secret_key=s3.SECRET_KEY, endpoint_override=server.endpoint, region=s3.REGION
    )
    found = store.get_file_info(fs.FileSelector(warehouse.removeprefix("s3://"), recursive=True))
    return [store.open_input_stream(one.path).read() for one in found if one.is_file]


class Seen:
    """What was shown, saved or written, by where."""

    def __init__(self, planted: tuple[str, ...]) -> None:
        self.planted = planted
        self.leaks: list[str] = []
        self.places: list[str] = []

    def add(self, where: str, shown: Any) -> None:
        data = shown if isinstance(shown, bytes) else str(shown).encode()
        self.places.append(where)
        self.leaks += [f"{secret} in {where}" for secret in self.planted if secret.encode() in data]

    def show(self, name: str, thing: Any) -> None:
        self.add(f"repr({name})", f"{thing!r} {thing!s} {[thing]!r}")

    def fails(self, where: str, act: Callable[[], Any]) -> None:
        """Add the whole text of an error, with all that it came from."""
        with pytest.raises(Exception) as caught:
            act()
        error: BaseException | None = caught.value
        self.add(f"traceback of {where}", "".join(traceback.format_exception(caught.value)))
        while error is not None:
            self.add(f"error of {where}", f"{error!r} {error!s} {error.args!r}")
            error = error.__cause__ or error.__context__


def parts(place: Place) -> dict[str, Any]:
    """One of each public object."""
    catalog = lh.connect(**place.options)
    table = catalog.create_table("drives.t", SCHEMA, partition_by=["channel"], exist_ok=True)
    if table.latest().id is None:
        table.append(ROWS)
        table.tag("v1")
    snapshot = table.at(tag="v1")
    query = snapshot.query().where("id >= 2").select("id", "frame")
    index = query.index()
    dataset = lh.Dataset(index, batch_size=4, seed=1, rank=0, world=1)
    return {
        "catalog": catalog,
        "table": table,
        "snapshot": snapshot,
        "query": query,
        "index": index,
        "dataset": dataset,
        "loader": lh.Loader(dataset),
        "fetcher": table.fetcher(),
        "map dataset": lh.MapDataset(index),
        "blobs": index.blobs("frame"),
        "blob": index.row(0)["frame"],
    }


def test_nothing_shows_a_secret(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    # The clients' own debugging shows what they sign; at that level it is theirs to keep quiet.
    caplog.set_level(logging.INFO)
    for name in ("lakehouse", "pypaimon", "HttpClient", "RESTApi", "DLFAuthProvider"):
        caplog.set_level(logging.DEBUG, name)
    seen = Seen(place.planted)
    made = parts(place)
    for name, thing in made.items():
        seen.show(name, thing)
    catalog, table, snapshot, query, index = (made[name] for name in ("catalog", "table", "snapshot", "query", "index"))

    batches = list(made["loader"])
    assert sum(len(batch["id"]) for batch in batches) == 8
    seen.show("batches", batches)
    seen.show("stats", made["loader"].stats)
    seen.add("state", json.dumps(made["loader"].state_dict()))
    seen.show("plan", query.explain())
    seen.show("history", (table.snapshots(), table.tags(), table.schema))

    index.save(tmp_path / "train.idx")
    seen.add("saved index", (tmp_path / "train.idx").read_bytes())
    catalog.save_training_set("set", index)
    seen.show("training set", (catalog.training_sets(), catalog.training_set("set")))
    registry = [name for name in catalog.tables() if name != "drives.t"]
    assert registry
    for name in registry:
        seen.add(f"rows of {name}", catalog.table(name).latest().arrow().to_pylist())

    frame = snapshot.daft()
    with_bytes = frame.with_column("bytes", snapshot.bytes("frame"))
    for name, one in (("frame", frame), ("frame with bytes", with_bytes), ("query's frame", query.daft())):
        plan = io.StringIO()
        one.explain(show_all=True, file=plan)
        assert "LakeSource" in plan.getvalue()
        seen.add(f"plan of {name}", plan.getvalue())
        seen.show(name, one)
        seen.add(f"rows of {name}", f"{one.to_pydict()!r} {one.to_arrow().to_pylist()!r}")
        one.write_parquet(str(tmp_path / "out"))
    for path in (tmp_path / "out").rglob("*.parquet"):
        seen.add("written Parquet", path.read_bytes())
        seen.add("rows of written Parquet", pq.read_table(path).to_pylist())
    for blobs in ("ref", "bytes"):
        seen.add("arrow", snapshot.arrow(blobs=blobs).to_pylist())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, frame.to_arrow().schema) as writer:
        writer.write_table(frame.to_arrow())
    seen.add("Arrow stream of a frame", sink.getvalue().to_pybytes())

    for name, thing in made.items():
        if name == "loader":  # it stays in the trainer's process
            continue
        for protocol in (2, pickle.HIGHEST_PROTOCOL):
            seen.add(f"pickle of {name}", pickle.dumps(thing, protocol))
    stored = place.files()
    assert len(stored) > 8
    for data in stored:
        seen.add("warehouse", data)

    seen.fails("an absent table", lambda: catalog.table("drives.nope"))
    seen.fails("an absent tag", lambda: table.at(tag="nope"))
    for key, value in place.wrong.items():
        seen.fails(f"a wrong {key}", partial(_read, {**place.options, key: value}))
    place.fail()
    outside = lh.BlobRef("s3://elsewhere/x", 0, 1)
    seen.fails("a reference elsewhere", lambda: lh.fetch_blob(outside, table))

    seen.add("logs", caplog.text)
    seen.add("output", "".join(capfd.readouterr()))
    assert seen.leaks == []
    assert len(set(seen.places)) > 40


def _read(options: dict[str, str]) -> pa.Table:
    return lh.connect(**options).table("drives.t").latest().arrow(blobs="bytes")


def test_the_search_finds_what_is_planted() -> None:
    seen = Seen(("planted-1",))
    seen.show("thing", {"token": "planted-1"})

    def fail() -> None:
        try:
            raise ValueError(seen.planted[0])
        except ValueError:
            raise KeyError("other") from None

    seen.fails("hidden cause", fail)
    seen.add("bytes", b"..planted-1..")
    assert len(seen.leaks) == 3


def _use(made: dict[str, Any], answers: Any) -> None:
    try:
        table, index = made["table"], made["index"]
        answers.put(
            {
                "catalog": made["catalog"].tables("drives"),
                "table": table.latest().count_rows(),
                "snapshot": made["snapshot"].arrow(blobs="bytes")["frame"].to_pylist(),
                "query": made["query"].count_rows(),
                "index": [row["frame"].read(table) for row in index],
                "dataset": sum(len(batch["id"]) for batch in made["dataset"]),
                "append": table.append([{"id": 99, "channel": "c0", "frame": b"from a worker"}]).snapshot_id,
            }
        )
    except Exception as error:
        answers.put(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize(
    ("place", "method"),
    [("bearer", "spawn"), ("table token for s3", "forkserver"), ("s3", "spawn"), ("jdbc", "forkserver")],
    indirect=["place"],
)
def test_public_objects_work_in_spawned_processes(place: Place, method: str) -> None:
    made = {name: thing for name, thing in parts(place).items() if name != "loader"}
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    worker = context.Process(target=_use, args=(made, answers))
    worker.start()
    answer = answers.get(timeout=90)
    worker.join()
    assert answer == {
        "catalog": ["drives.t"],
        "table": 12,
        "snapshot": made["snapshot"].arrow(blobs="bytes")["frame"].to_pylist(),
        "query": 10,
        "index": [row["frame"].read(made["table"]) for row in made["index"]],
        "dataset": 8,
        "append": 2,
    }
    assert made["table"].latest().count_rows() == 13
