"""Proof that a snapshot can be read as it was written: held -> files, rows, references -> report."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from lakehouse.check.files import Checked, Files, Verify
from lakehouse.check.held import Held, Reader
from lakehouse.check.references import reference_findings
from lakehouse.check.report import CheckReport, DamagedRow, Finding
from lakehouse.check.resume import Ledger
from lakehouse.check.rows import States, groups_of, row_id_problems
from lakehouse.errors import ConfigError, FetchError, NotFoundError, SchemaError, cause_line
from lakehouse.fetch import Fetcher
from lakehouse.scan import Version
from lakehouse.upkeep import Meter, Progress, store_of
from lakehouse.upstream import is_local

__all__ = ["CheckReport", "DamagedRow", "Finding", "check"]

_MODES = ("size", "crc")
_QUEUED = 4  # files a thread, so that a table of a million files does not make a million tasks at once
_REMOTE_THREADS = 16


def check(
    version: Version,
    fetcher: Fetcher,
    *,
    verify: Verify,
    threads: int | None,
    resume: str | os.PathLike[str] | None,
    progress: Progress,
) -> CheckReport:
    """See `Table.check`."""
    if verify not in _MODES:
        raise ConfigError(f"verify is 'size' or 'crc', got {verify!r}")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ConfigError(f"threads is a number of at least 1, got {threads!r}")
    start = time.perf_counter()
    if version.snapshot_id is None:
        return CheckReport(str(version), verify, 0, 0, 0, 0, 0, 0.0, (), ())
    paimon = version.paimon
    store = store_of(paimon)
    snapshot = version.snapshot
    content = Reader(paimon, store).content(snapshot)
    groups = groups_of(content.data)
    # A manifest that can't be read leaves gaps that are not the row ids' fault.
    problems = () if content.findings else tuple(row_id_problems(groups, snapshot.next_row_id))
    total = sum(file.size_bytes for file in content.data)
    stop = threading.Event()
    count = threads or (_cores() if is_local(version.path) else _REMOTE_THREADS)
    findings = list(content.findings)
    with (
        Ledger(resume, version.uuid, verify) as ledger,
        Meter(
            progress, total if verify == "crc" else len(content.data), f"check {version}", "B" if verify == "crc" else ""
        ) as meter,
    ):
        files = Files(paimon.file_io, str(version), verify, stop, meter.add if verify == "crc" else _nothing)
        files.states = States(groups, content, files.read, files.index_of)
        named = {finding.uri for finding in content.findings}
        tasks: list[tuple[Any, ...]] = [(_data, files, ledger, file) for file in content.data]
        tasks += [(files.plain, *item) for item in content.metadata if item[0] not in named]
        tasks += [(files.plain, path, "index", size) for path, size in content.index]
        tasks += [(files.plain, path, "data", None) for file in content.data for path in file.extra]
        checked = _run(tasks, count, stop, None if verify == "crc" else meter)
        findings += [finding for result in checked for finding in result.findings]
        missing = {finding.uri for finding in findings}
        findings += files.deletions([part for part in content.deletions.values() if part.path not in missing])
    if not any(finding.whole_file for finding in findings):
        try:
            findings += reference_findings(version, fetcher)
        except (FetchError, SchemaError, NotFoundError, OSError, ValueError) as error:
            problems += (f"the references can't be read: {cause_line(error)}",)
    elif version.columns.inline:
        problems += ("the references were not checked, since files are damaged",)
    return CheckReport(
        snapshot=str(version),
        verify=verify,
        files=len(tasks),
        resumed=sum(result.resumed for result in checked),
        bytes=total,
        bytes_read=sum(result.bytes_read for result in checked),
        blobs=sum(result.blobs for result in checked),
        seconds=time.perf_counter() - start,
        findings=tuple(sorted(findings, key=lambda finding: (finding.uri, finding.cause))),
        problems=problems,
    )


def _data(files: Files, ledger: Ledger, file: Held) -> Checked:
    try:
        status = files.status(file.path)
    except OSError as error:
        return files.missing(file, error)
    name = f"{file.name} {file.size_bytes} {file.rows}"
    if ledger.knows(name, status):
        return files.known(file, status)
    checked = files.data(file, status)
    if not checked.findings:
        ledger.note(name, status)
    return checked


def _run(tasks: Iterable[tuple[Any, ...]], threads: int, stop: threading.Event, meter: Meter | None) -> list[Checked]:
    """Call each task, several at a time, never more than a few of them waiting."""
    results: list[Checked] = []
    waiting: set[Future[Checked]] = set()
    with ThreadPoolExecutor(threads, thread_name_prefix="lakehouse-check") as pool:
        try:
            for call, *arguments in tasks:
                if len(waiting) >= threads * _QUEUED:
                    results += _finished(waiting, meter)
                waiting.add(pool.submit(call, *arguments))
            while waiting:
                results += _finished(waiting, meter)
        except BaseException:  # Ctrl-C: threads stop after the chunk that they are at
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _finished(waiting: set[Future[Checked]], meter: Meter | None) -> list[Checked]:
    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
    waiting -= done
    if meter is not None:
        meter.add(len(done))
    return [future.result() for future in done]


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _nothing(_: int) -> None:
    return None
