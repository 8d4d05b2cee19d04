"""The fetcher of a table: decides per uri whether it may be read, and by whom."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lakehouse.errors import FetchError
from lakehouse.fetch.fsspec_reader import fsspec_read_range
from lakehouse.fetch.local import MAX_FILES, LocalFetcher
from lakehouse.fetch.refs import BlobRefs, Fetched, Fetcher, FetchStats, Value
from lakehouse.fetch.remote import RangeFetcher
from lakehouse.fetch.roots import Roots


class TableFetcher:
    """Reads what lies in a table's own folder or below one of ``roots``, and refuses everything else.

    A stranger's table must not pull local files into training. So the check is on the path with its symbolic links
    resolved, and that resolved path is what is opened. Local files are read by `LocalFetcher`, everything else by
    ``remote``. Pickles to spawned workers without open files, threads and clients.

    Args:
        root: the table's own folder, a path or URL; "": it has none.
        roots: further folders or URL prefixes: the catalog's ``blob_roots``.
        remote: reads URLs. Default: a `RangeFetcher` over fsspec with the credentials of the environment.
        max_files: local files kept open, per process.
    """

    def __init__(
        self, root: str, roots: Iterable[str] = (), *, remote: Fetcher | None = None, max_files: int = MAX_FILES
    ) -> None:
        self._max_files = max_files
        self._roots = Roots(root, roots)
        self._remote = RangeFetcher(fsspec_read_range()) if remote is None else remote
        self._local = LocalFetcher(max_files=max_files, path_of=self._roots.path_of)

    @property
    def whole_steps(self) -> bool:
        """Whether it gains from seeing a whole step's ranges at once: when some may be remote."""
        return self._roots.any_remote

    def fetch(self, refs: BlobRefs) -> Fetched:
        """Read every range; one that can't or must not be read is a FetchError among the values."""
        if not self._roots.any_remote:
            return self._local.fetch(refs)
        used = [uri_id for uri_id in np.unique(refs.uri_ids).tolist() if uri_id >= 0]
        urls = [uri_id for uri_id in used if self._roots.is_readable_url(refs.uris[uri_id])]
        if not urls:
            return self._local.fetch(refs)  # which also refuses what must not be read
        if len(urls) == len(used):
            return self._remote.fetch(refs)
        remote = np.isin(refs.uri_ids, urls)  # bool[n]
        values: list[Value] = [None] * len(refs)
        stats = FetchStats()
        for mask, fetcher in ((~remote, self._local), (remote, self._remote)):
            part = fetcher.fetch(refs.take(mask))
            stats += part.stats
            for row, value in zip(np.flatnonzero(mask).tolist(), part.values, strict=True):
                values[row] = value
        return Fetched(values, stats)

    @property
    def folders(self) -> tuple[str, ...]:
        """The local folders that it may read."""
        return self._roots.folders

    def identity(self, uri: str) -> str | None:
        """What tells an object's content from another one under the same uri; None: it can't be told, or must not be read.

        Files of the table are written once under a name of their own. For others it is what the store says: inode, size
        and time of a local file, the version of a remote object where ``remote`` knows it (``identity``).
        """
        if self._roots.is_own(uri):
            return ""
        if self._roots.is_readable_url(uri):
            ask = getattr(self._remote, "identity", None)
            return ask(uri) if callable(ask) else None
        try:
            found = Path(self._roots.path_of(uri)).stat()
        except (OSError, FetchError):
            return None
        return f"{found.st_dev}-{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"

    def __getstate__(self) -> dict[str, Any]:
        return {
            "root": self._roots.root,
            "roots": self._roots.roots,
            "remote": self._remote,
            "max_files": self._max_files,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"TableFetcher({self._roots.root!r}, roots={list(self._roots.roots)})"
