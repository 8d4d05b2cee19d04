"""A catalog behind a server that speaks Paimon's REST API (``metastore: rest``; DLF is one): what pypaimon's client lacks.

Each part is a subclass that is put in place on objects of ours; nothing is patched.

- Waits are bounded: upstream waits three minutes for a connection, and as long for an answer.
- One session per process: upstream makes a client, and a connection, for every look at a table's head.
- A commit that the server refuses is not tried again; one whose answer is missing is remembered as being in doubt.
- An error says what was asked of whom, and shows nothing of what authorised it, also when the server echoes that.
"""

from __future__ import annotations

from lakehouse.served.catalog import ServedCatalog, open_served
from lakehouse.served.client import Unanswered, explained
from lakehouse.served.commit import ServedEnvironment, ServedSnapshotCommit
from lakehouse.served.tags import ServedBranches, ServedTags

__all__ = [
    "ServedBranches",
    "ServedCatalog",
    "ServedEnvironment",
    "ServedSnapshotCommit",
    "ServedTags",
    "Unanswered",
    "explained",
    "open_served",
]
