"""A table's history: what each snapshot changed, what differs between two, and going back to one."""

from lakehouse.history.counts import Change, counted
from lakehouse.history.diff import Diff
from lakehouse.history.rollback import Rollback, unreadable_since

__all__ = ["Change", "Diff", "Rollback", "counted", "unreadable_since"]
