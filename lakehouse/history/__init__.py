"""A table's history: what each snapshot changed, what differs between two, and going back to one."""

from lakehouse.history.branches import remove_branch, same_schemas, write_branch
from lakehouse.history.counts import Change
from lakehouse.history.diff import Diff
from lakehouse.history.manifests import changes_of
from lakehouse.history.rollback import Rollback, added_since, fields_of, unreadable_since

__all__ = [
    "Change",
    "Diff",
    "Rollback",
    "added_since",
    "changes_of",
    "fields_of",
    "remove_branch",
    "same_schemas",
    "unreadable_since",
    "write_branch",
]
