"""What a process does to a table when it is killed, and what has to hold afterwards.

To add one, write a class like these and name it in `OPERATIONS`: `tests/test_commit_kill.py` runs each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lakehouse as lh
from tests.stress.lake import held, row, rows

FIRST_OWN = 1_000_000  # ids of rows that the check appends itself, after each kill
_PREPARED = 900_000


class Operation:
    """What the killed process does. Its steps are numbered over all kills, so no two are alike.

    Attributes:
        span_s: about how long a step takes, until one was measured.
    """

    span_s = 0.12

    def warm_up(self, table: lh.Table) -> None:
        """Load what the first step would load, in the process that is killed."""

    def prepare(self, table: lh.Table) -> None:
        """Fill the new table."""
        table.append(rows(range(_PREPARED, _PREPARED + 3)))

    def run(self, table: lh.Table, step: int) -> Any:
        """One step, in the process that is killed; what it returns says what was done."""
        raise NotImplementedError

    def check(self, table: lh.Table, done: Mapping[int, Any], cut: set[int]) -> None:
        """After each kill: the steps that are ``done`` hold, each of those ``cut`` off happened wholly or not at all."""
        raise NotImplementedError


def ours(table: lh.Table) -> list[dict[str, Any]]:
    """The rows that the operation is answerable for, by id."""
    return [one for one in held(table) if one["id"] < FIRST_OWN]


class Append(Operation):
    """Three rows of three partitions, under a commit id."""

    size = 3

    def run(self, table: lh.Table, step: int) -> int | None:
        return table.append(self._rows(step), commit_id=f"step-{step}").snapshot_id

    def check(self, table: lh.Table, done: Mapping[int, Any], cut: set[int]) -> None:
        made = {step for step in {*done, *cut} if table.find_commit(f"step-{step}") is not None}
        assert made >= set(done)
        assert ours(table) == self._table(made)
        for step, snapshot_id in done.items():
            commit = table.append(self._rows(step), commit_id=f"step-{step}")  # again: nothing happens
            assert (commit.snapshot_id, commit.rows) == (snapshot_id, self.size)
        for step in cut:  # what one does after a crash
            table.append(self._rows(step), commit_id=f"step-{step}")
        assert ours(table) == self._table({*done, *cut})

    def _rows(self, step: int) -> list[dict[str, Any]]:
        return rows(range(step * self.size, (step + 1) * self.size))

    def _table(self, steps: set[int]) -> list[dict[str, Any]]:
        return [one for step in sorted(steps) for one in self._rows(step)] + rows(range(_PREPARED, _PREPARED + 3))


class Tag(Operation):
    """A new tag, or one that moves."""

    names = 5
    snapshots = 4

    def prepare(self, table: lh.Table) -> None:
        for number in range(self.snapshots):
            table.append([row(number)])

    def run(self, table: lh.Table, step: int) -> int:
        return table.tag(f"t{step % self.names}", snapshot=1 + step % self.snapshots, replace=True)

    def check(self, table: lh.Table, done: Mapping[int, Any], cut: set[int]) -> None:
        tags = table.tags()
        for name in {f"t{step % self.names}" for step in done}:
            last = max(step for step in done if f"t{step % self.names}" == name)
            later = {1 + step % self.snapshots for step in cut if step > last and f"t{step % self.names}" == name}
            assert tags[name] in {done[last], *later}
        for name, number in tags.items():
            assert [one["id"] for one in table.at(tag=name).arrow().to_pylist()] == list(range(number))


class _Querying(Operation):
    """One whose steps work out rows: slower, and with Daft."""

    span_s = 0.4

    def warm_up(self, table: lh.Table) -> None:
        table.latest().query().where("id < 0").select("id").count_rows()


class Update(_Querying):
    """New bytes for the rows of one group; the last of several steps holds."""

    groups, size = 4, 5

    def prepare(self, table: lh.Table) -> None:
        table.append(rows(range(self.groups * self.size)))

    def run(self, table: lh.Table, step: int) -> None:
        first = step % self.groups * self.size
        table.update(f"id >= {first} and id < {first + self.size}", {"frame": b"step %d" % step})

    def check(self, table: lh.Table, done: Mapping[int, Any], cut: set[int]) -> None:
        found = ours(table)
        assert [one["id"] for one in found] == list(range(self.groups * self.size))
        for group in range(self.groups):
            members = found[group * self.size : (group + 1) * self.size]
            last = max((step for step in done if step % self.groups == group), default=-1)
            later = [step for step in cut if step > last and step % self.groups == group]
            wanted = [[b"step %d" % step] * self.size for step in later]
            unchanged = [row(one["id"])["frame"] for one in members]
            wanted.append(unchanged if last < 0 else [b"step %d" % last] * self.size)
            assert [one["frame"] for one in members] in wanted


class Delete(_Querying):
    """One row after the other."""

    size = 600

    def prepare(self, table: lh.Table) -> None:
        table.append(rows(range(self.size)))

    def run(self, table: lh.Table, step: int) -> None:
        table.delete(f"id = {step}")

    def check(self, table: lh.Table, done: Mapping[int, Any], cut: set[int]) -> None:
        found = ours(table)
        gone = set(range(self.size)) - {one["id"] for one in found}
        assert set(done) <= gone <= {*done, *cut}
        assert found == [row(one["id"]) for one in found]


class Overwrite(_Querying):
    """All rows of one partition; the last of several steps holds."""

    size = 4

    def run(self, table: lh.Table, step: int) -> None:
        table.overwrite(self._rows(step), partition={"channel": "other"})

    def check(self, table: lh.Table, done: Mapping[int, Any], cut: set[int]) -> None:
        found = ours(table)
        last = max(done, default=-1)
        wanted = [self._rows(step) for step in (*cut, last) if step >= last]
        if last < 0:
            wanted.append([])
        assert [one for one in found if one["channel"] == "other"] in wanted
        assert [one for one in found if one["channel"] != "other"] == rows(range(_PREPARED, _PREPARED + 3))

    def _rows(self, step: int) -> list[dict[str, Any]]:
        if step < 0:
            return []
        return [{"id": number, "channel": "other", "frame": b"step %d" % step} for number in range(self.size)]


class Upsert(_Querying):
    """The same keys again and again, each time in other partitions, and one new key; the last of several steps holds."""

    size = 6

    def prepare(self, table: lh.Table) -> None:
        table.append(self._rows(-1))

    def run(self, table: lh.Table, step: int) -> None:
        new = {"id": 1000 + step, "channel": "new", "frame": b"new %d" % step}
        table.upsert([*self._rows(step), new], key=["id"])

    def check(self, table: lh.Table, done: Mapping[int, Any], cut: set[int]) -> None:
        found = ours(table)
        last = max(done, default=-1)
        wanted = [self._rows(step) for step in (*cut, last) if step >= last]
        assert [one for one in found if one["id"] < self.size] in wanted
        added = {one["id"] - 1000 for one in found if one["id"] >= self.size}
        assert set(done) <= added <= {*done, *cut}
        assert len(found) == self.size + len(added)

    def _rows(self, step: int) -> list[dict[str, Any]]:
        return [{"id": n, "channel": f"c{(n + step) % 3}", "frame": b"step %d" % step} for n in range(self.size)]


class _Kept(Operation):
    """A step appends a row and then works on the table's files: the rows stay as they are."""

    def check(self, table: lh.Table, done: Mapping[int, Any], cut: set[int]) -> None:
        found = [one for one in ours(table) if one["id"] < _PREPARED]
        ids = {one["id"] for one in found}
        assert set(done) <= ids <= {*done, *cut}
        assert found == rows(sorted(ids))


class Compact(_Querying, _Kept):
    """Merges the files of the appends so far."""

    def run(self, table: lh.Table, step: int) -> None:
        table.append([row(step)])
        table.compact()


class Expire(_Kept):
    """Leaves two snapshots."""

    def run(self, table: lh.Table, step: int) -> None:
        table.append([row(step)])
        table.expire(keep_last=2)


OPERATIONS: dict[str, type[Operation]] = {
    "append": Append,
    "compact": Compact,
    "delete": Delete,
    "expire": Expire,
    "overwrite": Overwrite,
    "tag": Tag,
    "update": Update,
    "upsert": Upsert,
}
