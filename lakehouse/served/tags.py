"""Tags and branches that a catalog server keeps."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from pypaimon.api.rest_exception import RESTException
from pypaimon.catalog.catalog_exception import (
    BranchAlreadyExistException,
    CatalogException,
    TagAlreadyExistException,
    TagNotExistException,
)
from pypaimon.common.identifier import Identifier

from lakehouse.errors import cause_line
from lakehouse.served.client import Unanswered, explained


class ServedTags:
    """A table's tags as its server keeps them.

    Args:
        table: a pypaimon handle of a served table.
        branch: of this branch of it; None: of the handle's own.

    Raises:
        LakehouseError: by the methods that read: the server refuses, or gives no answer.
        OSError: by those that write.
    """

    def __init__(self, table: Any, branch: str | None = None) -> None:
        self._catalog = table.catalog_environment.catalog_loader.load()
        of_table = table.identifier
        self._identifier = (
            of_table if branch is None else Identifier(of_table.get_database_name(), of_table.get_table_name(), branch=branch)
        )

    def names(self) -> list[str]:
        """All names, sorted."""
        found: list[str] = []
        token: str | None = None
        with self._reading():
            while True:
                page = self._catalog.list_tags_paged(self._identifier, page_token=token)
                found += page.elements
                token = page.next_page_token
                if not token or not page.elements:
                    return sorted(found)

    def snapshot(self, name: str) -> Any:
        """The snapshot that a tag names, None where there is no such tag."""
        with self._reading(), contextlib.suppress(TagNotExistException):
            return self._catalog.get_tag(self._identifier, name).snapshot

    def write(self, name: str, number: int, *, replace: bool) -> bool:
        """Name a snapshot; False when the tag exists and is not to be replaced.

        The API has no replacing: a tag that moves is absent for a moment, and comes back where the move fails.
        """
        with writing():
            if self._create(name, number):
                return True
            if not replace:
                return False
            held = self.snapshot(name)
            self._remove(name)
            try:
                self._create(name, number)
            except Exception:
                if held is not None:
                    with contextlib.suppress(Exception):
                        self._create(name, int(held.id))
                raise
        return True

    def remove(self, name: str) -> None:
        """Remove a tag; one that is not there is no error."""
        with writing():
            self._remove(name)

    def _create(self, name: str, number: int) -> bool:
        try:
            self._catalog.create_tag(self._identifier, name, number)
        except TagAlreadyExistException:
            return False
        except Unanswered:  # done all the same?
            held = self.snapshot(name)
            if held is None or int(held.id) != number:
                raise
        return True

    def _remove(self, name: str) -> None:
        with contextlib.suppress(TagNotExistException):
            self._catalog.delete_tag(self._identifier, name)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (RESTException, CatalogException) as error:
            known = explained(error, f"tags of {self._identifier.get_full_name()}")
            if known is None:
                raise
            raise known from error


class ServedBranches:
    """A table's branches as its server keeps them.

    Args:
        table: a pypaimon handle of a served table.

    Raises:
        OSError: by its methods: the server refuses, or gives no answer.
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        self._catalog = table.catalog_environment.catalog_loader.load()

    def write(self, name: str, snapshot: Any) -> bool:
        """Make a branch that begins with a snapshot, or empty for None; False when the name is taken.

        The API begins branches at tags, so that one is made for it.
        """
        tag = None if snapshot is None else f"lakehouse-branch-{uuid.uuid4().hex[:12]}"
        with writing():
            if tag is not None:
                self._catalog.create_tag(self._table.identifier, tag, int(snapshot.id))
            try:
                self._catalog.create_branch(self._table.identifier, name, tag)
            except BranchAlreadyExistException:
                return False
            finally:
                if tag is not None:
                    for branch in (None, name):  # the branch has a copy
                        with contextlib.suppress(OSError):
                            ServedTags(self._table, branch).remove(tag)
        return True

    def remove(self, name: str) -> None:
        """Take a branch away."""
        with writing():
            self._catalog.drop_branch(self._table.identifier, name)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """A server's refusal or silence as an OSError."""
    try:
        yield
    except (RESTException, CatalogException, ValueError) as error:
        raise OSError(cause_line(error)) from error
