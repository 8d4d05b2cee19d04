"""A worker process ends when its trainer does, however that ended.

torch's own watch asks for the parent's number. Under forkserver that is the server, which lives as long as a worker: after a
``kill -9`` of the trainer both stayed for good, with all of their memory.

Ctrl-C reaches a terminal's whole group of processes. What it means is the trainer's to say: workers that died of it could not
go on when the trainer does.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from multiprocessing import connection, parent_process


def end_with_trainer() -> None:
    """Watch the process that started this one, and end at once when it is gone, but not by Ctrl-C.

    Nothing in a process that nobody started.
    """
    _watch(os.getpid())


@functools.cache
def _watch(_: int) -> None:
    trainer = parent_process()
    if trainer is None:
        return
    sentinel = trainer.sentinel
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        connection.wait([sentinel])
        os._exit(1)  # nobody is left to hand anything to, and an orderly exit would wait for queues that nobody reads

    threading.Thread(target=wait, name="lakehouse-trainer", daemon=True).start()
