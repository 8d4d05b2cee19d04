"""A function run in a process of its own, which may limit itself in ways that a process can't undo."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_TIME_S = 60.0
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2
_CAPABILITIES_3 = 0x20080522


def in_child(function: Callable[..., Any], *given: Any) -> Any:
    """What the function returns there; it is started anew, so a function of a module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.stress.preload"])
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(there, function, given), daemon=True)
    child.start()
    there.close()
    try:
        assert here.poll(_TIME_S), "no answer"
        return here.recv()
    finally:
        child.kill()
        child.join()


def _work(pipe: Connection, function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    pipe.send(function(*given))


def let_files_grow_to(size_bytes: int) -> None:
    """From here on no file of this process grows beyond this: as on a full disk, a write fails in its middle."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


def obey_permissions() -> None:
    """From here on a folder that may not be written to is not, also when this process is root's."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    held = (ctypes.c_uint32 * 6)()  # (effective, permitted, inheritable) of capabilities 0..31, then of 32..63
    assert libc.capget(header, held) == 0
    for position in range(3):
        held[position] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    assert libc.capset(header, held) == 0
