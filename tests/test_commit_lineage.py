"""Commit ids beside rollbacks, tags, branches and expiry: an id is known exactly where its rows are, however they came back."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import lakehouse as lh
from tests.lake_files import folder_of
from tests.stress.lake import held, made, row, rows

NAME = "default.lineage"


@pytest.fixture
def table(warehouse: Path) -> lh.Table:
    return made(warehouse, NAME)


def test_a_tag_brings_back_the_ids_of_expired_commits(table: lh.Table) -> None:
    table.append([row(0)])
    table.append([row(1)], commit_id="c")
    table.tag("with")
    table.rollback(snapshot=1)
    table.expire(keep_last=1)
    assert table.find_commit("c") is None
    table.rollback(tag="with")
    assert table.append([row(1)], commit_id="c").snapshot_id == 2
    assert held(table) == rows(range(2))


def test_an_id_that_was_given_twice_names_the_commit_whose_rows_are_there(table: lh.Table) -> None:
    table.append([row(0)])
    table.append([row(1)], commit_id="c")
    table.tag("first")
    table.rollback(snapshot=1)
    table.append([row(2)], commit_id="c")
    table.tag("second")
    table.append([row(3)])
    table.expire(keep_last=1)
    for tag, number, there in (("first", 2, (0, 1)), ("second", 4, (0, 2)), ("first", 2, (0, 1))):
        table.rollback(tag=tag)
        assert table.append([row(9)], commit_id="c").snapshot_id == number
        assert held(table) == rows(there)
        table.expire(keep_last=1)


def test_rollbacks_that_expired_still_undo(table: lh.Table) -> None:
    table.append([row(0)])
    table.append([row(1)], commit_id="undone")
    table.rollback(snapshot=1)
    table.append([row(2)], commit_id="kept")
    table.tag("after")
    table.expire(keep_last=1)
    table.append([row(3)])
    table.expire(keep_last=1)
    table.rollback(tag="after")
    assert table.append([row(2)], commit_id="kept").snapshot_id == 4
    assert table.append([row(1)], commit_id="undone").snapshot_id == 7


@pytest.mark.parametrize("expired", [False, True])
def test_a_branch_knows_the_ids_of_the_rows_that_it_began_with(table: lh.Table, expired: bool) -> None:
    table.append([row(0)], commit_id="a")
    table.append([row(1)], commit_id="b")
    table.tag("two")
    table.append([row(2)], commit_id="c")
    if expired:
        table.expire(keep_last=1)
    branch = table.create_branch("dev", tag="two")
    assert [branch.append([row(9)], commit_id=commit_id).snapshot_id for commit_id in "abc"] == [1, 2, 3]
    branch.expire(keep_last=1)
    assert [branch.append([row(9)], commit_id=commit_id).snapshot_id for commit_id in "abc"] == [1, 2, 3]
    assert held(branch) == rows((0, 1, 9))


def test_a_fast_forward_brings_the_ids_of_the_branch(table: lh.Table) -> None:
    table.append([row(0)], commit_id="a")
    branch = table.create_branch("dev")
    branch.append([row(1)], commit_id="undone")
    branch.rollback(snapshot=1)
    branch.append([row(2)], commit_id="b")
    table.fast_forward("dev")
    table.expire(keep_last=1)
    assert [table.append([row(9)], commit_id=commit_id).snapshot_id for commit_id in "ab"] == [1, 4]
    assert table.append([row(1)], commit_id="undone").snapshot_id == 5


def test_a_ledger_of_the_first_format_is_read(table: lh.Table) -> None:
    first = table.append([row(0)], commit_id="a")
    table.append([row(1)])
    table.expire(keep_last=1)
    commit = (
        '{"snapshot": 1, "time_millis": 5, "kind": "APPEND", "properties": {"lakehouse.commit-id": "a", "lakehouse.rows": "1"}}'
    )
    (folder_of(table) / "lakehouse/commits.json").write_text(f'{{"format": 1, "commits": {{"a": {commit}}}}}')
    assert table.append([row(9)], commit_id="a").snapshot_id == first.snapshot_id
    table.append([row(2)], commit_id="b")
    table.append([row(3)])
    table.expire(keep_last=1)
    assert [table.append([row(9)], commit_id=commit_id).snapshot_id for commit_id in "ab"] == [1, 3]


# --- any order, against a model ----------------------------------------------------------------------------------------------

IDS = "abcdef"


@dataclass
class _Line:
    """The main branch or another one: what each of its versions holds, as the ids of the commits whose rows are there."""

    table: lh.Table
    versions: dict[int, frozenset[str]] = field(default_factory=dict)  # by number, those that have not expired
    identities: dict[int, object] = field(default_factory=dict)  # a snapshot that a branch shares is the same object
    tags: dict[str, int] = field(default_factory=dict)
    tagged: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        return max(self.versions, default=0)

    @property
    def content(self) -> frozenset[str]:
        return self.versions.get(self.latest, frozenset())

    def then(self, content: frozenset[str]) -> None:
        number = self.latest + 1
        self.versions[number], self.identities[number] = content, object()


class _Lake:
    def __init__(self, table: lh.Table, seed: int) -> None:
        self.draw = random.Random(seed)
        self.main = _Line(table)
        self.branches: dict[str, _Line] = {}
        self.made = 0

    def lines(self) -> list[_Line]:
        return [self.main, *self.branches.values()]

    def step(self) -> str:
        line = self.draw.choice(self.lines())
        names = ["append"] * 5 + ["tag", "rollback", "rollback", "rollback_to_tag", "rollback_to_tag", "expire", "expire"]
        names += ["branch", "fast_forward", "drop_branch"]
        name = self.draw.choice(names)
        getattr(self, name)(line)
        return f"{name} of {line.table.name}"

    def append(self, line: _Line) -> None:
        commit_id = self.draw.choice(IDS)
        line.table.append([row(IDS.index(commit_id))], commit_id=commit_id)
        if commit_id not in line.content:
            line.then(line.content | {commit_id})

    def tag(self, line: _Line) -> None:
        if line.versions:
            self.made += 1
            number = self.draw.choice(sorted(line.versions))
            line.table.tag(f"t{self.made}", snapshot=number)
            line.tags[f"t{self.made}"], line.tagged[f"t{self.made}"] = number, line.versions[number]

    def rollback(self, line: _Line) -> None:
        if line.versions:
            number = self.draw.choice(sorted(line.versions))
            line.table.rollback(snapshot=number)
            if number != line.latest:
                line.then(line.versions[number])

    def rollback_to_tag(self, line: _Line) -> None:
        if line.tags:
            tag = self.draw.choice(sorted(line.tags))
            line.table.rollback(tag=tag)
            if line.tags[tag] != line.latest:
                line.then(line.tagged[tag])

    def expire(self, line: _Line) -> None:
        keep = self.draw.randint(1, 4)
        line.table.expire(keep_last=keep)
        for number in sorted(line.versions)[:-keep]:
            del line.versions[number]

    def branch(self, line: _Line) -> None:
        if len(self.branches) == 2:
            return
        self.made += 1
        name, main = f"b{self.made}", self.main
        by_tag = sorted(main.tags)
        if by_tag and self.draw.random() < 0.5:
            tag = self.draw.choice(by_tag)
            made = _Line(main.table.create_branch(name, tag=tag))
            number, content = main.tags[tag], main.tagged[tag]
        else:
            made = _Line(main.table.create_branch(name))
            number, content = main.latest, main.content
        if number:
            made.versions[number], made.identities[number] = content, main.identities[number]
        self.branches[name] = made

    def fast_forward(self, line: _Line) -> None:
        if not self.branches:
            return
        name = self.draw.choice(sorted(self.branches))
        branch, main = self.branches[name], self.main
        latest = main.latest
        wanted = range(latest + 1, branch.latest + 1)
        follows = latest == 0 or (latest in branch.versions and branch.identities[latest] is main.identities[latest])
        if not follows or not set(wanted) <= branch.versions.keys():
            with pytest.raises(lh.CommitError):
                main.table.fast_forward(name)
            return
        main.table.fast_forward(name)
        for number in wanted:
            main.versions[number], main.identities[number] = branch.versions[number], branch.identities[number]

    def drop_branch(self, line: _Line) -> None:
        if self.branches and self.draw.random() < 0.3:
            name = self.draw.choice(sorted(self.branches))
            self.main.table.delete_branch(name)
            del self.branches[name]


@pytest.mark.parametrize("seed", range(8))
def test_in_any_order_an_id_is_known_where_its_rows_are(table: lh.Table, seed: int) -> None:
    lake = _Lake(table, seed)
    history = []
    for _ in range(30):
        history.append(lake.step())
        for line in lake.lines():
            known = {commit_id for commit_id in IDS if line.table.find_commit(commit_id) is not None}
            assert known == line.content, history
    for line in lake.lines():
        for commit_id in IDS:
            line.table.append([row(IDS.index(commit_id))], commit_id=commit_id)
        assert held(line.table) == rows(range(len(IDS))), history
