"""What keeps files alive: every snapshot and tag, of the main branch and of all others."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import ConfigError, FetchError, cause_line
from lakehouse.upkeep.store import Store

_SNAPSHOT = re.compile(r"snapshot-(\d+)")
_CONSUMER = re.compile(r"consumer-.+")
_CHANGELOG = re.compile(r"changelog-\d+")
_TAG_PREFIX = "tag-"
_BRANCH_PREFIX = "branch-"


@dataclass(frozen=True)
class Root:
    """A snapshot or tag: one file of JSON that names manifest lists.

    Attributes:
        path: of that file, relative to the table's folder.
        id: number of the snapshot.
        branch: ``""``: main.
        tag: name of the tag; None: a snapshot's own file.
        content: the JSON object.
    """

    path: str
    id: int
    branch: str
    tag: str | None
    content: dict[str, Any]

    @property
    def manifest_lists(self) -> tuple[str, ...]:
        """Names of its manifest lists; the base comes first, so that files are added before they are deleted."""
        keys = ("baseManifestList", "deltaManifestList", "changelogManifestList")
        return tuple(str(self.content[key]) for key in keys if self.content.get(key))

    @property
    def index_manifest(self) -> str | None:
        """Name of the manifest of its index files."""
        return self.content.get("indexManifest")

    @property
    def statistics(self) -> str | None:
        """Name of its statistics file."""
        return self.content.get("statistics")

    @property
    def properties(self) -> dict[str, str]:
        """What the snapshot's writer noted."""
        return self.content.get("properties") or {}

    @property
    def time_millis(self) -> int:
        """When the snapshot was committed."""
        return int(self.content["timeMillis"])

    def __str__(self) -> str:
        what = f"snapshot {self.id}" if self.tag is None else f"tag {self.tag!r}"
        return f"{what} of branch {self.branch}" if self.branch else what


def read_roots(store: Store, without: Collection[str] = ()) -> list[Root]:
    """All snapshots and tags of a table: main's snapshots first, by number.

    Args:
        store: the table's folder.
        without: folders of branches, relative to it, that are left out.

    Raises:
        FetchError: one of them can't be read, so what it needs is not known.
        ConfigError: the table keeps changelogs apart from its snapshots, which nothing here knows how to follow.
    """
    roots = list(_of_branch(store, "", ""))
    for entry in store.list("branch"):
        if entry.is_folder and f"branch/{entry.name}" not in without:
            # Read without opening the branch: also one whose deletion stopped half way still keeps its files.
            roots.extend(_of_branch(store, f"branch/{entry.name}/", entry.name.removeprefix(_BRANCH_PREFIX)))
    return roots


def consumed_from(store: Store, branch: str = "") -> int | None:
    """The earliest snapshot of a branch that a streaming reader of another engine still has to read; None: there is none.

    Raises:
        FetchError: a reader's progress can't be read.
    """
    numbers = []
    folder = f"branch/{_BRANCH_PREFIX}{branch}/consumer" if branch else "consumer"
    for entry in store.list(folder):
        if not entry.is_folder and _CONSUMER.fullmatch(entry.name):
            content = _json(store, f"{folder}/{entry.name}")
            if content is not None and isinstance(content.get("nextSnapshot"), int):
                numbers.append(int(content["nextSnapshot"]))
    return min(numbers, default=None)


def _of_branch(store: Store, prefix: str, branch: str) -> Iterator[Root]:
    for entry in store.list(f"{prefix}changelog"):
        if _CHANGELOG.fullmatch(entry.name):
            raise ConfigError(
                f"{store.root}: it keeps changelogs apart from snapshots ({prefix}changelog/{entry.name}); "
                "leave its upkeep to the engine that writes them"
            )
    numbers = [
        int(match[1])
        for entry in store.list(f"{prefix}snapshot")
        if not entry.is_folder and (match := _SNAPSHOT.fullmatch(entry.name))
    ]
    for number in sorted(numbers):
        root = _root(store, f"{prefix}snapshot/snapshot-{number}", branch, None)
        if root is not None:
            yield root
    yield from _tags(store, f"{prefix}tag", branch)


def _tags(store: Store, folder: str, branch: str, above: str = "") -> Iterator[Root]:
    """Upstream writes tag ``x/y`` into a folder ``tag-x``; it keeps its files too."""
    for entry in store.list(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_folder:
            yield from _tags(store, f"{folder}/{entry.name}", branch, f"{above}{entry.name}/")
        elif above or entry.name.startswith(_TAG_PREFIX):
            root = _root(store, f"{folder}/{entry.name}", branch, f"{above}{entry.name}".removeprefix(_TAG_PREFIX))
            if root is not None:
                yield root


def _root(store: Store, path: str, branch: str, tag: str | None) -> Root | None:
    content = _json(store, path)
    if content is None:
        return None
    try:
        root = Root(path, int(content["id"]), branch, tag, content)
        if not (content["baseManifestList"] and content["deltaManifestList"] and root.time_millis):
            raise ValueError("it names no manifest lists")
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(store, path, error) from error
    return root


def _json(store: Store, path: str) -> dict[str, Any] | None:
    """A file's JSON object; None when the file is gone since it was listed."""
    try:
        content = json.loads(store.read(path))
        if not isinstance(content, dict):
            raise TypeError(f"it holds {type(content).__name__}, not an object")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise unreadable(store, path, error) from error
    return content


def unreadable(store: Store, path: str, error: BaseException) -> FetchError:
    """The error that stops upkeep: without this file it is not known what is needed."""
    return FetchError(
        f"{store.root}/{path} can't be read ({cause_line(error)}), so which files are needed is not known; nothing was "
        "deleted. Restore that file, or remove the snapshot or tag that it belongs to"
    )
