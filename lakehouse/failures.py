"""What the failures of a catalog's parts mean: of its server, its database, its store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lakehouse.config import CatalogConfig
from lakehouse.errors import CommitError, ConfigError, FetchError, LakehouseError, NotFoundError, cause_line

_DRIVERS = ("sqlite3", "psycopg2", "psycopg", "pymysql", "mysql")


@dataclass(frozen=True)
class Failures:
    """Errors of one catalog, told with its name and place and without what is secret.

    Attributes:
        config: the catalog's.
    """

    config: CatalogConfig

    @property
    def is_served(self) -> bool:
        """Whether a catalog server is asked, and not a folder or a database."""
        return self.config.options.get("metastore") == "rest"

    @property
    def place(self) -> str:
        """The catalog's name, and where it is."""
        at = self.config.options["uri"] if self.is_served else self.config.warehouse  # a database's may hold a password
        return f"catalog {self.config.name!r} at {at}"

    @contextmanager
    def asking(self) -> Iterator[None]:
        """What a server's refusal or silence means, and a database driver's errors."""
        try:
            yield
        except LakehouseError:
            raise
        except Exception as error:
            if self.is_served:
                from lakehouse.served import explained

                known = explained(error, self.place)
                if known is not None:
                    raise known from error
            elif self.config.options.get("metastore") == "jdbc" and type(error).__module__.split(".")[0] in _DRIVERS:
                cause = self.config.options.masked(error)
                raise LakehouseError(f"{self.place}: the database refuses or fails: {cause_line(cause)}") from cause
            raise

    @contextmanager
    def listing(self) -> Iterator[None]:
        """What is listed."""
        try:
            with self.asking():
                yield
        except (LakehouseError, FileNotFoundError):
            raise
        except OSError as error:
            raise FetchError(f"{self.place} can't be listed: {cause_line(error)}") from error

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """What is changed; ``what`` begins the error."""
        try:
            with self.asking():
                yield
        except (ConfigError, NotFoundError):
            raise
        except (LakehouseError, OSError, RuntimeError) as error:
            raise CommitError(f"{what} in {self.place}: {cause_line(error)}") from error
