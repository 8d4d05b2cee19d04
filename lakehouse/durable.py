"""Files of local disks that appear whole or not at all, and that are on the disk before anything names them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

# The disk's journal takes what several threads flush in one go: ten files in 0.6 ms instead of 0.9 to 27.
_THREADS = 8
# What `link` raises where a filesystem has no hard links: exFAT, FAT, some network and FUSE filesystems.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

# Gives a file a second name that is not taken, or raises FileExistsError. Both names are there afterwards, or the new one.
Claim = Callable[[str, str], None]


def publish_file(target: Path, text: str, *, replace: bool = False, claim: Claim | None = None) -> bool:
    """Make a file appear under its name whole, or not at all. False when the name is taken and not to be replaced.

    It is on the disk before its name is, and the name before this returns.

    Args:
        target: the file; folders above it are made.
        text: what it holds.
        replace: take the place of a file that is there.
        claim: how a name that is not taken is claimed in one step; None: `claim_name`.

    Raises:
        OSError: the file was not published; or, when the file is there afterwards, the disk did not confirm its name.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        if replace:
            Path(name).replace(target)
        elif not _claimed(claim or claim_name, name, target):
            return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
    sync_files([target.parent])
    return True


def _claimed(claim: Claim, name: str, target: Path) -> bool:
    try:
        claim(name, str(target))
    except OSError as error:
        # A network filesystem may do it and lose the answer: then asking again says that the name is taken, by ourselves.
        with contextlib.suppress(OSError):
            if Path(name).samefile(target):
                return True
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def claim_name(name: str, target: str) -> None:
    """Give a file the name ``target`` in one step, if it is not taken: by a hard link, else by an exclusive rename.

    Raises:
        FileExistsError: it is taken.
        OSError: the filesystem can do neither.
    """
    try:
        os.link(name, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        rename_exclusively(name, target)


def rename_exclusively(name: str, target: str) -> None:
    """Rename a file to a name that is not taken, in one step: Linux's ``renameat2`` with RENAME_NOREPLACE.

    Raises:
        FileExistsError: it is taken.
        OSError: the filesystem or the system can't.
    """
    rename = _renameat2()
    number = errno.ENOSYS
    if rename is not None:
        at_working_folder, no_replace = -100, 1
        if rename(at_working_folder, os.fsencode(name), at_working_folder, os.fsencode(target), no_replace) == 0:
            return
        number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, *_NO_LINKS):
        raise OSError(
            number,
            "this filesystem has neither hard links nor exclusive renames, so writers could overwrite each other; "
            "keep the warehouse on another one (ext4, xfs, btrfs, tmpfs, NFS) or on an object store",
            target,
        )
    raise OSError(number, os.strerror(number), target)


@cache
def _renameat2() -> Callable[..., int] | None:
    found = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return found


def sync_files(paths: Iterable[Path]) -> None:
    """Return when these files and folders (the names in them, not what is below) are on the disk.

    Raises:
        OSError: one is missing or the disk refuses.
    """
    chosen = list(dict.fromkeys(paths))
    if len(chosen) < 2:
        for path in chosen:
            _sync(path)
        return
    with ThreadPoolExecutor(min(_THREADS, len(chosen)), thread_name_prefix="lakehouse-sync") as pool:
        for _ in pool.map(_sync, chosen):
            pass


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
