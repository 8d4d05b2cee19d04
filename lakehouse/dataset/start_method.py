"""How this process may start worker processes, if it may at all."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path
from typing import Literal, TypeAlias

from lakehouse.errors import LakehouseError, cause_line

StartMethod: TypeAlias = Literal["fork", "forkserver", "spawn"]

GUARD = 'a script that uses workers is imported again by each of them: put what it does under `if __name__ == "__main__":`'

_NO_FILE = (
    "worker processes know nothing that is defined in a notebook, an interactive session, `python -c` or a script from "
    "standard input: put decoders and transforms into a module (a .py file) and import them from it, or pass workers=0: "
    "threads do the work then"
)


def why_none_starts() -> str:
    """What most likely keeps worker processes from starting."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return GUARD if file is not None and Path(file).exists() else _NO_FILE


def unsendable(error: Exception) -> LakehouseError:
    """The error for a data set that pickle refuses."""
    return LakehouseError(
        f"the data set can't be sent to worker processes ({cause_line(error)}): decoders, transforms and fetchers have to be "
        "functions of a module's top level or instances of its classes, not lambdas or functions made inside a function, and "
        "may hold no open files or locks; or pass workers=0: threads do the work then"
    )


def start_method(asked: StartMethod | None, workers: int) -> StartMethod:
    """What to start so many worker processes by; None: forkserver, or spawn where there is none.

    Raises:
        LakehouseError: this process may start none, or not this way.
    """
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        raise LakehouseError(f"worker processes were asked for while a worker process imports this script; {GUARD}")
    if process.daemon:
        raise LakehouseError(
            f"workers={workers} in the daemonic process {process.name}, which multiprocessing allows no children (those of a "
            "Pool and of torch's DataLoader are daemonic): start it with daemon=False, as concurrent.futures does, or pass "
            "workers=0: threads do the work then"
        )
    if asked in {"fork", "spawn"}:
        return asked
    if "forkserver" in multiprocessing.get_all_start_methods() and _has_fork_server():
        return "forkserver"
    if asked is None:
        return "spawn"
    raise LakehouseError(
        "start_method='forkserver', but the fork server that is known here belongs to the process that this one was forked "
        "from, and serves no other: leave start_method out or pass 'spawn', start this process itself by spawn, or pass "
        "workers=0"
    )


def _has_fork_server() -> bool:
    """Whether this process's fork server runs, now at the latest.

    multiprocessing forgets to forget it in a forked child, which can neither use its parent's nor start another.
    """
    from multiprocessing import forkserver

    try:
        forkserver.ensure_running()
    except ChildProcessError:
        return False
    return True
