"""Ray: arguments and results of tasks carry working credentials, its stored functions carry none. Runs where ray is installed."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakehouse as lh
from lakehouse.config.catalog_config import on_the_way
from tests.rest import RestServer

SCHEMA = pa.schema([("id", pa.int64()), ("frame", pa.large_binary())])
ROOT = Path(__file__).parent.parent

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray, of the extra ray"),
    pytest.mark.filterwarnings("default"),  # ray's own
]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports its use otherwise
    import ray

    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    yield ray
    ray.shutdown()


def test_tasks_and_actors_work_with_what_they_are_given(ray: Any, rest: RestServer) -> None:
    table = lh.connect(**rest.options()).create_table("drives.t", SCHEMA)
    table.append([{"id": 1, "frame": b"one"}])

    @ray.remote
    def count(table: lh.Table) -> tuple[int, int, lh.Table]:
        table.append([{"id": 2, "frame": b"two"}])
        return os.getpid(), table.latest().count_rows(), table

    class Reader:
        def __init__(self, index: lh.RowIndex) -> None:
            self.index = index

        def frames(self) -> list[bytes]:
            dataset = lh.Dataset(self.index, batch_size=1, rank=0, world=1, shuffle=None)
            return [frame for batch in dataset for frame in batch["frame"]]

    pid, rows, back = ray.get(count.remote(table))
    assert (pid != os.getpid(), rows, back.latest().count_rows()) == (True, 2, 2)
    assert ray.get(ray.remote(Reader).remote(table.latest().query().index()).frames.remote()) == [b"one", b"two"]
    assert ray.get(ray.put(table)).latest().count_rows() == 2


def test_nothing_else_carries_secrets(ray: Any, rest: RestServer) -> None:
    from ray import cloudpickle

    table = lh.connect(**rest.options()).create_table("drives.t", SCHEMA)
    token = rest.options()["token"].encode()
    assert not on_the_way()
    assert token not in pickle.dumps(table)
    assert token not in cloudpickle.dumps(table)
    assert token not in cloudpickle.dumps(lambda: table)  # as Ray keeps a function
