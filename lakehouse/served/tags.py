"""Tags that a catalog server keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pypaimon.api.rest_exception import RESTException
from pypaimon.catalog.catalog_exception import CatalogException, TagAlreadyExistException, TagNotExistException

from lakehouse.errors import cause_line
from lakehouse.served.client import Unanswered, explained


class ServedTags:
    """A table's tags as its server keeps them.

    Args:
        table: a pypaimon handle of a served table.

    Raises:
        LakehouseError: by the methods that read: the server refuses, or gives no answer.
        OSError: by those that write.
    """

    def __init__(self, table: Any) -> None:
        self._catalog = table.catalog_environment.catalog_loader.load()
        self._identifier = table.identifier

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
        with self._writing():
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
        with self._writing():
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

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (RESTException, CatalogException, ValueError) as error:
            raise OSError(cause_line(error)) from error
