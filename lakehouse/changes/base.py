"""The snapshot that a change is made from, and how it is tried again when another writer came first."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import CommitError
from lakehouse.scan import Version
from lakehouse.schema import Columns
from lakehouse.write import ROWS, Moved, Published, publish_snapshot_on

# How often a change is worked out anew. Each try that fails means that another writer has succeeded.
TRIES = 30
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 2.0


@dataclass(frozen=True, eq=False)
class Base:
    """A table at its latest snapshot, under its latest schema.

    Attributes:
        paimon: the handle to write with.
        version: what to read.
    """

    paimon: Any
    version: Version

    @property
    def snapshot_id(self) -> int | None:
        """The latest snapshot; None where there is none."""
        return self.version.snapshot_id

    @property
    def columns(self) -> Columns:
        """The table's columns now."""
        return self.version.columns


@dataclass(frozen=True, eq=False)
class Prepared:
    """A change that is written and waits to be published.

    Attributes:
        messages: what to publish.
        rows: how many rows it changes.
    """

    messages: list[Any]
    rows: int


def committed(
    fresh: Callable[[], Base],
    work: Callable[[Base], Prepared | None],
    *,
    operation: str,
    over_appends: bool,
    keep: bool = False,
) -> tuple[Published | None, int | None]:
    """Work a change out and publish it; again on fresh data as long as other writers come first.

    Args:
        fresh: gives the table as it is now.
        work: makes the change from a base; None: there is nothing to change.
        operation: its name in the history.
        over_appends: whether rows that were appended meanwhile leave it valid.
        keep: leave the files of the messages when another writer came first: ``work`` uses them again.

    Returns:
        The new snapshot, None where nothing was to be changed; and the snapshot that the change was made from.

    Raises:
        CommitError: other writers came first `TRIES` times.
    """
    moved: Moved | None = None
    for attempt in range(TRIES):
        if attempt:
            time.sleep(random.uniform(0, min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**attempt)))
        base = fresh()
        prepared = work(base)
        if prepared is None:
            return None, base.snapshot_id
        try:
            published = publish_snapshot_on(
                base.paimon,
                prepared.messages,
                base.snapshot_id,
                operation=operation,
                properties={ROWS: str(prepared.rows)},
                over_appends=over_appends,
                keep=keep,
            )
        except Moved as error:
            moved = error
        else:
            return published, base.snapshot_id
    raise CommitError(
        f"{base.version.name}: this {operation} was made {TRIES} times, and each time another writer changed the table first; "
        "nothing of it was committed, try again when fewer write"
    ) from moved
