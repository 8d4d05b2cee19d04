"""Work on a table's history that must not happen twice at once: expiry, rollback, purge.

Appends, updates and readers go on meanwhile; they are not part of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from typing import Any

from lakehouse.errors import CommitError, cause_line
from lakehouse.upstream import is_local, local_path

_PAUSE_S = 0.05


@contextlib.contextmanager
def alone(paimon: Any, what: str, *, wait_s: float = 60.0) -> Iterator[None]:
    """Hold a table's history, so that no other process expires, rolls back or purges it at the same time.

    The lock is a file in the table's folder, held by the process and gone with it. Where files can't be locked, on object
    stores, there is none: run such work from one place.

    Args:
        paimon: the table.
        what: what waits, for the error.
        wait_s: how long to wait for another process, seconds.

    Raises:
        CommitError: another process was still at it, or the folder can't be written.
    """
    root = str(paimon.table_path)
    if not is_local(root):
        yield
        return
    folder = local_path(root) / "lakehouse"
    name = paimon.identifier.get_full_name()
    try:
        folder.mkdir(exist_ok=True)
        lock = (folder / ".history.lock").open("a")
    except OSError as error:
        raise CommitError(f"{name}: {what} can't begin: {folder} can't be written ({cause_line(error)})") from error
    with lock:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise CommitError(
                        f"{name}: {what} waited {wait_s:g} s for another expiry, rollback or purge of this table; try later"
                    ) from None
                time.sleep(_PAUSE_S)
        yield
