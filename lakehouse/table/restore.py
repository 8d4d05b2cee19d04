"""What became of a table since an earlier version, and going back to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lakehouse.errors import ConfigError, NotFoundError, SchemaError
from lakehouse.history import Diff, Rollback, added_since, fields_of, unreadable_since
from lakehouse.scan import plan
from lakehouse.schema import Columns
from lakehouse.table.snapshot import Snapshot
from lakehouse.table.versions import Versions
from lakehouse.upkeep import alone
from lakehouse.write import publish_restored


class Restore(Versions):
    """The part of `Table` that looks back and goes back."""

    def diff(self, old: str | int | Snapshot, new: str | int | Snapshot, *, key: str | Sequence[str] | None = None) -> Diff:
        """What became of the rows between two versions: added, deleted, changed per column.

        Costs what changed, not what the table holds: files of both versions are not read, nor are BLOBs.

        Args:
            old: a tag's name, a snapshot's number, or a `Snapshot`, also one of a branch.
            new: likewise.
            key: the columns that tell rows apart. None: a row is the same one as long as it keeps its row id, as updates and
                upserts do. An overwrite, or a compaction that gives new row ids, writes all rows anew: with ``key`` those
                that come back equal are no difference. Keys are taken to be unique in each version; where rows that must be
                compared show that they are not, that is an error.

        Returns:
            A lazy `Diff`.

        Raises:
            ConfigError: versions of different tables; of two branches that were both written, without ``key``.
            NotFoundError: no such version or column.
            SchemaError: a key column that only one version has, or that is no plain value.

        Example:
            >>> diff = table.diff("training_v1", "training_v2", key="frame_id")  # doctest: +SKIP
            >>> diff.added, diff.deleted, diff.changed  # doctest: +SKIP
            (120, 3, {'weather': 17})
        """
        columns = (key,) if isinstance(key, str) else tuple(key or ())
        if key is not None and not columns:
            raise ConfigError("diff(): key names no column; leave it out to compare by row id")
        return Diff(self._version_of(old).version, self._version_of(new).version, columns)

    def _version_of(self, which: str | int | Snapshot) -> Snapshot:
        if isinstance(which, Snapshot):
            return which
        return self.at(tag=which) if isinstance(which, str) else self.at(snapshot=which)

    def rollback(
        self,
        *,
        tag: str | None = None,
        snapshot: int | None = None,
        time: datetime | None = None,
        dry_run: bool = False,
    ) -> Rollback:
        """Give the table the content that it had at an earlier version, as a new snapshot.

        Nothing is deleted: the snapshots in between, tags and saved indexes stay what they are, and a rollback can be rolled
        back. Snapshot ids and row ids go on and are never given out again. The columns stay the table's present ones. The ids
        of commits that are undone (`append(commit_id=...)`) are free again.

        Args:
            tag: the version, by a tag's name.
            snapshot: the version, by its number.
            time: the version, as the latest one at or before an aware datetime.
            dry_run: only say what would happen.

        Raises:
            ConfigError: none or more than one of the three.
            NotFoundError: no such version; the text lists what exists.
            SchemaError: since that version a column was dropped or renamed, or its type changed to one that does not hold all
                its values, so that its rows would not come back as they were. Nothing was done.
            CommitError: nothing was published; trying again is safe.
            CommitUnknownError: the outcome is unknown; look at `snapshots` first.

        Example:
            >>> table.rollback(tag="training_v1", dry_run=True).undone  # doctest: +SKIP
            (4, 5)
        """
        target = self.at(tag=tag, snapshot=snapshot, time=time)
        paimon = self._load(None)
        latest = self.latest()
        if target.id is None or latest.id is None:
            raise NotFoundError(f"{self.name} has no snapshot to go back to; append rows first")
        then = fields_of(target.version.paimon, target.version.columns)
        columns = Columns.of(paimon)  # the latest snapshot may be of an older schema
        now = fields_of(paimon, columns)
        reasons = list(unreadable_since(then, now))
        changed = target.version.columns.inline ^ columns.inline
        names = set(target.schema.names)
        reasons += [f"column {name} keeps its BLOBs in another way" for name in sorted(changed & names)]
        if reasons:
            raise SchemaError(
                f"{self.name} can't go back to snapshot {target.id}: since then {'; '.join(reasons)}, so its rows would not "
                f"come back as they were. at(snapshot={target.id}) reads them; create_branch(name, snapshot={target.id}) makes "
                "a branch of them that can be written"
            )
        rows = plan(target.version).rows
        undone = tuple(number for number in self._ids(paimon) if number > target.id)
        null_columns = added_since(then, now)
        if dry_run or target.id == latest.id:
            return Rollback(None, target.id, undone, rows, plan(latest.version).rows, null_columns)
        with alone(paimon, "rollback"):
            self.at(
                tag=tag, snapshot=snapshot, time=time
            )  # it has not expired, and can't until the new snapshot names its files
            published, before = publish_restored(paimon, target.version.snapshot)
        undone = tuple(number for number in self._ids(paimon) if target.id < number <= int(before.id))
        rows_before = plan(self.at(snapshot=int(before.id)).version).rows
        return Rollback(int(published.id), target.id, undone, rows, rows_before, null_columns)
