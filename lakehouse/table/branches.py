"""Branches: a second line of versions of a table, with its own snapshots, tags and schema, over the same data files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from lakehouse.errors import CommitError, ConfigError, NotFoundError, cause_line
from lakehouse.history import remove_branch, same_schemas, write_branch
from lakehouse.names import checked, kept_training_set
from lakehouse.scan import snapshot_identity
from lakehouse.table.versions import Versions
from lakehouse.upkeep import alone
from lakehouse.upstream import snapshots_of
from lakehouse.write import LEDGER, inherited, latest_snapshot, publish_one

if TYPE_CHECKING:
    from lakehouse.table import Table

_ON_BRANCH = "$branch_"
_MAIN = "main"


class Branches(Versions):
    """The part of `Table` that makes, opens and ends branches."""

    def branches(self) -> list[str]:
        """Names of the branches, sorted; without ``main``."""
        try:
            return sorted(self.paimon.branch_manager().branches())
        except RuntimeError as error:
            raise NotFoundError(f"{self.name}: its branches can't be listed ({cause_line(error)})") from error

    def branch(self, name: str) -> Table:
        """The table as it is on a branch: it reads from and writes to the branch, in all its methods.

        Args:
            name: a branch; ``main``: the table itself.

        Raises:
            NotFoundError: no such branch; the text lists those that exist.

        Example:
            >>> table.branch("dev").append(rows)  # doctest: +SKIP
        """
        if name == _MAIN:
            return cast("Table", self)
        self._only_on_main(f"branch({name!r})")
        self._branch(name)
        load = partial(_load_branch, self._load, name)
        opened = type(self)(load, f"{self.name}{_ON_BRANCH}{name}", self._roots, self._store)
        return cast("Table", opened)

    def create_branch(self, name: str, *, tag: str | None = None, snapshot: int | None = None) -> Table:
        """Make a branch that begins with a version's rows and schema, without copying data.

        Args:
            name: letters, digits, ``_``, ``-`` and ``.``, at most 128, not digits alone, not ``main``.
            tag: the version, by a tag's name.
            snapshot: the version, by its number; neither of the two: the latest one.

        Returns:
            The table on that branch, as `branch` gives it.

        Raises:
            ConfigError: a name that can't be one or that exists, or both of tag and snapshot.
            NotFoundError: no such version.
            CommitError: the store refuses.

        Example:
            >>> dev = table.create_branch("dev", tag="training_v1")  # doctest: +SKIP
        """
        self._only_on_main(f"create_branch({name!r})")
        if checked(name, "branch") == _MAIN or name.isdigit():
            raise ConfigError(f"{name!r} can't name a branch: main is the table itself, and digits alone are taken for numbers")
        paimon = self.paimon
        try:
            with alone(paimon, "create_branch"):  # so that the version does not expire before the branch names its files
                latest = tag is None and snapshot is None
                version = self.latest() if latest else self.at(tag=tag, snapshot=snapshot)
                begins = version.version.snapshot
                more = {} if begins is None else {LEDGER: inherited(paimon, begins)}
                made = write_branch(paimon, name, begins, latest=latest, more=more)
        except OSError as error:
            raise CommitError(f"{self.name}: branch {name!r} can't be written ({cause_line(error)})") from error
        if not made:
            raise ConfigError(f"{self.name}: branch {name!r} exists; delete_branch({name!r}) removes it")
        return self.branch(name)

    def delete_branch(self, name: str) -> None:
        """Remove a branch with its snapshots and tags. Data that only it used is left for `remove_orphans`.

        Raises:
            NotFoundError: no such branch; the text lists those that exist.
            ConfigError: a training set was saved from it, whose rows would be lost.
            CommitError: the store refuses.
        """
        self._only_on_main(f"delete_branch({name!r})")
        tags = [tag for tag in self.branch(name).tags() if kept_training_set(tag)]
        if tags:
            raise ConfigError(
                f"{self.name}: branch {name!r} holds the rows of saved training sets, under the tags {', '.join(tags)}; "
                "delete those tags first if they may go: branch(name).delete_tag(tag, force=True)"
            )
        try:
            remove_branch(self.paimon, name)
        except (OSError, RuntimeError, ValueError) as error:
            raise CommitError(f"{self.name}: branch {name!r} can't be removed ({cause_line(error)})") from error

    def fast_forward(self, name: str) -> int | None:
        """Give the table the snapshots of a branch, where nothing was committed to the table since the branch was made.

        Upstream does it in any case: where the table has moved its history is mixed with the branch's and rows are lost, and
        where the branch's schema differs the table can't be read any more. Snapshots are published one by one, in order; a
        commit to the table in between stops it there, with what came before it in place.

        Args:
            name: a branch.

        Returns:
            The table's latest snapshot afterwards.

        Raises:
            NotFoundError: no such branch.
            CommitError: the table has moved, or the schemas differ. Nothing was done, unless the text says so.
        """
        self._only_on_main(f"fast_forward({name!r})")
        with alone(self.paimon, "fast_forward"):  # so that no snapshot of the branch expires before the table has it
            return self._fast_forward(name)

    def _fast_forward(self, name: str) -> int | None:
        branch = self._branch(name)
        main = self.paimon
        latest = latest_snapshot(main)
        theirs = {int(snapshot.id): snapshot for snapshot in snapshots_of(branch.snapshot_manager())}
        number = 0 if latest is None else int(latest.id)
        if latest is not None and (number not in theirs or snapshot_identity(theirs[number]) != snapshot_identity(latest)):
            raise CommitError(
                f"{self.name}: can't be fast-forwarded to branch {name!r}: the table has moved to snapshot {number}, which the "
                "branch does not have. Read the branch's rows and append them instead"
            )
        if not same_schemas(main, branch):
            raise CommitError(
                f"{self.name}: can't be fast-forwarded to branch {name!r}: their schemas differ. Make the same changes of "
                "columns on a new branch of the table, or read the branch's rows and append them"
            )
        last = max(theirs, default=0)
        missing = [at for at in range(number + 1, last + 1) if at not in theirs]
        if missing:
            raise CommitError(f"{self.name}: branch {name!r} lacks snapshot {missing[0]}, which has expired")
        for at in range(number + 1, last + 1):
            if not publish_one(main, theirs[at], latest):
                done = f"; snapshots {number + 1} to {at - 1} of the branch are on the table" if at > number + 1 else ""
                raise CommitError(f"{self.name}: another commit was made while it was fast-forwarded to {name!r}{done}")
            latest = theirs[at]
        return last or None

    def _only_on_main(self, what: str) -> None:
        if _ON_BRANCH in self.name:
            raise ConfigError(f"{self.name}: {what} is asked of the table itself, not of a branch")


def _load_branch(load: Any, name: str, branch: str | None) -> Any:
    """A handle of the branch, however it is asked for: a branch has no branches of its own."""
    if branch is not None:
        raise ConfigError(f"a branch has no branches: ask the table itself for {branch!r}, not its branch {name!r}")
    return load(name)
