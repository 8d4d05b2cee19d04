"""connect() and Catalog: the only door to pypaimon's catalogs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakehouse.config import CatalogConfig, load_config
from lakehouse.errors import CommitError, ConfigError, LakehouseError, NotFoundError, SchemaError, cause_line
from lakehouse.failures import Failures
from lakehouse.names import checked, split_table_name
from lakehouse.schema import REFERENCE_OPTION, TABLE_UUID_OPTION, Schema, as_arrow, paimon_schema
from lakehouse.stores import Store
from lakehouse.table import Table
from lakehouse.upstream import check_creates, is_local, local_path, remedied

if TYPE_CHECKING:
    from lakehouse.index import RowIndex
    from lakehouse.registry import Registry, TrainingSet

_SYSTEM_DATABASE = "sys"
_TABLE_DEFAULT = "table-default."


def connect(
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None, *, name: str | None = None, **options: Any
) -> Catalog:
    """Open a catalog.

    Args:
        config: path of a YAML file with ``catalogs: {NAME: {option: value}}`` and ``default: NAME``, or a mapping of that
            form. None: the file that ``$LAKEHOUSE_CONFIG`` names, else only ``options``.
        name: which catalog of the file; None: its ``default``.
        **options: Paimon catalog options; they override the file's. ``warehouse="/data/lake"`` alone is an embedded
            catalog in a folder, without any server. ``blob_roots=[...]`` lists folders and URL prefixes outside the
            warehouse from which referenced BLOBs may be read.

    Raises:
        ConfigError: a file, name, option or environment variable that is missing or misspelt.

    Example:
        >>> import lakehouse as lh
        >>> catalog = lh.connect(warehouse="lake")
        >>> catalog.tables()
        []
    """
    return Catalog(load_config(config, name=name, options=options))


class Catalog:
    """Databases and tables of one warehouse. Made by `connect`."""

    def __init__(self, config: CatalogConfig) -> None:
        self._config = config
        self._failures = Failures(config)
        self._opened: tuple[int, Any] | None = None

    @property
    def paimon(self) -> Any:
        """The pypaimon catalog underneath, opened on first use and once per process."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), self._open())
        return self._opened[1]

    def _open(self) -> Any:
        from pypaimon import CatalogFactory

        from lakehouse.oss.file_io import with_oss_remedy
        from lakehouse.served import explained, open_served
        from lakehouse.upstream_store import with_store_remedies

        options = self._config.options
        if self._failures.is_served:
            open_it = open_served
        else:
            open_it = CatalogFactory.create
            if is_local(self._config.warehouse):
                from lakehouse.warehouse import open_local

                if local_path(self._config.warehouse).is_file():
                    raise ConfigError(f"{self!r}: the warehouse {self._config.warehouse} is a file, not a folder")
                if options.get("metastore", "filesystem") == "filesystem":
                    open_it = open_local
            if options.get("metastore") == "jdbc":
                from lakehouse.database import open_database

                open_it = open_database
        try:
            return with_oss_remedy(with_store_remedies(open_it(dict(options))))
        except ConfigError:
            raise
        except Exception as error:  # each metastore has errors of its own
            known = explained(error, f"{self._failures.place} can't be opened")
            if isinstance(known, ConfigError):
                raise known from error
            cause = options.masked(error)
            raise ConfigError(f"{self!r} can't be opened: {cause_line(cause)}") from cause

    def databases(self) -> list[str]:
        """Names of the databases, sorted.

        Raises:
            FetchError: the store refuses or is silent.
        """
        try:
            with self._failures.listing():
                return sorted(self.paimon.list_databases())
        except FileNotFoundError:  # a folder that nothing was written to yet
            return []

    def create_database(self, name: str, exist_ok: bool = True) -> None:
        """Make a database.

        Raises:
            ConfigError: a name that can't be a folder's, or one that exists while ``exist_ok`` is False.
            CommitError: the store refuses.
        """
        from pypaimon.catalog.catalog_exception import DatabaseAlreadyExistException

        if checked(name, "database") == _SYSTEM_DATABASE:
            raise ConfigError(f"{name!r} can't name a database: Paimon keeps it for its own tables")
        try:
            check_creates(self.paimon)
            with self._failures.writing(f"database {name} can't be made"):
                self.paimon.create_database(name, exist_ok)
        except DatabaseAlreadyExistException as error:
            raise ConfigError(f"database {name!r} exists; pass exist_ok=True to keep it") from error

    def tables(self, database: str | None = None) -> list[str]:
        """``database.table`` names, sorted.

        Args:
            database: only of this one; None: of all.

        Raises:
            NotFoundError: no such database.
            FetchError: the store refuses or is silent.
        """
        if database is not None and checked(database, "database") not in self.databases():
            raise NotFoundError(f"no database {database!r}; databases: {', '.join(self.databases()) or 'none'}")
        chosen = self.databases() if database is None else [database]
        with self._failures.listing():
            return sorted(f"{base}.{table}" for base in chosen for table in self.paimon.list_tables(base))

    def create_table(
        self,
        name: str,
        schema: pa.Schema | Schema,
        *,
        partition_by: Iterable[str] = (),
        options: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
    ) -> Table:
        """Make a table, and its database when absent.

        Args:
            name: ``database.table``; ``default`` is the database when none is given.
            schema: columns. ``large_binary`` columns are BLOBs. A type that Paimon lacks is stored in a wider one that
                holds all its values (``uint8`` in ``int16``); `Table.schema` shows it.
            partition_by: columns whose values name the folders that queries prune by.
            options: Paimon table options, on top of what BLOB tables need. The catalog's ``table-default.*`` options hold
                where these say nothing.
            exist_ok: return the table when it exists with these columns and partitions.

        Raises:
            SchemaError: a column that the table could not hold, or an existing table of other columns.
            ConfigError: a bad name, or an existing table while ``exist_ok`` is False.
            CommitError: the store refuses.

        Example:
            >>> import lakehouse as lh, pyarrow as pa
            >>> schema = pa.schema([("id", pa.int64()), ("channel", pa.string()), ("frame_jpg", pa.large_binary())])
            >>> lh.connect(warehouse="lake").create_table("default.frames", schema, partition_by=["channel"], exist_ok=True)
            Table(default.frames, 3 columns, partition_by=['channel'])
        """
        from pypaimon.catalog.catalog_exception import TableAlreadyExistException

        database, table = split_table_name(name)
        full = f"{database}.{table}"
        if options is None or isinstance(options, Mapping):  # anything else is refused there
            options = {**self._table_defaults(), **(options or {})}
        wanted = paimon_schema(as_arrow(schema), partition_by, options, uuid.uuid4().hex)
        self.create_database(database)
        try:
            check_creates(self.paimon)
            with self._failures.writing(f"table {full} can't be made"):
                self.paimon.create_table(full, wanted, False)
        except ConfigError:
            raise
        except (TableAlreadyExistException, CommitError) as error:
            if not self._exists(full):  # an error may also mean that another process has just made it
                raise
            if not exist_ok and not self._is_own(full, wanted):
                raise ConfigError(f"table {full} exists; pass exist_ok=True to use it, or drop_table first") from error
            self._check_same(full, wanted)
        except (ValueError, NotImplementedError) as error:
            raise SchemaError(f"table {full} can't be made: {cause_line(error)}") from error
        return self.table(full)

    def _exists(self, full: str) -> bool:
        try:
            self._load(full, None)
        except NotFoundError:
            return False
        return True

    def _table_defaults(self) -> dict[str, str]:
        """The ``table-default.*`` options, which pypaimon doesn't apply; a server may give some too."""
        context = getattr(self.paimon, "context", None)
        options = self._config.options if context is None else context.options.to_map()
        return {
            key.removeprefix(_TABLE_DEFAULT): str(value) for key, value in options.items() if key.startswith(_TABLE_DEFAULT)
        }

    def _is_own(self, full: str, wanted: Any) -> bool:
        """Whether the table is the one that a call of ours made, whose answer was lost."""
        held = self.paimon.get_table(full).table_schema.options
        return bool(held.get(TABLE_UUID_OPTION) == wanted.options[TABLE_UUID_OPTION])

    def _check_same(self, full: str, wanted: Any) -> None:
        held = self.paimon.get_table(full)
        shapes = [[(field.name, str(field.type)) for field in fields] for fields in (held.fields, wanted.fields)]
        if shapes[0] != shapes[1]:
            differing = sorted({name for name, _ in set(shapes[0]) ^ set(shapes[1])}) or ["the order of columns"]
            raise SchemaError(f"table {full} exists with other columns: {', '.join(differing)} differ")
        if list(held.partition_keys) != list(wanted.partition_keys):
            raise SchemaError(
                f"table {full} exists with partitions {list(held.partition_keys)}, not {list(wanted.partition_keys)}"
            )
        by_reference = [
            set(filter(None, str(options.get(REFERENCE_OPTION, "")).split(",")))
            for options in (held.table_schema.options, wanted.options)
        ]
        if by_reference[0] != by_reference[1]:
            differing = sorted(by_reference[0] ^ by_reference[1])
            raise SchemaError(f"table {full} exists; declared by reference in one and not in the other: {', '.join(differing)}")

    def table(self, name: str) -> Table:
        """Open a table.

        Raises:
            NotFoundError: no such table; the text lists those that exist.
            SchemaError: a table without row tracking, which nothing of this package can read.
        """
        database, table = split_table_name(name)
        full = f"{database}.{table}"
        store = Store(self._config.options, partial(self._load, full, None))
        opened = Table(partial(self._load, full), full, self._config.blob_roots, store)
        if not opened.is_tracked:
            raise SchemaError(
                f"table {full} has no row ids (row-tracking.enabled=false); copy its rows into a table made by create_table"
            )
        return opened

    def foresee(self, name: str, branch: str | None, snapshot: int) -> None:
        """Say which snapshot of a table is needed next, so that a store is asked for it while the table is opened."""
        from lakehouse.upstream_store import foresee

        foresee(self.paimon, ".".join(split_table_name(name)), branch, snapshot)

    def _load(self, full: str, branch: str | None) -> Any:
        from pypaimon.catalog.catalog_exception import DatabaseNotExistException, TableNotExistException

        paimon = self.paimon
        try:
            with self._failures.asking():
                held = paimon.get_table(full if branch is None else f"{full}$branch_{branch}")
        except (TableNotExistException, DatabaseNotExistException) as error:
            raise self._no_table(full) from error
        except LakehouseError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise NotFoundError(f"table {full!r} in {self._failures.place} can't be read: {cause_line(error)}") from error
        return remedied(held)

    def drop_table(self, name: str, missing_ok: bool = False) -> None:
        """Delete a table and everything in it.

        Raises:
            NotFoundError: no such table, unless ``missing_ok``.
            CommitError: the store refuses; on a local warehouse the text says whether the table is still there, elsewhere some
                of its files may be gone.
        """
        database, table = split_table_name(name)
        full = f"{database}.{table}"
        remains = getattr(self.paimon, "has_remains", None)  # half of a table that another engine dropped
        if full not in self._neighbours(full) and not (remains is not None and remains(full)):
            if missing_ok:
                return
            raise self._no_table(full)
        check_creates(self.paimon)
        with self._failures.writing(f"table {full} can't be dropped"):
            self.paimon.drop_table(full)

    def _neighbours(self, full: str) -> list[str]:
        """All tables of a table's database; none where that is missing."""
        database = full.partition(".")[0]
        return self.tables(database) if database in self.databases() else []

    def _no_table(self, full: str) -> NotFoundError:
        known = self._neighbours(full) or self.tables()
        return NotFoundError(f"no table {full!r} in {self._failures.place}; tables: {', '.join(known[:20]) or 'none'}")

    # --- training sets -------------------------------------------------------------------------------------------------

    def save_training_set(self, name: str, index: RowIndex, *, description: str | None = None) -> TrainingSet:
        """Keep an index under a name, with all that is needed to have exactly the same rows again.

        It becomes one row of the table ``lakehouse.training_sets`` (made on first use, readable by any engine). Its snapshot is
        pinned by a tag, so that expiry can't take its rows.

        Args:
            name: letters, digits, ``_``, ``-`` and ``.``, at most 90. Saving under a name again makes the next version.
            index: made by a query (also one of a branch), split, sampled, taken from; or by ``from_daft(df, table=...)``.
            description: for people.

        Returns:
            What was saved, with its version.

        Raises:
            ConfigError: a name that can't be one.
            SchemaError: an index that names no snapshot of a table.
            NotFoundError: its snapshot is gone.
            CommitError: nothing was saved; trying again is safe.
            CommitUnknownError: the outcome is unknown; look at `training_sets` first.

        Example:
            >>> saved = catalog.save_training_set("rain-v2", parts["train"], description="without wipers")  # doctest: +SKIP
        """
        return self._registry().save(name, index, description)

    def training_set(self, name: str, version: int | None = None) -> TrainingSet:
        """A saved training set.

        Args:
            name: its name.
            version: which; None: the latest.

        Raises:
            NotFoundError: no such set or version; the text lists those that exist.

        Example:
            >>> loader = lh.Loader(lh.Dataset(catalog.training_set("rain-v2").index(), batch_size=64))  # doctest: +SKIP
        """
        return self._registry().get(name, version)

    def training_sets(self) -> list[TrainingSet]:
        """All saved training sets, by name and version."""
        return self._registry().all()

    def rows_seen(self, state: Mapping[str, Any], *, global_batch: int | None = None) -> RowIndex:
        """The rows that a model had trained on when its loader's state was saved; see `TrainingSet.seen`.

        Args:
            state: what `Loader.state_dict` gave; it names the index by its fingerprint.
            global_batch: ``world * batch_size`` of a run with ``tail="drop"``, to leave out what no epoch took.

        Raises:
            NotFoundError: no saved training set has that index.
            ResumeError: a malformed state.
        """
        return self._registry().seen(state, global_batch)

    def _registry(self) -> Registry:
        from lakehouse.registry import Registry

        return Registry(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Catalog, (self._config,)  # which keeps secrets out of a plain pickle; see `lakehouse.config`

    def __repr__(self) -> str:
        return f"Catalog({self._config})"
