"""Commits that a catalog server decides."""

from __future__ import annotations

from typing import Any

from pypaimon.api.rest_exception import (
    AlreadyExistsException,
    BadRequestException,
    ForbiddenException,
    NoSuchResourceException,
    NotAuthorizedException,
    NotImplementedException,
)
from pypaimon.catalog.catalog_environment import CatalogEnvironment
from pypaimon.catalog.catalog_exception import TableNoPermissionException, TableNotExistException
from pypaimon.snapshot.catalog_snapshot_commit import CatalogSnapshotCommit

from lakehouse.served.client import Unreachable

_REFUSED = (
    *(AlreadyExistsException, BadRequestException, ForbiddenException, NoSuchResourceException, NotAuthorizedException),
    *(NotImplementedException, TableNoPermissionException, TableNotExistException),
)


class ServedSnapshotCommit(CatalogSnapshotCommit):
    """Commits through the server, which alone decides: `lakehouse.write.engine` asks for the ``verdict`` on its errors."""

    def verdict(self, error: Exception) -> str:
        """What an error of `commit` means: ``"refused"``, ``"unsent"``, or ``"doubt"``: the server may still publish it."""
        cause = error.__cause__ or error
        if isinstance(cause, _REFUSED):
            return "refused"
        return "unsent" if isinstance(cause, Unreachable) else "doubt"


class ServedEnvironment(CatalogEnvironment):
    """The environment of a table whose server decides."""

    def snapshot_commit(self, snapshot_manager: Any) -> Any:  # noqa: ARG002 - the server knows the head
        """The commit that `ServedSnapshotCommit` describes."""
        return ServedSnapshotCommit(self.catalog_loader.load(), self.identifier, self.uuid)
