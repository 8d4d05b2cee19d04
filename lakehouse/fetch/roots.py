"""Which uris a table may have read: those below its own folder and below the catalog's ``blob_roots``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote

from lakehouse.errors import FetchError, cause_line
from lakehouse.fetch.local import local_path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
# Names that clients know one store by.
_SAME_STORE = {"s3a": "s3", "s3n": "s3"}
_MAX_DECISIONS = 65_536


def is_local(uri: str) -> bool:
    """Whether a uri is a plain path or a ``file:`` URL."""
    match = _SCHEME.match(uri)
    return match is None or match[1].lower() == "file"


class Roots:
    """Folders and URL prefixes, and whether a uri lies below one of them.

    Each uri is decided once, with the symbolic links of that moment resolved; decisions are kept, 65,536 at most. Thread
    safe: two threads may decide the same.

    Args:
        root: the table's own folder, a path or URL; "": it has none.
        roots: further ones.
    """

    def __init__(self, root: str, roots: Iterable[str]) -> None:
        self.root = root
        self.roots = tuple(roots)
        named = [name for name in (root, *self.roots) if name.strip()]  # "" would resolve to the working folder
        self._folders = tuple(os.path.realpath(local_path(name)) for name in named if is_local(name))
        self._prefixes = tuple(_canonical(name).rstrip("/") for name in named if not is_local(name))
        self._decisions: dict[str, str | FetchError] = {}  # by uri: what to open, or why not

    @property
    def any_remote(self) -> bool:
        """Whether one of them is not a local folder."""
        return bool(self._prefixes)

    @property
    def folders(self) -> tuple[str, ...]:
        """The local ones, with their symbolic links resolved."""
        return self._folders

    def is_own(self, uri: str) -> bool:
        """Whether a uri may be read and lies below ``root`` itself."""
        if not self.root.strip():
            return False
        decision = self._decide(uri)
        if isinstance(decision, FetchError):
            return False
        if is_local(self.root):
            return is_local(uri) and _below(decision, self._folders[0])
        return not is_local(uri) and _below(_canonical(uri), self._prefixes[0])

    def is_readable_url(self, uri: str) -> bool:
        """Whether a uri is a URL that may be read."""
        return not is_local(uri) and isinstance(self._decide(uri), str)

    def path_of(self, uri: str) -> str:
        """The path to open for a local uri, its symbolic links resolved.

        Raises:
            FetchError: it must not be read, or no path can be made of it. The text says why and what to do.
        """
        decision = self._decide(uri)
        if isinstance(decision, FetchError):
            raise FetchError(str(decision))
        return decision

    def _decide(self, uri: str) -> str | FetchError:
        decision = self._decisions.get(uri)
        if decision is None:
            if len(self._decisions) >= _MAX_DECISIONS:
                self._decisions.clear()
            decision = self._decisions[uri] = self._check(uri)
        return decision

    def _check(self, uri: str) -> str | FetchError:
        leads = ""
        if is_local(uri):
            try:
                path = local_path(uri)
                found = os.path.realpath(path)
            except (OSError, ValueError) as error:
                return FetchError(f"{cause_line(error)}; correct the reference")
            if any(_below(found, folder) for folder in self._folders):
                return found
            leads = f" (it leads to {found})" if found != path else ""
        elif self._holds(uri):
            return uri
        return FetchError(
            f"it lies outside the table's folder {self.root or '(none)'} and the catalog's blob_roots "
            f"{list(self.roots)}{leads}; if you trust it, add its folder to blob_roots in the catalog's configuration"
        )

    def _holds(self, url: str) -> bool:
        """Whether a URL lies below one of the roots, whatever a client makes of dots and chains in it."""
        # fsspec reads "a::b" as "a, found in b".
        if "::" in url or {".", ".."} & set(re.split(r"[/\\]", unquote(url))):
            return False
        canonical = _canonical(url)
        return any(_below(canonical, prefix) for prefix in self._prefixes)


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root if root.endswith("/") else f"{root}/")


def _canonical(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    scheme = scheme.lower()
    return f"{_SAME_STORE.get(scheme, scheme)}{colon}{rest}"
