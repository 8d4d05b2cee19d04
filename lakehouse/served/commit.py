"""Commits that a catalog server decides."""

from __future__ import annotations

from collections.abc import Callable
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

_TRIES_IN_DOUBT = 4
_REFUSED = (
    *(AlreadyExistsException, BadRequestException, ForbiddenException, NoSuchResourceException, NotAuthorizedException),
    *(NotImplementedException, TableNoPermissionException, TableNotExistException),
)


class ServedSnapshotCommit(CatalogSnapshotCommit):
    """Commits through the server, which alone decides.

    Attributes:
        on_error: called when another try would be of no use: the server refuses, or left several tries without an answer.
            Upstream takes every error for a lost race and tries again for a quarter of an hour.
        doubtful_id: the snapshot id of a try whose answer is missing; the server may still publish it while its head is
            below that. None: there is no such try.
    """

    on_error: Callable[[], None] | None = None
    doubtful_id: int | None = None
    _tries_in_doubt = 0

    def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: list[Any]) -> bool:
        """True when the server published it, False when another commit came first."""
        try:
            published = super().commit(base_snapshot_uuid, snapshot, statistics)
        except BaseException as error:
            cause = error.__cause__ or error
            if isinstance(cause, _REFUSED):
                self._stop()
            elif not isinstance(cause, Unreachable):
                self.doubtful_id = int(snapshot.id)
                self._tries_in_doubt += 1
                if self._tries_in_doubt >= _TRIES_IN_DOUBT:
                    self._stop()
            raise
        return bool(published)

    def may_still_publish(self, head: int | None) -> bool:
        """Whether the server, whose latest snapshot is ``head``, may yet publish a try that was left without an answer."""
        return self.doubtful_id is not None and (head or 0) < self.doubtful_id

    def _stop(self) -> None:
        if self.on_error is not None:
            self.on_error()


class ServedEnvironment(CatalogEnvironment):
    """The environment of a table whose server decides."""

    def snapshot_commit(self, snapshot_manager: Any) -> Any:  # noqa: ARG002 - the server knows the head
        """The commit that `ServedSnapshotCommit` describes."""
        return ServedSnapshotCommit(self.catalog_loader.load(), self.identifier, self.uuid)
