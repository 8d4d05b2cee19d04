"""A worker process ends when its trainer does, however that ended.

torch's own watch asks for the parent's number. Under forkserver that is the server, which lives as long as a worker: after a
``kill -9`` of the trainer both stayed for good, with all of their memory.
"""

from __future__ import annotations

import functools
import os
import threading
from multiprocessing import connection, parent_process


def end_with_trainer() -> None:
    """Watch the process that started this one, and end at once when it is gone. Nothing in a process that nobody started."""
    _watch(os.getpid())


@functools.cache
def _watch(_: int) -> None:
    trainer = parent_process()
    if trainer is None:
        return
    sentinel = trainer.sentinel

    def wait() -> None:
        connection.wait([sentinel])
        os._exit(1)  # nobody is left to hand anything to, and an orderly exit would wait for queues that nobody reads

    threading.Thread(target=wait, name="lakehouse-trainer", daemon=True).start()
