"""Commit ids: names of commits, by which a repeated append is known and the outcome of one can be looked up."""

from __future__ import annotations

import uuid
from typing import Any

from lakehouse.errors import ConfigError
from lakehouse.write.ledger import AUTO_PREFIX
from lakehouse.write.lineage import lineage
from lakehouse.write.published import Published

_LONGEST = 256


def new_commit_id() -> str:
    """An id that no other commit has."""
    return f"{AUTO_PREFIX}{uuid.uuid4().hex}"


def is_chosen(commit_id: str) -> bool:
    """Whether a caller chose the id, so that it may come a second time."""
    return not commit_id.startswith(AUTO_PREFIX)


def checked_commit_id(commit_id: str) -> str:
    """The id itself, when it can be one.

    Raises:
        ConfigError: it is blank, too long, has characters that can't be printed, or looks like one that was made here.
    """
    fits = isinstance(commit_id, str) and 0 < len(commit_id) <= _LONGEST
    if not (fits and commit_id.strip() and commit_id.isprintable()):
        raise ConfigError(f"commit_id is 1 to {_LONGEST} printable characters, got {repr(commit_id)[:300]}")
    if not is_chosen(commit_id):
        raise ConfigError(f"commit_id {commit_id!r}: ids that begin with {AUTO_PREFIX!r} are made for appends without one")
    return commit_id


def find_commit(paimon: Any, commit_id: str) -> Published | None:
    """The snapshot that carries a commit id, also when it has expired; None where there is none or it was rolled back.

    Raises:
        NotFoundError: the snapshots can't be read.
        CommitError: the ids of expired ones can't be read.
    """
    return next((commit for commit in lineage(paimon) if commit.commit_id == commit_id), None)
